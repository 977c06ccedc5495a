// Tests the special parts of the CUDA device: paths, windows, events, and failures of CUDA calls. The tests in
// tests/unit/impl cover the common behavior of devices, and are also built for the CUDA device.
#include "impl/device/cuda/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "device_on_twin.hpp"
#include "impl/device/cuda/blas.hpp"
#include "impl/device/cuda/step_graphs.hpp"
#include "real_rig.hpp"
#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/paths.hpp"

namespace kvtwin::test {
namespace {

using twin::CudaTwin;
using twin::Live;
using twin::Machine;
using twin::Streams;
using twin::Way;

constexpr TransferPath kPaths[] = {TransferPath::copy_engine, TransferPath::boxes, TransferPath::kernel,
                                   TransferPath::ring, TransferPath::staged};

std::uint32_t check_every = 1, warm_tokens = 0;  // of the devices of the current test

std::unique_ptr<Device> make_on_twin(const HostDeviceConfig& host) {
  CudaDeviceConfig config = cuda_device_of(host);
  config.check_every = check_every;
  config.warm_tokens = warm_tokens;
  return make_cuda_device(config);
}

class CudaDevice : public testing::Test {
 protected:
  CudaDevice() {
    make_test_device = &make_on_twin;
    check_every = 1;
    warm_tokens = 0;
  }
};

void expect_clean(const CudaTwin& machine) {
  EXPECT_EQ(machine.violations(), std::vector<std::string>{});
  EXPECT_EQ(machine.hidden_syncs(), std::vector<std::string>{});
  EXPECT_EQ(machine.live(), Live{});
}

// A page has twelve layers of 32 KiB, so loads of a few pages move in several groups.
HostDeviceConfig deep_device(Layout layout) {
  HostDeviceConfig config = small_device(40, 40);
  config.shape = {12, 2, 2, 256, 32};
  config.host_layout = layout;
  return config;
}

HostDeviceConfig failing_device() {
  HostDeviceConfig config = small_device(32, 16);
  config.shape = {2, 2, 2, 16, 4};
  config.hidden = 16;
  config.width = 48;
  return config;
}

bool possible(TransferPath path, Layout layout) {
  return path != TransferPath::staged || layout != Layout::layer_first;
}

// Moves pages out of the device and back, over `path`. A pass with the load as a gate reads the loaded pages.
void play_there_and_back(RealRig& rig, const std::vector<PageKey>& keys) {
  const std::vector<SlotId> first{3, 4, 5, 6, 11, 10, 9, 0, 1}, host{20, 21, 22, 7, 6, 5, 30, 0, 39},
      second{12, 13, 14, 39, 38, 30, 31, 4, 2};
  rig.then([&rig, keys, first] { rig.compute(keys, first); });
  rig.then([&rig, keys, first, host] { rig.back_up(keys, first, host); });
  rig.then([&rig, keys, host, second] { rig.read(keys, second, 20, {rig.load(keys, host, second)}); });
}

TEST_F(CudaDevice, CarriesPagesByEveryPath) {
  for (const Layout layout : kLayouts) {
    for (const TransferPath path : kPaths) {
      if (!possible(path, layout)) continue;
      SCOPED_TRACE("layout " + std::to_string(static_cast<int>(layout)) + ", path " +
                   std::to_string(static_cast<int>(path)));
      CudaTwin machine;
      {
        RealRig rig(deep_device(layout));
        rig.path = path;
        rig.window = Bytes{64} << 10;
        play_there_and_back(rig, some_keys(9));
        const Verification& seen = rig.run();
        EXPECT_EQ(seen.wrong_reads, 0U) << (seen.wrong.empty() ? "" : seen.wrong.front().found);
        EXPECT_EQ(seen.pages_read, 9U);
        EXPECT_TRUE(rig.world().notes().empty()) << rig.world().notes().front();
      }
      EXPECT_EQ(machine.launches("ring") > 0, path == TransferPath::ring);
      EXPECT_EQ(machine.launches("gather_scatter") > 0, path == TransferPath::kernel);
      EXPECT_EQ(machine.launches("relayout") > 0, path == TransferPath::staged);
      // Staged loads land in layer groups, and each group is a box.
      EXPECT_EQ(machine.calls("cudaMemcpy3DBatchAsync") > 0,
                path == TransferPath::boxes || path == TransferPath::staged);
      expect_clean(machine);
    }
  }
}

// The seed determines the order in which streams run, and how late they run.
TEST_F(CudaDevice, CarriesPagesInEveryOrder) {
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    for (const TransferPath path : kPaths) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", path " + std::to_string(static_cast<int>(path)));
      CudaTwin machine({.streams = Streams::seeded, .seed = seed});
      {
        HostDeviceConfig config = small_device(40, 40);
        config.shape = {5, 2, 2, 16, 4};
        config.host_layout = Layout::page_first;
        RealRig rig(config);
        rig.path = path;
        rig.window = 1024;
        play_there_and_back(rig, some_keys(9));
        EXPECT_EQ(rig.run().wrong_reads, 0U);
      }
      expect_clean(machine);
    }
  }
}

