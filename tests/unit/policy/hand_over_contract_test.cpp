// The contract's terms about hand-overs and notices, on both sides.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "policy/seam/contract.hpp"

namespace kvtwin {
namespace {

constexpr std::uint32_t kPage = 4;

std::string text(BrokenTerm broken) { return broken == nullptr ? "" : broken; }

// A prefill engine whose request 7 has room for the pages 1 and 2, in the slots 20 and 21.
class Writer : public testing::Test {
 protected:
  Writer() {
    EXPECT_EQ(text(contract_.take({9, part_of(7)})), "");
    EXPECT_EQ(text(contract_.take({10, room_})), "");
    operation_.request = 7;
    operation_.first = 1;
    operation_.tokens = 7;
    operation_.last = true;
    operation_.work.pages = 2;
    operation_.work.bytes = 128;
    operation_.work.writes = 2;
    operation_.pages = moves_;
  }
  static Arrival part_of(RequestId request, std::uint32_t attempt = 0) {
    Arrival arrival;
    arrival.request = request;
    arrival.prompt_tokens = 11;
    arrival.output_tokens = 1;
    arrival.part = RequestPart::prefill;
    arrival.attempt = attempt;
    return arrival;
  }
  std::string submitted() {
    const std::string broken = text(contract_.judge(Operation(operation_)));
    return broken.empty() ? text(contract_.submitted(operation_, OperationId{++ids_}, 10)) : broken;
  }
  std::string answered(Status status, std::uint64_t id = 1) {
    Completion completion;
    completion.id = OperationId{id};
    completion.status = status;
    return text(contract_.take({20, completion}));
  }

