// Compares every way to move pages with its CPU twin, byte for byte: the moved pages, all other bytes of both pools,
// and the guard bands around the pools. All ways start with the same bytes and must give the same bytes.
#include <algorithm>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/copy_list.hpp"
#include "kernels/page_checksum.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/pattern_kernels.hpp"
#include "kernels/row_kernels.hpp"
#include "kernels/transfer.hpp"
#include "tests/gpu/delay.hpp"
#include "tests/gpu/gpu_memory.hpp"

namespace kvtwin::test {
namespace {

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};
constexpr std::uint32_t kRows[] = {8, 16, 64, 128, 512, 576, 656, 1152, 2048, 4096, 4680, 257};
constexpr std::uint32_t kPageTokens[] = {1, 2, 16, 32, 64, 128};
constexpr std::uint32_t kLayers[] = {1, 2, 61, 80};
constexpr std::uint64_t kSkews[] = {0, 0, 1, 2, 4, 8, 16};
constexpr std::uint64_t kMaxPages = 7;

std::uint64_t drawn_skew(Splitmix& rng) { return kSkews[rng.below(std::size(kSkews))]; }

KvShape drawn_shape(Splitmix& rng, std::uint32_t row, std::uint32_t page_tokens) {
  KvShape shape;
  shape.planes = static_cast<std::uint32_t>(rng.between(1, 2));
  shape.heads = shape.planes == 2 && row % 4 == 0 && rng.chance(50) ? 4 : 1;
  shape.head_bytes = row / shape.heads;
  shape.page_tokens = page_tokens;
  std::uint64_t drawn = rng.below(std::size(kLayers));
  do {
    shape.layers = kLayers[drawn];
  } while (kMaxPages * shape.page_bytes() > scale().pool_bytes && drawn-- > 0);
  return shape;
}

enum class Indices : std::uint8_t { none, one, identity, reverse, random, gaps, duplicates, left_out };
constexpr Indices kIndices[] = {Indices::none,   Indices::one,  Indices::identity,   Indices::reverse,
                                Indices::random, Indices::gaps, Indices::duplicates, Indices::left_out};

// Pairs of pages, source and target.
struct Pairs {
  std::vector<std::int64_t> source, target;
  std::vector<bool> moves;  // false: the source or the target lies outside of its pool, so the pair does not move

