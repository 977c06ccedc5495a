// Staged loads through the area: by which stream their kernels run, and that neither the area nor the device pool is
// used too early, in every order in which a GPU may run the streams.
#include "impl/device/cuda/staged_loads.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "policy/transfer/boxes.hpp"
#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

using twin::CudaTwin;
using twin::Streams;

constexpr KvShape kShape{.layers = 5, .planes = 2, .heads = 2, .head_bytes = 16, .page_tokens = 4};
constexpr Layout kLayout = Layout::page_first;
constexpr Pages kDevicePages = 24, kHostPages = 24;
constexpr std::uint32_t kGroupEnds[] = {2, 4, 5};

// Pools, an area of six pages, and streams as the CUDA device has them.
class Rig {
 public:
  Rig() {
    Splitmix rng(7);
    for (Bytes i = 0; i < host_.bytes(); ++i) host_.data()[i] = static_cast<std::byte>(rng.next());
    std::memset(device_.data(), 0, device_.bytes());
  }
  ~Rig() {
    compute.drain();
    own.drain();
    copying.drain();
  }

  // Queues the copies of a load of pages [host_first, host_first + slots) into these slots.
  StagedLoads::LoadPtr copy(Pages host_first, const std::vector<SlotId>& slots) {
    StagedLoads::LoadPtr load = loads.begin(slots, copying);
    std::uint32_t begin = 0;
    for (const std::uint32_t end : kGroupEnds) {
      if (load == nullptr) break;
      for (Pages page = 0; page < slots.size(); ++page) {
        StagedPages at{.pages = 1,
                       .staging_first = load->first + page,
                       .staging_pages = loads.area_pages(),
                       .host_first = host_first + page,
                       .host_pages = kHostPages};
        const Box box = layer_slices(kLayout, kShape, at, begin, end);
        for (std::uint64_t slice = 0; slice < box.depth; ++slice) {
          copying.must(cudaMemcpy2DAsync(loads.area() + box.device_at + slice * box.device_slice, box.device_pitch,
                                         host_.data() + box.host_at + slice * box.host_slice, box.host_pitch, box.width,
                                         box.height, cudaMemcpyHostToDevice, copying.get()),
                       "cudaMemcpy2DAsync");
        }
      }
      loads.add_group(*load, begin, end, copying);
      begin = end;
    }
    return load;
  }
  void land() const {
    copying.record(end_);
    copying.until(end_);
  }
  // The bytes that `stream` finds in a slot now, as one page in layer_first.
  std::vector<std::byte> found(SlotId slot, const CudaStream& stream) const {
    const Bytes block = kShape.row_bytes() * kShape.page_tokens;
    for (std::uint32_t i = 0; i < kShape.planes * kShape.layers; ++i) {
      stream.must(cudaMemcpyAsync(page_.data() + i * block, device_.data() + (i * kDevicePages + slot) * block, block,
                                  cudaMemcpyDeviceToHost, stream.get()),
                  "cudaMemcpyAsync");
    }
    stream.record(end_);
    stream.until(end_);
    return {page_.data(), page_.data() + page_.bytes()};
  }
  std::vector<std::byte> expected(Pages host_page) const {
    std::vector<std::byte> page(kShape.page_bytes());
    KvIndex at;
    for (at.plane = 0; at.plane < kShape.planes; ++at.plane) {
      for (at.layer = 0; at.layer < kShape.layers; ++at.layer) {
        for (at.token = 0; at.token < kShape.page_tokens; ++at.token) {
          at.page = 0;
          std::byte* to = page.data() + byte_offset(Layout::layer_first, kShape, 1, at);
          at.page = host_page;
          const std::byte* from = host_.data() + byte_offset(kLayout, kShape, kHostPages, at);
          std::memcpy(to, from, kShape.row_bytes());
        }
      }
    }
    return page;
  }
  void lay_out_all(StagedLoads::Load& load) {
    for (std::size_t group = 0; group < std::size(kGroupEnds); ++group) {
      EXPECT_TRUE(loads.lay_out(load, group, compute));
    }
  }

 private:
  PinnedMemory host_{kHostPages * kShape.page_bytes(), "the host pool"};
  GpuMemory device_{kDevicePages * kShape.page_bytes(), "the device pool"};
  PinnedMemory page_{kShape.page_bytes(), "a page"};
  CudaEvent end_;

 public:
  StagedLoads loads{{kShape, kLayout, kDevicePages, kHostPages, device_.data(), host_.data(), host_.data()}, 6};
  CudaStream compute{"compute stream", false}, copying{"copy stream", true}, own{"relayout stream", true},
      storage{"storage stream", false};
};

std::vector<SlotId> from(SlotId first, std::size_t count) {
  std::vector<SlotId> slots(count);
  std::iota(slots.begin(), slots.end(), first);
  return slots;
}

class StagedLoadsOnTwin : public testing::TestWithParam<std::uint64_t> {
 protected:
  void TearDown() override {
    EXPECT_EQ(machine_.violations(), std::vector<std::string>{});
    EXPECT_EQ(machine_.hidden_syncs(), std::vector<std::string>{});
  }
  std::uint64_t on_compute() const { return machine_.launches("relayout") - machine_.urgent_launches("relayout"); }
  std::uint64_t on_own() const { return machine_.urgent_launches("relayout"); }

  CudaTwin machine_{GetParam() == 0 ? twin::Machine{} : twin::Machine{.streams = Streams::seeded, .seed = GetParam()}};
};

INSTANTIATE_TEST_SUITE_P(Orders, StagedLoadsOnTwin, testing::Range<std::uint64_t>(0, 25));

