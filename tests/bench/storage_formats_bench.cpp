// Compares the two storage formats of the disk tier, with the same pages in the same run: segments, and HiCache's
// format with one file per page. Measures pages per second and CPU time per page. The pages are written; then read in
// random order, after the page cache of the operating system was asked to drop them (segments are read past the page
// cache anyway); then read once more, when the page cache may hold them.
// Counters: segments_pages_per_second and files_pages_per_second (medians); faster and less_cpu (medians of the ratios,
// files to segments, of wall time and of CPU time in neighbouring runs).
// Also compares segments with segments whose pages carry a keyed checksum (KVTWIN_PAGE_KEY): times_as_long (wall time)
// and times_the_cpu (CPU time). And shared files whose pages are copied with shared files whose pages are moved in
// place.
//   TMPDIR=/mnt/disk build/tests/storage_formats_bench
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "impl/disk/hicache_files.hpp"
#include "impl/disk/segment_store.hpp"
#include "impl/disk/shared_files.hpp"
#include "tests/bench_work.hpp"
#include "tests/program.hpp"

namespace {

using namespace kvtwin;

constexpr Bytes kBytes = Bytes{512} << 20;  // per run

struct Took {
  double wall = 0, cpu = 0;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

Took move_pages(StorageBackend& store, const PageForm& form, StorageVerb verb, bool in_place, std::uint64_t& failed) {
  std::vector<std::uint64_t> pages(kBytes / form.bytes());
  std::iota(pages.begin(), pages.end(), 0);
  test::Splitmix rng(1);
  for (std::size_t i = pages.size(); verb == StorageVerb::get && i > 1; --i)
    std::swap(pages[i - 1], pages[rng.below(i)]);
  test::BenchWork work(form, verb, std::move(pages), store.seal(), in_place);
  const double cpu = cpu_seconds();
  const auto begin = std::chrono::steady_clock::now();
  verb == StorageVerb::get ? store.read(work) : store.write(work);
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
  failed += work.failed;
  return {wall.count(), cpu_seconds() - cpu};
}

// Writes the files of the folder to the disk and drops them from the page cache.
void drop_cached(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    ::fdatasync(file);
    ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

enum Act : std::int64_t { kWrite, kReadFromDisk, kReadCached };

Took run_once(StorageBackend& store, const std::filesystem::path& folder, const PageForm& form, Act act, bool in_place,
              std::uint64_t& failed) {
  const Took written = move_pages(store, form, StorageVerb::set, in_place, failed);
  if (act == kWrite) return written;
  drop_cached(folder);
  const Took first = move_pages(store, form, StorageVerb::get, in_place, failed);
  return act == kReadFromDisk ? first : move_pages(store, form, StorageVerb::get, in_place, failed);
}

using Open = std::function<std::unique_ptr<StorageBackend>(const std::filesystem::path& folder, const PageForm& form)>;

std::unique_ptr<StorageBackend> open_segments(const std::filesystem::path& folder, const PageForm& form,
                                              const PageSeal* seal) {
  SegmentStoreConfig config;
  config.folder = folder;
  config.capacity_pages = 2 * kBytes / form.bytes();
  config.form = form;
  config.seal = seal;
  return std::make_unique<SegmentStore>(config);
}

std::unique_ptr<StorageBackend> open_files(const std::filesystem::path& folder, const PageForm& form) {
  HiCacheFilesConfig config;
  config.folder = folder;
  config.model = "bench";
  config.capacity = 2 * kBytes / form.bytes();
  return make_hicache_files(config, form);
}

std::unique_ptr<StorageBackend> open_shared(const std::filesystem::path& folder, const PageForm& form) {
  return make_shared_files({.folder = folder, .capacity = 4 * kBytes / form.bytes() * shared_file_bytes(form)}, form);
}

// The results of pairs of neighbouring runs. Which of the two stores runs first alternates.
struct Pairs {
  std::vector<double> one_rate, other_rate, wall_ratio, cpu_ratio;  // ratios: other / one
};

// `in_place`: of the other's pages.
Pairs run_pairs(benchmark::State& state, const Open& one, const Open& other, bool in_place = false) {
  const auto page = static_cast<std::uint32_t>(state.range(0));
  const auto act = static_cast<Act>(state.range(1));
  const PageForm form{{1, 1, 1, page / 16, 16}, Layout::page_first};
  const double pages = static_cast<double>(kBytes / form.bytes());
  Pairs pairs;
  std::uint64_t failed = 0;
  for (auto _ : state) {
    Took took, others;
    for (const bool first : {true, false}) {
      const test::Folder folder;
      const bool now = first == (pairs.one_rate.size() % 2 == 0);
      const auto store = (now ? one : other)(folder / "tier", form);
      (now ? took : others) = run_once(*store, folder / "tier", form, act, in_place && !now, failed);
    }
    pairs.one_rate.push_back(pages / took.wall);
    pairs.other_rate.push_back(pages / others.wall);
    pairs.wall_ratio.push_back(others.wall / took.wall);
    pairs.cpu_ratio.push_back(others.cpu / took.cpu);
    state.SetIterationTime(took.wall);
  }
  if (failed > 0) state.SkipWithError("pages were not stored or got");
  state.SetLabel(act == kWrite ? "write" : act == kReadFromDisk ? "read from disk" : "read again");
  return pairs;
}

void formats(benchmark::State& state) {
  const auto segments = [](const std::filesystem::path& folder, const PageForm& form) {
    return open_segments(folder, form, nullptr);
  };
  const Pairs pairs = run_pairs(state, segments, open_files);
  state.counters["segments_pages_per_second"] = median(pairs.one_rate);
  state.counters["files_pages_per_second"] = median(pairs.other_rate);
  state.counters["faster"] = median(pairs.wall_ratio);
  state.counters["less_cpu"] = median(pairs.cpu_ratio);
}

void secret(benchmark::State& state) {
  const PageSeal seal("sixteen characters and more");
  const auto opens = [](const PageSeal* with) {
    return
        [with](const std::filesystem::path& folder, const PageForm& form) { return open_segments(folder, form, with); };
  };
  const Pairs pairs = run_pairs(state, opens(nullptr), opens(&seal));
  state.counters["plain_pages_per_second"] = median(pairs.one_rate);
  state.counters["secret_pages_per_second"] = median(pairs.other_rate);
  state.counters["times_as_long"] = median(pairs.wall_ratio);
  state.counters["times_the_cpu"] = median(pairs.cpu_ratio);
}

void in_place(benchmark::State& state) {
  const Pairs pairs = run_pairs(state, open_shared, open_shared, true);
  const double gigabytes = static_cast<double>(state.range(0)) / 1e9;
  state.counters["copied_gbps"] = gigabytes * median(pairs.one_rate);
  state.counters["in_place_gbps"] = gigabytes * median(pairs.other_rate);
  state.counters["times_as_long"] = median(pairs.wall_ratio);
  state.counters["times_the_cpu"] = median(pairs.cpu_ratio);
}

BENCHMARK(formats)
    ->ArgNames({"page", "act"})
    ->ArgsProduct({{64 << 10, 1 << 20}, {kWrite, kReadFromDisk, kReadCached}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(5);
BENCHMARK(secret)
    ->ArgNames({"page", "act"})
    ->ArgsProduct({{64 << 10, 1 << 20}, {kWrite, kReadFromDisk, kReadCached}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(5);
BENCHMARK(in_place)
    ->ArgNames({"page", "act"})
    ->ArgsProduct({{64 << 10, 2 << 20}, {kWrite, kReadFromDisk, kReadCached}})
    ->Unit(benchmark::kMillisecond)
    ->UseManualTime()
    ->Iterations(5);

}  // namespace
