#include "tests/gpu/bench/transfers.hpp"

#include <algorithm>
#include <numeric>

#include "kernels/pattern_kernels.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

constexpr std::uint32_t kPatternCtas = 64;
constexpr std::uint64_t kLatentRowBytes = 1152;

std::vector<std::int64_t> shuffled(std::uint64_t count, Splitmix& rng) {
  std::vector<std::int64_t> pages(count);
  std::iota(pages.begin(), pages.end(), 0);
  for (std::uint64_t i = count; i > 1; --i) std::swap(pages[i - 1], pages[rng.below(i)]);
  return pages;
}

template <typename T>
Memory on_gpu(const std::vector<T>& values) {
  Memory memory(Place::gpu, std::max<std::uint64_t>(1, values.size() * sizeof(T)));
  copy_to_gpu(memory.data(), values.data(), values.size() * sizeof(T));
  return memory;
}

}  // namespace

const char* name_of(Way way) {
  constexpr const char* kNames[] = {"copy_loop", "batch", "boxes", "kernel", "ring", "staged", "warp_per_row"};
  return kNames[static_cast<std::size_t>(way)];
}

CopySizes& copy_sizes() {
  static CopySizes sizes;
  return sizes;
}

LaunchLimits limits_of(Way way) {
  switch (way) {
    case Way::kernel:
    case Way::warp_per_row:
    case Way::staged: return copy_sizes().kernel;
    case Way::ring: return copy_sizes().ring;
    default: return {0};
  }
}

const char* direction_name(bool to_device) { return to_device ? "h2d" : "d2h"; }

KvShape shape_of(std::uint64_t chunk_bytes, std::uint64_t chunks) {
  KvShape shape;
  shape.planes = chunk_bytes % kLatentRowBytes == 0 && chunk_bytes < 2 * kLatentRowBytes ? 1 : 2;
  shape.layers = static_cast<std::uint32_t>(std::min<std::uint64_t>(32, chunks / shape.planes));
  shape.heads = 1;
  const std::uint64_t row = std::min<std::uint64_t>(chunk_bytes, 2048);
  shape.head_bytes = static_cast<std::uint32_t>(chunk_bytes % row == 0 ? row : chunk_bytes);
  shape.page_tokens = static_cast<std::uint32_t>(chunk_bytes / shape.head_bytes);
  return shape;
}

Pools::Pools(const KvShape& kv, std::byte* on_device, std::byte* on_host, std::uint64_t count, std::uint64_t seed)
    : shape(kv), device(on_device), host(on_host), pages(count) {
  Splitmix rng(mix(seed));
  device_pages = shuffled(count, rng);
  host_pages = shuffled(count, rng);
}

PageTransfer::PageTransfer(Way way, const Pools& pools, bool to_device, std::uint64_t begin, std::uint64_t end,
                           Staging* staging)
    : way_(way),
      limits_(limits_of(way)),
      to_device_(to_device),
      index_begin_(begin),
      index_count_(end - begin),
      staging_(staging) {
  bytes_ = (end - begin) * pools.shape.page_bytes();
  pieces_ = (end - begin) * pools.shape.layers * pools.shape.planes;
  std::vector<std::int64_t> indices;
  for (const auto* pages : {&pools.host_pages, &pools.device_pages}) {
    indices.insert(indices.end(), pages->begin() + static_cast<std::ptrdiff_t>(begin),
                   pages->begin() + static_cast<std::ptrdiff_t>(end));
  }
  for (std::uint64_t i = 0; i < end - begin; ++i) indices.push_back(static_cast<std::int64_t>(i));
  indices_ = on_gpu(indices);
  switch (way) {
    case Way::copy_loop:
    case Way::batch: copies_.assign_pieces(params(pools, begin, end)); break;
    case Way::boxes: copies_.assign_boxes(params(pools, begin, end)); break;
    case Way::staged:
      possible_ = staging != nullptr && pools.shape.page_bytes() <= staging->half_bytes();
      if (possible_) cut_up(pools, begin, end);
      break;
    default:
      rows_ = rows(pools, begin, end);
      int major = 0, device = 0;
      check(cudaGetDevice(&device), "asking for a GPU");
      check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "asking for the GPU's kind");
      if (way == Way::ring) possible_ = ring_fits(rows_) && major >= 9;
  }
}

