// What each path executes per KB: instructions of warps, and sectors of 32 bytes in global memory, in the PTX of today
// (tests/golden/ptx_counts.json). A slower kernel fails here.
//   golden_ptx_counts             compares. Counts of the same nvcc are equal; of another nvcc, sectors are equal, and
//                                 instructions at most 15 % away
//   golden_ptx_counts --update    writes the file
//   golden_ptx_counts --table     prints counts per KB: instructions (load sectors, store sectors); and the rate at
//   which
//                                 four SMs can issue the instructions of each path that copies
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <functional>
#include <numeric>

#include "kernels/context_kernels.hpp"
#include "kernels/pattern_kernels.hpp"
#include "kernels/row_kernels.hpp"
#include "models/json.hpp"
#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/gpu/gpu_memory.hpp"
#include "tests/gpu_sim/simulator.hpp"
#include "tests/paths.hpp"

namespace kvtwin::gpu_sim {
namespace {

const std::string kFile = in_source("tests/golden/ptx_counts.json");
constexpr double kOtherNvcc = 0.15;  // share of instructions; nvcc 13.5.37 differs by up to 14.3 % from 13.0.88
constexpr std::uint64_t kPages = 8;
constexpr std::uint32_t kArchitectures[] = {80, 90, 100};

struct Shape {
  const char* name;
  KvShape shape;
  Layout layout;
};

constexpr Shape kShapes[] = {
    {"rows of 512 B, page_first", {4, 2, 2, 256, 16}, Layout::page_first},
    {"rows of 2 KB, page_first", {4, 2, 8, 256, 16}, Layout::page_first},
    {"rows of 1152 B (MLA), page_first", {4, 1, 1, 1152, 16}, Layout::page_first},
    {"rows of 2 KB, page_first_direct", {4, 2, 8, 256, 16}, Layout::page_first_direct},
    {"rows of 2 KB, page_head", {4, 2, 8, 256, 16}, Layout::page_head},
    {"rows of 2 KB, layer_first", {4, 2, 8, 256, 16}, Layout::layer_first},
};

struct Pools {
  explicit Pools(const KvShape& shape)
      : bytes(kPages * shape.page_bytes()), device(test::Place::gpu, bytes), host(test::Place::pinned, bytes) {}
  std::uint64_t bytes;
  test::Pool device, host;
};

// Everything that a launch needs, for one shape.
class Paths {
 public:
  explicit Paths(const Shape& one)
      : pools_(one.shape), identity_(numbers()), keys_(std::vector<std::uint64_t>(4 * kPages, 1)), shape_(one) {}

  std::vector<std::pair<std::string, std::function<cudaError_t()>>> all() {
    return {
        {"gather_scatter to the device", [this] { return launch_gather_scatter(move(true), kLimits, stream_); }},
        {"gather_scatter to the host", [this] { return launch_gather_scatter(move(false), kLimits, stream_); }},
        {"gather_checksum", [this] { return launch_gather_checksum(move(false), sums_.data(), kLimits, stream_); }},
        {"ring to the device", [this] { return launch_ring(move(true), kLimits, stream_); }},
        {"ring to the host", [this] { return launch_ring(move(false), kLimits, stream_); }},
        {"warp_per_row to the device", [this] { return launch_warp_per_row(move(true), kLimits, stream_); }},
        {"fill_pattern", [this] { return launch_fill_pattern(pattern(), kLimits, stream_); }},
        {"check_pattern", [this] { return launch_check_pattern(pattern(), faults_.data(), kLimits, stream_); }},
        {"write_context", [this] { return launch_write_context(context(true, 1), kLimits, stream_); }},
        {"read_context", [this] { return launch_read_context(context(false, 0), wrong_.data(), kLimits, stream_); }},
        {"read_context, all checked",
         [this] { return launch_read_context(context(false, 1), wrong_.data(), kLimits, stream_); }},
    };
  }
  // The bytes that a path moves or checks: each page once, or one of its layers.
  std::uint64_t bytes(const std::string& path) const {
    return path.find("_context") != std::string::npos ? pools_.bytes / shape_.shape.layers : pools_.bytes;
  }
  cudaError_t finish() const { return stream_.finish(); }

