#include "cli/hit_bounds.hpp"

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "traces/paging.hpp"

namespace kvtwin {
namespace {

// Pages of two tokens. A request: its pages' ids, and how long it is.
class ListSource final : public InputSource {
 public:
  using Request = std::pair<std::vector<std::uint64_t>, Tokens>;
  explicit ListSource(std::vector<Request> requests) : requests_(std::move(requests)) {}

  bool next(Input& input) override {
    if (at_ == requests_.size()) return false;
    Arrival arrival;
    arrival.request = at_;
    arrival.prompt_tokens = requests_[at_].second;
    arrival.output_tokens = 1;
    arrival.keys = pager_.keys(requests_[at_].first, arrival.prompt_tokens, nullptr);
    input.what = arrival;
    ++at_;
    return true;
  }

 private:
  std::vector<Request> requests_;
  Pager pager_{2, 2, LastPage::full_only};
  std::size_t at_ = 0;
};

// All arrive first, then are admitted in this order.
HitBounds::HitTokens reckon(std::vector<ListSource::Request> requests, const std::vector<RequestId>& admitted,
                            Pages capacity, const CostModel* cost = nullptr) {
  ListSource source(std::move(requests));
  HitBounds bounds(2);
  for (Input input; source.next(input);) bounds.handle(input);
  for (const RequestId request : admitted) {
    bounds.decided({DecisionKind::admit, Reason::none, request, {}, 0});
    bounds.decided({DecisionKind::evict_device, Reason::none, request, {}, 1});  // of no interest
  }
  return bounds.hit_tokens(capacity, cost);
}

class TokenCost final : public CostModel {  // a nanosecond a token, one more for each 8 before it
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t) const override {
    return static_cast<TimeNs>(8 * shape.prefill_tokens + shape.prefill_pairs);
  }
  TransferCost transfer(const Plan&) const override { return {}; }
  TransferCost storage(const StorageWork&) const override { return {}; }
};

const std::vector<std::uint64_t> kB{1, 2, 3, 4}, kC{5, 6, 7, 8};

TEST(HitBounds, GoByTheOrderOfAdmissions) {
  const std::vector<ListSource::Request> requests{{{1, 2, 3, 4, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{1, 2, 3, 4, 9}, 9}};
  EXPECT_EQ(reckon(requests, {0, 2, 1}, 4).lru, 8U);
  EXPECT_EQ(reckon(requests, {0, 1, 2}, 4).lru, 0U);
  EXPECT_EQ(reckon(requests, {0, 1, 2}, 4).opt, 8U);
  EXPECT_EQ(reckon(requests, {0, 1}, 4).opt, 0U) << "who isn't admitted hits nothing";
  EXPECT_EQ(reckon(requests, {}, 4).opt, 0U);
}

TEST(HitBounds, LeaveOutWhatIsComputedInAnyCase) {
  EXPECT_EQ(reckon({{kB, 8}, {kB, 8}}, {0, 1}, 100).opt, 6U) << "the last token";
  EXPECT_EQ(reckon({{kB, 7}, {kB, 7}}, {0, 1}, 100).opt, 6U) << "a page in part";
  EXPECT_EQ(reckon({{{1}, 1}, {{1}, 1}}, {0, 1}, 100).opt, 0U) << "no page at all";
}

// Retracted and admitted again, a request computes its pages anew, so nobody had to keep them meanwhile; what it finds
// itself then is no hit.
TEST(HitBounds, TakeARetractedRequestForAtWorkTwice) {
  const std::vector<ListSource::Request> requests{
      {{1, 2, 3, 4, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{1, 2, 3, 4, 9}, 9}};
  EXPECT_EQ(reckon(requests, {0, 1, 2, 3}, 4).opt, 8U);
  EXPECT_EQ(reckon(requests, {0, 1, 2, 0, 3}, 4).opt, 16U);
  EXPECT_EQ(reckon(requests, {0, 1, 2, 0, 3}, 4).lru, 16U);
  EXPECT_EQ(reckon({{kB, 8}, {kC, 8}}, {0, 0, 1, 1}, 100).opt, 0U);
}

TEST(HitBounds, SayWhatTheirHitsSave) {
  const TokenCost cost;
  const std::vector<ListSource::Request> requests{
      {{1, 2, 3, 4, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{5, 6, 7, 8, 9}, 9}, {{1, 2, 3, 4, 9}, 9}};
  const TimeNs path = 8 * 8 + 8 * 9 / 2;  // four pages of two tokens, from the start on
  EXPECT_EQ(reckon(requests, {0, 1, 2, 0, 3}, 4, &cost).opt_saved_ns, 2 * path);
  EXPECT_EQ(reckon(requests, {0, 1, 2, 3}, 4, &cost).lru_saved_ns, path);
  EXPECT_EQ(reckon(requests, {0, 1, 2, 3}, 4).opt_saved_ns, 0);
  EXPECT_EQ(reckon({{kB, 8}, {kB, 8}}, {0, 1}, 100, &cost).opt_saved_ns, 8 * 6 + 6 * 7 / 2) << "the last token";
}

}  // namespace
}  // namespace kvtwin
