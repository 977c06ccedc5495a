// Writes boxes.csv, the cost of a row in a 3-D copy; and order.csv, the effect of access order and flags on a batch of
// copies.
#include "tests/gpu/bench/bench.hpp"

namespace kvtwin::test {
namespace {

// Measures boxes of `rows` rows. A page with `rows` layers of one row is one box between a layer_first pool and a
// page_first pool.
void box_rows(Bench& bench, Table& table, std::uint64_t width, std::uint32_t rows, bool to_device) {
  const std::uint64_t boxes = bench.options.tiny ? 2 : 64;
  if (width * rows * boxes > bench.options.pool_bytes) return;
  TransferParams p;
  p.shape = {
      .layers = rows, .planes = 1, .heads = 1, .head_bytes = static_cast<std::uint32_t>(width), .page_tokens = 1};
  p.device = bench.device.data();
  p.host = bench.host.data();
  p.device_pages = p.host_pages = boxes;
  p.host_layout = Layout::page_first;
  p.to_device = to_device;
  p.layer_end = rows;
  std::vector<PageRun> runs;
  for (std::uint32_t i = 0; i < boxes; ++i) runs.push_back({i, static_cast<std::uint32_t>(boxes) - 1 - i, 1});
  p.runs = runs.data();
  p.run_count = runs.size();
  CopyList copies;
  copies.assign_boxes(p);
  const std::uint64_t bytes = width * rows * boxes;
  std::vector<double> own, big;
  for (const auto& [first, second] : in_pairs(
           bench.repeats(), [&] { return bench.big_copy(to_device, bytes); },
           [&] {
             const auto queue = [&] { check(copies.submit(0, copies.size(), bench.stream.get()), "a batch of boxes"); };
             return bench.watch(bench.stream, queue).seconds;
           },
           now_seconds)) {
    big.push_back(first);
    own.push_back(second);
  }
  const Spread time = spread_of(own);
  table.row({direction_name(to_device), width, rows, std::uint64_t{copies.size()}, time.median * 1e6, time.p10 * 1e6,
             time.p90 * 1e6, std::uint64_t{time.count}, time.median * 1e6 / static_cast<double>(rows * copies.size()),
             spread_of(big).median / time.median});
}

struct Batch {
  std::vector<void*> targets, sources;
  std::vector<std::size_t> sizes;
};

Batch pieces_of(const Pools& pools, bool to_device) {
  const std::uint64_t chunk = pools.shape.row_bytes() * pools.shape.page_tokens;
  Batch batch;
  for (std::uint64_t i = 0; i < pools.pages; ++i) {
    for (std::uint64_t part = 0; part < std::uint64_t{pools.shape.layers} * pools.shape.planes; ++part) {
      void* device = pools.device + (part * pools.pages + static_cast<std::uint64_t>(pools.device_pages[i])) * chunk;
      void* host =
          pools.host +
          (static_cast<std::uint64_t>(pools.host_pages[i]) * pools.shape.layers * pools.shape.planes + part) * chunk;
      batch.targets.push_back(to_device ? device : host);
      batch.sources.push_back(to_device ? host : device);
      batch.sizes.push_back(chunk);
    }
  }
  return batch;
}

// Submits a batch with any access order and flags. CopyList supports only one order, without flags.
cudaError_t submit(Batch& b, cudaMemcpySrcAccessOrder order, unsigned flags, cudaStream_t stream) {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = order;
  attributes.flags = flags;
  std::size_t first = 0;
#if CUDART_VERSION >= 13000
  return cudaMemcpyBatchAsync(b.targets.data(), const_cast<const void**>(b.sources.data()), b.sizes.data(),
                              b.sizes.size(), &attributes, &first, 1, stream);
#else
  std::size_t failed = 0;
  return cudaMemcpyBatchAsync(b.targets.data(), b.sources.data(), b.sizes.data(), b.sizes.size(), &attributes, &first,
                              1, &failed, stream);
#endif
}

void orders(Bench& bench, Table& table, std::uint64_t chunk, bool to_device) {
  const Pools pools = bench.pools(chunk, bench.options.tiny ? 16 : 1024);
  Batch batch = pieces_of(pools, to_device);
  constexpr std::pair<const char*, cudaMemcpySrcAccessOrder> kOrders[] = {
      {"stream", cudaMemcpySrcAccessOrderStream},
      {"during_call", cudaMemcpySrcAccessOrderDuringApiCall},
      {"any", cudaMemcpySrcAccessOrderAny}};
  constexpr std::pair<const char*, unsigned> kFlags[] = {
      {"default", cudaMemcpyFlagDefault}, {"overlap_with_compute", cudaMemcpyFlagPreferOverlapWithCompute}};
  for (const auto& [order_name, order] : kOrders) {
    for (const auto& [flags_name, flags] : kFlags) {
      std::vector<double> ratio, submitted;
      const auto once = [&] {
        const Stopwatch::Time time = bench.watch(
            bench.stream, [&] { check(submit(batch, order, flags, bench.stream.get()), "a batch of copies"); });
        submitted.push_back(time.submit * 1e6);
        return time.seconds;
      };
      const auto big = [&] { return bench.big_copy(to_device, pools.bytes()); };
      for (const auto& [base, own] : in_pairs(bench.repeats(), big, once, now_seconds)) ratio.push_back(base / own);
      const Spread r = spread_of(ratio);
      table.row({direction_name(to_device), chunk, std::uint64_t{batch.sizes.size()}, order_name, flags_name, r.median,
                 r.p10, r.p90, std::uint64_t{r.count}, spread_of(submitted).median});
    }
  }
}

}  // namespace

void bench_copies(Bench& bench) {
  if (bench.options.tables.contains("boxes")) {
    Table table = bench.table(
        "boxes", {"direction", "width", "rows", "boxes", "us", "us_p10", "us_p90", "pairs", "us_per_row", "r_median"},
        {"rows: of each box; us: of all boxes. Two numbers of rows give the cost of a row."});
    for (const std::uint64_t width : {512, 1152, 2048, 4096, 8192, 16384, 24576, 32768, 65536, 131072, 262144}) {
      for (const std::uint32_t rows : {1u, 16u, 64u}) {
        if (bench.options.tiny && (width > 4096 || rows > 16)) continue;
        for (const bool to_device : {true, false}) box_rows(bench, table, width, rows, to_device);
      }
    }
  }
  if (bench.options.tables.contains("order")) {
    Table table = bench.table("order", {"direction", "chunk_bytes", "chunks", "access_order", "flags", "r_median",
                                        "r_p10", "r_p90", "pairs", "submit_us"});
    for (const std::uint64_t chunk : {4096, 8192, 16384, 24576, 28672, 32768, 65536}) {
      if (bench.options.tiny && chunk > 4096) continue;
      for (const bool to_device : {true, false}) orders(bench, table, chunk, to_device);
    }
  }
}

}  // namespace kvtwin::test
