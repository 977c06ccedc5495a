// The kernels in place of attention (kernels/context.hpp), against their CPU twins: the written pages, the wrong
// blocks and the dot products.
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
        query_(shape.row_bytes()),
        pages_(pool_pages_) {
    for (std::uint32_t i = 0; i < pages_.size(); ++i) {
      for (std::uint64_t& word : pages_[i].key) word = rng_.next();
      pages_[i].slot = i;
      pages_[i].first = i * shape.page_tokens;
    }
    for (std::size_t i = pages_.size(); i > 1; --i) std::swap(pages_[i - 1].slot, pages_[rng_.below(i)].slot);
    if (rng_.chance(50)) pages_[rng_.below(pages_.size())].slot = static_cast<std::uint32_t>(pool_pages_ + 7);
    // bf16 values between 0.5 and 2
    for (std::size_t i = 0; i < query_.size(); ++i)
      query_[i] = i % 2 == 1 ? std::byte{0x3F} : std::byte(rng_.below(256));
    draw_bytes(rng_, pool_.bytes);
  }
  bool there() const { return pool_.there(); }
  void write_then_read();
  void read_scores();

 private:
  std::uint32_t tokens() const { return static_cast<std::uint32_t>(pages_.size()) * shape_.page_tokens; }
  ContextPages step(std::uint32_t context, std::uint32_t fresh, std::uint32_t advance, std::uint32_t layer,
                    std::byte* pool, const ContextPage* pages) {
    for (ContextPage& page : pages_) {
      page.context = context;
      page.fresh = fresh;
    }
    return {shape_, pool, pool_pages_, pages, pages_.size(), layer, advance};
  }
  void damage(std::uint64_t bytes);
  void read(std::uint32_t layer, bool with_query, std::uint32_t context);

  Splitmix rng_;
  KvShape shape_;
  std::uint64_t pool_pages_;
  Pool pool_;
  std::vector<std::byte> query_;
  std::vector<ContextPage> pages_;
  Stream stream_;
};

void Sequence::damage(std::uint64_t bytes) {
  for (; bytes > 0; --bytes) pool_.expected()[rng_.below(pool_.size())] ^= std::byte{4};
}

void Sequence::read(std::uint32_t layer, bool with_query, std::uint32_t context) {
  const std::uint64_t blocks = pages_.size() * shape_.planes;
  const ContextPages on_cpu = step(context, 0, 0, layer, pool_.expected(), pages_.data());
  const OnGpu<ContextPage> gpu_pages(pages_);
  ContextPages on_gpu = on_cpu;
  on_gpu.pool = pool_.data();
  on_gpu.pages = gpu_pages.data();
  const OnGpu<std::byte> gpu_query(query_);
  const OnGpu<float> gpu_scores(std::vector<float>(blocks, -1));
  const OnGpu<ContextFaults> gpu_faults(std::vector<ContextFaults>(1));
  std::vector<float> scores(blocks);
  ContextFaults expected;
  const auto ctas = static_cast<std::uint32_t>(rng_.between(1, 6));
  ASSERT_CUDA(launch_read_context(on_gpu, with_query ? gpu_query.data() : nullptr,
                                  with_query ? gpu_scores.data() : nullptr, gpu_faults.data(), {ctas}, stream_));
  read_context(on_cpu, with_query ? query_.data() : nullptr, scores.data(), expected);
  ASSERT_CUDA(stream_.finish());
  const ContextFaults found = gpu_faults.read(1)[0];
  EXPECT_EQ(found.wrong, expected.wrong);
  ASSERT_LE(expected.wrong, ContextFaults::kMaxKept);
  EXPECT_EQ(sorted(found), sorted(expected));
  for (const float score : gpu_scores.read(with_query ? 0 : blocks)) EXPECT_EQ(score, -1) << "without a query";
}