TransferParams PageTransfer::params(const Pools& pools, std::uint64_t begin, std::uint64_t end) {
  runs_.clear();
  for (std::uint64_t i = begin; i < end; ++i) {
    const auto host = static_cast<std::uint32_t>(pools.host_pages[i]);
    const auto device = static_cast<std::uint32_t>(pools.device_pages[i]);
    runs_.push_back(to_device_ ? PageRun{host, device, 1} : PageRun{device, host, 1});
  }
  TransferParams p;
  p.shape = pools.shape;
  p.device = pools.device;
  p.device_pages = pools.pages;
  p.host = pools.host;
  p.host_pages = pools.pages;
  p.host_layout = Layout::page_first_direct;
  p.to_device = to_device_;
  p.runs = runs_.data();
  p.run_count = runs_.size();
  p.layer_end = pools.shape.layers;
  return p;
}

RowTransfer PageTransfer::rows(const Pools& pools, std::uint64_t begin, std::uint64_t end) const {
  const auto* indices = reinterpret_cast<const std::int64_t*>(indices_.data());
  const std::int64_t* host = indices + (begin - index_begin_);
  const std::int64_t* device = host + index_count_;
  RowTransfer t;
  t.shape = pools.shape;
  t.device = pools.device;
  t.device_pages = pools.pages;
  t.host = pools.host;
  t.host_pages = pools.pages;
  t.host_layout = Layout::page_first_direct;
  t.to_device = to_device_;
  t.source_pages = to_device_ ? host : device;
  t.target_pages = to_device_ ? device : host;
  t.count = end - begin;
  t.layer_end = pools.shape.layers;
  return t;
}

// In the host pool, a page is contiguous in each plane, and a staging half has the same layout. So for the copy engine,
// both are pools with one layer, whose tokens are as large as a page of one plane.
void PageTransfer::cut_up(const Pools& pools, std::uint64_t begin, std::uint64_t end) {
  const std::uint64_t page = pools.shape.page_bytes();
  const std::uint64_t step =
      std::clamp<std::uint64_t>(copy_sizes().portion_bytes / page, 1, staging_->half_bytes() / page);
  for (std::uint64_t at = begin; at < end; at += step) {
    const std::uint64_t stop = std::min(end, at + step);
    Portion portion;
    const std::size_t half = portion.half = staging_->next_half();
    portion.relayout = rows(pools, at, stop);
    const void* numbers = reinterpret_cast<const std::int64_t*>(indices_.data()) + 2 * index_count_;
    (to_device_ ? portion.relayout.source_pages : portion.relayout.target_pages) = numbers;
    portion.relayout.host = staging_->half(half);
    portion.relayout.host_pages = stop - at;
    TransferParams whole = params(pools, at, stop);
    for (PageRun& run : runs_) {
      (to_device_ ? run.target_first : run.source_first) = static_cast<std::uint32_t>(&run - runs_.data());
    }
    whole.shape = {.layers = 1,
                   .planes = pools.shape.planes,
                   .heads = 1,
                   .head_bytes = static_cast<std::uint32_t>(page / pools.shape.planes),
                   .page_tokens = 1};
    whole.device = staging_->half(half);
    whole.device_pages = stop - at;
    whole.host_layout = Layout::layer_first;
    whole.layer_end = 1;
    portion.copies.assign_pieces(whole);
    portions_.push_back(std::move(portion));
  }
}

