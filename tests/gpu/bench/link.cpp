// Writes link.csv: the rates of the link between host and GPU, for the copy engines and for the multiprocessors.
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "tests/gpu/bench/bench.hpp"

namespace kvtwin::test {
namespace {

struct Varied {
  std::uint32_t ctas = 0, stages = 0;
  std::uint64_t portion = 0;
};

void row(Table& table, const char* kind, const char* direction, std::uint64_t bytes, const Varied& varied, int node,
         const std::vector<double>& seconds) {
  std::vector<double> rates;
  for (const double s : seconds) rates.push_back(gigabytes_per_second(bytes, s));
  const Spread rate = spread_of(rates);
  table.row({kind, direction, bytes, varied.ctas, varied.stages, varied.portion, std::to_string(node), rate.median,
             rate.p10, rate.p90, std::uint64_t{rate.count}, spread_of(seconds).median * 1e6});
}

void copies_by_size(Bench& bench, Table& table) {
  for (std::uint64_t bytes = 4096; bytes <= bench.options.pool_bytes; bytes *= 4) {
    for (const bool to_device : {true, false}) {
      row(table, "copy", direction_name(to_device), bytes, {}, bench.gpu.numa_node,
          repeated(
              bench.repeats(), [&] { return bench.big_copy(to_device, bytes); }, now_seconds));
    }
  }
}

// Copies one half of the device pool to the other half: the reference for relayout, which also reads and writes each
// byte.
void copy_on_device(Bench& bench, Table& table) {
  const std::uint64_t bytes = bench.options.pool_bytes / 2;
  const auto once = [&] {
    const auto queue = [&] {
      check(cudaMemcpyAsync(bench.device.data() + bytes, bench.device.data(), bytes, cudaMemcpyDeviceToDevice,
                            bench.stream.get()),
            "a copy within GPU memory");
    };
    return bench.watch(bench.stream, queue).seconds;
  };
  row(table, "copy_on_device", "d2d", bytes, {}, bench.gpu.numa_node, repeated(bench.repeats(), once, now_seconds));
}

// Copies in both directions at the same time, and measures each direction.
void copy_both(Bench& bench, Table& table) {
  Stream up, down;
  Event begin, ends[2];
  const std::uint64_t half = bench.options.pool_bytes / 2;
  for (std::uint64_t bytes = 65536; bytes <= half; bytes *= 4) {
    std::vector<double> seconds[2];
    const auto once = [&] {
      begin.record(up);
      follow(down, begin);
      check(cudaMemcpyAsync(bench.device.data(), bench.host.data(), bytes, cudaMemcpyHostToDevice, up.get()), "a copy");
      check(cudaMemcpyAsync(bench.host.data() + half, bench.device.data() + half, bytes, cudaMemcpyDeviceToHost,
                            down.get()),
            "a copy");
      ends[0].record(up);
      ends[1].record(down);
      up.wait();
      down.wait();
      for (int i : {0, 1}) seconds[i].push_back(seconds_between(begin, ends[i]));
      return 0.0;
    };
    repeated(bench.repeats(), once, now_seconds);
    row(table, "copy_both", "h2d", bytes, {}, bench.gpu.numa_node, seconds[0]);
    row(table, "copy_both", "d2h", bytes, {}, bench.gpu.numa_node, seconds[1]);
  }
}

void kernels_against_ctas(Bench& bench, Table& table) {
  const std::uint64_t chunk = 32768, bytes = bench.options.tiny ? 64 * chunk : std::uint64_t{64} << 20;
  const Pools pools = bench.pools(chunk, bytes / chunk);
  for (const Way way : {Way::kernel, Way::ring}) {
    for (const bool to_device : {true, false}) {
      PageTransfer transfer(way, pools, to_device, 0, pools.pages, nullptr);
      if (!transfer.possible()) continue;
      for (const std::uint32_t ctas : {1u, 2u, 4u, 8u, 16u, 32u}) {
        transfer.set_ctas(ctas);
        const auto once = [&] { return bench.watch(bench.stream, [&] { transfer.submit(bench.stream); }).seconds; };
        row(table, name_of(way), direction_name(to_device), transfer.bytes(), {ctas}, bench.gpu.numa_node,
            repeated(bench.repeats(), once, now_seconds));
      }
    }
  }
}

// The ring by its number of stages, with the CTAs of the hardware file.
void ring_against_stages(Bench& bench, Table& table) {
  const std::uint64_t chunk = 32768, bytes = bench.options.tiny ? 64 * chunk : std::uint64_t{64} << 20;
  const Pools pools = bench.pools(chunk, bytes / chunk);
  for (const bool to_device : {true, false}) {
    PageTransfer transfer(Way::ring, pools, to_device, 0, pools.pages, nullptr);
    if (!transfer.possible()) return;
    for (const std::uint32_t stages : {2u, 3u, 4u}) {
      const LaunchLimits limits{copy_sizes().ring.ctas, stages};
      transfer.set_limits(limits);
      const auto once = [&] { return bench.watch(bench.stream, [&] { transfer.submit(bench.stream); }).seconds; };
      row(table, "ring_stages", direction_name(to_device), transfer.bytes(), {limits.ctas, stages}, bench.gpu.numa_node,
          repeated(bench.repeats(), once, now_seconds));
    }
  }
}

// Staged transfers by the size of a portion, with the CTAs of the hardware file.
void staged_against_portions(Bench& bench, Table& table) {
  const std::uint64_t chunk = 2048, bytes = bench.options.tiny ? 256 * chunk : std::uint64_t{256} << 20;
  const Pools pools = bench.pools(chunk, std::min(bytes, bench.options.pool_bytes) / chunk);
  const std::uint64_t usual = copy_sizes().portion_bytes;
  for (std::uint64_t portion = bench.staging.half_bytes() / 16; portion <= bench.staging.half_bytes(); portion *= 2) {
    copy_sizes().portion_bytes = portion;
    for (const bool to_device : {true, false}) {
      PageTransfer transfer(Way::staged, pools, to_device, 0, pools.pages, &bench.staging);
      if (!transfer.possible()) continue;
      const auto once = [&] { return bench.watch(bench.stream, [&] { transfer.submit(bench.stream); }).seconds; };
      row(table, "staged", direction_name(to_device), transfer.bytes(), {copy_sizes().kernel.ctas, 0, portion},
          bench.gpu.numa_node, repeated(bench.repeats(), once, now_seconds));
    }
  }
  copy_sizes().portion_bytes = usual;
}

// Page-locked host memory of one NUMA node. data() is null if the system does not allow it.
class NodeMemory {
 public:
  NodeMemory(int node, std::uint64_t bytes) : bytes_(bytes) {
    at_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at_ == MAP_FAILED) return;
    constexpr int kBind = 2;  // MPOL_BIND
    const unsigned long mask = 1ul << node;
    if (syscall(SYS_mbind, at_, bytes, kBind, &mask, 8 * sizeof mask, 0) != 0) return;
    there_ = cudaHostRegister(at_, bytes, cudaHostRegisterMapped) == cudaSuccess;
    if (!there_)
      static_cast<void>(cudaGetLastError());  // clears the error; otherwise the next launch would seem to fail
  }
  NodeMemory(const NodeMemory&) = delete;
  NodeMemory& operator=(const NodeMemory&) = delete;
  ~NodeMemory() {
    if (there_) static_cast<void>(cudaHostUnregister(at_));
    if (at_ != MAP_FAILED) munmap(at_, bytes_);
  }
  void* data() const { return there_ ? at_ : nullptr; }

