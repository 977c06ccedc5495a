// The index arithmetic of the copy kernels, run on the CPU: every warp and lane of the register kernel and every bulk
// copy of the ring kernel, for random shapes, layouts and index arrays.
#include "kernels/row_transfer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/page_checksum.hpp"
#include "slow_transfer.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};

// Memory with guard bytes before and after it, at an address that is `skew` bytes past a multiple of 64.
class Pool {
 public:
  Pool(Splitmix& rng, std::uint64_t bytes, std::uint64_t skew) : memory_(bytes + 192), skew_(skew) {
    for (std::byte& byte : memory_) byte = static_cast<std::byte>(rng.next());
  }
  Pool(const Pool& other) : memory_(other.memory_.size()), skew_(other.skew_) { *this = other; }
  Pool& operator=(const Pool& other) {
    std::memcpy(const_cast<std::byte*>(begin()), other.begin(), memory_.size() - 64);
    return *this;
  }
  std::byte* data() { return const_cast<std::byte*>(begin()) + 64 + skew_; }
  bool operator==(const Pool& other) const { return std::memcmp(begin(), other.begin(), memory_.size() - 64) == 0; }

 private:
  const std::byte* begin() const {
    return memory_.data() + (64 - reinterpret_cast<std::uintptr_t>(memory_.data()) % 64) % 64;
  }
  std::vector<std::byte> memory_;
  std::uint64_t skew_;
};

template <std::uint32_t kBytes>
struct CpuAccess : CpuPlaces {
  struct Vector {
    std::uint8_t bytes[kBytes];
  };
  static constexpr bool kNeedsSegments = true;
  std::vector<std::uint64_t>& sums;
  std::uint64_t vectors = 0;
  explicit CpuAccess(std::vector<std::uint64_t>& page_sums) : sums(page_sums) {}

  Vector load(const std::byte* segment, std::uint32_t offset) const {
    const std::byte* at = segment + offset;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % kBytes, 0u);
    Vector v;
    std::memcpy(&v, at, kBytes);
    return v;
  }
  void store(std::byte* segment, std::uint32_t offset, const Vector& v) {
    std::byte* at = segment + offset;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(at) % kBytes, 0u);
    std::memcpy(at, &v, kBytes);
    ++vectors;
  }
  void moved(const RowSegment& s, std::uint64_t offset, const Vector& v, std::uint64_t& sum) const {
    for (std::uint32_t i = 0; i < kBytes; ++i) {
      sum += checksum_part(s.plane, s.layer, s.block + offset + i, v.bytes[i]);
    }
  }
  void finish(std::uint64_t pair, std::uint64_t sum, std::uint32_t) { sums[pair] += sum; }
};

template <std::uint32_t kBytes, std::uint32_t kVectors>
std::uint64_t walk(const RowTransfer& t, const RowPlan& plan, std::uint64_t warps, std::vector<std::uint64_t>& sums) {
  CpuAccess<kBytes> access{sums};
  for (std::uint64_t warp = 0; warp < warps; ++warp) {
    for (std::uint32_t lane = 0; lane < kWarpLanes; ++lane) {
      move_rows<kVectors>(t, plan, warp, warps, lane, access);
    }
  }
  return access.vectors * kBytes;
}

template <std::uint32_t kBytes>
std::uint64_t walk(const RowTransfer& t, const RowPlan& plan, std::uint64_t warps, std::vector<std::uint64_t>& sums) {
  switch (plan.lane_vectors) {
    case 1: return walk<kBytes, 1>(t, plan, warps, sums);
    case 2: return walk<kBytes, 2>(t, plan, warps, sums);
    case 4: return walk<kBytes, 4>(t, plan, warps, sums);
    default: return walk<kBytes, 8>(t, plan, warps, sums);
  }
}

// Runs the register kernel and returns the number of stored bytes.
std::uint64_t move_by_registers(const RowTransfer& t, std::uint64_t warps, std::vector<std::uint64_t>& sums) {
  const RowPlan plan = row_plan(t);
  EXPECT_TRUE(plan.vector_bytes == 16 || plan.lane_vectors == 1 ||
              plan.lane_vectors == 8);  // only these variants are compiled
  switch (plan.vector_bytes) {
    case 16: return walk<16>(t, plan, warps, sums);
    case 8: return walk<8>(t, plan, warps, sums);
    case 4: return walk<4>(t, plan, warps, sums);
    case 2: return walk<2>(t, plan, warps, sums);
    default: return walk<1>(t, plan, warps, sums);
  }
}

