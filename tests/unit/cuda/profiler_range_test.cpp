// The ranges that a profiler sees, with a stand-in for the profiler.
#include "impl/device/cuda/profiler_range.hpp"

#ifdef KV_NVTX
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <string>

#include "device_on_twin.hpp"
#include "real_rig.hpp"
#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/paths.hpp"

namespace kvtwin::test {
namespace {

// NVTX looks for a profiler at the first mark of the process.
const int named = setenv("NVTX_INJECTION64_PATH", built("libnvtx_stand_in.so").c_str(), 1);

template <typename Function>
Function* of_profiler(const char* name) {
  return function_of<Function>(built("libnvtx_stand_in.so"), name);
}

TEST(ProfilerRanges, MarkEachOperationOnce) {
  ASSERT_EQ(named, 0);
  const twin::CudaTwin machine;
  make_test_device = [](const HostDeviceConfig& host) { return make_cuda_device(cuda_device_of(host)); };
  const auto ranges = of_profiler<int(const char*)>("stand_in_ranges");
  const char* const names[] = {"load", "backup", "prefill step", "decode step", "audit"};
  std::map<std::string, int> before;
  for (const char* name : names) before[name] = ranges(name);
  {
    RealRig rig(small_device(32, 16));
    const std::vector<PageKey> keys = some_keys(4);
    rig.then([&] { rig.compute(keys, slots(0, 4)); });
    rig.then([&] { rig.back_up(keys, slots(0, 4), slots(6, 4)); });
    rig.then([&] { rig.read(keys, slots(10, 4), 19, {rig.load(keys, slots(6, 4), slots(10, 4))}); });
    rig.then([&] { rig.decode({{slots(20, 5), some_keys(5, 1), 0, 3}}); });
    EXPECT_EQ(rig.run().wrong_reads, 0U);
  }
  const std::map<std::string, int> expected{
      {"load", 1}, {"backup", 1}, {"prefill step", 2}, {"decode step", 3}, {"audit", 1}};
  for (const auto& [name, count] : expected) EXPECT_EQ(ranges(name.c_str()) - before[name], count) << name;
  EXPECT_EQ(of_profiler<int()>("stand_in_open_ranges")(), 0);
  EXPECT_STREQ(of_profiler<const char*()>("stand_in_domain")(), "kvtwin");
}

}  // namespace
}  // namespace kvtwin::test
#endif