 private:
  void* at_;
  std::uint64_t bytes_;
  bool there_ = false;
};

void nodes(Bench& bench, Table& table) {
  const std::uint64_t bytes = std::min<std::uint64_t>(bench.options.pool_bytes, std::uint64_t{256} << 20);
  for (int node = 0; node < 64; ++node) {
    if (!std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(node))) continue;
    const NodeMemory memory(node, bytes);
    if (memory.data() == nullptr) continue;
    for (const bool to_device : {true, false}) {
      const auto once = [&] {
        return bench
            .watch(bench.stream,
                   [&] {
                     check(cudaMemcpyAsync(to_device ? bench.device.data() : memory.data(),
                                           to_device ? memory.data() : bench.device.data(), bytes, cudaMemcpyDefault,
                                           bench.stream.get()),
                           "a copy");
                   })
            .seconds;
      };
      row(table, "copy_node", direction_name(to_device), bytes, {}, node, repeated(bench.repeats(), once, now_seconds));
    }
  }
}

}  // namespace

void bench_link(Bench& bench) {
  Table table = bench.table(
      "link",
      {"kind", "direction", "bytes", "ctas", "stages", "portion_bytes", "node", "gbps", "p10", "p90", "samples", "us"},
      {"copy: copy engine, alone; copy_both: both directions at once; kernel, ring: "
       "multiprocessors; ring_stages: by the stages of the ring; staged: by the bytes of a portion; copy_node: host "
       "memory of that NUMA node; node -1: not said"});
  const Pools all = bench.pools(32768, bench.options.pool_bytes / 32768);
  KnownBytes known(all, bench.options.seed);
  known.prepare(all, true, bench.stream);  // so that no measurement copies zeros
  copies_by_size(bench, table);
  copy_on_device(bench, table);
  copy_both(bench, table);
  kernels_against_ctas(bench, table);
  ring_against_stages(bench, table);
  staged_against_portions(bench, table);
  nodes(bench, table);
}

}  // namespace kvtwin::test