  std::uint64_t count() const { return source.size(); }
};

std::vector<std::int64_t> shuffled(Splitmix& rng, std::uint64_t count) {
  std::vector<std::int64_t> pages(count);
  std::iota(pages.begin(), pages.end(), 0);
  for (std::uint64_t i = count; i > 1; --i) std::swap(pages[i - 1], pages[rng.below(i)]);
  return pages;
}

Pairs drawn_pairs(Splitmix& rng, Indices kind, std::uint64_t sources, std::uint64_t targets) {
  Pairs pairs;
  const std::uint64_t most = std::min(sources, targets);
  std::vector<std::int64_t> from = shuffled(rng, sources), to = shuffled(rng, targets);
  if (kind == Indices::identity || kind == Indices::reverse || kind == Indices::gaps) {
    std::sort(from.begin(), from.end());
    std::sort(to.begin(), to.end());
  }
  std::uint64_t count = rng.between(1, most);
  if (kind == Indices::none) count = 0;
  if (kind == Indices::one) count = 1;
  if (kind == Indices::identity || kind == Indices::reverse) count = most;
  const std::uint64_t step = kind == Indices::gaps && most >= 3 ? 2 : 1;
  for (std::uint64_t i = 0; i < count && i * step < most; ++i) {
    pairs.source.push_back(from[i * step]);
    pairs.target.push_back(to[i * step]);
  }
  if (kind == Indices::reverse) {
    std::reverse(pairs.source.begin(), pairs.source.end());
    std::reverse(pairs.target.begin(), pairs.target.end());
  }
  if (kind == Indices::duplicates) {
    for (std::int64_t& page : pairs.source) page = rng.chance(70) ? pairs.source[0] : page;
  }
  pairs.moves.assign(pairs.count(), true);
  for (std::uint64_t i = 0; kind == Indices::left_out && i < pairs.count(); ++i) {
    if (i > 0 && rng.chance(50)) continue;
    const bool at_source = rng.chance(50);
    const auto pool = static_cast<std::int64_t>(at_source ? sources : targets);
    const std::int64_t outside[] = {-1, pool, pool + 1, INT32_MAX, INT32_MIN};
    (at_source ? pairs.source : pairs.target)[i] = outside[rng.below(std::size(outside))];
    pairs.moves[i] = false;
  }
  return pairs;
}

// Returns the moving pairs as runs. Consecutive pairs are joined into one run.
std::vector<PageRun> runs_of(const Pairs& pairs) {
  std::vector<PageRun> runs;
  for (std::uint64_t i = 0; i < pairs.count(); ++i) {
    if (!pairs.moves[i]) continue;
    const auto source = static_cast<std::uint32_t>(pairs.source[i]);
    const auto target = static_cast<std::uint32_t>(pairs.target[i]);
    if (!runs.empty()) {
      PageRun& last = runs.back();
      if (last.source_first + last.pages == source && last.target_first + last.pages == target) {
        ++last.pages;
        continue;
      }
    }
    runs.push_back({source, target, 1});
  }
  return runs;
}

using Launcher = cudaError_t (*)(const RowTransfer&, const LaunchLimits&, cudaStream_t);

// A random shape, and pools for it.
class Geometry {
 public:
  Geometry(std::uint32_t row, std::uint32_t page_tokens, std::uint64_t seed)
      : rng_(mix(seed)),
        shape_(drawn_shape(rng_, row, page_tokens)),
        device_pages_(rng_.between(2, kMaxPages)),
        host_pages_(rng_.between(2, kMaxPages)),
        device_(Place::gpu, device_pages_ * shape_.page_bytes(), drawn_skew(rng_)),
        pinned_(Place::pinned, host_pages_ * shape_.page_bytes(), drawn_skew(rng_)),
        staging_(Place::gpu, host_pages_ * shape_.page_bytes(), drawn_skew(rng_)) {}

  void check_transfers(bool to_device, Layout layout, Indices kind);
  void check_patterns(Layout layout);
  bool there() const { return device_.there() && pinned_.there() && staging_.there(); }

 private:
  void draw_transfer(bool to_device, Layout layout, Indices kind);
  void check(Pool& host, const char* name, const std::function<cudaError_t()>& launch);
  void check_launchers();
  void check_blocks();
  void check_copy_lists();
  void check_checksums();
  std::function<cudaError_t()> with(Launcher launcher);
  cudaError_t submit(CopyList& list, bool one_by_one);