// A load is answered before the pass that waits for it has laid out its pages on the GPU. A backup of these pages that
// is submitted at once still finds them.
TEST_F(CudaDevice, BacksUpPagesOfAStagedLoadAfterThePassThatLaysThemOut) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    CudaTwin machine({.streams = Streams::seeded, .seed = seed});
    {
      HostDeviceConfig config = small_device(40, 40);
      config.shape = {5, 2, 2, 16, 4};
      config.host_layout = Layout::page_first;
      RealRig rig(config);
      rig.path = TransferPath::staged;
      const std::vector<PageKey> keys = some_keys(9);
      OperationId load = OperationId::none;
      rig.on_answer = [&](OperationId answered) {
        if (answered == load) rig.back_up(keys, slots(12, 9), slots(25, 9));
      };
      rig.then([&] { rig.compute(keys, slots(0, 9)); });
      rig.then([&] { rig.back_up(keys, slots(0, 9), slots(5, 9)); });
      rig.then([&] {
        load = rig.load(keys, slots(5, 9), slots(12, 9));
        rig.read(keys, slots(12, 9), 30, {load});
      });
      const Verification& seen = rig.run();
      EXPECT_EQ(seen.wrong_reads, 0U) << (seen.wrong.empty() ? "" : seen.wrong.front().found);
      EXPECT_EQ(seen.pages_audited, 9U + 9 + 1 + 2 * 9) << "two backups";
    }
    expect_clean(machine);
  }
}

// The bytes in flight stay within the window of the plan, and move in portions of the window. A descriptor that is
// larger than a portion moves alone.
TEST_F(CudaDevice, KeepsWithinTheWindow) {
  for (const Layout layout : kLayouts) {
    for (const TransferPath path : {TransferPath::copy_engine, TransferPath::boxes, TransferPath::staged}) {
      if (!possible(path, layout)) continue;
      CudaTwin machine;
      const HostDeviceConfig config = deep_device(layout);
      std::uint64_t before = 0;
      RealRig rig(config);
      rig.path = path;
      rig.window = Bytes{1} << 20;  // a page has 384 KiB
      const std::vector<PageKey> keys = some_keys(30);
      rig.then([&] { rig.compute(keys, slots(0, 30)); });
      rig.then([&] { rig.back_up(keys, slots(0, 30), slots(5, 30)); });
      rig.then([&] {
        before = machine.copies(Way::to_device).bytes;
        rig.load(keys, slots(5, 30), slots(0, 30));
      });
      rig.run();
      EXPECT_GE(machine.copies(Way::to_device).bytes, before + 30 * config.shape.page_bytes());
      EXPECT_LE(machine.copies(Way::to_device).max_under_way, (Bytes{1} << 20) + 4096) << "beside them page indices";
      for (const char* batch : {"cudaMemcpyBatchAsync", "cudaMemcpy3DBatchAsync"}) {
        const twin::Copies copies = machine.copies(Way::to_device, batch);
        EXPECT_LE(copies.bytes, copies.calls * (*rig.window / kWindowPortions)) << batch;
      }
    }
  }
}