void PageTransfer::submit(Stream& stream) {
  switch (way_) {
    case Way::copy_loop: check(copies_.submit_one_by_one(0, copies_.size(), stream.get()), "a loop of copies"); return;
    case Way::batch:
    case Way::boxes: check(copies_.submit(0, copies_.size(), stream.get()), "a batch of copies"); return;
    case Way::kernel:
      check(launch_gather_scatter(rows_, limits_, stream.get()), "launching the register kernel");
      return;
    case Way::ring: check(launch_ring(rows_, limits_, stream.get()), "launching the ring kernel"); return;
    case Way::warp_per_row:
      check(launch_warp_per_row(rows_, limits_, stream.get()), "launching the kernel of a warp a row");
      return;
    case Way::staged: submit_staged(stream);
  }
}

void PageTransfer::submit_staged(Stream& stream) {
  Staging& s = *staging_;
  s.begin.record(stream);
  follow(s.first, s.begin);
  follow(s.second, s.begin);
  for (Portion& portion : portions_) {
    const std::size_t half = portion.half;
    follow(s.first, s.emptied[half]);
    const auto copy = [&](Stream& on) {
      check(portion.copies.submit(0, portion.copies.size(), on.get()), "a batch of whole pages");
    };
    const auto relay = [&](Stream& on) {
      check(launch_relayout(portion.relayout, limits_, on.get()), "launching the relayout kernel");
    };
    to_device_ ? copy(s.first) : relay(s.first);
    s.filled[half].record(s.first);
    follow(s.second, s.filled[half]);
    to_device_ ? relay(s.second) : copy(s.second);
    s.emptied[half].record(s.second);
  }
  if (!portions_.empty()) follow(stream, s.emptied[portions_.back().half]);
}

void PageTransfer::submit_kernels(Stream& stream) {
  if (way_ == Way::staged) {
    for (const Portion& portion : portions_) {
      check(launch_relayout(portion.relayout, limits_, stream.get()), "launching the relayout kernel");
    }
  } else if (limits_.ctas > 0) {
    submit(stream);
  }
}

namespace {

PatternPages pattern_of(const Pools& pools, bool on_device, const Memory& pages, const Memory& keys) {
  PatternPages p;
  p.shape = pools.shape;
  p.pool = on_device ? pools.device : pools.host;
  p.pool_pages = pools.pages;
  p.layout = on_device ? Layout::layer_first : Layout::page_first_direct;
  p.pages = pages.data();
  p.keys = reinterpret_cast<const std::uint64_t*>(keys.data());
  p.count = pools.pages;
  p.layer_end = pools.shape.layers;
  return p;
}

Memory drawn_keys(std::uint64_t pages, Splitmix& rng) {
  std::vector<std::uint64_t> keys(4 * pages);
  for (std::uint64_t& word : keys) word = rng.next();
  return on_gpu(keys);
}

}  // namespace

KnownBytes::KnownBytes(const Pools& pools, std::uint64_t seed) {
  Splitmix rng(mix(seed));
  keys_ = drawn_keys(pools.pages, rng);
  others_ = drawn_keys(pools.pages, rng);
  device_pages_ = on_gpu(pools.device_pages);
  host_pages_ = on_gpu(pools.host_pages);
  faults_ = Memory(Place::gpu, sizeof(PatternFaults));
}

void KnownBytes::prepare(const Pools& pools, bool to_device, Stream& stream) {
  for (const bool on_device : {true, false}) {
    const bool target = on_device == to_device;
    check(launch_fill_pattern(
              pattern_of(pools, on_device, on_device ? device_pages_ : host_pages_, target ? others_ : keys_),
              {kPatternCtas}, stream.get()),
          "writing a pattern");
  }
  stream.wait();
}

std::uint64_t KnownBytes::wrong(const Pools& pools, bool to_device, Stream& stream) {
  auto* faults = reinterpret_cast<PatternFaults*>(faults_.data());
  check(launch_check_pattern(pattern_of(pools, to_device, to_device ? device_pages_ : host_pages_, keys_), faults,
                             {kPatternCtas}, stream.get()),
        "checking a pattern");
  stream.wait();
  PatternFaults found;
  check(cudaMemcpy(&found, faults, sizeof found, cudaMemcpyDeviceToHost), "reading what a check found");
  return found.wrong;
}

}  // namespace kvtwin::test
