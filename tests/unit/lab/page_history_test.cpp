// Why pages were missed: each cause in its nearest case, and the sums beside it.
#include "lab/report/page_history.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace kvtwin {
namespace {

constexpr Tokens kPageTokens = 4;

// Counts the events that are passed on.
struct Next final : Observer {
  void on_event(const Event& /*event*/) override { ++events; }
  std::size_t events = 0;
};

class PageHistoryTest : public testing::Test {
 protected:
  // Pages are numbers; a page's key is spread as a hash is.
  static std::vector<PageKey> keys(std::initializer_list<std::uint64_t> pages) {
    std::vector<PageKey> made;
    for (const std::uint64_t page : pages) made.push_back(PageKey{{(page + 1) * 0x9E3779B97F4A7C15U, page, 0, 0}});
    return made;
  }
  void tell(EventKind kind, Tier tier, std::initializer_list<std::uint64_t> pages, std::size_t engine = 0,
            Reason reason = Reason::none) {
    const std::vector<PageKey> list = keys(pages);
    history_->on_event(
        {.kind = kind, .tier = tier, .reason = reason, .pages = list.size(), .keys = list, .engine = engine});
  }
  void computed(std::initializer_list<std::uint64_t> pages, std::size_t engine = 0) {
    tell(EventKind::pages_stored, Tier::device, pages, engine);
  }
  void removed(Tier tier, std::initializer_list<std::uint64_t> pages, std::size_t engine = 0) {
    tell(EventKind::pages_removed, tier, pages, engine);
  }
  // A prompt of these pages and one token more.
  void arrives(RequestId request, std::initializer_list<std::uint64_t> pages, std::size_t engine = 0,
               RequestPart part = RequestPart::whole, std::uint32_t attempt = 0, Tokens more = 1) {
    const std::vector<PageKey> list = keys(pages);
    Arrival arrival;
    arrival.request = request;
    arrival.prompt_tokens = list.size() * kPageTokens + more;
    arrival.output_tokens = 1;
    arrival.keys = list;
    arrival.part = part;
    arrival.attempt = attempt;
    InputHandler* const inputs = history_->inputs_of(engine, nullptr);
    inputs->handle({0, arrival});
  }
  void ends(EventKind kind, RequestId request, Pages hit = 0, RequestPart part = RequestPart::whole) {
    RequestRecord record;
    record.request = request;
    record.hit[Tier::device] = hit * kPageTokens;
    record.part = part;
    history_->on_event({.kind = kind, .record = &record});
  }
  void admitted(RequestId request, Pages hit = 0) { ends(EventKind::admitted, request, hit); }
  void asks(RequestId request, Pages pages, EventKind kind = EventKind::prefetch_issued, Reason reason = Reason::none) {
    history_->on_event({.kind = kind, .reason = reason, .pages = pages, .request = request});
  }
  // "cause count, ..." of the missed pages.
  static std::string text(const PerMissCause& counts) {
    std::string words;
    for (std::size_t i = 0; i < kMissCauses; ++i) {
      const auto cause = static_cast<MissCause>(i);
      if (counts[cause] == 0) continue;
      words += (words.empty() ? "" : ", ") + std::string(name_of(cause)) + " " + std::to_string(counts[cause]);
    }
    return words;
  }
  std::string missed() const { return text(history_->missed_pages()); }
  void with_engines(std::size_t engines) { history_ = std::make_unique<PageHistory>(engines, kPageTokens, next_); }

