#include "policy/seam/decision.hpp"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <set>
#include <string_view>
#include <vector>

namespace kvtwin {
namespace {

const Decision kDecision{DecisionKind::backup, Reason::quota, 7, PageKey{{1, 2, 3, 4}}, 9};

std::uint64_t digest_of(const Decision& decision) {
  DecisionLog log;
  log.add(decision);
  return log.digest();
}

TEST(DecisionLog, DigestsTheDocumentedRecord) {
  std::vector<unsigned char> bytes = {4, 5, 0, 0, 0, 0, 0, 0};
  for (const std::uint64_t word : {7u, 1u, 2u, 3u, 4u, 9u}) {
    for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<unsigned char>(word >> (8 * i)));
  }
  const std::uint64_t once = XXH3_64bits_withSeed(bytes.data(), bytes.size(), 0);
  const std::uint64_t twice = XXH3_64bits_withSeed(bytes.data(), bytes.size(), once);
  DecisionLog log;
  EXPECT_EQ(log.digest(), 0u);
  log.add(kDecision);
  EXPECT_EQ(log.digest(), once);
  log.add(kDecision);
  EXPECT_EQ(log.digest(), twice);
  EXPECT_EQ(log.count(), 2u);
}

TEST(DecisionLog, EveryFieldCounts) {
  std::set<std::uint64_t> digests = {digest_of(kDecision)};
  Decision changed = kDecision;
  changed.kind = DecisionKind::admit;
  digests.insert(digest_of(changed));
  changed = kDecision;
  changed.reason = Reason::none;
  digests.insert(digest_of(changed));
  changed = kDecision;
  changed.request = kNoRequest;
  digests.insert(digest_of(changed));
  changed = kDecision;
  changed.pages = 10;
  digests.insert(digest_of(changed));
  for (std::size_t i = 0; i < 4; ++i) {
    changed = kDecision;
    changed.key.words[i] ^= 1;
    digests.insert(digest_of(changed));
  }
  EXPECT_EQ(digests.size(), 9u);
}

TEST(DecisionLog, PassesDecisionsOn) {
  struct Sink : DecisionSink {
    std::vector<Decision> seen;
    void decided(const Decision& decision) override { seen.push_back(decision); }
  } sink;
  DecisionLog log(&sink);
  log.add(kDecision);
  ASSERT_EQ(sink.seen.size(), 1u);
  EXPECT_EQ(sink.seen[0].key, kDecision.key);
}

TEST(DecisionNames, AreDistinct) {
  std::set<std::string_view> kinds, reasons;
  for (int i = 0; i <= static_cast<int>(DecisionKind::withdraw); ++i)
    kinds.insert(name_of(static_cast<DecisionKind>(i)));
  for (int i = 0; i <= static_cast<int>(Reason::withdrawn); ++i) reasons.insert(name_of(static_cast<Reason>(i)));
  EXPECT_EQ(kinds.size(), static_cast<std::size_t>(DecisionKind::withdraw) + 1);
  EXPECT_EQ(reasons.size(), static_cast<std::size_t>(Reason::withdrawn) + 1);
  EXPECT_EQ(kinds.count("unknown") + reasons.count("unknown"), 0u);
}

}  // namespace
}  // namespace kvtwin