void move_by_ring(const RowTransfer& t, std::uint32_t stage_bytes) {
  const RowPlan plan = ring_plan(t, stage_bytes);
  const std::uint64_t in_stage = stage_bytes / plan.segment_bytes;
  ASSERT_GE(in_stage, 1u);
  std::vector<std::byte> stage(stage_bytes);
  for (std::uint64_t first = 0; first < plan.segments; first += in_stage) {
    for (const bool load : {true, false}) {
      for (std::uint64_t i = 0; i < in_stage && first + i < plan.segments; ++i) {
        const RowSegment s = segment_at(plan, t.shape, first + i);
        const SegmentAddress at = address_of(t, plan, s);
        if (at.source == nullptr) continue;
        ASSERT_EQ((reinterpret_cast<std::uintptr_t>(at.source) | reinterpret_cast<std::uintptr_t>(at.target) | s.bytes |
                   plan.segment_bytes) %
                      16,
                  0u);
        std::byte* place = stage.data() + i * plan.segment_bytes;
        std::memcpy(load ? place : at.target, load ? at.source : place, s.bytes);
      }
    }
  }
}

std::vector<std::int64_t> drawn_pages(Splitmix& rng, std::uint64_t pool, std::uint64_t count) {
  std::vector<std::int64_t> pages(pool);
  std::iota(pages.begin(), pages.end(), 0);
  if (rng.chance(25)) std::reverse(pages.begin(), pages.end());
  for (std::uint64_t swaps = rng.below(3) * pool; swaps > 0; --swaps) {
    std::swap(pages[rng.below(pool)], pages[rng.below(pool)]);
  }
  pages.resize(count);
  return pages;
}

void check_seed(std::uint64_t seed) {
  Splitmix rng(mix(seed));
  constexpr std::uint32_t kHeadBytes[] = {1, 2, 6, 8, 16, 64, 80, 128, 257, 576, 656, 1152, 4680};
  KvShape shape;
  shape.layers = static_cast<std::uint32_t>(rng.between(1, 4));
  shape.planes = static_cast<std::uint32_t>(rng.between(1, 2));
  shape.heads = static_cast<std::uint32_t>(rng.between(1, 3));
  shape.head_bytes = kHeadBytes[rng.below(std::size(kHeadBytes))];
  shape.page_tokens = rng.chance(25) ? 1 : static_cast<std::uint32_t>(rng.between(1, 9));
  const std::uint64_t device_pages = rng.between(1, 5), host_pages = rng.between(1, 5);
  const std::uint64_t count = rng.between(1, std::min(device_pages, host_pages));
  const std::uint64_t skews[] = {0, 0, 0, 1, 2, 4, 8, 16};
  Pool device(rng, device_pages * shape.page_bytes(), skews[rng.below(8)]);
  Pool host(rng, host_pages * shape.page_bytes(), skews[rng.below(8)]);

  RowTransfer t;
  t.shape = shape;
  t.device_pages = device_pages;
  t.host_pages = host_pages;
  t.host_layout = kLayouts[rng.below(4)];
  t.to_device = rng.chance(50);
  t.layer_begin = static_cast<std::uint32_t>(rng.below(shape.layers));
  t.layer_end = static_cast<std::uint32_t>(rng.between(t.layer_begin + 1, shape.layers));
  t.count = count;
  SCOPED_TRACE(std::to_string(shape.layers) + " layers, " + std::to_string(shape.planes) + " planes, " +
               std::to_string(shape.heads) + " heads of " + std::to_string(shape.head_bytes) + " bytes, pages of " +
               std::to_string(shape.page_tokens) + ", layout " + std::to_string(static_cast<int>(t.host_layout)));
  std::vector<std::int64_t> source = drawn_pages(rng, t.to_device ? host_pages : device_pages, count);
  std::vector<std::int64_t> target = drawn_pages(rng, t.to_device ? device_pages : host_pages, count);
  if (rng.chance(30)) source[rng.below(count)] = source[0];  // one source page twice
  std::uint64_t left_out = count;
  if (rng.chance(20)) {
    left_out = rng.below(count);
    (rng.chance(50) ? source : target)[left_out] = rng.chance(50) ? -1 : 5;
  }
  const std::vector<std::int32_t> source32(source.begin(), source.end()), target32(target.begin(), target.end());
  const bool narrow = rng.chance(50);
  t.index_type = narrow ? IndexType::int32 : IndexType::int64;
  t.source_pages = narrow ? static_cast<const void*>(source32.data()) : source.data();
  t.target_pages = narrow ? static_cast<const void*>(target32.data()) : target.data();

  Pool expected_device = device, expected_host = host;
  std::vector<PageRun> runs;
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i != left_out)
      runs.push_back({static_cast<std::uint32_t>(source[i]), static_cast<std::uint32_t>(target[i]), 1});
  }
  TransferParams slow;
  slow.shape = shape;
  slow.device = expected_device.data();
  slow.device_pages = device_pages;
  slow.host = expected_host.data();
  slow.host_pages = host_pages;
  slow.host_layout = t.host_layout;
  slow.to_device = t.to_device;
  slow.runs = runs.data();
  slow.run_count = runs.size();
  slow.layer_begin = t.layer_begin;
  slow.layer_end = t.layer_end;
  copy_slowly(slow);

  // The device memory is either one pool of all layers or one block per layer.
  for (const bool in_blocks : {false, true}) {
    SCOPED_TRACE(in_blocks ? "blocks" : "one pool");
    Pool device_after = device, host_after = host;
    t.device = device_after.data();
    t.host = host_after.data();
    std::vector<std::byte*> blocks;
    for (std::uint64_t i = 0; i < shape.planes * shape.layers; ++i) {
      blocks.push_back(t.device + i * device_pages * shape.page_tokens * shape.row_bytes());
    }
    std::uintptr_t bits = 256;
    for (const std::byte* block : blocks) bits |= reinterpret_cast<std::uintptr_t>(block);
    if (in_blocks) {
      t.device = nullptr;
      t.device_blocks = blocks.data();
      t.block_alignment = static_cast<std::uint32_t>(bits & (~bits + 1));
    }
    ASSERT_TRUE(valid(t));
    std::vector<std::uint64_t> sums(count);
    const std::uint64_t stored = move_by_registers(t, rng.between(1, 5), sums);
    EXPECT_EQ(stored, runs.size() * shape.page_bytes() / shape.layers * (t.layer_end - t.layer_begin));
    ASSERT_TRUE(device_after == expected_device && host_after == expected_host);
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto page = static_cast<std::uint64_t>(source[i]);
      const std::uint64_t sum = i == left_out ? 0
                                : t.to_device ? page_checksum(t.host_layout, shape, host_after.data(), host_pages, page,
                                                              t.layer_begin, t.layer_end)
                                              : page_checksum(Layout::layer_first, shape, device_after.data(),
                                                              device_pages, page, t.layer_begin, t.layer_end);
      EXPECT_EQ(sums[i], sum) << "pair " << i;
    }
    if (!ring_fits(t)) continue;
    device_after = device;
    host_after = host;
    move_by_ring(t, 1024);
    ASSERT_TRUE(device_after == expected_device && host_after == expected_host) << "ring";
  }
}

