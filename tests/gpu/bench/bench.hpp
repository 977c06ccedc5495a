// Options, memory and streams that all tables of gpu_bench use.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "tests/gpu/bench/rig.hpp"
#include "tests/gpu/bench/transfers.hpp"
#include "tests/measured.hpp"

namespace kvtwin::test {

struct Options {
  std::string out;                                     // an existing folder
  std::set<std::string> tables;                        // names of the tables to write
  double seconds = 200;                                // approximate time of the matrix; other tables scale with it
  std::uint64_t pool_bytes = std::uint64_t{1} << 30;   // size of the device pool, and of the host pool
  std::uint64_t max_bytes = std::uint64_t{512} << 20;  // largest transfer in a cell of the matrix
  bool tiny = false;  // few and small cases, to test the program itself; the times mean nothing
  std::uint64_t seed = 1;
  std::string blas;  // file of cuBLAS; empty: the default
  std::string hardware = "h100-sxm";
  std::string command;
};

struct Bench {
  explicit Bench(const Options& o)
      : options(o),
        gpu(current_gpu()),
        device(Place::gpu, o.pool_bytes),
        host(Place::pinned, o.pool_bytes),
        staging(o.tiny ? std::uint64_t{1} << 20 : std::uint64_t{16} << 20) {}

  Table table(const std::string& name, const std::vector<std::string>& columns,
              const std::vector<std::string>& remarks = {}) const {
    std::vector<std::string> about = provenance(gpu, options.command);
    about.insert(about.end(), remarks.begin(), remarks.end());
    return Table(options.out + "/" + name + ".csv", about, columns);
  }
  // Returns pools of `chunks` pieces in both memories, at byte `offset`.
  Pools pools(std::uint64_t chunk, std::uint64_t chunks, std::uint64_t offset = 0) const {
    const KvShape shape = shape_of(chunk, chunks);
    return Pools(shape, device.data() + offset, host.data() + offset, chunk * chunks / shape.page_bytes(),
                 options.seed + chunk + chunks);
  }
  // Returns the seconds of one large copy of `bytes`: the reference for all paths.
  double big_copy(bool to_device, std::uint64_t bytes);
  // Returns the repetitions of a measurement, for all tables except the matrix.
  Repeats repeats() const { return options.tiny ? Repeats{2, 2, 0} : Repeats{7, 21, options.seconds / 2000}; }

  Options options;
  Gpu gpu;
  Memory device, host;
  Staging staging;
  Stream stream;
  Stopwatch watch;
  std::uint64_t wrong_cells = 0;  // number of cells with wrong bytes after the transfer
};

inline double gigabytes_per_second(std::uint64_t bytes, double seconds) {
  return static_cast<double>(bytes) / seconds * 1e-9;
}

// Each function writes the tables behind it.
void bench_link(Bench& bench);          // link.csv
void bench_matrix(Bench& bench);        // matrix.csv
void bench_copies(Bench& bench);        // boxes.csv, order.csv
void bench_together(Bench& bench);      // both.csv, scatter.csv
void bench_interference(Bench& bench);  // interference.csv

}  // namespace kvtwin::test
