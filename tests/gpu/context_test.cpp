// The kernels in place of attention (kernels/context.hpp), against their CPU twins: the written pages, the wrong
// blocks, the checked bytes and the folds.
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/context_kernels.hpp"
#include "tests/gpu/gpu_memory.hpp"

namespace kvtwin::test {
namespace {

using Fault = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>;

std::vector<Fault> sorted(const ContextFaults& faults) {
  std::vector<Fault> all;
  for (std::uint32_t i = 0; i < std::min(faults.wrong, ContextFaults::kMaxKept); ++i) {
    const ContextFault& one = faults.kept[i];
    all.emplace_back(one.page, one.layer, one.plane, one.offset, one.got);
  }
  std::sort(all.begin(), all.end());
  return all;
}

// A sequence in the pages of a pool, in random order. Some pages lie outside of the pool and are skipped.
class Sequence {
 public:
  Sequence(const KvShape& shape, std::uint64_t seed)
      : rng_(mix(seed)),
        shape_(shape),
        pool_pages_(rng_.between(2, 12)),
        pool_(Place::gpu, pool_pages_ * shape.page_bytes()),
        pages_(pool_pages_) {
    for (std::uint32_t i = 0; i < pages_.size(); ++i) {
      for (std::uint64_t& word : pages_[i].key) word = rng_.next();
      pages_[i].slot = i;
      pages_[i].first = i * shape.page_tokens;
    }
    for (std::size_t i = pages_.size(); i > 1; --i) std::swap(pages_[i - 1].slot, pages_[rng_.below(i)].slot);
    if (rng_.chance(50)) pages_[rng_.below(pages_.size())].slot = static_cast<std::uint32_t>(pool_pages_ + 7);
    draw_bytes(rng_, pool_.bytes);
  }
  bool there() const { return pool_.there(); }
  void write_then_read();

 private:
  std::uint32_t tokens() const { return static_cast<std::uint32_t>(pages_.size()) * shape_.page_tokens; }
  // Sets the pages and the step of the next launch, in the memory of the CPU.
  ContextPages step(std::uint32_t context, std::uint32_t fresh, std::uint32_t advance, std::uint32_t layer) {
    for (ContextPage& page : pages_) {
      page.context = context;
      page.fresh = fresh;
    }
    folds_.assign(pages_.size() * shape_.planes * kContextFolds, 0);
    step_ = {pages_.data(), folds_.data(), static_cast<std::uint32_t>(pages_.size()), advance};
    return {shape_, pool_.expected(), pool_pages_, &step_, layer, 1};
  }
  void damage(std::uint64_t bytes);
  void read(std::uint32_t layer, std::uint32_t check_every, std::uint32_t context);

  Splitmix rng_;
  KvShape shape_;
  std::uint64_t pool_pages_;
  Pool pool_;
  std::vector<ContextPage> pages_;
  std::vector<std::uint32_t> folds_;
  ContextStep step_;
  Stream stream_;
};

// The arguments of a launch, in GPU memory.
class LaunchOnGpu {
 public:
  LaunchOnGpu(const ContextPages& on_cpu, std::byte* pool, cudaStream_t stream)
      : pages_(std::vector(on_cpu.step->pages, on_cpu.step->pages + on_cpu.step->count)),
        folds_(std::vector<std::uint32_t>(folds_of(on_cpu), 0xABABABABu)),
        all_(on_cpu) {
    ContextStep step = *on_cpu.step;
    step.pages = pages_.data();
    step.folds = folds_.data();
    EXPECT_EQ(launch_context_step(step, step_.data(), stream), cudaSuccess);
    all_.pool = pool;
    all_.step = step_.data();
  }
  const ContextPages& all() const { return all_; }
  std::vector<std::uint32_t> folds() const { return folds_.read(folds_of(all_, count())); }

 private:
  static std::uint64_t folds_of(const ContextPages& p) { return folds_of(p, p.step->count); }
  static std::uint64_t folds_of(const ContextPages& p, std::uint64_t count) {
    return count * p.shape.planes * kContextFolds;
  }
  std::uint64_t count() const { return step_.read(1)[0].count; }