  Next next_;
  std::unique_ptr<PageHistory> history_ = std::make_unique<PageHistory>(1, kPageTokens, next_);
};

TEST_F(PageHistoryTest, APageIsNewOnceAndThenInComputation) {
  arrives(1, {1, 2});
  admitted(1);
  EXPECT_EQ(missed(), "new 2");
  arrives(2, {1, 2, 3});
  admitted(2);
  EXPECT_EQ(missed(), "new 3, in_computation 2");
}

TEST_F(PageHistoryTest, ThePageOfTheLastTokenIsAlwaysComputed) {
  arrives(1, {1, 2}, 0, RequestPart::whole, 0, 0);
  admitted(1);
  EXPECT_EQ(missed(), "new 1");
}

TEST_F(PageHistoryTest, HitsAreNoMisses) {
  computed({1, 2});
  arrives(1, {1, 2, 3, 4});
  admitted(1, 2);
  EXPECT_EQ(missed(), "new 2");
  arrives(2, {1, 2});
  admitted(2, 1);
  EXPECT_EQ(missed(), "new 2, in_memory 1");
}

TEST_F(PageHistoryTest, EvictedPagesHaveTheirLowestTier) {
  computed({1, 2, 3, 4});
  tell(EventKind::pages_stored, Tier::host, {2, 3, 4});
  tell(EventKind::store_done, Tier::disk, {3});
  tell(EventKind::store_dropped, Tier::disk, {4});
  removed(Tier::device, {1, 2, 3, 4});
  arrives(1, {2, 1});  // the second one is behind a page that is not
  admitted(1, 0);
  EXPECT_EQ(missed(), "evicted_device 1, in_memory 1");
  removed(Tier::host, {2, 3, 4});
  tell(EventKind::evicted, Tier::disk, {3});
  arrives(2, {1, 2, 3, 4});
  admitted(2);
  EXPECT_EQ(missed(), "evicted_device 2, evicted_host 1, evicted_storage 1, not_stored 1, in_memory 1");
}

TEST_F(PageHistoryTest, APageThatStorageTakesAtLastWasNotRefused) {
  computed({1});
  tell(EventKind::store_dropped, Tier::disk, {1});
  tell(EventKind::store_done, Tier::disk, {1});
  removed(Tier::device, {1});
  arrives(1, {1});
  admitted(1);
  EXPECT_EQ(missed(), "in_storage 1");
  tell(EventKind::evicted, Tier::host, {1});  // demoted: says nothing of storage
  arrives(2, {1});
  admitted(2);
  EXPECT_EQ(missed(), "in_storage 2");
}

TEST_F(PageHistoryTest, PagesAreLostWhileARequestWaits) {
  computed({1, 2});
  arrives(1, {1, 2, 3});
  removed(Tier::device, {1, 2});
  arrives(2, {1, 2});
  admitted(1);
  EXPECT_EQ(missed(), "new 1, lost_while_waiting 2");
  admitted(2);
  EXPECT_EQ(missed(), "new 1, lost_while_waiting 2, evicted_device 2");
}

TEST_F(PageHistoryTest, AStoreThatOthersShareForgetsByItself) {
  for (const Tier tier : {Tier::disk, Tier::shared_fs}) {
    with_engines(1);
    computed({1});
    tell(EventKind::store_done, tier, {1});
    removed(Tier::device, {1});
    arrives(1, {1, 2});
    history_->on_event({.kind = EventKind::prefetch_revoked, .reason = Reason::below_threshold, .request = 1});
    EXPECT_EQ(text(history_->empty_look_ups()), "");
    history_->on_event({.kind = EventKind::prefetch_revoked, .reason = Reason::miss, .request = 1});
    const std::string cause = tier == Tier::disk ? "in_storage 1" : "evicted_storage 1";
    EXPECT_EQ(text(history_->empty_look_ups()), cause);
    admitted(1);
    EXPECT_EQ(missed(), "new 1, " + cause);
  }
}

TEST_F(PageHistoryTest, AnEmptyLookUpIsOfTheFirstPageThatIsNotNear) {
  computed({1});
  arrives(1, {1, 2});
  history_->on_event({.kind = EventKind::prefetch_revoked, .reason = Reason::miss, .request = 1});
  EXPECT_EQ(text(history_->empty_look_ups()), "new 1");
  arrives(2, {1});
  history_->on_event({.kind = EventKind::prefetch_revoked, .reason = Reason::miss, .request = 2});
  EXPECT_EQ(text(history_->empty_look_ups()), "new 1") << "all pages are near";
}

TEST_F(PageHistoryTest, EnginesShareOnlyTheStorageThatIsShared) {
  with_engines(2);
  computed({1, 2, 3}, 0);
  tell(EventKind::store_done, Tier::shared_fs, {2}, 0);
  tell(EventKind::store_done, Tier::disk, {3}, 0);
  arrives(1, {1, 2, 3}, 1);
  admitted(1);
  EXPECT_EQ(missed(), "other_engine 2, in_storage 1");
  arrives(2, {1, 2, 3}, 0);
  admitted(2);
  EXPECT_EQ(missed(), "other_engine 2, in_storage 1, in_memory 3");
}

TEST_F(PageHistoryTest, DistinctPagesCountPerEngineAndOfAll) {
  computed({1, 2});
  computed({2, 3});
  EXPECT_EQ(history_->pages_of_an_engine(), 3U);
  EXPECT_EQ(history_->pages_of_all(), 3U);
  with_engines(2);
  computed({1, 2}, 0);
  computed({2, 3, 4}, 1);
  EXPECT_EQ(history_->pages_of_an_engine(), 3U);
  EXPECT_EQ(history_->pages_of_all(), 4U);
}

TEST_F(PageHistoryTest, AskedPagesAddUpWhileRequestsWait) {
  arrives(1, {1, 2, 3});
  arrives(2, {4, 5});
  asks(1, 3);
  asks(1, 2);  // less than before: of the same pages
  asks(2, 2, EventKind::prefetch_declined, Reason::too_short);
  EXPECT_EQ(history_->asked_at_once(), 3U);
  asks(2, 2, EventKind::prefetch_declined, Reason::rate_limited);
  EXPECT_EQ(history_->asked_at_once(), 5U);
  EXPECT_EQ(history_->asked(), 5U);
  admitted(1);
  asks(1, 9);  // has been admitted
  arrives(3, {6});
  asks(3, 1);
  EXPECT_EQ(history_->asked_at_once(), 5U);
  EXPECT_EQ(history_->asked(), 6U);
}

TEST_F(PageHistoryTest, RequestsThatEndWithoutAnAdmissionCountNowhere) {
  for (const EventKind end : {EventKind::rejected, EventKind::aborted, EventKind::hand_over_dropped}) {
    arrives(1, {1});
    ends(end, 1);
    admitted(1);
  }
  EXPECT_EQ(missed(), "");
}

TEST_F(PageHistoryTest, OnlyTheFirstAttemptOfAPromptCounts) {
  arrives(1, {1}, 0, RequestPart::decode);
  admitted(1);
  arrives(2, {1}, 0, RequestPart::whole, 1);
  admitted(2);
  EXPECT_EQ(missed(), "");
  arrives(3, {1}, 0, RequestPart::prefill);
  ends(EventKind::admitted, 3, 0, RequestPart::decode);
  EXPECT_EQ(missed(), "");
  ends(EventKind::admitted, 3, 0, RequestPart::prefill);
  EXPECT_EQ(missed(), "new 1");
}

TEST_F(PageHistoryTest, TenThousandPagesKeepTheirHistories) {
  for (std::uint64_t page = 0; page < 10'000; ++page) {
    computed({page});
    if (page % 2 == 0) removed(Tier::device, {page});
  }
  for (std::uint64_t page = 0; page < 10'000; ++page) {
    arrives(page, {page});
    admitted(page);
  }
  EXPECT_EQ(missed(), "evicted_device 5000, in_memory 5000");
  EXPECT_EQ(history_->pages_of_all(), 10'000U);
}

TEST_F(PageHistoryTest, EventsAndInputsGoOn) {
  computed({1});
  admitted(1);
  EXPECT_EQ(next_.events, 2U);
  struct Inputs final : InputHandler {
    void handle(const Input& /*input*/) override { ++inputs; }
    std::size_t inputs = 0;
  } inputs;
  InputHandler* const first = history_->inputs_of(0, &inputs);
  first->handle({0, TimerFired{}});
  first->handle({0, Arrival{}});
  EXPECT_EQ(inputs.inputs, 2U);
}

}  // namespace
}  // namespace kvtwin