// A load has one event per group, and the passes wait for these events on the GPU.
TEST_F(CudaDevice, WaitsForGroupsOnTheGpu) {
  CudaTwin machine;
  RealRig rig(deep_device(Layout::page_first));
  const std::vector<PageKey> keys = some_keys(9);
  std::uint64_t waits = 0;
  rig.path = TransferPath::kernel;
  rig.limits.layer_group_min = Bytes{1} << 20;
  rig.then([&] { rig.compute(keys, slots(0, 9)); });
  rig.then([&] { rig.back_up(keys, slots(0, 9), slots(0, 9)); });
  rig.then([&] {
    waits = machine.calls("cudaStreamWaitEvent");
    rig.read(keys, slots(10, 9), 30, {rig.load(keys, slots(0, 9), slots(10, 9))});
  });
  EXPECT_EQ(rig.run().wrong_reads, 0U);
  EXPECT_EQ(machine.launches("gather_scatter"), 1U + 3U) << "a backup, and a load of 3.4 MB in groups of a MiB";
  EXPECT_LE(machine.calls("cudaStreamWaitEvent"), waits + 12);
}

TEST_F(CudaDevice, TakesTheKernelWhereThereAreNoBulkCopies) {
  CudaTwin machine({.compute_major = 8});
  RealRig rig(deep_device(Layout::page_first));
  rig.path = TransferPath::ring;
  play_there_and_back(rig, some_keys(9));
  EXPECT_EQ(rig.run().wrong_reads, 0U);
  EXPECT_EQ(machine.launches("ring"), 0U);
  ASSERT_EQ(rig.world().notes().size(), 1U);
  EXPECT_NE(rig.world().notes().front().find("2 transfers that were planned for bulk copies"), std::string::npos);
}

// ---- sampled checks --------------------------------------------------------------------------------------------

// A decode burst reads the same pages in each step. All pages have been read before.
TEST_F(CudaDevice, ChecksASampleAndReadsAll) {
  for (const std::uint32_t every : {1U, 4U}) {
    CudaTwin machine;
    check_every = every;
    HostDeviceConfig config = small_device(40, 40);
    config.shape = {8, 2, 2, 16, 4};
    RealRig rig(config);
    const std::vector<PageKey> keys = some_keys(9), whole(keys.begin(), keys.end() - 1);
    rig.then([&] { rig.compute(whole, slots(0, 8)); });
    rig.then([&] { rig.read(whole, slots(0, 8), 20); });
    rig.then([&] { rig.decode({{slots(0, 9), keys, 32, 4}}); });
    const Verification& seen = rig.run();
    const Bytes page = config.shape.page_bytes(), token = config.shape.token_bytes();
    EXPECT_EQ(seen.wrong_reads, 0U);
    EXPECT_EQ(seen.bytes_read, 5 * 8 * page + 6 * token);
    if (every == 1) {
      EXPECT_EQ(seen.bytes_checked, seen.bytes_read);
    } else {
      EXPECT_GE(seen.bytes_checked, 8 * page) << "each block at least once, in five steps";
      EXPECT_LE(seen.bytes_checked, 2 * 8 * page + 6 * token);
    }
    EXPECT_EQ(seen.bytes_audited, 9 * page + token);
  }
}

