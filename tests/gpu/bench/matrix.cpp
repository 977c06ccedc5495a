// Writes matrix.csv: compares every path, direction, piece size and number of pieces with one large copy of the same
// size.
#include <algorithm>
#include <optional>

#include "tests/gpu/bench/bench.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

double Bench::big_copy(bool to_device, std::uint64_t bytes) {
  std::byte* target = to_device ? device.data() : host.data();
  const std::byte* source = to_device ? host.data() : device.data();
  const auto kind = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  return watch(stream, [&] { check(cudaMemcpyAsync(target, source, bytes, kind, stream.get()), "one big copy"); })
      .seconds;
}

namespace {

struct Cell {
  std::uint64_t chunk, chunks;
  bool to_device;
};

std::vector<Cell> cells_of(const Options& options) {
  std::vector<std::uint64_t> chunks = {512, 1152, 2048, 4096, 8192, 16384, 24576, 28672, 32768, 65536, 131072, 262144};
  std::vector<std::uint64_t> counts = {16, 64, 256, 1024, 4096, 32768};
  if (options.tiny) {
    chunks = {512, 1152, 24576};
    counts = {16, 64};
  }
  std::vector<Cell> cells;
  for (const std::uint64_t chunk : chunks) {
    for (const std::uint64_t count : counts) {
      if (chunk * count > std::min(options.max_bytes, options.pool_bytes)) continue;
      for (const bool to_device : {true, false}) cells.push_back({chunk, count, to_device});
    }
  }
  return cells;
}

template <typename T>
void shuffle(std::vector<T>& items, Splitmix& rng) {
  for (std::size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[rng.below(i)]);
}

// Returns the number of wrong bytes of one transfer. Not part of a measurement.
std::uint64_t wrong_bytes(Bench& bench, const Pools& pools, KnownBytes& known, PageTransfer& transfer, bool to_device) {
  known.prepare(pools, to_device, bench.stream);
  transfer.submit(bench.stream);
  bench.stream.wait();
  return known.wrong(pools, to_device, bench.stream);
}

void measure(Bench& bench, Table& table, const Cell& cell, Way way, const Pools& pools, KnownBytes& known,
             const Repeats& repeats) {
  PageTransfer transfer(way, pools, cell.to_device, 0, pools.pages, &bench.staging);
  if (!transfer.possible()) return;
  std::vector<double> submit, kernel;
  const auto pairs = in_pairs(
      repeats, [&] { return bench.big_copy(cell.to_device, transfer.bytes()); },
      [&] {
        const Stopwatch::Time time = bench.watch(bench.stream, [&] { transfer.submit(bench.stream); });
        submit.push_back(time.submit);
        return time.seconds;
      },
      now_seconds);
  std::vector<double> ratio, rate, base;
  for (const auto& [big, own] : pairs) {
    ratio.push_back(big / own);
    rate.push_back(gigabytes_per_second(transfer.bytes(), own));
    base.push_back(gigabytes_per_second(transfer.bytes(), big));
  }
  double kernel_seconds = 0;
  if (limits_of(way).ctas > 0) {
    kernel = repeated(
        {3, 3, 0}, [&] { return bench.watch(bench.stream, [&] { transfer.submit_kernels(bench.stream); }).seconds; },
        now_seconds);
    kernel_seconds = spread_of(kernel).median;
  }
  const double gigabytes = static_cast<double>(transfer.bytes()) * 1e-9;
  const double sm_ms = limits_of(way).ctas * kernel_seconds * 1e3 / gigabytes;
  const std::uint64_t wrong = wrong_bytes(bench, pools, known, transfer, cell.to_device);
  bench.wrong_cells += wrong > 0;
  const Spread r = spread_of(ratio);
  table.row({name_of(way), direction_name(cell.to_device), cell.chunk, cell.chunks, transfer.bytes(), r.median, r.p10,
             r.p90, std::uint64_t{r.count}, spread_of(rate).median, spread_of(base).median,
             spread_of(submit).median * 1e6, std::uint64_t{limits_of(way).ctas}, sm_ms, sm_ms / bench.gpu.sms, wrong});
}

}  // namespace

void bench_matrix(Bench& bench) {
  Table table = bench.table(
      "matrix",
      {"path", "direction", "chunk_bytes", "chunks", "bytes", "r_median", "r_p10", "r_p90", "pairs", "gbps",
       "base_gbps", "submit_us", "ctas", "sm_ms_per_gb", "gpu_ms_per_gb", "wrong_bytes"},
      {"r: rate over that of one big copy of as many bytes, taken in turn; sm_ms_per_gb: CTAs times kernel time",
       "left out: cells of more than " + std::to_string(std::min(bench.options.max_bytes, bench.options.pool_bytes)) +
           " bytes; the ring where it can't move the pieces; staging of pages larger than " +
           std::to_string(bench.staging.half_bytes()) + " bytes"});
  Splitmix rng(mix(bench.options.seed));
  std::vector<Cell> cells = cells_of(bench.options);
  shuffle(cells, rng);
  const double begin = now_seconds();
  double left = static_cast<double>(cells.size() * std::size(kWays));
  for (const Cell& cell : cells) {
    const Pools pools = bench.pools(cell.chunk, cell.chunks);
    KnownBytes known(pools, rng.next());
    known.prepare(pools, cell.to_device, bench.stream);  // so that no measurement copies zeros
    std::vector<Way> ways(std::begin(kWays), std::end(kWays));
    shuffle(ways, rng);
    for (const Way way : ways) {
      // Most cells are small and need less than an equal share of the time, so every cell may use four shares.
      const double spare = std::max(0.0, bench.options.seconds - (now_seconds() - begin));
      const Repeats repeats{5, 21, 4 * spare / left};
      measure(bench, table, cell, way, pools, known, bench.options.tiny ? Repeats{1, 1, 0} : repeats);
      left -= 1;
    }
  }
}

}  // namespace kvtwin::test
