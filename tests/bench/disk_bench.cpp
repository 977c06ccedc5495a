// Compares the disk tier with fio on the same file system in the same run, with pages of 64 KiB and 1 MiB and a queue
// depth of 32. Each run of the store has a run of fio next to it (direct I/O through io_uring with registered buffers;
// its file is preallocated like the store's; it reads what it wrote). Which of the two writes first, and which is timed
// first, alternates. For the store, only the bytes of the pages count, and its time includes the copies from and to
// memory, the checksums, and the syncs of sealed segments. fio syncs as often.
// Counters: store_GB_per_second and fio_GB_per_second (medians), of_fio (median of the ratios, store to fio, of
// neighbouring runs).
//   TMPDIR=/mnt/disk build/tests/disk_bench
#include <benchmark/benchmark.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <string>
#include <vector>

#include "impl/disk/segment_store.hpp"
#include "models/json.hpp"
#include "tests/bench_work.hpp"
#include "tests/program.hpp"
#include "tests/splitmix.hpp"

namespace {

using namespace kvtwin;
using test::BenchWork;

constexpr std::uint32_t kDepth = 32;
constexpr Bytes kBytes = Bytes{1} << 30;  // per run
constexpr Bytes kCapacity = Bytes{16} << 30;

// Runs fio and returns its bytes per second, or 0 if fio failed.
double fio(const std::string& folder, const std::string& pattern, Bytes block, std::uint32_t sync_every) {
  const std::string command =
      "fio --name=bench --directory=" + folder + " --filename=fio --rw=" + pattern + " --bs=" + std::to_string(block) +
      " --size=" + std::to_string(kBytes) + " --iodepth=" + std::to_string(kDepth) +
      (pattern.ends_with("write") ? " --fsync=" + std::to_string(sync_every) : "") +
      " --ioengine=io_uring --fixedbufs=1 --registerfiles=1 --direct=1 --randrepeat=1 --output-format=json 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return 0;
  std::string text;
  std::array<char, 4096> buffer;
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) text.append(buffer.data(), n);
  if (pclose(pipe) != 0) return 0;
  const auto json = Json::parse_or_discard(text.substr(std::min(text.find('{'), text.size())));
  if (json.is_discarded()) return 0;
  const auto& job = json["jobs"][0];
  return job[pattern.ends_with("read") ? "read" : "write"]["bw_bytes"].get<double>();
}

double store_rate(SegmentStore& store, const PageForm& form, StorageVerb verb, bool random, std::uint64_t& failed) {
  std::vector<std::uint64_t> pages(kBytes / form.bytes());
  std::iota(pages.begin(), pages.end(), 0);
  test::Splitmix rng(1);
  for (std::size_t i = pages.size(); random && i > 1; --i) std::swap(pages[i - 1], pages[rng.below(i)]);
  BenchWork work(form, verb, std::move(pages));
  const auto begin = std::chrono::steady_clock::now();
  verb == StorageVerb::get ? store.read(work) : store.write(work);
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
  failed += work.failed;
  return static_cast<double>(kBytes) / time.count();
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

void disk(benchmark::State& state) {
  const auto block = static_cast<std::uint32_t>(state.range(0));
  const bool reads = state.range(1) != 0, random = state.range(2) != 0;
  const PageForm form{{1, 1, 1, block / 16, 16}, Layout::page_first};
  const std::string pattern = std::string(random ? "rand" : "") + (reads ? "read" : "write");
  const StorageVerb verb = reads ? StorageVerb::get : StorageVerb::set;
  std::vector<double> stores, fios, ratios;
  std::uint64_t failed = 0;
  std::string description;
  for (auto _ : state) {
    const test::Folder folder;
    SegmentStoreConfig config;
    config.folder = folder / "tier";
    config.capacity_pages = kCapacity / form.bytes();
    config.form = form;
    config.depth = kDepth;
    SegmentStore store(config);
    description = store.description();
    if (reads) {
      // The data that was written last may be read faster: a virtual disk may have a cache of its host behind it.
      const bool fio_writes_first = stores.size() / 2 % 2 != 0;
      if (fio_writes_first) fio(folder.path().string(), "write", block, segment_slots(config));
      store_rate(store, form, StorageVerb::set, false, failed);
      store.sync();
      if (!fio_writes_first) fio(folder.path().string(), "write", block, segment_slots(config));
    }
    const bool fio_first = stores.size() % 2 != 0;
    ::sync();  // a journal commit discards the blocks of deleted files, which the next sync would wait for
    if (fio_first) fios.push_back(fio(folder.path().string(), pattern, block, segment_slots(config)));
    if (fio_first) ::sync();
    stores.push_back(store_rate(store, form, verb, random, failed));
    if (!fio_first) ::sync();
    if (!fio_first) fios.push_back(fio(folder.path().string(), pattern, block, segment_slots(config)));
    if (fios.back() == 0) return state.SkipWithError("fio didn't run: apt-get install fio");
    if (failed > 0) return state.SkipWithError("pages were not stored or got");
    ratios.push_back(stores.back() / fios.back());
    state.SetIterationTime(static_cast<double>(kBytes) / stores.back());
  }
  state.SetLabel(pattern + "; " + description);
  state.counters["store_GB_per_second"] = median(stores) / 1e9;
  state.counters["fio_GB_per_second"] = median(fios) / 1e9;
  state.counters["of_fio"] = median(ratios);
}

BENCHMARK(disk)
    ->ArgNames({"block", "reads", "random"})
    ->ArgsProduct({{64 << 10, 1 << 20}, {0, 1}, {0, 1}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(16);

}  // namespace