// A host page is wrong. The first pass that reads it after the load finds it, however few blocks later ones check.
TEST_F(CudaDevice, ChecksAllBytesOfALoadAtTheirFirstRead) {
  check_every = 65536;
  for (const bool lost : {false, true}) {
    SCOPED_TRACE(lost ? "a pass before it loses another of its gates" : "");
    CudaTwin machine;
    HostDeviceConfig config = small_device(40, 40);
    config.shape = {5, 2, 2, 16, 4};
    config.flip = DeviceConfig::Flip::host;
    RealRig rig(config);
    const std::vector<PageKey> keys = some_keys(4), others = some_keys(4, 1);
    OperationId pass = OperationId::none, doomed = OperationId::none;
    rig.then([&] { rig.compute(keys, slots(0, 4)), rig.compute(others, slots(4, 4)); });
    rig.then([&] { rig.read(keys, slots(0, 4), 30); });
    rig.then([&] { rig.back_up(keys, slots(0, 4), slots(0, 4)), rig.back_up(others, slots(4, 4), slots(4, 4)); });
    if (lost) {
      rig.then([&] {
        const OperationId good = rig.load(keys, slots(0, 4), slots(0, 4));
        doomed = rig.load(others, slots(4, 4), slots(4, 4));
        rig.cancel(doomed);
        pass = rig.read(keys, slots(0, 4), 31, {good, doomed});
      });
    } else {
      rig.then([&] { rig.load(keys, slots(0, 4), slots(0, 4)); });
    }
    rig.then([&] { rig.read(keys, slots(0, 4), 32); });
    const Verification& seen = rig.run();
    if (lost) {
      EXPECT_EQ(rig.completion(pass).status, Status::gate_failed);
    }
    ASSERT_FALSE(seen.wrong.empty());
    EXPECT_NE(seen.wrong.front().found.find("read by a pass"), std::string::npos) << seen.wrong.front().found;
  }
}

// A page goes wrong after its first read. In the next steps that read it, each block is checked once.
TEST_F(CudaDevice, ChecksEachBlockOnceInSoManySteps) {
  check_every = 16;
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    CudaTwin machine;
    HostDeviceConfig config = small_device(40, 4);
    config.shape = {5, 2, 2, 16, 4};
    config.flip = DeviceConfig::Flip::device;
    config.seed = seed;
    RealRig rig(config);
    const std::vector<PageKey> keys = some_keys(8);
    const Sequence burst{slots(0, 8), keys, 4, 8};
    rig.then([&] { rig.compute({keys[0]}, slots(0, 1)); });
    rig.then([&] { rig.decode({burst}); });
    rig.then([&] { rig.decode({{slots(0, 8), keys, 12, 8}}); });
    const Verification& seen = rig.run();
    ASSERT_FALSE(seen.wrong.empty());
    EXPECT_NE(seen.wrong.front().found.find("read by a pass"), std::string::npos) << seen.wrong.front().found;
  }
}

// ---- graphs ----------------------------------------------------------------------------------------------------

// Bursts with one and two sequences. Returns what the run has checked.
Verification play_bursts(const HostDeviceConfig& config, std::vector<std::string>& notes) {
  RealRig rig(config);
  const std::vector<PageKey> keys = some_keys(8), others = some_keys(8, 1);
  rig.then([&] { rig.decode({{slots(0, 8), keys, 0, 5}}); });
  rig.then([&] { rig.decode({{slots(0, 8), keys, 5, 3}, {slots(8, 8), others, 0, 3}}); });
  rig.then([&] { rig.decode({{slots(0, 8), keys, 8, 4}}); });
  Verification seen = rig.run();
  notes = rig.world().notes();
  return seen;
}

TEST_F(CudaDevice, RunsDecodeStepsAsGraphs) {
  for (std::uint64_t seed = 0; seed <= 20; ++seed) {
    CudaTwin machine(seed == 0 ? Machine{} : Machine{.streams = Streams::seeded, .seed = seed});
    std::vector<std::string> notes;
    const Verification seen = play_bursts(failing_device(), notes);
    EXPECT_EQ(seen.wrong_reads, 0U);
    EXPECT_EQ(seen.bytes_checked, seen.bytes_read);
    EXPECT_EQ(notes, std::vector<std::string>{});
    EXPECT_EQ(machine.calls("cudaStreamBeginCapture"), 2U) << "one batch of one token, and one of two";
    EXPECT_EQ(machine.calls("cudaGraphLaunch"), (5U - 1) + (3 - 1) + 4);
    const std::uint64_t layers = failing_device().shape.layers;
    EXPECT_EQ(machine.launches("write_context"), (5 + 3 + 4) * layers) << "each step's kernels have run once";
    expect_clean(machine);
  }
}