TEST(RowTransfer, EveryLaneTogetherMovesWhatMovingByteByByteMoves) {
  for (std::uint64_t seed = 1; seed <= 600 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    check_seed(seed);
  }
}

// Pages that are host_page_stride apart, such as the slots of a disk file, are pools of one page each.
TEST(RowTransfer, PagesApartMoveLikePoolsOfOnePageEach) {
  for (std::uint64_t seed = 1; seed <= 200 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Splitmix rng(mix(seed));
    constexpr std::uint32_t kHeadBytes[] = {1, 6, 16, 64, 257, 1152};
    constexpr std::uint64_t kPages = 5, kCount = 4;
    RowTransfer t;
    t.shape = {.layers = static_cast<std::uint32_t>(rng.between(1, 4)),
               .planes = static_cast<std::uint32_t>(rng.between(1, 2)),
               .heads = static_cast<std::uint32_t>(rng.between(1, 3)),
               .head_bytes = kHeadBytes[rng.below(std::size(kHeadBytes))],
               .page_tokens = static_cast<std::uint32_t>(rng.between(1, 9))};
    t.device_pages = t.host_pages = kPages;
    t.host_page_stride = t.shape.page_bytes() + 16 * rng.below(3) + rng.below(2);
    t.host_layout = kLayouts[seed % 4];
    t.to_device = rng.chance(50);
    t.layer_begin = static_cast<std::uint32_t>(rng.below(t.shape.layers));
    t.layer_end = static_cast<std::uint32_t>(rng.between(t.layer_begin + 1, t.shape.layers));
    t.count = kCount;
    const std::vector<std::int64_t> source = drawn_pages(rng, kPages, kCount),
                                    target = drawn_pages(rng, kPages, kCount);
    t.source_pages = source.data();
    t.target_pages = target.data();
    Pool device(rng, kPages * t.shape.page_bytes(), 0), host(rng, kPages * t.host_page_stride, 0);

    Pool expected_device = device, expected_host = host;
    for (std::uint64_t i = 0; i < kCount; ++i) {
      RowTransfer one = t;
      const auto on_host = static_cast<std::uint64_t>(t.to_device ? source[i] : target[i]);
      const std::int64_t zero = 0;
      one.device = expected_device.data();
      one.host = expected_host.data() + on_host * t.host_page_stride;
      one.host_page_stride = 0;
      one.host_pages = one.count = 1;
      one.source_pages = t.to_device ? &zero : source.data() + i;
      one.target_pages = t.to_device ? target.data() + i : &zero;
      std::vector<std::uint64_t> sums(1);
      move_by_registers(one, 1, sums);
    }
    for (const bool by_ring : {false, true}) {
      Pool device_after = device, host_after = host;
      t.device = device_after.data();
      t.host = host_after.data();
      ASSERT_TRUE(valid(t));
      if (by_ring && !ring_fits(t)) continue;
      std::vector<std::uint64_t> sums(kCount);
      by_ring ? move_by_ring(t, 1024) : static_cast<void>(move_by_registers(t, rng.between(1, 5), sums));
      ASSERT_TRUE(device_after == expected_device && host_after == expected_host) << (by_ring ? "ring" : "registers");
    }
  }
}

