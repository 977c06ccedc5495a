// Writes both.csv, loads and write-backs at the same time, as in serving; and scatter.csv, the rate of layout changes
// in GPU memory.
#include "tests/gpu/bench/bench.hpp"

namespace kvtwin::test {
namespace {

// Seconds of one direction: without, and at the same time as, the other direction.
struct Side {
  std::vector<double> alone, beside;
};

void load_and_write_back(Bench& bench, Table& table, Way way, std::uint64_t chunk, Staging& other) {
  const std::uint64_t bytes = bench.options.tiny ? 64 * chunk : std::uint64_t{256} << 20, chunks = bytes / chunk;
  if (2 * bytes > bench.options.pool_bytes) return;
  const Pools up_pools = bench.pools(chunk, chunks), down_pools = bench.pools(chunk, chunks, bytes);
  PageTransfer up(way, up_pools, true, 0, up_pools.pages, &bench.staging);
  PageTransfer down(way, down_pools, false, 0, down_pools.pages, &other);
  if (!up.possible() || !down.possible()) return;
  Side load, back;
  const auto alone = [&](PageTransfer& transfer, Side& side) {
    side.alone = repeated(
        bench.repeats(), [&] { return bench.watch(bench.stream, [&] { transfer.submit(bench.stream); }).seconds; },
        now_seconds);
  };
  alone(up, load);
  alone(down, back);
  Stream streams[2];
  Event begin, ends[2];
  const auto once = [&] {
    begin.record(streams[0]);
    follow(streams[1], begin);
    up.submit(streams[0]);
    ends[0].record(streams[0]);
    down.submit(streams[1]);
    ends[1].record(streams[1]);
    for (Stream& stream : streams) stream.wait();
    load.beside.push_back(seconds_between(begin, ends[0]));
    back.beside.push_back(seconds_between(begin, ends[1]));
    return 0.0;
  };
  repeated(bench.repeats(), once, now_seconds);
  for (const bool to_device : {true, false}) {
    const Side& side = to_device ? load : back;
    const double before = spread_of(side.alone).median, now = spread_of(side.beside).median;
    table.row({name_of(way), direction_name(to_device), chunk, chunks, gigabytes_per_second(bytes, before),
               gigabytes_per_second(bytes, now), before / now, std::uint64_t{side.beside.size()}});
  }
}

void relayouts(Bench& bench, Table& table, std::uint64_t chunk, bool to_device) {
  const std::uint64_t bytes = bench.options.tiny ? 64 * chunk : std::uint64_t{256} << 20;
  if (2 * bytes > bench.options.pool_bytes) return;
  Pools pools = bench.pools(chunk, bytes / chunk);
  pools.host = bench.device.data() + bytes;  // the pool with the host layout is in GPU memory too
  PageTransfer transfer(Way::kernel, pools, to_device, 0, pools.pages, nullptr);
  for (const std::uint32_t ctas : {1u, 2u, 4u, 8u, 16u, 32u, 64u, 132u, 264u}) {
    transfer.set_ctas(ctas);
    const Spread time = spread_of(repeated(
        bench.repeats(), [&] { return bench.watch(bench.stream, [&] { transfer.submit(bench.stream); }).seconds; },
        now_seconds));
    const std::uint64_t moved = transfer.bytes();  // whole pages
    table.row({direction_name(to_device), chunk, moved, ctas, gigabytes_per_second(moved, time.median),
               gigabytes_per_second(moved, time.p90), gigabytes_per_second(moved, time.p10),
               std::uint64_t{time.count}});
  }
}

}  // namespace

void bench_together(Bench& bench) {
  if (bench.options.tables.contains("both")) {
    Staging other(bench.staging.half_bytes());
    Table table = bench.table(
        "both", {"path", "direction", "chunk_bytes", "chunks", "gbps_alone", "gbps_beside", "factor", "samples"},
        {"beside: while the same path moves as many bytes the other way"});
    for (const std::uint64_t chunk : {2048, 32768}) {
      for (const Way way : kWays) load_and_write_back(bench, table, way, chunk, other);
    }
  }
  if (bench.options.tables.contains("scatter")) {
    Table table = bench.table("scatter", {"direction", "chunk_bytes", "bytes", "ctas", "gbps", "p10", "p90", "samples"},
                              {"gbps: bytes of KV; each is read and written once. h2d: from page_first_direct to "
                               "layer_first"});
    for (const std::uint64_t chunk : {1152, 2048, 32768}) {
      for (const bool to_device : {true, false}) relayouts(bench, table, chunk, to_device);
    }
  }
}

}  // namespace kvtwin::test