TEST_F(CudaDevice, SaysWhyThereAreNoGraphs) {
  std::vector<std::string> with, without, failed;
  const auto seen = [](const Machine& machine, const char* fails, std::vector<std::string>& notes) {
    CudaTwin twin(machine);
    if (*fails != '\0') twin.fail_call(1, cudaErrorUnknown, fails);
    const Verification result = play_bursts(failing_device(), notes);
    EXPECT_EQ(twin.live(), Live{});
    return std::pair(result.bytes_read, result.bytes_checked);
  };
  const auto expected = seen({}, "", with);
  EXPECT_EQ(seen({.graphs = false}, "", without), expected);
  EXPECT_EQ(without, std::vector<std::string>{"Decode steps ran without CUDA graphs: cudaStreamBeginCapture failed "
                                              "(compute stream): operation not supported (cudaErrorNotSupported)."});
  for (const char* call : {"cudaStreamEndCapture", "cudaGraphInstantiate"}) {
    EXPECT_EQ(seen({}, call, failed), expected);
    ASSERT_EQ(failed.size(), 1U);
    EXPECT_NE(failed[0].find(call), std::string::npos) << failed[0];
  }
}

// Shapes that were used least recently make room.
TEST_F(CudaDevice, KeepsSoManyGraphs) {
  CudaTwin machine;
  {
    const CudaStream stream("a stream", false);
    StepGraphs graphs;
    const auto nothing = [] {};
    for (int round = 0; round < 2; ++round) {
      for (Tokens tokens = 1; tokens <= StepGraphs::kMaxGraphs + 3; ++tokens) {
        for (int step = 0; step < 3; ++step) graphs.run(tokens, stream, nothing);
        EXPECT_LE(machine.live().graphs, StepGraphs::kMaxGraphs);
      }
    }
    EXPECT_EQ(graphs.refusal(), "");
    EXPECT_EQ(graphs.steps(), 2 * 2 * (StepGraphs::kMaxGraphs + 3));
  }
  EXPECT_EQ(machine.live(), Live{});
}

// ---- warm-up ---------------------------------------------------------------------------------------------------

TEST_F(CudaDevice, WarmsUpBeforeItStarts) {
  for (const Layout layout : kLayouts) {
    CudaTwin machine;
    warm_tokens = 2;
    HostDeviceConfig config = failing_device();
    config.host_layout = layout;
    {
      RealRig rig(config);
      EXPECT_EQ(machine.live().graphs, 2U);
      EXPECT_GT(machine.launches("gather_scatter"), 0U);
      EXPECT_EQ(machine.launches("relayout") > 0, layout != Layout::layer_first);
      const std::uint64_t captures = machine.calls("cudaStreamBeginCapture");
      const std::uint64_t graphs = machine.calls("cudaGraphLaunch");
      const std::vector<PageKey> keys = some_keys(8), others = some_keys(8, 1);
      rig.then([&] { rig.decode({{slots(0, 8), keys, 0, 5}, {slots(8, 8), others, 0, 5}}); });
      const Verification& seen = rig.run();
      EXPECT_EQ(seen.wrong_reads, 0U);
      EXPECT_EQ(seen.bytes_read, (0 + 1 + 2 + 3 + 4) * 2 * config.shape.token_bytes()) << "without the warm-up";
      EXPECT_EQ(machine.calls("cudaStreamBeginCapture"), captures);
      EXPECT_EQ(machine.calls("cudaGraphLaunch"), graphs + 5);
      EXPECT_EQ(rig.world().notes(), std::vector<std::string>{});
    }
    expect_clean(machine);
  }
}