RowTransfer llama() {
  RowTransfer t;
  t.shape = {.layers = 32, .planes = 2, .heads = 8, .head_bytes = 256, .page_tokens = 16};
  t.device = reinterpret_cast<std::byte*>(0x7f0000000000);  // never read
  t.host = reinterpret_cast<std::byte*>(0x7e0000000000);
  t.device_pages = 70'000;
  t.host_pages = 400'000;
  t.host_layout = Layout::page_first;
  t.count = 1;
  t.layer_end = 32;
  return t;
}

TEST(RowTransfer, VectorsAreAsWideAsEveryAddressStrideAndSizeLets) {
  RowTransfer t = llama();
  EXPECT_EQ(vector_bytes(t), 16u);
  for (const std::uint32_t skew : {8u, 4u, 2u, 1u, 24u, 20u}) {
    const std::uint32_t width = skew & (~skew + 1);
    t = llama();
    t.host += skew;
    EXPECT_EQ(vector_bytes(t), width);
    EXPECT_FALSE(ring_fits(t));
    t = llama();
    t.device += skew;
    EXPECT_EQ(vector_bytes(t), width);
    t = llama();
    t.shape.heads = 1;
    t.shape.head_bytes = 576 + skew;  // in page_first, the rows are not adjacent
    EXPECT_EQ(vector_bytes(t), width);
  }
  t = llama();
  t.device_blocks = reinterpret_cast<std::byte* const*>(t.device);
  t.device += 1;  // has no effect then
  for (const std::uint32_t alignment : {1u, 2u, 4u, 8u, 16u, 256u}) {
    t.block_alignment = alignment;
    EXPECT_EQ(vector_bytes(t), std::min(alignment, 16u));
    EXPECT_EQ(ring_fits(t), alignment >= 16);
  }
  // Rows of 257 bytes that are adjacent form pieces whose size is a multiple of 16.
  t = llama();
  t.shape.heads = 1;
  t.shape.head_bytes = 257;
  EXPECT_EQ(vector_bytes(t), 1u);
  t.host_layout = Layout::page_first_direct;
  EXPECT_EQ(vector_bytes(t), 16u);
}

