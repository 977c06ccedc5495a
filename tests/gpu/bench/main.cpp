// gpu_bench: measures the ways to move KV pages between host and GPU, and writes tables. The program does not use
// Google Benchmark, because the result is the ratio of two rates that are measured alternately, not the time of one
// way.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "models/hardware.hpp"
#include "tests/gpu/bench/bench.hpp"

namespace kvtwin::test {
namespace {

constexpr const char* kHelp =
    "gpu_bench --out DIR [--seconds N] [--tables NAME[,NAME]...] [--seed N] [--blas FILE] [--hardware NAME] [--tiny]\n"
    "Writes DIR/NAME.csv for the tables link, matrix, boxes, order, both, scatter and interference.\n"
    "--seconds: approximate time of the matrix (200); the other tables together take about half of it.\n"
    "--hardware: the preset (kvtwin presets) or hardware file whose kernel_blocks, ring_blocks, ring_stages and\n"
    "staging_bytes are measured, as runs use them; default: h100-sxm.\n"
    "--tiny: a few small cases, to test the program; the measured values mean nothing.\n"
    "Exit codes: 1 bytes were wrong after a transfer, or CUDA failed; 2 wrong arguments.\n";

std::set<std::string> words(const std::string& text) {
  std::set<std::string> found;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find(',', at), text.size());
    found.insert(text.substr(at, end - at));
    at = end + 1;
  }
  return found;
}

Options options_of(int argc, char** argv) {
  const std::set<std::string> all = words("link,matrix,boxes,order,both,scatter,interference");
  Options options;
  options.tables = all;
  options.command = "gpu_bench";
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    options.command += " " + name;
    if (name == "--tiny") {
      options.tiny = true;
      options.pool_bytes = std::uint64_t{4} << 20;
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument(name + " is no option, or lacks its value");
    const std::string value = argv[++i];
    options.command += " " + value;
    if (name == "--out") {
      options.out = value;
    } else if (name == "--seconds" && std::atof(value.c_str()) > 0) {
      options.seconds = std::atof(value.c_str());
    } else if (name == "--seed") {
      options.seed = std::strtoull(value.c_str(), nullptr, 10);
    } else if (name == "--blas") {
      options.blas = value;
    } else if (name == "--hardware") {
      options.hardware = value;
    } else if (name == "--tables") {
      options.tables = words(value);
      for (const std::string& table : options.tables) {
        if (!all.contains(table)) throw std::invalid_argument("there is no table `" + table + "`");
      }
    } else {
      throw std::invalid_argument(name + " " + value + " means nothing here");
    }
  }
  if (options.out.empty()) throw std::invalid_argument("--out says where the tables go");
  return options;
}

CopySizes sizes_of(const std::string& hardware) {
  const HardwareSpec spec =
      std::filesystem::is_regular_file(hardware) ? hardware_from_file(hardware) : hardware_preset(hardware);
  const auto count = [](double value) { return static_cast<std::uint32_t>(std::lround(value)); };
  CopySizes sizes;
  sizes.kernel.ctas = std::max(1U, count(spec.kernel_blocks));
  sizes.ring.ctas = spec.ring_blocks > 0 ? count(spec.ring_blocks) : sizes.kernel.ctas;
  if (spec.ring_stages > 0) sizes.ring.ring_stages = std::max(2U, count(spec.ring_stages));
  sizes.portion_bytes = static_cast<std::uint64_t>(std::llround(spec.staging_bytes));
  return sizes;
}

void write_tables(Bench& bench) {
  const std::set<std::string>& tables = bench.options.tables;
  const auto any = [&](std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (tables.contains(name)) return true;
    }
    return false;
  };
  const auto timed = [](const char* name, void (*write)(Bench&), Bench& b) {
    const double begin = now_seconds();
    write(b);
    std::fprintf(stderr, "gpu_bench: %s, %.1f s\n", name, now_seconds() - begin);
  };
  if (any({"link"})) timed("link", bench_link, bench);
  if (any({"boxes", "order"})) timed("boxes, order", bench_copies, bench);
  if (any({"both", "scatter"})) timed("both, scatter", bench_together, bench);
  if (any({"interference"})) timed("interference", bench_interference, bench);
  // The matrix is last. Its cells are in random order, so a run that is stopped still has cells of all kinds.
  if (any({"matrix"})) timed("matrix", bench_matrix, bench);
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) {
  using namespace kvtwin::test;
  if (asked_for_help(argc, argv)) return std::fputs(kHelp, stdout) < 0;
  Options options;
  try {
    options = options_of(argc, argv);
    copy_sizes() = sizes_of(options.hardware);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_bench: %s\n%s", e.what(), kHelp);
    return 2;
  }
  try {
    std::filesystem::create_directories(options.out);
    Bench bench(options);
    write_tables(bench);
    if (bench.wrong_cells == 0) return 0;
    std::fprintf(stderr, "gpu_bench: bytes arrived wrong in %llu cells of the matrix\n",
                 static_cast<unsigned long long>(bench.wrong_cells));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_bench: %s\n", e.what());
  }
  return 1;
}