// ---- when CUDA fails -------------------------------------------------------------------------------------------

// Uses all features: groups, portions, staging, and a burst.
void play_all(const HostDeviceConfig& config) {
  RealRig rig(config);
  const std::vector<PageKey> keys = some_keys(4);
  Sequence burst{slots(20, 5), some_keys(5, 1), 0, 3};
  rig.window = 1024;
  rig.then([&] { rig.compute(keys, slots(0, 4)); });
  rig.then([&] {
    rig.path = TransferPath::staged;
    rig.back_up(keys, slots(0, 4), slots(6, 4));
  });
  rig.then([&] {
    rig.path = TransferPath::copy_engine;
    rig.read(keys, slots(10, 4), 19, {rig.load(keys, slots(6, 4), slots(10, 4))});
  });
  rig.then([&] {
    rig.path = TransferPath::kernel;
    rig.load(keys, slots(6, 4), slots(5, 4));
    rig.decode({burst});
  });
  EXPECT_EQ(rig.run().wrong_reads, 0U);
}

// Runs play_all() with a failure of the nth CUDA call. Returns the error message; empty if there was no nth call.
std::string sentence_of_failure(std::uint64_t nth, bool sticky) {
  CudaTwin machine;
  machine.fail_call(nth, cudaErrorECCUncorrectable, "", sticky);
  std::string sentence;
  try {
    play_all(failing_device());
  } catch (const std::runtime_error& error) {
    sentence = error.what();
  }
  EXPECT_EQ(machine.live(), Live{}) << "call " << nth << ", " << sentence;
  return sentence;
}

TEST_F(CudaDevice, EndsTheRunWhicheverCallFails) {
  const std::string text = cudaGetErrorString(cudaErrorECCUncorrectable);
  for (const bool sticky : {false, true}) {
    std::uint64_t silent = 0, nth = 1;
    for (; silent < 40; ++nth) {  // the last calls free resources, so their failure gives no message
      SCOPED_TRACE("call " + std::to_string(nth) + (sticky ? " and all after it" : ""));
      const std::string sentence = sentence_of_failure(nth, sticky);
      silent = sentence.empty() ? silent + 1 : 0;
      if (sentence.empty()) continue;
      EXPECT_NE(sentence.find(text), std::string::npos) << sentence;
      EXPECT_NE(sentence.find(" failed ("), std::string::npos) << sentence;
    }
    EXPECT_GT(nth, 150U) << "a run has more calls than that";
  }
}

TEST_F(CudaDevice, EndsTheRunWhenWorkFails) {
  for (std::uint64_t nth = 1; nth <= 60; ++nth) {
    CudaTwin machine;
    machine.fail_work(nth, cudaErrorIllegalAddress);
    try {
      play_all(failing_device());
      ADD_FAILURE() << "work " << nth << " failed, and nobody said so";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find(cudaGetErrorString(cudaErrorIllegalAddress)), std::string::npos)
          << error.what();
    }
    EXPECT_EQ(machine.live(), Live{});
  }
}