TEST(RowTransfer, SegmentsPartThePieceAndOffsetsPassFourGigabytes) {
  RowTransfer t = llama();
  const std::int64_t source = 399'999, target = 69'999;
  t.source_pages = &source;
  t.target_pages = &target;
  for (const Layout layout : kLayouts) {
    t.host_layout = layout;
    const RowPlan plan = row_plan(t);
    EXPECT_EQ(plan.segments * plan.segment_bytes, t.shape.page_bytes());  // the segments cover the page exactly
    for (std::uint64_t number = 0; number < plan.segments; ++number) {
      const RowSegment s = segment_at(plan, t.shape, number);
      const SegmentAddress at = address_of(t, plan, s);
      KvIndex index{.page = 399'999, .plane = s.plane, .layer = s.layer};
      index.token = static_cast<std::uint32_t>(s.block / t.shape.row_bytes());
      index.head = static_cast<std::uint32_t>(s.block % t.shape.row_bytes() / t.shape.head_bytes);
      ASSERT_EQ(static_cast<std::uint64_t>(at.source - t.host),
                byte_offset(layout, t.shape, t.host_pages, index) + s.block % t.shape.head_bytes);
      index.page = 69'999;
      ASSERT_EQ(static_cast<std::uint64_t>(at.target - t.device),
                byte_offset(Layout::layer_first, t.shape, t.device_pages, index) + s.block % t.shape.head_bytes);
    }
  }
  std::uint64_t rest = (std::uint64_t{7} << 40) + 5;
  EXPECT_EQ(take_digit(rest, std::uint64_t{1} << 40), 5u);
  EXPECT_EQ(rest, 7u);
}

TEST(RowTransfer, EightLoadsAreInFlightWhateverThePiece) {
  RowTransfer t = llama();
  for (const std::uint32_t bytes : {16u, 32u, 128u, 256u, 576u, 1152u, 2048u, 4096u, 4608u, 65536u}) {
    t.shape.heads = 1;
    t.shape.head_bytes = bytes;
    const RowPlan plan = row_plan(t);
    EXPECT_EQ(warp_segments(plan) * plan.group_lanes * plan.lane_vectors, kWarpLanes * kLaneLoads);
    EXPECT_LE(plan.segment_bytes, 4096u);
    EXPECT_LT((plan.piece_segments - 1) * plan.segment_bytes, bytes);
    EXPECT_GE(plan.piece_segments * plan.segment_bytes, bytes);
  }
}

// A strip is all that one warp finds at once, but no warp is without work for it.
TEST(RowTransfer, AWarpTakesTheMoreSegmentsTheMoreThereAre) {
  RowTransfer t = llama();
  t.shape.heads = 1;
  const auto strip = [&](std::uint32_t row_bytes, std::uint64_t segments, std::uint64_t warps) {
    t.shape.head_bytes = row_bytes;
    RowPlan plan = row_plan(t);
    plan.segments = segments;
    return strip_segments(plan, warps);
  };
  EXPECT_EQ(strip(512, 1, 32), 8u);  // eight loads of each lane
  EXPECT_EQ(strip(512, 8 * 32, 32), 8u);
  EXPECT_EQ(strip(512, 16 * 32, 32), 16u);
  EXPECT_EQ(strip(512, 1'000'000, 32), 32u);
  EXPECT_EQ(strip(4096, 1, 32), 1u);
  EXPECT_EQ(strip(4096, 3 * 32, 32), 2u);
  EXPECT_EQ(strip(4096, 1'000'000, 32), 32u);
  EXPECT_EQ(strip(16, 1, 32), 256u);  // a segment is one load
}

TEST(RowTransfer, RefusesNonsense) {
  const std::int64_t page = 0;
  RowTransfer right = llama();
  right.source_pages = right.target_pages = &page;
  ASSERT_TRUE(valid(right));
  const auto with = [&](auto change) {
    RowTransfer t = right;
    change(t);
    return valid(t);
  };
  EXPECT_FALSE(with([](RowTransfer& t) { t.host = nullptr; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.device = nullptr; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.source_pages = nullptr; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.target_pages = nullptr; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.layer_end = 33; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.layer_begin = 2, t.layer_end = 1; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.shape.heads = 0; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.block_alignment = 3; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.device_pages = 0; }));
  EXPECT_FALSE(with([](RowTransfer& t) { t.host_page_stride = t.shape.page_bytes() - 1; }));
  EXPECT_TRUE(with([](RowTransfer& t) { t.host_page_stride = t.shape.page_bytes(); }));
  EXPECT_TRUE(with([](RowTransfer& t) { t.count = 0, t.host = t.device = nullptr, t.source_pages = nullptr; }));
  EXPECT_TRUE(with([](RowTransfer& t) { t.layer_end = 0, t.host = nullptr; }));
}

TEST(PageChecksum, SeesEachByteAndAddsUpOverLayers) {
  Splitmix rng(1);
  const KvShape shape{.layers = 3, .planes = 2, .heads = 2, .head_bytes = 5, .page_tokens = 3};
  Pool pool(rng, 2 * shape.page_bytes(), 0);
  const auto sum = [&](std::uint32_t begin, std::uint32_t end) {
    return page_checksum(Layout::page_head, shape, pool.data(), 2, 1, begin, end);
  };
  const std::uint64_t before = sum(0, 3);
  EXPECT_EQ(before, sum(0, 1) + sum(1, 3));
  std::uint64_t seen = 0;
  for (std::uint64_t i = 0; i < 2 * shape.page_bytes(); ++i) {
    pool.data()[i] ^= std::byte{0x80};
    seen += sum(0, 3) != before;
    pool.data()[i] ^= std::byte{0x80};
  }
  EXPECT_EQ(seen, shape.page_bytes());
}

}  // namespace
}  // namespace kvtwin::test