  OnGpu<ContextPage> pages_;
  OnGpu<std::uint32_t> folds_;
  OnGpu<ContextStep> step_{std::vector<ContextStep>(1)};
  ContextPages all_;
};

void Sequence::damage(std::uint64_t bytes) {
  for (; bytes > 0; --bytes) pool_.expected()[rng_.below(pool_.size())] ^= std::byte{4};
}

void Sequence::read(std::uint32_t layer, std::uint32_t check_every, std::uint32_t context) {
  for (ContextPage& page : pages_) page.reads = static_cast<std::uint32_t>(rng_.below(3));
  ContextPages on_cpu = step(context, 0, 0, layer);
  on_cpu.check_every = check_every;
  const LaunchOnGpu on_gpu(on_cpu, pool_.data(), stream_);
  const OnGpu<ContextFaults> gpu_faults(std::vector<ContextFaults>(1));
  ContextFaults expected;
  const auto ctas = static_cast<std::uint32_t>(rng_.between(1, 6));
  ASSERT_CUDA(launch_read_context(on_gpu.all(), gpu_faults.data(), {ctas}, stream_));
  read_context(on_cpu, expected);
  ASSERT_CUDA(stream_.finish());
  const ContextFaults found = gpu_faults.read(1)[0];
  EXPECT_EQ(found.checked, expected.checked);
  EXPECT_EQ(found.wrong, expected.wrong);
  ASSERT_LE(expected.wrong, ContextFaults::kMaxKept);
  EXPECT_EQ(sorted(found), sorted(expected));
  EXPECT_EQ(on_gpu.folds(), folds_);
}

void Sequence::write_then_read() {
  const auto context = static_cast<std::uint32_t>(rng_.below(tokens()));
  const auto fresh = static_cast<std::uint32_t>(rng_.between(1, tokens() - context));
  ASSERT_CUDA(pool_.write());
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    // The first tokens, and then one token at a time, as decoding does.
    for (const std::uint32_t advance : {0u, 1u}) {
      const std::uint32_t begin = advance == 0 ? 0 : context, count = advance == 0 ? context + 1 : fresh - 1;
      const ContextPages on_cpu = step(begin, count, advance, layer);
      const LaunchOnGpu on_gpu(on_cpu, pool_.data(), stream_);
      ASSERT_CUDA(launch_write_context(on_gpu.all(), {static_cast<std::uint32_t>(rng_.between(1, 6))}, stream_));
      ASSERT_CUDA(stream_.finish());
      write_context(on_cpu);
      ASSERT_TRUE(pool_.as_expected());
    }
    read(layer, 1, context + fresh);
    damage(rng_.below(6));
    ASSERT_CUDA(pool_.write());
    for (const std::uint32_t check_every : {1u, 3u, kMostCheckEvery}) read(layer, check_every, context + fresh);
  }
}

// Accesses of 16, 4 and 1 bytes.
TEST(Kernels, WriteAndReadContextsAsTheirCpuTwins) {
  const KvShape shapes[] = {{2, 2, 2, 64, 4},   {2, 1, 1, 576, 16}, {2, 2, 4, 256, 16}, {2, 1, 1, 20, 3},
                            {2, 3, 3, 132, 5},  {2, 1, 1, 257, 2},  {2, 2, 1, 5, 7},    {1, 1, 1, 16, 1},
                            {1, 1, 4, 132, 11}, {1, 1, 1, 257, 9}};
  std::uint64_t seed = scale().first_seed;
  for (const KvShape& shape : shapes) {
    for (std::uint64_t draw = 0; draw < 2 * scale().draws; ++draw, ++seed) {
      SCOPED_TRACE("rows of " + std::to_string(shape.row_bytes()) + " bytes, seed " + std::to_string(seed));
      Sequence sequence(shape, seed);
      ASSERT_TRUE(sequence.there()) << "out of memory";
      sequence.write_then_read();
      if (HasFailure()) return;
    }
  }
}

// More wrong blocks than are kept: all are counted, and the kept ones are different wrong blocks.
TEST(Kernels, CountMoreWrongBlocksThanTheyKeep) {
  const KvShape shape{.layers = 1, .planes = 1, .heads = 1, .head_bytes = 16, .page_tokens = 1};
  constexpr std::uint32_t kPages = 3 * ContextFaults::kMaxKept;
  Pool pool(Place::gpu, kPages * shape.page_bytes());
  ASSERT_TRUE(pool.there()) << "out of memory";
  ASSERT_CUDA(pool.write());
  std::vector<ContextPage> pages(kPages);
  for (std::uint32_t i = 0; i < kPages; ++i) pages[i] = {{i, 1, 2, 3}, i, 0, 1, 0};
  const OnGpu<ContextFaults> gpu_faults(std::vector<ContextFaults>(1));
  const ContextStep step{pages.data(), nullptr, kPages, 0};
  const Stream stream;
  const LaunchOnGpu on_gpu({shape, nullptr, kPages, &step, 0, 1}, pool.data(), stream);
  const ContextPages& p = on_gpu.all();
  ASSERT_CUDA(launch_read_context(p, gpu_faults.data(), {5}, stream));
  ASSERT_CUDA(stream.finish());
  const ContextFaults found = gpu_faults.read(1)[0];
  EXPECT_EQ(found.wrong, kPages);
  std::vector<Fault> kept = sorted(found);
  EXPECT_EQ(kept.size(), ContextFaults::kMaxKept);
  EXPECT_EQ(std::unique(kept.begin(), kept.end()), kept.end());
  EXPECT_EQ(found.checked, kPages * 16);
  EXPECT_EQ(launch_read_context(p, nullptr, {5}, stream), cudaErrorInvalidValue);
  EXPECT_EQ(launch_write_context(p, {0}, stream), cudaErrorInvalidValue);
  EXPECT_EQ(launch_context_step(step, nullptr, stream), cudaErrorInvalidValue);
}

// The runtime keeps the error of a failed call until cudaGetLastError().
TEST(Kernels, ReadAndWriteContextsAfterErrorsOfEarlierCalls) {
  const KvShape shape{.layers = 1, .planes = 1, .heads = 1, .head_bytes = 16, .page_tokens = 1};
  Pool pool(Place::gpu, shape.page_bytes());
  ASSERT_TRUE(pool.there()) << "out of memory";
  const OnGpu<ContextStep> step(std::vector<ContextStep>(1));
  const OnGpu<ContextFaults> faults(std::vector<ContextFaults>(1));
  const ContextPages p{shape, pool.data(), 1, step.data(), 0, 1};
  const Stream stream;
  EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice);
  EXPECT_EQ(launch_context_step({}, step.data(), stream), cudaSuccess);
  EXPECT_EQ(launch_read_context(p, faults.data(), {1}, stream), cudaSuccess);
  EXPECT_EQ(launch_write_context(p, {1}, stream), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  ASSERT_CUDA(stream.finish());
}

}  // namespace
}  // namespace kvtwin::test