TEST_F(CudaDevice, SaysWhatThereIsNoRoomFor) {
  const auto sentence = [](const Machine& machine) {
    const CudaTwin twin(machine);
    try {
      make_cuda_device(cuda_device_of(failing_device()));
    } catch (const std::runtime_error& error) {
      EXPECT_EQ(twin.live(), Live{});
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(sentence({.device_bytes = 1000}).find("cudaMalloc failed (the device pool, 16384 bytes)"),
            std::string::npos)
      << sentence({.device_bytes = 1000});
  const std::string pinned = sentence({.pinned_bytes = 1000});
  EXPECT_NE(pinned.find("cudaHostRegister failed (the host pool, "), std::string::npos) << pinned;
  EXPECT_NE(pinned.find("ulimit -l"), std::string::npos) << pinned;
}

TEST_F(CudaDevice, SaysWhyThereIsNoGpu) {
  const auto presence = [](const Machine& machine, std::size_t ranks = 1) {
    const CudaTwin twin(machine);
    return cuda_presence(ranks);
  };
  EXPECT_EQ(presence({}).gpus, 1);
  EXPECT_EQ(presence({.devices = 3}).gpus, 3);
  EXPECT_EQ(presence({.driver = false}).gpus, 0);
  EXPECT_NE(presence({.driver = false}).why_none.find("driver"), std::string::npos);
  EXPECT_EQ(presence({.devices = 0}).why_none, "no GPU is visible");
  EXPECT_NE(presence({.compute_major = 7}).why_none.find("compute capability 7"), std::string::npos);
  // Only the GPUs that the ranks take count.
  const Machine older_second{.devices = 3, .compute_majors = {9, 7, 9}};
  EXPECT_EQ(presence(older_second).gpus, 3);
  EXPECT_EQ(presence(older_second, 2).why_none, "GPU 1 is of compute capability 7, and the kernels need 8 or later");
  EXPECT_EQ(presence(older_second, 7).gpus, 0);
  EXPECT_EQ(presence({.devices = 2, .compute_majors = {7, 9}}).gpus, 0);
}

// The memory that the device announces equals the memory that it allocates.
TEST_F(CudaDevice, SaysWhatItTakes) {
  for (const bool arithmetic : {false, true}) {
    const CudaTwin machine;
    CudaDeviceConfig config = cuda_device_of(failing_device());
    if (!arithmetic) config.transformer = {};
    std::size_t before = 0, after = 0, total = 0;
    ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
    const std::unique_ptr<Device> device = make_cuda_device(config);
    ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
    EXPECT_GE(cuda_device_bytes(config).gpu, before - after);
    EXPECT_LE(cuda_device_bytes(config).gpu, before - after + (Bytes{65} << 20)) << "cuBLAS's workspace beside it";
    EXPECT_GE(cuda_device_bytes(config).host, config.host_pages * config.shape.page_bytes());
  }
}

// ---- arithmetic ------------------------------------------------------------------------------------------------

template <typename Function>
Function* stand_in(const char* name) {
  return function_of<Function>(built("libblas_stand_in.so"), name);
}

TEST_F(CudaDevice, MultipliesForEachLayerAndPair) {
  const CudaTwin machine;
  const auto products = stand_in<int()>("stand_in_products"), handles = stand_in<int()>("stand_in_handles");
  HostDeviceConfig config = failing_device();
  config.pair_work = 3;
  const int before = products();
  {
    RealRig rig(config);
    EXPECT_EQ(handles(), 1);
    rig.then([&] { rig.compute(some_keys(4), slots(0, 4)); });
    rig.run();
  }
  EXPECT_EQ(products() - before, 2 * (2 + 1)) << "two layers of two products, and one for the pairs";
  EXPECT_EQ(handles(), 0);
}

TEST_F(CudaDevice, EndsTheRunWhenAProductFails) {
  const CudaTwin machine;
  stand_in<void(int)>("stand_in_fail_in")(3);
  try {
    play_all(failing_device());
    ADD_FAILURE() << "nobody said so";
  } catch (const std::runtime_error& error) {
    EXPECT_NE(std::string(error.what()).find("cublasGemmEx of "), std::string::npos) << error.what();
  }
  EXPECT_EQ(machine.live(), Live{});
}

TEST(Blas, SaysWhatItCantLoad) {
  const auto sentence = [](const std::string& library) {
    try {
      Blas::load(library);
    } catch (const std::runtime_error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(sentence("/nowhere/libcublas.so").find("/nowhere/libcublas.so"), std::string::npos);
  EXPECT_NE(sentence("libm.so.6").find("libm.so.6 has no cublasCreate_v2"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test
