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
    Notice room;
    room.request = 7;
    room.first = 1;
    room.slots = slots_;
    EXPECT_EQ(text(contract_.take({10, room})), "");
    operation_.request = 7;
    operation_.first = 1;
    operation_.tokens = 7;
    operation_.last = true;
    operation_.work.pages = 2;
    operation_.work.bytes = 128;
    operation_.work.writes = 2;
    operation_.pages = moves_;
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

  SeamContract contract_{ContractTerms{kPage}};
  std::vector<SlotId> slots_{20, 21};
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

TEST_F(Writer, EndsInOneOfItsWays) {
  EXPECT_EQ(submitted(), "");
  EXPECT_EQ(answered(Status::cancelled), "only what was cancelled ends cancelled");
  EXPECT_EQ(answered(Status::gate_failed), "only a pass has gates");
  EXPECT_EQ(answered(Status::failed), "");
  EXPECT_EQ(submitted(), "") << "again, after a failure";
  contract_.cancelled(OperationId{2});
  EXPECT_EQ(answered(Status::cancelled, 2), "");
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

TEST_F(Writer, HasRoomOnce) {
  Notice room;
  room.request = 7;
  room.first = 1;
  room.slots = slots_;
  EXPECT_EQ(text(contract_.take({10, room})), "room is given once");
}

TEST(Reader, IsToldOfTheEndOnceAndOnlyOfWhatItExpects) {
  SeamContract contract{ContractTerms{kPage}};
  const std::vector<SlotId> slots{1};
  Notice room, handed;
  room.request = handed.request = 3;
  room.slots = slots;
  handed.kind = NoticeKind::handed;
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

TEST(Arrivals, ComeInOrderUnlessTheyAreSentAgain) {
  SeamContract contract{ContractTerms{kPage}};
  Arrival arrival{5, 1, 1, 0, 0, {}};
  EXPECT_EQ(text(contract.take({0, arrival})), "");
  EXPECT_EQ(text(contract.take({0, arrival})), "arrivals come in order");
  arrival.attempt = 1;
  EXPECT_EQ(text(contract.take({0, arrival})), "");
  arrival.attempt = 0;
  arrival.request = 6;
  EXPECT_EQ(text(contract.take({0, arrival})), "");
}

}  // namespace
}  // namespace kvtwin
