// The ranks of a real run, here as threads instead of processes: how they end together, and what they report to rank 0.
#include "lab/run/real_ranks.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "cli/say.hpp"
#include "lab/run/cluster.hpp"
#include "lab/run/rank_report.hpp"
#include "models/error.hpp"
#include "tests/thread_ranks.hpp"
#include "traces/trace.hpp"

namespace kvtwin::test {
namespace {

struct Ended {
  std::vector<int> codes;  // exit code of each rank; 0 = no error
  std::string said;
  bool left = false;
};

Ended play(std::size_t size, const std::function<void(RealRanks&)>& work) {
  ThreadRanks group(size);
  Ended ended;
  ended.codes.resize(size);
  testing::internal::CaptureStderr();
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      RealRanks ranks(group.of(rank), [](const std::string& sentence) { say(sentence); });
      try {
        ranks.run([&] { work(ranks); });
      } catch (const AlreadySaid& said) {
        ended.codes[rank] = said.code;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ended.said = testing::internal::GetCapturedStderr();
  ended.left = group.left();
  return ended;
}

TEST(RealRanksTogether, EndWellWhenAllDo) {
  const Ended ended = play(3, [](RealRanks& ranks) {
    ranks.meet();
    ranks.serve([] {});
  });
  EXPECT_EQ(ended.codes, (std::vector<int>{0, 0, 0}));
  EXPECT_EQ(ended.said, "");
  EXPECT_FALSE(ended.left);
}

TEST(RealRanksTogether, SayOnceWhatAllComplainOf) {
  const Ended ended = play(4, [](RealRanks&) { throw InputError("a.toml:3: is\nwrong"); });
  EXPECT_EQ(ended.codes, (std::vector<int>{2, 2, 2, 2}));
  EXPECT_EQ(ended.said, "kvtwin: a.toml:3: is\\x0awrong\n");
  EXPECT_FALSE(ended.left) << "they end in order, not by force";
}

// A rank fails before or after serving. The other ranks notice it at their next meeting.
TEST(RealRanksTogether, EndAllWhenOneFails) {
  for (int place = 0; place < 4; ++place) {
    const Ended ended = play(3, [place](RealRanks& ranks) {
      const auto fail_at = [&](int here) {
        if (ranks.rank() == 1 && place == here) throw WorkError("no room");
      };
      fail_at(0);
      ranks.meet();
      fail_at(1);
      ranks.meet();
      fail_at(2);
      ranks.serve([] {});
      fail_at(3);
    });
    EXPECT_EQ(ended.codes, (std::vector<int>{1, 1, 1})) << place;
    EXPECT_EQ(ended.said, "kvtwin: rank 1: no room\n") << place;
    EXPECT_FALSE(ended.left) << place;
  }
}

TEST(RealRanksTogether, EndWithTheGravestCodeAndAllSentences) {
  const Ended ended = play(3, [](RealRanks& ranks) {
    if (ranks.rank() == 0) throw WorkError("no room");
    if (ranks.rank() == 2) throw TraceError("bad line");
  });
  EXPECT_EQ(ended.codes, (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(ended.said, "kvtwin: no room\nkvtwin: rank 2: bad line\n");
}

TEST(RealRanksTogether, SayWhichEngineTheyAreOf) {
  const auto fail_on_last = [](RealRanks& ranks, std::size_t per_engine) {
    ranks.set_ranks_per_engine(per_engine);
    EXPECT_EQ(ranks.ranks_per_engine(), per_engine);
    if (ranks.rank() == 3) throw WorkError("no room");
  };
  EXPECT_EQ(play(4, [&](RealRanks& ranks) { fail_on_last(ranks, 2); }).said, "kvtwin: engine 1, rank 1: no room\n");
  EXPECT_EQ(play(4, [&](RealRanks& ranks) { fail_on_last(ranks, 1); }).said, "kvtwin: engine 3: no room\n");
}

TEST(RealRanksTogether, TellRankZeroOfTheirLoopsAndCounters) {
  play(4, [](RealRanks& ranks) {
    ranks.set_ranks_per_engine(2);
    LoopReport loop;
    loop.inputs = 7 + ranks.rank();
    loop.arrival_late_max_ns = 9;
    const std::vector<LoopReport> loops = gather_loops(ranks, loop);
    ASSERT_EQ(loops.size(), ranks.leads() ? 4U : 0U);
    for (std::size_t rank = 0; rank < loops.size(); ++rank) {
      EXPECT_EQ(loops[rank].inputs, 7 + rank);
      EXPECT_EQ(loops[rank].arrival_late_max_ns, 9);
    }
    const std::vector<StorageCounters> all =
        gather_counters(ranks, {{Tier::remote, {{"objects_per_page", 3}, {"got_pages", 10 + ranks.rank()}}}});
    if (!ranks.leads()) return;
    EXPECT_EQ(all[0].counters[0].second, 6U) << "of the two ranks of one engine";
    EXPECT_EQ(all[0].counters[1].second, 46U) << "of all engines";
  });
}

// There are no meetings while requests are served: a rank that fails ends the other ranks.
TEST(RealRanksTogether, LeaveWhenTheyFailWhileServing) {
  const Ended ended = play(3, [](RealRanks& ranks) {
    ranks.serve([&] {
      if (ranks.rank() == 1) throw InputError("a line of the trace");
      while (ranks.group().barrier()) {
      }
      throw AlreadySaid(2);  // like processes that are killed
    });
  });
  EXPECT_EQ(ended.codes, (std::vector<int>{2, 2, 2}));
  EXPECT_EQ(ended.said, "kvtwin: rank 1: a line of the trace\n");
  EXPECT_TRUE(ended.left);
}

TEST(RealRanksTogether, EndAsTheProgramDoes) {
  const auto code_of = [](auto error) { return ending_of(std::make_exception_ptr(error)).code; };
  EXPECT_EQ(code_of(InputError("")), 2);
  EXPECT_EQ(code_of(TraceError("")), 2);
  EXPECT_EQ(code_of(ModelError("")), 2);
  EXPECT_EQ(code_of(WorkError("")), 1);
  EXPECT_EQ(code_of(std::bad_alloc()), 1);
  EXPECT_EQ(ending_of(std::make_exception_ptr(std::bad_alloc())).sentence, "out of memory");
}

TEST(RealRanksTogether, TellRankZeroWhatTheyDid) {
  play(3, [](RealRanks& ranks) {
    const std::uint64_t rank = ranks.rank();
    RankOutcome ours{{10 + rank, ~rank}, 7 * rank, {}};
    LaneUse& lane = ours.lanes.emplace_back();
    lane.name = "gpu" + std::to_string(rank) + ".h2d";
    lane.bytes = 100 + rank;
    lane.transfers = 3;
    lane.busy_ns = 44;
    lane.window_busy_ns = {40, 4};
    lane.window_bytes = {99, 1 + rank};
    ours.used_max[Tier::host] = 50 + rank;
    const std::vector<RankOutcome> all = gather_outcomes(ranks, ours);
    ASSERT_EQ(all.size(), rank == 0 ? 3U : 0U);
    for (std::uint64_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].decisions, (DecisionMark{10 + i, ~i}));
      EXPECT_EQ(all[i].reductions, 7 * i);
      EXPECT_EQ(all[i].used_max[Tier::host], 50 + i);
      const LaneUse& got = all[i].lanes.at(0);
      EXPECT_EQ(got.name, "gpu" + std::to_string(i) + ".h2d");
      EXPECT_EQ(got.bytes, 100 + i);
      EXPECT_EQ(got.transfers, 3U);
      EXPECT_EQ(got.busy_ns, 44);
      EXPECT_EQ(got.window_ns, kNsPerSecond);
      EXPECT_EQ(got.window_busy_ns, (std::vector<TimeNs>{40, 4}));
      EXPECT_EQ(got.window_bytes, (std::vector<Bytes>{99, 1 + i}));
    }
  });
}

TEST(RealRanksTogether, TellRankZeroWhatTheyChecked) {
  play(2, [](RealRanks& ranks) {
    Verification ours;
    ours.pages_read = 10 + ranks.rank();
    ours.bytes_read = 1000;
    ours.pages_audited = 5;
    ours.bytes_audited = 500;
    if (ranks.rank() == 1) {
      ours.wrong_reads = 2;
      ours.flipped = true;
      WrongPage page;
      page.tier = Tier::host;
      page.key.words = {~std::uint64_t{0}, 2, 3, 4};
      page.slot = 9;
      page.layer = 1;
      page.token = 3;
      page.byte = 7;
      page.expected = 200;
      page.got = 201;
      page.found = "found when the run was over";
      ours.wrong.push_back(page);
    }
    const Verification all = gather_verification(ranks, ours);
    if (!ranks.leads()) {
      EXPECT_EQ(all.pages_read, 11U);
      return;
    }
    EXPECT_EQ(all.pages_read, 21U);
    EXPECT_EQ(all.bytes_read, 2000U);
    EXPECT_EQ(all.pages_audited, 10U);
    EXPECT_EQ(all.bytes_audited, 1000U);
    EXPECT_EQ(all.wrong_reads, 2U);
    EXPECT_TRUE(all.flipped);
    ASSERT_EQ(all.wrong.size(), 1U);
    EXPECT_EQ(all.wrong[0].tier, Tier::host);
    EXPECT_EQ(all.wrong[0].key.words[0], ~std::uint64_t{0});
    EXPECT_EQ(all.wrong[0].slot, 9U);
    EXPECT_EQ(all.wrong[0].got, 201);
    EXPECT_EQ(all.wrong[0].found, "on rank 1, found when the run was over");
  });
}

TEST(RealRanksTogether, AreRefusedWhenTheyDecidedDifferently) {
  EXPECT_NO_THROW(refuse_disagreement({{5, 9}, {5, 9}, {5, 9}}));
  try {
    refuse_disagreement({{5, 9}, {5, 9}, {6, 10}});
    FAIL() << "they differ";
  } catch (const WorkError& error) {
    EXPECT_EQ(std::string(error.what()),
              "rank 2 decided otherwise than rank 0: 6 decisions, digest 000000000000000a, not 5, digest "
              "0000000000000009");
  }
}

}  // namespace
}  // namespace kvtwin::test
