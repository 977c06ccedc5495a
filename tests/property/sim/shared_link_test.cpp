// Compares the SimGrid world with a shared DRAM link to a reference in long double: every rank has its own flow, the
// link uses exact processor sharing, and layer groups arrive one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "world_script.hpp"

namespace kvtwin::test {
namespace {

using Real = long double;  // nanoseconds, or bytes

struct Job {  // a transfer; and, if pass_ns > 0, the pass that waits for it
  TimeNs submitted = 0;
  Lane lane = Lane::h2d;
  Bytes bytes = 0;
  TimeNs latency = 0;
  std::uint64_t most = 0;
  TimeNs pass_ns = 0;
  std::uint32_t groups = 16;  // layer groups
};

struct Outcome {
  Real end = 0;
  Real pass_end = 0;
};

// Replaces each limit by the rate of the flow: the largest equal rates on a link of `capacity`, within each flow's
// limit.
void share(Real capacity, std::vector<Real>& limits) {
  std::vector<Real*> open;
  for (Real& limit : limits) open.push_back(&limit);
  std::sort(open.begin(), open.end(), [](const Real* a, const Real* b) { return *a < *b; });
  for (std::size_t i = 0; i < open.size(); ++i) {
    const Real fair = capacity / static_cast<Real>(open.size() - i);
    *open[i] = std::min(*open[i], fair);
    capacity -= *open[i];
  }
}

class Reference {
 public:
  // `ends`: the end times in the world, in whole ns. The next transfer of a lane starts at this time. Otherwise
  // rounding errors would add up along the queue.
  Reference(const WorldConfig& config, const std::vector<Job>& jobs, const std::vector<TimeNs>& ends)
      : config_(config), jobs_(jobs), ends_(ends), outcomes_(jobs.size()) {}

  std::vector<Outcome> run() {
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      advance_to(static_cast<Real>(jobs_[i].submitted));
      Side& side = jobs_[i].lane == Lane::h2d ? sides_[0] : sides_[1];
      if (side.queue.empty()) side.start = static_cast<Real>(jobs_[i].submitted + jobs_[i].latency);
      side.queue.push_back(i);
      if (side.queue.size() == 1) begin(side);
    }
    advance_to(std::numeric_limits<Real>::infinity());
    return outcomes_;
  }

 private:
  struct Side {
    std::deque<std::size_t> queue;
    Real start = 0;  // start of the first transfer's flow
    Real left = 0;
    std::uint32_t groups = 0;  // number of groups that have arrived
    Real group_end = 0;        // end of the last group that the pass has computed
  };

  void begin(Side& side) {
    const Job& job = jobs_[side.queue.front()];
    side.left = static_cast<Real>(job.bytes);
    side.groups = 0;
    side.group_end = static_cast<Real>(job.submitted);
  }

  // Computes the rates of the flows of both lanes, for one rank.
  void rates(Real (&rate)[2]) {
    std::vector<Real> flows;
    for (int s = 0; s < 2; ++s) {
      rate[s] = 0;
      if (!flowing(s)) continue;
      const Job& job = jobs_[sides_[s].queue.front()];
      const std::uint64_t link = s == 0 ? config_.h2d_bytes_per_second : config_.d2h_bytes_per_second;
      const std::uint64_t limit = job.most == 0 ? link : std::min(link, job.most);
      for (std::uint32_t r = 0; r < config_.ranks; ++r) flows.push_back(static_cast<Real>(limit) / 1e9L);
    }
    if (config_.dram_bytes_per_second > 0) share(static_cast<Real>(config_.dram_bytes_per_second) / 1e9L, flows);
    std::size_t next = 0;
    for (int s = 0; s < 2; ++s) {
      if (flowing(s)) rate[s] = flows[(next++) * config_.ranks];
    }
  }

  bool flowing(int s) const { return !sides_[s].queue.empty() && sides_[s].start <= now_; }

  void advance_to(Real time) {
    for (;;) {
      Real rate[2];
      rates(rate);
      Real next = time;
      for (int s = 0; s < 2; ++s) {
        if (sides_[s].queue.empty()) continue;
        next = std::min(next, flowing(s) ? now_ + sides_[s].left / rate[s] : sides_[s].start);
      }
      if (next == std::numeric_limits<Real>::infinity()) return;
      for (int s = 0; s < 2; ++s) {
        if (flowing(s)) flow(sides_[s], rate[s], next);
      }
      const bool over = next >= time;
      now_ = std::max(now_, next);
      for (int s = 0; s < 2; ++s) {
        if (flowing(s) && sides_[s].left <= 1e-9L) end(sides_[s]);
      }
      if (over) return;
    }
  }