// Five loads through an area of six pages. The compute stream may be late, so a load waits for the kernels of the loads
// whose part of the area it takes.
TEST_P(StagedLoadsOnTwin, ThePassQueuesTheKernelsAndTheAreaIsARing) {
  Rig rig;
  for (const Pages pages : {4U, 2U, 3U, 6U, 1U}) {
    const auto first = static_cast<SlotId>(pages + 3);
    const StagedLoads::LoadPtr load = rig.copy(pages, from(first, pages));
    ASSERT_NE(load, nullptr);
    rig.lay_out_all(*load);
    rig.land();
    rig.loads.finish(load, Flight{}, rig.own, {4});
    const auto last = static_cast<SlotId>(first + pages - 1);
    rig.loads.wait_for_slot(last, rig.storage);
    if (pages % 2 == 0) {
      EXPECT_EQ(rig.found(last, rig.storage), rig.expected(2 * pages - 1));
    }
  }
  EXPECT_EQ(rig.found(4, rig.compute), rig.expected(1));
  for (SlotId slot = 0; slot < 6; ++slot) EXPECT_EQ(rig.found(9 + slot, rig.compute), rig.expected(6 + slot));
  EXPECT_EQ(on_own(), 0U);
  EXPECT_EQ(on_compute(), 5 * std::size(kGroupEnds));
}

TEST_P(StagedLoadsOnTwin, WithoutAPassTheLoadQueuesThem) {
  Rig rig;
  const Flight flight;
  const StagedLoads::LoadPtr load = rig.copy(3, from(10, 4));
  EXPECT_TRUE(rig.loads.lay_out(*load, 0, rig.compute)) << "a pass that ended after its first layer";
  rig.land();
  rig.loads.finish(load, flight, rig.own, {4});
  EXPECT_EQ(on_compute(), 1U);
  EXPECT_EQ(on_own(), std::size(kGroupEnds) - 1);
  rig.lay_out_all(*load);
  EXPECT_EQ(on_compute(), 1U) << "each group once";
  EXPECT_EQ(rig.found(12, rig.compute), rig.expected(5));
}

// A pass begins while the load's own kernels run: it waits for them on the GPU.
TEST_P(StagedLoadsOnTwin, APassThatBeginsLaterWaitsForTheLoadsKernels) {
  for (SlotId round = 0; round < 10; ++round) {
    Rig rig;
    const std::uint64_t before = on_own();
    const StagedLoads::LoadPtr load = rig.copy(round, from(round, 2));
    rig.land();
    std::future<void> finished = std::async(std::launch::async, [&] { rig.loads.finish(load, {}, rig.own, {4}); });
    while (on_own() - before < std::size(kGroupEnds)) std::this_thread::yield();
    rig.lay_out_all(*load);
    EXPECT_EQ(rig.found(round + 1, rig.compute), rig.expected(round + 1));
    finished.get();
  }
}

// The load does not end before the pass that waits for it has queued all kernels, or has ended.
TEST_P(StagedLoadsOnTwin, ALoadWaitsForThePassThatWaitsForIt) {
  for (const bool ends : {false, true}) {
    Rig rig;
    const std::uint64_t before = on_own();
    const auto flight = std::make_shared<Flight>();
    rig.loads.begin_wait({std::make_shared<Flight>(), flight});
    const StagedLoads::LoadPtr load = rig.copy(0, from(0, 2));
    rig.land();
    std::future<void> finished = std::async(std::launch::async, [&] { rig.loads.finish(load, *flight, rig.own, {4}); });
    EXPECT_TRUE(rig.loads.lay_out(*load, 1, rig.compute));
    if (!ends) {
      EXPECT_TRUE(rig.loads.lay_out(*load, 2, rig.compute));
    }
    if (ends) rig.loads.end_wait();
    finished.get();
    EXPECT_EQ(on_own() - before, ends ? 1U : 0U);
    EXPECT_EQ(rig.found(1, rig.compute), rig.expected(1));
  }
}

TEST_P(StagedLoadsOnTwin, ALoadThatIsCancelledIsNotLaidOut) {
  Rig rig;
  const StagedLoads::LoadPtr load = rig.copy(0, from(0, 6));
  EXPECT_TRUE(rig.loads.lay_out(*load, 0, rig.compute));
  rig.land();
  rig.loads.close(*load);
  EXPECT_TRUE(rig.loads.lay_out(*load, 0, rig.compute));
  EXPECT_FALSE(rig.loads.lay_out(*load, 1, rig.compute));
  const StagedLoads::LoadPtr next = rig.copy(6, from(6, 6));
  rig.lay_out_all(*next);
  EXPECT_EQ(rig.found(11, rig.compute), rig.expected(11));
}

TEST_P(StagedLoadsOnTwin, TheEndOfTheDeviceWakesALoad) {
  Rig rig;
  const auto flight = std::make_shared<Flight>();
  rig.loads.begin_wait({flight});
  const StagedLoads::LoadPtr load = rig.copy(0, from(0, 2));
  rig.land();
  std::future<void> finished = std::async(std::launch::async, [&] { rig.loads.finish(load, *flight, rig.own, {4}); });
  rig.loads.stop();
  finished.get();
  EXPECT_EQ(machine_.launches("relayout"), 0U);
}

TEST_P(StagedLoadsOnTwin, ALoadLargerThanTheAreaIsNotStagedThere) {
  Rig rig;
  const StagedLoads::LoadPtr load = rig.copy(0, from(0, 6));
  rig.lay_out_all(*load);
  EXPECT_EQ(rig.copy(0, from(0, 7)), nullptr);
  rig.copying.must(cudaMemsetAsync(rig.loads.area(), 0, 6 * kShape.page_bytes(), rig.copying.get()), "cudaMemsetAsync");
  EXPECT_EQ(rig.found(5, rig.compute), rig.expected(5)) << "the area is free only after the kernels";
}

}  // namespace
}  // namespace kvtwin::test