// The pool has numbers between 1/2 and 2 in place of the pattern, so that the sums are finite. The lanes add in another
// order than the CPU.
void Sequence::read_scores() {
  for (std::size_t i = 1; i < pool_.bytes.size(); i += 2) {
    pool_.bytes[i] = rng_.chance(50) ? std::byte{0x3F} : std::byte{0xBF};
  }
  ASSERT_CUDA(pool_.write());
  const std::uint64_t blocks = pages_.size() * shape_.planes;
  const ContextPages on_cpu = step(tokens(), 0, 0, 0, pool_.expected(), pages_.data());
  const OnGpu<ContextPage> gpu_pages(pages_);
  ContextPages on_gpu = on_cpu;
  on_gpu.pool = pool_.data();
  on_gpu.pages = gpu_pages.data();
  const OnGpu<std::byte> gpu_query(query_);
  const OnGpu<float> gpu_scores(std::vector<float>(blocks, -1));
  const OnGpu<ContextFaults> gpu_faults(std::vector<ContextFaults>(1));
  ASSERT_CUDA(launch_read_context(on_gpu, gpu_query.data(), gpu_scores.data(), gpu_faults.data(), {3}, stream_));
  ASSERT_CUDA(stream_.finish());
  std::vector<float> scores(blocks);
  ContextFaults faults;
  read_context(on_cpu, query_.data(), scores.data(), faults);
  EXPECT_EQ(gpu_faults.read(1)[0].wrong, faults.wrong);
  const std::vector<float> found = gpu_scores.read(blocks);
  const double terms = static_cast<double>(shape_.row_bytes()) * shape_.page_tokens / 2;
  for (std::uint64_t i = 0; i < blocks; ++i) {
    EXPECT_NEAR(found[i], scores[i], 4 * terms * 1e-6) << "block " << i;
    const bool skipped = pages_[i / shape_.planes].slot >= pool_pages_ || shape_.row_bytes() % 4 != 0;
    EXPECT_EQ(found[i] == 0, skipped) << "block " << i;
  }
}

void Sequence::write_then_read() {
  const auto context = static_cast<std::uint32_t>(rng_.below(tokens()));
  const auto fresh = static_cast<std::uint32_t>(rng_.between(1, tokens() - context));
  ASSERT_CUDA(pool_.write());
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    // The first tokens, and then one token at a time, as decoding does.
    for (const std::uint32_t advance : {0u, 1u}) {
      const std::uint32_t begin = advance == 0 ? 0 : context, count = advance == 0 ? context + 1 : fresh - 1;
      const ContextPages on_cpu = step(begin, count, advance, layer, pool_.expected(), pages_.data());
      const OnGpu<ContextPage> gpu_pages(pages_);
      ContextPages on_gpu = on_cpu;
      on_gpu.pool = pool_.data();
      on_gpu.pages = gpu_pages.data();
      ASSERT_CUDA(launch_write_context(on_gpu, {static_cast<std::uint32_t>(rng_.between(1, 6))}, stream_));
      ASSERT_CUDA(stream_.finish());
      write_context(on_cpu);
      ASSERT_TRUE(pool_.as_expected());
    }
    read(layer, layer % 2 == 0, context + fresh);
    damage(rng_.below(6));
    ASSERT_CUDA(pool_.write());
    read(layer, layer % 2 == 1, context + fresh);
  }
}

// Accesses of 16, 4 and 1 bytes.
TEST(Kernels, WriteAndReadContextsAsTheirCpuTwins) {
  const KvShape shapes[] = {{2, 2, 2, 64, 4},  {2, 1, 1, 576, 16}, {2, 2, 4, 256, 16}, {2, 1, 1, 20, 3},
                            {2, 2, 3, 132, 5}, {2, 1, 1, 257, 2},  {2, 2, 1, 5, 7},    {1, 1, 1, 16, 1}};
  std::uint64_t seed = scale().first_seed;
  for (const KvShape& shape : shapes) {
    for (std::uint64_t draw = 0; draw < 2 * scale().draws; ++draw, ++seed) {
      SCOPED_TRACE("rows of " + std::to_string(shape.row_bytes()) + " bytes, seed " + std::to_string(seed));
      Sequence sequence(shape, seed);
      ASSERT_TRUE(sequence.there()) << "out of memory";
      sequence.write_then_read();
      sequence.read_scores();
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
  const OnGpu<ContextPage> gpu_pages(pages);
  const OnGpu<ContextFaults> gpu_faults(std::vector<ContextFaults>(1));
  const ContextPages p{shape, pool.data(), kPages, gpu_pages.data(), kPages, 0, 0};
  const Stream stream;
  ASSERT_CUDA(launch_read_context(p, nullptr, nullptr, gpu_faults.data(), {5}, stream));
  ASSERT_CUDA(stream.finish());
  const ContextFaults found = gpu_faults.read(1)[0];
  EXPECT_EQ(found.wrong, kPages);
  std::vector<Fault> kept = sorted(found);
  EXPECT_EQ(kept.size(), ContextFaults::kMaxKept);
  EXPECT_EQ(std::unique(kept.begin(), kept.end()), kept.end());
  EXPECT_EQ(launch_read_context(p, nullptr, nullptr, nullptr, {5}, stream), cudaErrorInvalidValue);
  EXPECT_EQ(launch_write_context(p, {0}, stream), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvtwin::test