  // Advances a flow and the groups of its pass, one group at a time.
  void flow(Side& side, Real rate, Real until) {
    const Job& job = jobs_[side.queue.front()];
    const Real total = static_cast<Real>(job.bytes);
    const Real left = side.left - rate * (until - now_);
    while (side.groups < job.groups) {
      const Real behind = total * static_cast<Real>(job.groups - side.groups - 1) / job.groups;
      if (behind < left - 1e-9L) break;
      const Real arrival = now_ + (side.left - behind) / rate;
      side.group_end = std::max(side.group_end, arrival) + static_cast<Real>(job.pass_ns) / job.groups;
      ++side.groups;
    }
    side.left = left;
  }

  void end(Side& side) {
    const std::size_t job = side.queue.front();
    side.queue.pop_front();
    outcomes_[job].end = now_;
    outcomes_[job].pass_end = side.group_end;
    if (side.queue.empty()) return;
    side.start = static_cast<Real>(ends_[job] + jobs_[side.queue.front()].latency);
    begin(side);
  }

  WorldConfig config_;
  const std::vector<Job>& jobs_;
  const std::vector<TimeNs>& ends_;
  std::vector<Outcome> outcomes_;
  Side sides_[2];
  Real now_ = 0;
};

// Submits each job at its time. Job i is operation 2i + 2 after timer 2i + 1; its pass follows.
Act play(const std::vector<Job>& jobs, TimeNs origin) {
  return [&jobs, origin, next = std::size_t{0}](Substrate& s, const Input& input) mutable {
    if (std::holds_alternative<Arrival>(input.what)) s.call_at(origin + jobs[0].submitted);
    if (!std::holds_alternative<TimerFired>(input.what)) return;
    const Job& job = jobs[next++];
    const OperationId load = s.submit(layered(job.groups, transfer(job.lane, job.bytes, job.latency, job.most)));
    if (job.pass_ns > 0) s.submit(pass(job.pass_ns, 0, 1, std::span(&load, 1)));
    if (next < jobs.size()) s.call_at(origin + jobs[next].submitted);
  };
}

// Compares the world with the reference. The run of the world starts at `origin`; the reference counts from 0.
void compare(const WorldConfig& config, const std::vector<Job>& jobs, const std::string& where, TimeNs origin = 0) {
  Log log = run_simgrid(config, {arrival(origin, 0)}, play(jobs, origin));
  for (Seen& seen : log) seen.now -= origin;
  std::vector<Seen> by_id(3 * jobs.size() + 2);
  for (const Seen& seen : log) by_id.at(seen.id) = seen;
  std::vector<Seen> loads, passes;
  std::uint64_t id = 1;
  for (const Job& job : jobs) {
    loads.push_back(by_id.at(++id));
    passes.push_back(job.pass_ns > 0 ? by_id.at(++id) : Seen{});
    ++id;  // the timer of the next job
  }
  std::vector<TimeNs> ends;
  for (const Seen& load : loads) ends.push_back(load.now);
  const std::vector<Outcome> want = Reference(config, jobs, ends).run();
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    ASSERT_LT(std::abs(static_cast<Real>(ends[i]) - want[i].end), 1.0L) << where << ", job " << i << ": " << loads[i];
    if (jobs[i].pass_ns == 0) continue;
    ASSERT_LT(std::abs(static_cast<Real>(passes[i].now) - want[i].pass_end), 1.0L) << where << ", job " << i;
  }
}