 private:
  static constexpr LaunchLimits kLimits{4};
  static std::vector<std::int64_t> numbers() {
    std::vector<std::int64_t> all(kPages);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  RowTransfer move(bool to_device) const {
    RowTransfer t;
    t.shape = shape_.shape;
    t.device = pools_.device.data();
    t.host = pools_.host.data();
    t.device_pages = t.host_pages = t.count = kPages;
    t.host_layout = shape_.layout;
    t.to_device = to_device;
    t.source_pages = t.target_pages = identity_.data();
    t.layer_end = shape_.shape.layers;
    return t;
  }
  PatternPages pattern() const {
    PatternPages p;
    p.shape = shape_.shape;
    p.pool = pools_.device.data();
    p.pool_pages = p.count = kPages;
    p.layout = shape_.layout;
    p.pages = identity_.data();
    p.keys = keys_.data();
    p.layer_end = shape_.shape.layers;
    return p;
  }
  // `check_every`: 0 = no block is checked.
  ContextPages context(bool fresh, std::uint32_t check_every) {
    std::vector<ContextPage> pages(kPages);
    const auto all = static_cast<std::uint32_t>(kPages) * shape_.shape.page_tokens;
    for (std::uint32_t i = 0; i < kPages; ++i) {
      pages[i] = {{1, 1, 1, 1}, i, i * shape_.shape.page_tokens, fresh ? 0 : all, fresh ? all : 0, 1};
    }
    EXPECT_EQ(test::copy_and_wait(context_.data(), pages.data(), pages.size() * sizeof pages[0]), cudaSuccess);
    const ContextStep step{context_.data(), folds_.data(), kPages, 0};
    EXPECT_EQ(test::copy_and_wait(step_.data(), &step, sizeof step), cudaSuccess);
    return {shape_.shape, pools_.device.data(), kPages, step_.data(), 0, check_every == 0 ? kMostCheckEvery : 1};
  }

  Pools pools_;
  test::OnGpu<std::int64_t> identity_;
  test::OnGpu<std::uint64_t> keys_;
  const Shape& shape_;
  test::OnGpu<std::uint64_t> sums_{std::vector<std::uint64_t>(kPages)};
  test::OnGpu<PatternFaults> faults_{std::vector<PatternFaults>(1)};
  test::OnGpu<ContextPage> context_{std::vector<ContextPage>(kPages)};
  test::OnGpu<ContextStep> step_{std::vector<ContextStep>(1)};
  test::OnGpu<std::uint32_t> folds_{std::vector<std::uint32_t>(2 * kPages * kContextFolds)};
  test::OnGpu<ContextFaults> wrong_{std::vector<ContextFaults>(1)};
  test::Stream stream_;
};

Json counted() {
  std::uint64_t kernels = 0;
  for (const std::uint32_t architecture : kArchitectures) kernels += kernels_of(architecture).size();
  Json result{{"nvcc", KVTWIN_NVCC_VERSION}, {"kernels", kernels}};
  for (const std::uint32_t architecture : kArchitectures) {
    twin::Machine machine;
    machine.compute_major = static_cast<int>(architecture / 10);
    const twin::CudaTwin twin(machine);
    const Counting counting;
    Json& of_architecture = result["sm_" + std::to_string(architecture)];
    for (const Shape& shape : kShapes) {
      Paths paths(shape);
      for (const auto& [name, launch] : paths.all()) {
        reset_counts();
        const cudaError_t error = launch();
        if (error == cudaErrorNotSupported) continue;  // the ring, before sm_90
        EXPECT_EQ(error, cudaSuccess) << name;
        EXPECT_EQ(paths.finish(), cudaSuccess) << name;
        Counts sum;
        for (const auto& [kernel, counts] : counts()) {
          sum.instructions += counts.instructions;
          sum.load_sectors += counts.load_sectors;
          sum.store_sectors += counts.store_sectors;
        }
        of_architecture[shape.name][name] = {{"kb", paths.bytes(name) / 1024},
                                             {"instructions", sum.instructions},
                                             {"load_sectors", sum.load_sectors},
                                             {"store_sectors", sum.store_sectors}};
      }
    }
    EXPECT_EQ(twin.violations(), std::vector<std::string>{});
  }
  return result;
}

Json file() {
  std::ifstream in(kFile);
  return Json::parse(std::string(std::istreambuf_iterator<char>(in), {}));
}

TEST(PtxCounts, AreThoseOfToday) {
  const Json expected = file(), found = counted();
  EXPECT_EQ(found.at("kernels"), expected.at("kernels"));
  const bool same = expected.at("nvcc") == found.at("nvcc");
  for (const std::uint32_t architecture : kArchitectures) {
    const std::string name = "sm_" + std::to_string(architecture);
    ASSERT_EQ(expected.at(name).size(), found.at(name).size());
    for (const auto& [shape, paths] : found.at(name).items()) {
      ASSERT_EQ(expected.at(name).at(shape).size(), paths.size()) << shape;
      for (const auto& [path, counts] : paths.items()) {
        for (const auto& [what, count] : counts.items()) {
          const double want = expected.at(name).at(shape).at(path).at(what).get<double>();
          EXPECT_NEAR(count.get<double>(), want, same || what != "instructions" ? 0 : kOtherNvcc * want)
              << what << " of " << path << ", " << shape << ", " << name << ", nvcc "
              << found.at("nvcc").get<std::string>() << "; if meant: tests/golden/update";
        }
      }
    }
  }
}

// An SM of compute capability 8.0 to 10.0 issues one instruction per clock for each of its four schedulers. The clock
// is an assumption, below that of every data-centre GPU under load.
constexpr double kIssuedPerClock = 4, kClock = 1.5e9, kSms = 4;

void print_issue_rates(const Json& found) {
  for (const std::uint32_t architecture : kArchitectures) {
    const Json& shapes = found.at("sm_" + std::to_string(architecture));
    std::printf("\n| sm_%u, GB/s that %.0f SMs issue |", architecture, kSms);
    for (const Shape& shape : kShapes) std::printf(" %s |", shape.name);
    std::printf("\n|---|");
    for (std::size_t i = 0; i < std::size(kShapes); ++i) std::printf("---:|");
    std::printf("\n");
    for (const auto& [path, counts] : shapes.at(kShapes[0].name).items()) {
      if (path.find(" to the ") == std::string::npos) continue;
      std::printf("| %s |", path.c_str());
      for (const Shape& shape : kShapes) {
        const Json& of = shapes.at(shape.name).at(path);
        const double per_kb = of.at("instructions").get<double>() / of.at("kb").get<double>();
        std::printf(" %.0f |", kSms * kIssuedPerClock * kClock / per_kb * 1024 / 1e9);
      }
      std::printf("\n");
    }
  }
}

void print_table() {
  const Json found = counted();
  for (const std::uint32_t architecture : kArchitectures) {
    const Json& shapes = found.at("sm_" + std::to_string(architecture));
    std::printf("\n| sm_%u |", architecture);
    for (const Shape& shape : kShapes) std::printf(" %s |", shape.name);
    std::printf("\n|---|");
    for (std::size_t i = 0; i < std::size(kShapes); ++i) std::printf("---:|");
    std::printf("\n");
    for (const auto& [path, counts] : shapes.at(kShapes[0].name).items()) {
      std::printf("| %s |", path.c_str());
      for (const Shape& shape : kShapes) {
        const Json& of = shapes.at(shape.name).at(path);
        const auto per_kb = [&](const char* what) { return of.at(what).get<double>() / of.at("kb").get<double>(); };
        std::printf(" %.0f (%.1f, %.1f) |", per_kb("instructions"), per_kb("load_sectors"), per_kb("store_sectors"));
      }
      std::printf("\n");
    }
  }
  print_issue_rates(found);
}

}  // namespace
}  // namespace kvtwin::gpu_sim

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const std::string argument = argc > 1 ? argv[1] : "";
  if (argument == "--update") {
    std::ofstream(kvtwin::gpu_sim::kFile) << kvtwin::gpu_sim::counted().dump(1) << '\n';
    return 0;
  }
  if (argument == "--table") {
    kvtwin::gpu_sim::print_table();
    return 0;
  }
  return RUN_ALL_TESTS();
}
