// Tests the special parts of the CUDA device: paths, windows, events, and failures of CUDA calls. The tests in
// tests/unit/impl cover the common behavior of devices, and are also built for the CUDA device.
#include "impl/device/cuda/cuda_device.hpp"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "device_on_twin.hpp"
#include "impl/device/cuda/blas.hpp"
#include "real_rig.hpp"
#include "tests/cuda_twin/cuda_twin.hpp"

namespace kvtwin::test {
namespace {

using twin::CudaTwin;
using twin::Live;
using twin::Machine;
using twin::Streams;
using twin::Way;

constexpr TransferPath kPaths[] = {TransferPath::copy_engine, TransferPath::boxes, TransferPath::kernel,
                                   TransferPath::ring, TransferPath::staged};

std::unique_ptr<Device> make_on_twin(const HostDeviceConfig& config) {
  return make_cuda_device(cuda_device_of(config));
}

class CudaDevice : public testing::Test {
 protected:
  CudaDevice() { make_test_device = &make_on_twin; }
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

HostDeviceConfig failing_device() {
  HostDeviceConfig config = small_device(32, 16);
  config.shape = {2, 2, 2, 16, 4};
  config.hidden = 16;
  config.width = 48;
  return config;
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

// Returns a function of the stand-in library.
template <typename Function>
Function* stand_in(const char* name) {
  void* library = dlopen(KVTWIN_BLAS_STAND_IN, RTLD_NOW);
  EXPECT_NE(library, nullptr);
  return reinterpret_cast<Function*>(dlsym(library, name));
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
