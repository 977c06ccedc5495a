// Whole runs of `kvtwin run --device cuda` whose kernels are their PTX: short ones, because each thread of each kernel
// is executed. parity/cli has the long ones, with CPU doubles in place of the kernels.
#include <gtest/gtest.h>

#include "tests/real_run.hpp"

namespace kvtwin::test {
namespace {

Settings short_run(const Folder& folder, const char* layout) {
  const Conversations c{
      .requests = 24, .block_tokens = 16, .first_blocks = 2, .growth_blocks = 1, .live = 4, .output = 3, .gap_ms = 2};
  return small_model(folder) + conversations(c, 1).save(folder) +
         Settings{"cache.page_tokens=8",
                  "tiers.device.tokens=480",
                  "tiers.host.tokens=1600",
                  "scheduler.chunk_tokens=96",
                  "cache.load_back_min_tokens=8",
                  "workload.time_scale=0.1",
                  std::string("cache.layout=") + layout};
}

TEST(RealOnPtx, ReadsWhatItWrote) {
  for (const char* layout : {"layer_first", "page_first"}) {
    SCOPED_TRACE(layout);
    const Folder folder;
    const Simulated real = run_for_real(folder, short_run(folder, layout));
    EXPECT_EQ(real.report.at("device"), "cuda");
    EXPECT_EQ(real.requests("completed"), 24U);
    EXPECT_GT(real.tokens("hit_device"), 0U);
    const Json& verified = real.report.at("real").at("verified");
    EXPECT_EQ(verified.at("wrong_reads"), 0);
    EXPECT_GT(verified.at("pages_read").get<std::uint64_t>(), 0U);
    EXPECT_GT(verified.at("pages_audited").get<std::uint64_t>(), 0U);
    EXPECT_GT(real.counter("sglang:load_back_tokens_total"), 0);
  }
}

// real.check_every: a sample by default, all bytes on request.
TEST(RealOnPtx, SaysHowManyBytesItChecked) {
  const auto share = [](const Settings& more) {
    const Folder folder;
    const Simulated real = run_for_real(folder, short_run(folder, "page_first") + more);
    const Json& verified = real.report.at("real").at("verified");
    return verified.at("bytes_checked").get<double>() / verified.at("bytes_read").get<double>();
  };
  const double sample = share({});
  EXPECT_GT(sample, 1.0 / 64);
  EXPECT_LT(sample, 0.9);
  EXPECT_EQ(share({"real.check_every=1"}), 1.0);
}

TEST(RealOnPtx, FindsAFlippedBit) {
  const Folder folder;
  const Outcome outcome = run(run_arguments(folder, short_run(folder, "layer_first") + Settings{"real.flip=device"}));
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.err.find("wrong bytes: page "), std::string::npos) << outcome.err;
}

}  // namespace
}  // namespace kvtwin::test