// Half of the runs start after one day, where the resolution of a clock in double seconds is 0.015 ns.
TimeNs start_of(std::uint64_t seed) { return seed % 2 == 0 ? 86'400 * kNsPerSecond : 0; }

class SharedLink : public testing::Test {
 protected:
  void SetUp() override {
    if (!have_simgrid()) GTEST_SKIP() << "built without SimGrid";
  }
};

TEST_F(SharedLink, EqualFlowsShareFairly) {
  for (const std::uint32_t ranks : {1u, 2u, 7u, 8u}) {
    WorldConfig config = plain_config();
    config.ranks = ranks;
    config.dram_bytes_per_second = 70'000'000'000;
    const Log log = run_simgrid(config, {arrival(0, 0)}, at_first([](Substrate& s) {
                                  s.submit(transfer(Lane::h2d, 700'000, 100));
                                  s.submit(transfer(Lane::d2h, 700'000, 100));
                                }));
    ASSERT_EQ(log.size(), 3u);
    // 2 * ranks flows of 700,000 bytes share 70 bytes per ns.
    EXPECT_EQ(log[1], completion(100 + 20'000 * ranks, 1, 700'000 * ranks));
    EXPECT_EQ(log[2], completion(100 + 20'000 * ranks, 2, 700'000 * ranks));
  }
}

TEST_F(SharedLink, ACappedFlowLeavesItsShareToTheOther) {
  WorldConfig config = plain_config();
  config.dram_bytes_per_second = 60'000'000'000;
  const Log log = run_simgrid(config, {arrival(0, 0)}, at_first([](Substrate& s) {
                                s.submit(transfer(Lane::h2d, 1'000'000, 0, 20'000'000'000));
                                s.submit(transfer(Lane::d2h, 1'000'000, 0));
                              }));
  ASSERT_EQ(log.size(), 3u);
  EXPECT_EQ(log[1], completion(25'000, 2, 1'000'000));  // 40 bytes per ns
  EXPECT_EQ(log[2], completion(50'000, 1, 1'000'000));
}

// The load starts alone, at 50 bytes per ns. From 8,000 ns on, it shares 60 bytes per ns with a write. Later it is
// alone again.
TEST_F(SharedLink, RateChangeInTheMiddleOfALoad) {
  WorldConfig config = plain_config();
  config.dram_bytes_per_second = 60'000'000'000;
  for (const TimeNs pass_ns : {1'600, 16'000, 24'000, 40'000, 160'000}) {
    const std::vector<Job> jobs = {{0, Lane::h2d, 1'000'000, 1'000, 0, pass_ns}, {7'000, Lane::d2h, 300'000, 1'000}};
    compare(config, jobs, "pass of " + std::to_string(pass_ns) + " ns");
  }
}

TEST_F(SharedLink, RandomLoadMatchesProcessorSharing) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Splitmix rng(mix(seed));
    WorldConfig config = plain_config();
    config.ranks = static_cast<std::uint32_t>(1 + rng.below(8));
    config.dram_bytes_per_second = 5'000'000'000 + rng.below(90'000'000'000) * config.ranks;
    std::vector<Job> jobs;
    TimeNs now = 0;
    for (int i = 0; i < 400; ++i) {
      Job job;
      job.submitted = now += static_cast<TimeNs>(rng.below(200'000));
      job.lane = rng.below(2) == 0 ? Lane::h2d : Lane::d2h;
      job.bytes = 1 + rng.below(8'000'000);
      job.latency = static_cast<TimeNs>(1 + rng.below(5'000));
      if (rng.below(2) == 0) job.most = 8'000'000'000 + rng.below(50'000'000'000);
      jobs.push_back(job);
    }
    compare(config, jobs, "seed " + std::to_string(seed), start_of(seed));
  }
}

// The loads are so far apart that each pass has the compute lane alone. Writes interfere with the loads all the time.
TEST_F(SharedLink, RandomGatedPassesMatchLayerByLayer) {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    Splitmix rng(mix(seed));
    WorldConfig config = plain_config();
    config.dram_bytes_per_second = 20'000'000'000 + rng.below(60'000'000'000);
    std::vector<Job> jobs;
    TimeNs now = 0;
    for (int load = 0; load < 40; ++load) {
      Job job;
      job.submitted = now;
      job.bytes = 1 + rng.below(4'000'000);
      job.latency = static_cast<TimeNs>(1 + rng.below(5'000));
      job.pass_ns = static_cast<TimeNs>(1 + rng.below(300'000));
      job.groups = static_cast<std::uint32_t>(1 + rng.below(80));
      jobs.push_back(job);
      for (int write = 0; write < 8; ++write) {
        job = Job{now + static_cast<TimeNs>(1 + rng.below(100)) + write * 20'000, Lane::d2h, rng.below(900'000), 1};
        jobs.push_back(job);
      }
      now += 2'000'000;
    }
    compare(config, jobs, "seed " + std::to_string(seed), start_of(seed));
  }
}

}  // namespace
}  // namespace kvtwin::test