  Splitmix rng_;
  KvShape shape_;
  std::uint64_t device_pages_, host_pages_;
  Pool device_, pinned_, staging_;
  Stream stream_;
  // state of the current transfer
  Pairs pairs_;
  std::vector<PageRun> runs_;
  RowTransfer t_;
  TransferParams params_;  // describes the transfer between the expected bytes of the pools
  std::vector<std::byte> device_before_, host_before_, device_after_, host_after_;
};

void Geometry::draw_transfer(bool to_device, Layout layout, Indices kind) {
  pairs_ = to_device ? drawn_pairs(rng_, kind, host_pages_, device_pages_)
                     : drawn_pairs(rng_, kind, device_pages_, host_pages_);
  runs_ = runs_of(pairs_);
  t_ = {};
  t_.shape = shape_;
  t_.device = device_.data();
  t_.device_pages = device_pages_;
  t_.host_pages = host_pages_;
  t_.host_layout = layout;
  t_.to_device = to_device;
  t_.count = pairs_.count();
  t_.layer_begin = static_cast<std::uint32_t>(rng_.below(shape_.layers));
  t_.layer_end = static_cast<std::uint32_t>(rng_.between(t_.layer_begin + 1, shape_.layers));
  if (rng_.chance(40)) t_.layer_begin = 0, t_.layer_end = shape_.layers;
  params_ = {};
  params_.shape = shape_;
  params_.device_pages = device_pages_;
  params_.host_pages = host_pages_;
  params_.host_layout = layout;
  params_.to_device = to_device;
  params_.runs = runs_.data();
  params_.run_count = runs_.size();
  params_.layer_begin = t_.layer_begin;
  params_.layer_end = t_.layer_end;
  draw_bytes(rng_, device_.bytes);
  draw_bytes(rng_, pinned_.bytes);
  device_before_ = device_.bytes;
  host_before_ = pinned_.bytes;
  params_.device = device_.expected();
  params_.host = pinned_.expected();
  copy_pieces(params_);
  device_after_ = device_.bytes;
  host_after_ = pinned_.bytes;
}

// `host`: pinned memory or staging memory, with the host layout.
void Geometry::check(Pool& host, const char* name, const std::function<cudaError_t()>& launch) {
  SCOPED_TRACE(name);
  device_.bytes = device_before_;
  host.bytes = host_before_;
  ASSERT_CUDA(device_.write());
  ASSERT_CUDA(host.write());
  t_.host = host.data();
  const cudaError_t launched = launch();
  if (launched == cudaErrorNotSupported) return;  // the ring, on an older GPU
  ASSERT_CUDA(launched);
  ASSERT_CUDA(stream_.finish());
  device_.bytes = device_after_;
  host.bytes = host_after_;
  ASSERT_TRUE(device_.as_expected());
  ASSERT_TRUE(host.as_expected());
}

std::function<cudaError_t()> Geometry::with(Launcher launcher) {
  return [this, launcher] { return launcher(t_, {static_cast<std::uint32_t>(rng_.between(1, 32))}, stream_); };
}

void Geometry::check_launchers() {
  check(pinned_, "gather_scatter", with(launch_gather_scatter));
  check(pinned_, "warp_per_row", with(launch_warp_per_row));
  check(staging_, "relayout", with(launch_relayout));
  for (Pool* host : {&pinned_, &staging_}) {
    t_.host = host->data();
    if (ring_fits(t_)) {
      check(*host, "ring", with(launch_ring));
    } else if (!empty(t_)) {
      EXPECT_EQ(launch_ring(t_, {}, stream_), cudaErrorInvalidValue);
    }
  }
}

// Checks a table of blocks: one entry per plane and layer, all in the same pool.
void Geometry::check_blocks() {
  std::vector<std::byte*> blocks;
  std::uintptr_t bits = 256;
  for (std::uint64_t i = 0; i < std::uint64_t{shape_.planes} * shape_.layers; ++i) {
    blocks.push_back(device_.data() + i * device_pages_ * shape_.page_tokens * shape_.row_bytes());
    bits |= reinterpret_cast<std::uintptr_t>(blocks.back());
  }
  const OnGpu<std::byte*> table(blocks);
  t_.device_blocks = table.data();
  t_.block_alignment = static_cast<std::uint32_t>(bits & (~bits + 1));
  check(pinned_, "gather_scatter of blocks", with(launch_gather_scatter));
  check(pinned_, "warp_per_row of blocks", with(launch_warp_per_row));
  t_.device_blocks = nullptr;
  t_.block_alignment = 1;
}

// Submits the list in portions of random size.
cudaError_t Geometry::submit(CopyList& list, bool one_by_one) {
  std::size_t begin = 0;
  do {
    const std::size_t end = begin + rng_.below(list.size() - begin + 1);
    const cudaError_t error =
        one_by_one ? list.submit_one_by_one(begin, end, stream_) : list.submit(begin, end, stream_);
    if (error != cudaSuccess) return error;
    begin = end;
  } while (begin < list.size());
  return cudaSuccess;
}

void Geometry::check_copy_lists() {
  TransferParams params = params_;
  params.device = device_.data();
  params.host = pinned_.data();
  CopyList pieces, boxes;
  pieces.assign_pieces(params);
  boxes.assign_boxes(params);
  std::uint64_t bytes[2] = {};
  for (std::size_t i = 0; i < pieces.size(); ++i) bytes[0] += pieces.bytes(i);
  for (std::size_t i = 0; i < boxes.size(); ++i) bytes[1] += boxes.bytes(i);
  EXPECT_EQ(bytes[0], bytes[1]);
  EXPECT_LE(boxes.size(), pieces.size());
  check(pinned_, "pieces", [&] { return submit(pieces, false); });
  check(pinned_, "boxes", [&] { return submit(boxes, false); });
  check(pinned_, "one by one", [&] { return submit(pieces, true); });
  EXPECT_EQ(pieces.submit(0, pieces.size(), nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(pieces.submit(0, pieces.size() + 1, stream_), cudaErrorInvalidValue);
  CopyList reused = boxes;
  reused.assign_pieces(params);
  check(pinned_, "pieces in a list that had boxes", [&] { return submit(reused, false); });
}

void Geometry::check_checksums() {
  const OnGpu<std::uint64_t> sums(std::vector<std::uint64_t>(t_.count + 1, 1));
  check(pinned_, "gather_checksum", [&] { return launch_gather_checksum(t_, sums.data(), {4}, stream_); });
  const std::vector<std::uint64_t> found = sums.read(t_.count + 1);
  for (std::uint64_t i = 0; i < t_.count; ++i) {
    const std::uint64_t expected =
        !pairs_.moves[i] ? 0
                         : page_checksum(Layout::layer_first, shape_, device_.expected(), device_pages_,
                                         static_cast<std::uint64_t>(pairs_.source[i]), t_.layer_begin, t_.layer_end);
    ASSERT_EQ(found[i], expected) << "pair " << i;
  }
  EXPECT_EQ(found[t_.count], 1u);
}

void Geometry::check_transfers(bool to_device, Layout layout, Indices kind) {
  draw_transfer(to_device, layout, kind);
  SCOPED_TRACE(std::string(to_device ? "to the device" : "to the host") + ", layout " +
               std::to_string(static_cast<int>(layout)) + ", indices " + std::to_string(static_cast<int>(kind)));
  const OnGpu<std::int64_t> source64(pairs_.source), target64(pairs_.target);
  const OnGpu<std::int32_t> source32({pairs_.source.begin(), pairs_.source.end()});
  const OnGpu<std::int32_t> target32({pairs_.target.begin(), pairs_.target.end()});
  t_.index_type = rng_.chance(50) ? IndexType::int32 : IndexType::int64;
  const bool narrow = t_.index_type == IndexType::int32;
  t_.source_pages = narrow ? static_cast<const void*>(source32.data()) : source64.data();
  t_.target_pages = narrow ? static_cast<const void*>(target32.data()) : target64.data();
  check_launchers();
  check_blocks();
  check_copy_lists();
  if (!to_device) check_checksums();
}

// Checks fill_pattern and check_pattern, on a pool in GPU memory.
void Geometry::check_patterns(Layout layout) {
  SCOPED_TRACE("patterns, layout " + std::to_string(static_cast<int>(layout)));
  std::vector<std::int64_t> pages = shuffled(rng_, host_pages_);
  pages.resize(rng_.between(1, host_pages_));
  std::vector<std::uint64_t> keys(4 * pages.size());
  for (std::uint64_t& key : keys) key = rng_.next();
  const OnGpu<std::int64_t> gpu_pages(pages);
  const OnGpu<std::uint64_t> gpu_keys(keys);
  const OnGpu<PatternFaults> gpu_faults(std::vector<PatternFaults>(1));
  PatternPages p;
  p.shape = shape_;
  p.pool = staging_.data();
  p.pool_pages = host_pages_;
  p.layout = layout;
  p.pages = gpu_pages.data();
  p.keys = gpu_keys.data();
  p.count = pages.size();
  p.layer_begin = static_cast<std::uint32_t>(rng_.below(shape_.layers));
  p.layer_end = static_cast<std::uint32_t>(rng_.between(p.layer_begin + 1, shape_.layers));
  draw_bytes(rng_, staging_.bytes);
  ASSERT_CUDA(staging_.write());
  ASSERT_CUDA(launch_fill_pattern(p, {8}, stream_));
  KvIndex at, last;
  std::vector<std::byte> block(shape_.row_bytes() * shape_.page_tokens);
  for (std::uint64_t i = 0; i < p.count; ++i) {
    at.page = static_cast<std::uint64_t>(pages[i]);
    for (at.plane = 0; at.plane < shape_.planes; ++at.plane) {
      for (at.layer = p.layer_begin; at.layer < p.layer_end; ++at.layer) {
        fill_pattern(block.data(), pattern_seed(&keys[4 * i], at.layer, at.plane), 0, block.size());
        const std::byte* from = block.data();
        for (at.token = 0; at.token < shape_.page_tokens; ++at.token) {
          for (at.head = 0; at.head < shape_.heads; ++at.head, from += shape_.head_bytes) {
            std::memcpy(staging_.expected() + byte_offset(layout, shape_, host_pages_, at), from, shape_.head_bytes);
            last = at;
          }
        }
      }
    }
  }
  ASSERT_CUDA(stream_.finish());
  ASSERT_TRUE(staging_.as_expected());
  const auto faults = [&] {
    EXPECT_EQ(launch_check_pattern(p, gpu_faults.data(), {8}, stream_), cudaSuccess);
    EXPECT_EQ(stream_.finish(), cudaSuccess);
    return gpu_faults.read(1)[0];
  };
  EXPECT_EQ(faults().wrong, 0u);
  EXPECT_EQ(faults().first, UINT64_MAX);
  // Damages the last byte.
  const std::uint64_t wrong = byte_offset(layout, shape_, host_pages_, last) + shape_.head_bytes - 1;
  const std::byte other = staging_.expected()[wrong] ^ std::byte{1};
  ASSERT_CUDA(copy_and_wait(staging_.data() + wrong, &other, 1));
  EXPECT_EQ(faults().wrong, 1u);
  const WrongByte byte = wrong_byte(shape_, faults().first);
  EXPECT_EQ(byte.index, p.count - 1);
  EXPECT_EQ(byte.plane, last.plane);
  EXPECT_EQ(byte.layer, last.layer);
  EXPECT_EQ(byte.offset, block.size() - 1);
}

TEST(Kernels, LeaveWhatTheirCpuTwinsLeave) {
  std::uint64_t seed = scale().first_seed;
  for (const std::uint32_t row : kRows) {
    for (const std::uint32_t page_tokens : kPageTokens) {
      for (std::uint64_t draw = 0; draw < scale().draws && page_tokens <= scale().page_tokens; ++draw, ++seed) {
        SCOPED_TRACE("rows of " + std::to_string(row) + " bytes, pages of " + std::to_string(page_tokens) + ", seed " +
                     std::to_string(seed));
        Geometry geometry(row, page_tokens, seed);
        ASSERT_TRUE(geometry.there()) << "out of memory";
        // Every layout and direction, with different kinds of indices.
        std::uint64_t kind = seed;
        for (const Layout layout : kLayouts) {
          for (const bool to_device : {true, false}) {
            geometry.check_transfers(to_device, layout, kIndices[kind++ % std::size(kIndices)]);
          }
          geometry.check_patterns(layout);
          if (HasFailure()) return;
        }
      }
    }
  }
}

// Moves pages through a staging buffer of two pages. A half is used again as soon as the relayout of its page is done.
TEST(Kernels, AStagingBufferIsUsedAgain) {
  const KvShape shape{.layers = 3, .planes = 2, .heads = 2, .head_bytes = 64, .page_tokens = 4};
  constexpr std::uint64_t kPages = 16, kSlots = 2;
  const Layout layout = Layout::page_first_direct;
  Splitmix rng(scale().first_seed);
  Pool device(Place::gpu, kPages * shape.page_bytes()), host(Place::pinned, kPages * shape.page_bytes());
  Pool staging(Place::gpu, kSlots * shape.page_bytes());
  ASSERT_TRUE(device.there() && host.there() && staging.there()) << "out of memory";
  draw_bytes(rng, device.bytes);
  draw_bytes(rng, host.bytes);
  ASSERT_CUDA(device.write());
  ASSERT_CUDA(host.write());
  std::vector<std::int64_t> numbers(kPages);
  std::iota(numbers.begin(), numbers.end(), 0);
  const OnGpu<std::int64_t> pages(numbers);
  const Stream copies, kernels;
  const Event copied[kSlots], laid_out[kSlots];
  const std::uint64_t plane_bytes = shape.page_bytes() / shape.planes;
  for (std::uint64_t page = 0; page < kPages; ++page) {
    const std::uint64_t slot = page % kSlots;
    ASSERT_CUDA(cudaStreamWaitEvent(copies, laid_out[slot], 0));
    for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
      const KvIndex from{.page = page, .plane = plane}, to{.page = slot, .plane = plane};
      ASSERT_CUDA(cudaMemcpyAsync(staging.data() + byte_offset(layout, shape, kSlots, to),
                                  host.data() + byte_offset(layout, shape, kPages, from), plane_bytes,
                                  cudaMemcpyHostToDevice, copies));
    }
    ASSERT_CUDA(cudaEventRecord(copied[slot], copies));
    ASSERT_CUDA(cudaStreamWaitEvent(kernels, copied[slot], 0));
    RowTransfer t;
    t.shape = shape;
    t.device = device.data();
    t.device_pages = kPages;
    t.host = staging.data();
    t.host_pages = kSlots;
    t.host_layout = layout;
    t.source_pages = pages.data() + slot;
    t.target_pages = pages.data() + (kPages - 1 - page);
    t.count = 1;
    t.layer_end = shape.layers;
    ASSERT_CUDA(launch_relayout(t, {4}, kernels));
    ASSERT_CUDA(cudaEventRecord(laid_out[slot], kernels));
  }
  std::vector<PageRun> runs;
  for (std::uint32_t page = 0, last = kPages - 1; page <= last; ++page) runs.push_back({page, last - page, 1});
  ASSERT_CUDA(kernels.finish());
  copy_pieces({shape, device.expected(), kPages, host.expected(), kPages, layout, true, runs.data(), runs.size(), 0,
               shape.layers});
  EXPECT_TRUE(device.as_expected());
  EXPECT_TRUE(host.as_expected());
}

// Large pools, of which only a few bytes are used. Allocated once, because page-locking 5 GiB takes seconds.
struct FarPools {
  static constexpr KvShape kShape{.layers = 2, .planes = 1, .heads = 2, .head_bytes = 2048, .page_tokens = 16};
  static constexpr std::uint64_t kPages = (std::uint64_t{5} << 30) / kShape.page_bytes();

  FarPools() {
    if (cudaMalloc(&device, kPages * kShape.page_bytes()) != cudaSuccess) device = nullptr;
    if (cudaHostAlloc(&host, kPages * kShape.page_bytes(), cudaHostAllocMapped) != cudaSuccess) host = nullptr;
  }
  FarPools(const FarPools&) = delete;
  FarPools& operator=(const FarPools&) = delete;
  ~FarPools() {
    EXPECT_EQ(cudaFree(device), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(host), cudaSuccess);
  }

  void *device = nullptr, *host = nullptr;
  std::uint64_t checks = 0;  // every check uses different bytes, so that bytes of an earlier check are detected
};

// Moves pages at both ends of the pools, and pages around the offsets 2^31 and 2^32.
void check_far_pages(FarPools& pools, Layout layout, bool to_device, const char* name,
                     const std::function<cudaError_t(const RowTransfer&, const TransferParams&, cudaStream_t)>& move) {
  SCOPED_TRACE(std::string(name) + (to_device ? " to the device" : " to the host") + ", layout " +
               std::to_string(static_cast<int>(layout)));
  const KvShape shape = FarPools::kShape;
  const std::uint64_t pages = FarPools::kPages;
  const std::uint64_t salt = mix(++pools.checks);
  const std::vector<std::int64_t> source = {0, static_cast<std::int64_t>(pages) - 1, 16384, 32768, 16383};
  const std::vector<std::int64_t> target = {static_cast<std::int64_t>(pages) - 2, 3, 32767, 16385, 32769};
  const OnGpu<std::int64_t> gpu_source(source), gpu_target(target);
  RowTransfer t;
  t.shape = shape;
  t.device = static_cast<std::byte*>(pools.device);
  t.host = static_cast<std::byte*>(pools.host);
  t.device_pages = t.host_pages = pages;
  t.host_layout = layout;
  t.to_device = to_device;
  t.source_pages = gpu_source.data();
  t.target_pages = gpu_target.data();
  t.count = source.size();
  t.layer_end = shape.layers;
  std::vector<PageRun> runs;
  for (std::size_t i = 0; i < source.size(); ++i) {
    runs.push_back({static_cast<std::uint32_t>(source[i]), static_cast<std::uint32_t>(target[i]), 1});
  }
  const Stream stream;
  std::byte* from = to_device ? t.host : t.device;
  std::byte* to = to_device ? t.device : t.host;
  const Layout from_layout = to_device ? layout : Layout::layer_first;
  const Layout to_layout = to_device ? Layout::layer_first : layout;
  std::vector<std::byte> row(shape.head_bytes), found(shape.head_bytes);
  const auto for_rows = [&](const auto& act) {
    for (std::size_t i = 0; i < source.size(); ++i) {
      KvIndex at;
      for (at.layer = 0; at.layer < shape.layers; ++at.layer) {
        for (at.token = 0; at.token < shape.page_tokens; ++at.token) {
          for (at.head = 0; at.head < shape.heads; ++at.head) {
            const std::uint64_t word = mix(salt ^ (i << 32 | at.layer << 16 | at.token << 8 | at.head));
            for (std::size_t b = 0; b < row.size(); ++b) row[b] = static_cast<std::byte>(word >> b % 8 * 8);
            at.page = static_cast<std::uint64_t>(source[i]);
            std::byte* source_row = from + byte_offset(from_layout, shape, pages, at);
            at.page = static_cast<std::uint64_t>(target[i]);
            act(source_row, to + byte_offset(to_layout, shape, pages, at));
          }
        }
      }
    }
  };
  for_rows([&](std::byte* source_row, std::byte*) {
    EXPECT_EQ(copy_and_wait(source_row, row.data(), row.size()), cudaSuccess);
  });
  const TransferParams params{shape,     t.device,    pages,       t.host, pages,       layout,
                              to_device, runs.data(), runs.size(), 0,      shape.layers};
  ASSERT_CUDA(move(t, params, stream));
  ASSERT_CUDA(stream.finish());
  std::uint64_t wrong = 0;
  for_rows([&](std::byte*, const std::byte* target_row) {
    EXPECT_EQ(cudaMemcpy(found.data(), target_row, found.size(), cudaMemcpyDefault), cudaSuccess);
    wrong += found != row;
  });
  EXPECT_EQ(wrong, 0u);
}

TEST(Kernels, ReachBeyondThirtyTwoBits) {
  if (!scale().big) return;  // --big
  FarPools pools;
  ASSERT_TRUE(pools.device != nullptr && pools.host != nullptr) << "out of memory";
  for (const Layout layout : kLayouts) {
    for (const bool to_device : {true, false}) {
      const auto launch = [](Launcher launcher) {
        return [launcher](const RowTransfer& t, const TransferParams&, cudaStream_t s) { return launcher(t, {8}, s); };
      };
      check_far_pages(pools, layout, to_device, "gather_scatter", launch(launch_gather_scatter));
      check_far_pages(pools, layout, to_device, "ring",
                      [](const RowTransfer& t, const TransferParams&, cudaStream_t s) {
                        const cudaError_t error = launch_ring(t, {8}, s);
                        return error == cudaErrorNotSupported ? launch_gather_scatter(t, {8}, s) : error;
                      });
      check_far_pages(pools, layout, to_device, "warp_per_row", launch(launch_warp_per_row));
      for (const bool in_boxes : {false, true}) {
        check_far_pages(pools, layout, to_device, in_boxes ? "boxes" : "pieces",
                        [&](const RowTransfer&, const TransferParams& params, cudaStream_t s) {
                          CopyList list;
                          in_boxes ? list.assign_boxes(params) : list.assign_pieces(params);
                          return list.submit(0, list.size(), s);
                        });
      }
    }
  }
}

TEST(Kernels, RefuseNonsenseAndLaunchNothingForNothing) {
  RowTransfer t;
  t.shape = {.layers = 2, .planes = 1, .heads = 1, .head_bytes = 16, .page_tokens = 1};
  t.layer_end = 2;
  const Stream stream;
  for (const Launcher launcher : {launch_gather_scatter, launch_relayout, launch_ring, launch_warp_per_row}) {
    EXPECT_EQ(launcher(t, {}, stream), cudaSuccess);  // no pages
    EXPECT_EQ(launcher(t, {0}, stream), cudaErrorInvalidValue);
    RowTransfer wrong = t;
    wrong.count = 1;  // of null pools
    EXPECT_EQ(launcher(wrong, {}, stream), cudaErrorInvalidValue);
    wrong = t;
    wrong.layer_end = 3;
    EXPECT_EQ(launcher(wrong, {}, stream), cudaErrorInvalidValue);
  }
  for (const std::uint32_t stages : {0u, 1u, 5u}) EXPECT_EQ(launch_ring(t, {4, stages}, stream), cudaErrorInvalidValue);
  EXPECT_EQ(launch_gather_checksum(t, nullptr, {}, stream), cudaErrorInvalidValue);  // to the device
  EXPECT_EQ(launch_check_pattern({}, nullptr, {}, stream), cudaErrorInvalidValue);
  EXPECT_EQ(launch_fill_pattern({}, {}, stream), cudaSuccess);
}

// The runtime keeps the error of a failed call until cudaGetLastError(). No launcher may return it.
TEST(Kernels, ReturnNoErrorOfEarlierCalls) {
  const KvShape shape{.layers = 1, .planes = 1, .heads = 1, .head_bytes = 16, .page_tokens = 1};
  Pool device(Place::gpu, shape.page_bytes()), host(Place::pinned, shape.page_bytes());
  ASSERT_TRUE(device.there() && host.there()) << "out of memory";
  ASSERT_CUDA(device.write());
  ASSERT_CUDA(host.write());
  const OnGpu<std::int64_t> page(std::vector<std::int64_t>(1));
  const OnGpu<std::uint64_t> key(std::vector<std::uint64_t>(4)), sum(std::vector<std::uint64_t>(1));
  const OnGpu<PatternFaults> faults(std::vector<PatternFaults>(1));
  RowTransfer t;
  t.shape = shape;
  t.device = device.data();
  t.host = host.data();
  t.device_pages = t.host_pages = t.count = t.layer_end = 1;
  t.source_pages = t.target_pages = page.data();
  PatternPages pattern;
  pattern.shape = shape;
  pattern.pool = device.data();
  pattern.pool_pages = pattern.count = pattern.layer_end = 1;
  pattern.pages = page.data();
  pattern.keys = key.data();
  const Stream stream;
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  EXPECT_EQ(launch_gather_scatter(t, {}, stream), cudaSuccess);
  EXPECT_EQ(launch_relayout(t, {}, stream), cudaSuccess);
  EXPECT_EQ(launch_gather_checksum(t, sum.data(), {}, stream), cudaErrorInvalidValue) << "to the device";
  EXPECT_EQ(launch_warp_per_row(t, {}, stream), cudaSuccess);
  const cudaError_t ring = launch_ring(t, {}, stream);
  EXPECT_TRUE(ring == cudaSuccess || ring == cudaErrorNotSupported) << ring;
  t.to_device = false;
  EXPECT_EQ(launch_gather_checksum(t, sum.data(), {}, stream), cudaSuccess);
  EXPECT_EQ(launch_fill_pattern(pattern, {}, stream), cudaSuccess);
  EXPECT_EQ(launch_check_pattern(pattern, faults.data(), {}, stream), cudaSuccess);
  EXPECT_EQ(launch_delay(1, stream), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  ASSERT_CUDA(stream.finish());
}

}  // namespace
}  // namespace kvtwin::test