  SeamContract contract_{ContractTerms{kPage, EngineRole::prefill}};
  std::vector<SlotId> slots_{20, 21};
  Notice room_{NoticeKind::room, 7, 0, 0, 1, slots_};
  std::vector<PageMove> moves_{{{}, 3, 20}, {{}, 4, 21}};
  HandOverOperation operation_;
  std::uint64_t ids_ = 0;
};

TEST_F(Writer, WritesWhatThereIsRoomFor) {
  EXPECT_EQ(submitted(), "");
  EXPECT_EQ(answered(Status::done), "");
  EXPECT_EQ(contract_.outstanding(), 0U);
  EXPECT_EQ(submitted(), "a hand-over waits for the decode engine's room") << "it was handed over";
}

// The policy has one attempt of a request at a time.
TEST_F(Writer, TakesANewAttemptWhenTheOldOneCanEnd) {
  EXPECT_EQ(text(contract_.take({11, part_of(7, 1)})),
            "a request is sent again after the notice that its engine is lost");
  Notice lost;
  lost.kind = NoticeKind::peer_lost;
  EXPECT_EQ(text(contract_.take({12, lost})), "");
  EXPECT_EQ(text(contract_.take({13, part_of(7, 2)})), "");
}

TEST_F(Writer, IsToldOfEveryBreak) {
  const HandOverOperation good = operation_;
  const auto expect = [&](const char* sentence) {
    EXPECT_EQ(text(contract_.judge(Operation(operation_))), sentence);
    operation_ = good;
  };
  operation_.request = 8;
  expect("a hand-over waits for the decode engine's room");
  operation_.attempt = 1;
  expect("a hand-over waits for the decode engine's room");
  operation_.first = 0;
  expect("a hand-over writes pages for which there is room");
  operation_.first = 2;
  expect("a hand-over writes pages for which there is room");
  operation_.tokens = 9;
  expect("only the last page is partly full");
  operation_.tokens = 4;
  expect("only the last page is partly full");
  operation_.work.pages = 1;
  expect("a hand-over counts its pages");
  operation_.work.bytes = 0;
  expect("a hand-over weighs something");
  operation_.pages = {};
  expect("a hand-over writes at least one page");
  operation_.pass = OperationId{1};
  expect("a hand-over waits for a pass in flight");
  std::swap(moves_[0].target, moves_[1].target);
  expect("a page goes to the slot leased for it");
  std::swap(moves_[0].target, moves_[1].target);
  operation_.pages = std::span(moves_).first(1);
  operation_.work.pages = 1;
  operation_.tokens = 4;
  expect("the last hand-over writes the last page");
}

// A window of two pages and a state go with the last page of a prompt of three pages.
TEST(SeamContract, AHandOverHasItsWindowsAndStates) {
  ContractTerms terms{kPage, EngineRole::prefill};
  terms.windows = {4, 0};
  SeamContract contract(terms);
  Arrival arrival;
  arrival.request = 7;
  arrival.prompt_tokens = 11;
  arrival.output_tokens = 1;
  arrival.part = RequestPart::prefill;
  ASSERT_EQ(text(contract.take({10, arrival})), "");
  std::vector<SlotId> slots{20, 21, 30, 31};
  Notice room{NoticeKind::room, 7, 0, 0, 1, slots};
  EXPECT_EQ(text(contract.take({10, room})), "room is for the rest of the prompt") << "no slot for the state";
  slots.push_back(40);
  room.slots = slots;
  ASSERT_EQ(text(contract.take({10, room})), "");
  const std::vector<PageMove> moves{{{}, 3, 20}, {{}, 4, 21}};
  std::vector<PageMove> windows{{{}, 1, 30}, {{}, 2, 31}}, states{{{}, 9, 40}};
  HandOverOperation operation;
  operation.request = 7;
  operation.first = 1;
  operation.pages = moves;
  operation.tokens = 7;
  operation.work = {.pages = 2, .bytes = 1, .writes = 1};
  EXPECT_EQ(text(contract.judge(Operation(operation))), "") << "more follows";
  operation.last = true;
  EXPECT_EQ(text(contract.judge(Operation(operation))), "the last hand-over writes all windows and states");
  operation.parts = {{0, windows}, {1, states}};
  EXPECT_EQ(text(contract.judge(Operation(operation))), "");
  operation.last = false;
  EXPECT_EQ(text(contract.judge(Operation(operation))), "windows and states go with the last page");
  operation.last = true;
  std::swap(windows[0].target, windows[1].target);
  EXPECT_EQ(text(contract.judge(Operation(operation))), "a window or state goes to its slot");
  std::swap(windows[0].target, windows[1].target);
  states[0].source = kNoSlot;
  EXPECT_EQ(text(contract.judge(Operation(operation))), "a window or state moves from a slot to a slot");
}

TEST_F(Writer, EndsInOneOfItsWays) {
  EXPECT_EQ(submitted(), "");
  EXPECT_EQ(answered(Status::cancelled), "only what was cancelled ends cancelled");
  EXPECT_EQ(answered(Status::gate_failed), "only a pass has gates");
  EXPECT_EQ(answered(Status::failed), "");
  EXPECT_EQ(submitted(), "") << "again, after a failure";
  contract_.cancelled(OperationId{2});
  EXPECT_EQ(answered(Status::cancelled, 2), "");
}

TEST_F(Writer, LacksNoPageBeforeItsOwn) {
  const HandOverOperation whole = operation_;
  operation_.pages = whole.pages.first(1);
  operation_.work.pages = 1;
  operation_.tokens = 4;
  operation_.last = false;
  EXPECT_EQ(submitted(), "");
  operation_ = whole;
  operation_.first = 2;
  operation_.pages = whole.pages.subspan(1);
  operation_.work.pages = 1;
  operation_.tokens = 3;
  EXPECT_EQ(submitted(), "");
  EXPECT_EQ(answered(Status::failed, 1), "");
  EXPECT_EQ(answered(Status::done, 2), "a hand-over is done after the pages before its own");
  EXPECT_EQ(answered(Status::failed, 2), "");
  operation_ = whole;
  EXPECT_EQ(submitted(), "");
  EXPECT_EQ(answered(Status::done, 3), "");
}

// Another rank's last write may have failed.
TEST_F(Writer, OfARankMayWriteAgainWhatIsDone) {
  contract_ = SeamContract{{.page_tokens = kPage, .role = EngineRole::prefill, .ranks_decide = true}};
  EXPECT_EQ(text(contract_.take({9, part_of(7)})), "");
  EXPECT_EQ(text(contract_.take({10, room_})), "");
  EXPECT_EQ(submitted(), "");
  EXPECT_EQ(answered(Status::done), "");
  EXPECT_EQ(submitted(), "");
  EXPECT_EQ(answered(Status::done, 2), "");
}

TEST_F(Writer, IsAnsweredAfterItsPass) {
  ForwardOperation pass;
  pass.shape.prefill_tokens = 1;
  pass.shape.prefill_sequences = 1;
  EXPECT_EQ(text(contract_.submitted(pass, OperationId{1}, 10)), "");
  ids_ = 1;
  operation_.pass = OperationId{1};
  EXPECT_EQ(submitted(), "");
  EXPECT_EQ(answered(Status::done, 2), "a hand-over ends after its pass");
  EXPECT_EQ(answered(Status::gate_failed, 2), "");
}

TEST_F(Writer, HasRoomForTheRestOfThePromptOnce) {
  EXPECT_EQ(text(contract_.take({10, room_})), "room is given once");
  EXPECT_EQ(text(contract_.take({10, part_of(8)})), "");
  room_.request = 8;
  for (const Pages first : {Pages{0}, Pages{2}, Pages{4}, ~Pages{0}}) {
    room_.first = first;
    EXPECT_EQ(text(contract_.take({10, room_})), "room is for the rest of the prompt") << first;
  }
  room_.first = 1;
  EXPECT_EQ(text(contract_.take({10, room_})), "");
  room_.request = 9;
  EXPECT_EQ(text(contract_.take({10, room_})), "") << "of a part that has ended";
}

TEST(Roles, GetTheirOwnPartsAndNotices) {
  const auto role_of = [](RequestPart part) {
    return part == RequestPart::prefill ? EngineRole::prefill : EngineRole::decode;
  };
  for (const EngineRole role : {EngineRole::both, EngineRole::prefill, EngineRole::decode}) {
    SeamContract contract{ContractTerms{kPage, role}};
    Arrival arrival{0, 1, 1, 0, 0, {}};
    EXPECT_EQ(text(contract.take({0, arrival})), "");
    for (const RequestPart part : {RequestPart::prefill, RequestPart::decode}) {
      ++arrival.request;
      arrival.part = part;
      EXPECT_EQ(text(contract.take({0, arrival})) == "", role == role_of(part));
    }
    const auto refused = [&](NoticeKind kind) {
      Notice notice;
      notice.kind = kind;
      notice.request = 99;
      return text(contract.take({1, notice}));
    };
    const std::string no_peers = "only an engine with a role has peers",
                      other = "a notice goes to the engine with the role for it";
    const bool both = role == EngineRole::both;
    EXPECT_EQ(refused(NoticeKind::peer_lost), both ? no_peers : "");
    for (const NoticeKind kind : {NoticeKind::room, NoticeKind::cancel}) {
      EXPECT_EQ(refused(kind), both ? no_peers : role == EngineRole::prefill ? "" : other);
    }
    EXPECT_EQ(refused(NoticeKind::withdrawn), both ? no_peers : role == EngineRole::decode ? "" : other);
  }
}

// A decode engine that leases a page for request 3.
class Reader : public testing::Test {
 protected:
  std::vector<SlotId> slots{1};
  Notice room{NoticeKind::room, 3, 0, 0, 0, slots}, handed{NoticeKind::handed, 3, 0, 0, 0, {}};
};

TEST_F(Reader, IsToldOfTheEndOnceAndOnlyOfWhatItExpects) {
  SeamContract contract{ContractTerms{kPage, EngineRole::decode}};
  EXPECT_EQ(text(contract.take({1, handed})), "only leased pages are handed over, once");
  EXPECT_EQ(text(contract.judge_notice(room)), "");
  contract.notified(room);
  EXPECT_EQ(text(contract.judge_notice(room)), "room is given once");
  EXPECT_EQ(text(contract.take({1, handed})), "");
  EXPECT_EQ(text(contract.take({1, handed})), "only leased pages are handed over, once");
  room.slots = {};
  room.request = 4;
  EXPECT_EQ(text(contract.judge_notice(room)), "room has at least one page");
  EXPECT_EQ(text(contract.judge_notice(handed)), "only the world gives this notice");
}

// Another rank has leased the pages before this one.
TEST_F(Reader, OfARankMayBeToldBeforeItsLease) {
  SeamContract contract{{.page_tokens = kPage, .role = EngineRole::decode, .ranks_decide = true}};
  EXPECT_EQ(text(contract.take({1, handed})), "");
  EXPECT_EQ(text(contract.take({1, handed})), "only leased pages are handed over, once");
  EXPECT_EQ(text(contract.judge_notice(room)), "");
  contract.notified(room);  // has ended
}

TEST(Arrivals, ComeInOrderUnlessTheyAreSentAgain) {
  SeamContract contract{ContractTerms{kPage}};
  Arrival arrival{5, 1, 1, 0, 0, {}};
  EXPECT_EQ(text(contract.take({0, arrival})), "");
  EXPECT_EQ(text(contract.take({0, arrival})), "arrivals come in order");
  arrival.attempt = 1;
  EXPECT_EQ(text(contract.take({0, arrival})), "");
  EXPECT_EQ(text(contract.take({0, arrival})), "a request that is sent again is a new attempt");
  arrival.attempt = 0;
  arrival.request = 6;
  EXPECT_EQ(text(contract.take({0, arrival})), "");
}

}  // namespace
}  // namespace kvtwin
