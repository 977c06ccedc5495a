#include "policy/in_flight.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace kvtwin {
namespace {

struct Copy : Submitted {
  int name = 0;
};

class InFlightCopies : public testing::Test {
 protected:
  InFlightCopies() {
    for (int name = 0; name < 4; ++name) copies.push({{OperationId{10U + static_cast<unsigned>(name)}}, name});
  }
  bool complete(unsigned id, Status status = Status::done) {
    Completion completion;
    completion.id = OperationId{id};
    completion.status = status;
    return copies.complete(completion);
  }
  bool acknowledge(std::uint64_t total, std::uint64_t failure = kNoFailure) {
    return copies.acknowledge({total, failure},
                              [this](const Copy& copy, bool done) { taken.push_back(done ? copy.name : -copy.name); });
  }
  InFlight<Copy> copies;
  std::vector<int> taken;  // negative: failed
};

TEST_F(InFlightCopies, CountFromTheOldestOn) {
  EXPECT_TRUE(complete(11));
  EXPECT_EQ(copies.complete_from_oldest(), 0U);
  EXPECT_FALSE(copies.acknowledgement_due());
  EXPECT_TRUE(complete(10));
  EXPECT_EQ(copies.complete_from_oldest(), 2U);
  EXPECT_TRUE(copies.acknowledgement_due());
  EXPECT_FALSE(complete(10)) << "once";
  EXPECT_FALSE(complete(14)) << "not one of these";
}

TEST_F(InFlightCopies, AreTakenAsFarAsAllRanksHaveThem) {
  for (const unsigned id : {10U, 11U, 12U}) complete(id);
  EXPECT_FALSE(acknowledge(2));
  EXPECT_EQ(taken, (std::vector<int>{0, 1}));
  EXPECT_EQ(copies.complete_from_oldest(), 3U);
  EXPECT_EQ(copies.numbered(3).name, 3);
  EXPECT_FALSE(acknowledge(2)) << "nothing new";
  EXPECT_EQ(taken.size(), 2U);
}

// Whether a copy has failed is what the ranks agree on, not what this rank has seen.
TEST_F(InFlightCopies, FailOneARound) {
  for (const unsigned id : {10U, 12U}) complete(id);
  complete(11, Status::failed);
  complete(13, Status::failed);
  EXPECT_EQ(copies.failure(), 1U);
  EXPECT_TRUE(acknowledge(4, 1)) << "the later ones wait for the next round";
  EXPECT_EQ(taken, (std::vector<int>{0, -1}));
  EXPECT_EQ(copies.failure(), 3U);
  EXPECT_TRUE(acknowledge(4, 2)) << "another rank has seen number 2 fail";
  EXPECT_EQ(taken, (std::vector<int>{0, -1, -2}));
  EXPECT_FALSE(acknowledge(4, 3));
  EXPECT_EQ(taken, (std::vector<int>{0, -1, -2, -3}));
  EXPECT_TRUE(copies.empty());
  EXPECT_EQ(copies.failure(), kNoFailure);
}

}  // namespace
}  // namespace kvtwin
