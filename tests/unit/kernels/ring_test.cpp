// Tests the walk of the ring kernel with a model of the hardware: barriers with phases and expected bytes, loads that
// land at any time, and stores that read and write at any time. Two warps run in turns, and copies progress in between,
// in an order that a seed determines. Every byte must arrive, nothing may hang, and no load may write a stage that a
// store still reads.
#include "kernels/ring.hpp"

#include <gtest/gtest.h>

#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/splitmix.hpp"

namespace kvtwin::test {
namespace {

// Bugs that are planted into a warp.
enum class Mutant : std::uint8_t {
  none,
  waits_for_no_reads,     // a stage is released while a store still reads the stage
  gives_back_too_early,   // releases the stage that has just been stored, not the stage before
  waits_for_wrong_phase,  // waits for the wrong phase of `empty`, so loads overtake stores
  expects_too_little,     // a phase of `full` ends before all bytes have arrived
};

// An mbarrier with one arrival per phase.
class Barrier {
 public:
  void expect(std::int64_t bytes) { bytes_ += bytes; }
  void complete(std::int64_t bytes) {
    bytes_ -= bytes;
    end_if_over();
  }
  void arrive() {
    --pending_;
    end_if_over();
  }
  // Returns true if the phase with this parity is over. The phase before the first phase has parity 1.
  bool is_over(std::uint32_t parity) const { return phase_ % 2 != parity; }

 private:
  void end_if_over() {
    if (pending_ != 0 || bytes_ != 0) return;
    ++phase_;
    pending_ = 1;
  }
  int pending_ = 1;
  std::int64_t bytes_ = 0;
  std::uint64_t phase_ = 0;
};

constexpr std::uint32_t kInStage = 3;  // segments per stage; the content of a segment is its number
constexpr std::int64_t kSegmentBytes = 16;

// The memory, the barriers, the copies in flight, and the warp whose turn it is.
class Model {
 public:
  Model(std::uint64_t seed, const RingWalk& its_walk, Mutant its_mutant)
      : walk(its_walk),
        mutant(its_mutant),
        full(walk.stages),
        empty(walk.stages),
        rng_(mix(seed)),
        eagerness_(rng_.below(90)) {
    stages_.assign(walk.stages * kInStage, ~std::uint64_t{0});
    target.assign(walk.end * kInStage, ~std::uint64_t{0});
  }

  struct Hung {};

  // Runs both warps to their ends. Returns false if they hang.
  template <typename Filler, typename Drainer>
  bool run(const Filler& filler, const Drainer& drainer) {
    std::thread threads[] = {std::thread([&] { play(0, filler); }), std::thread([&] { play(1, drainer); })};
    for (std::thread& thread : threads) thread.join();
    while (step_copy()) {
    }
    return !hung_;
  }

  // Waits for the condition. In the meantime, the other warp and the copies progress.
  template <typename Condition>
  void until(const Condition& condition) {
    pass();
    while (!condition()) {
      // Copies may be slow, so the other warp may run first.
      if (!copies_.empty() && !over_[1 - turn_] && rng_.chance(50)) {
        hand_over();
        continue;
      }
      if (step_copy()) continue;
      // No copy is in flight, and the other warp has ended or waits for this warp: both hang.
      if (over_[1 - turn_] || ++idle_ > 2) {
        hung_ = true;
        throw Hung{};
      }
      hand_over();
    }
    idle_ = 0;
  }

  void begin_load(std::uint32_t place, std::uint64_t segment, Barrier* barrier) {
    copies_.push_back({Copy::load, place, segment, barrier, 0});
    idle_ = 0;
    pass();
  }
  void begin_store(std::uint32_t place, std::uint64_t segment) {
    copies_.push_back({Copy::read, place, segment, nullptr, group_});
    idle_ = 0;
    pass();
  }
  void commit() { ++group_; }
  // The next two functions return true if all groups except the newest `but` groups have read, or have written.
  bool have_read(std::uint64_t but) const {
    for (const Copy& copy : copies_) {
      if (copy.kind == Copy::read && copy.group + but < group_) return false;
    }
    return true;
  }
  bool have_written() const {
    for (const Copy& copy : copies_) {
      if (copy.kind != Copy::load) return false;
    }
    return true;
  }

  const RingWalk walk;
  const Mutant mutant;
  std::vector<Barrier> full, empty;
  std::vector<std::uint64_t> target;
  std::uint64_t overrun = 0;  // number of loads into a segment that a store still had to read

 private:
  struct Copy {
    enum Kind : std::uint8_t { load, read, write } kind;
    std::uint32_t place;
    std::uint64_t segment;  // for a write: the upper half is the content that was read
    Barrier* barrier;
    std::uint64_t group;
    std::uint64_t value = 0;
  };

  // Advances one random copy.
  bool step_copy() {
    if (copies_.empty()) return false;
    // Mostly the newest copy, so that some copies wait for a long time.
    const std::size_t i = rng_.chance(70) ? copies_.size() - 1 : rng_.below(copies_.size());
    Copy copy = copies_[i];
    copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(i));
    if (copy.kind == Copy::load) {
      for (const Copy& other : copies_) overrun += other.kind == Copy::read && other.place == copy.place;
      stages_[copy.place] = copy.segment;
      copy.barrier->complete(kSegmentBytes);
    } else if (copy.kind == Copy::read) {
      copy.kind = Copy::write;
      copy.value = stages_[copy.place];
      copies_.push_back(copy);
    } else {
      target[copy.segment] = copy.value;
    }
    idle_ = 0;
    return true;
  }

  // Advances copies, and gives the turn to the other warp, both with some probability.
  void pass() {
    if (rng_.chance(eagerness_)) step_copy();
    if (!over_[1 - turn_] && rng_.chance(60)) hand_over();
  }

  void hand_over() {
    std::unique_lock lock(mutex_);
    const int mine = turn_;
    turn_ = 1 - turn_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return turn_ == mine; });
    if (hung_) throw Hung{};
  }

  template <typename Warp>
  void play(int number, const Warp& warp) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return turn_ == number; });
    }
    try {
      if (!hung_) warp();
    } catch (const Hung&) {
    }
    const std::lock_guard lock(mutex_);
    over_[number] = true;
    turn_ = 1 - number;
    changed_.notify_all();
  }

  Splitmix rng_;
  const std::uint64_t eagerness_;      // probability that a copy advances, in percent
  std::vector<std::uint64_t> stages_;  // content of the place of each segment
  std::vector<Copy> copies_;
  std::uint64_t group_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  int turn_ = 0;
  bool over_[2] = {false, false};
  int idle_ = 0;
  bool hung_ = false;
};

// One warp. All lanes act at once.
struct ModelWarp {
  Model& m;

  void wait_empty(std::uint32_t stage, std::uint32_t parity) {
    if (m.mutant == Mutant::waits_for_wrong_phase) parity ^= 1;
    m.until([&] { return m.empty[stage].is_over(parity); });
  }
  void load(std::uint64_t batch, std::uint32_t stage) {
    for (std::uint32_t i = 0; i < kInStage; ++i) {
      const bool expects = m.mutant != Mutant::expects_too_little || i != 1;
      if (expects) m.full[stage].expect(kSegmentBytes);
      m.begin_load(stage * kInStage + i, batch * kInStage + i, expects ? &m.full[stage] : &unused_);
    }
  }
  void arrive_full(std::uint32_t stage) { m.full[stage].arrive(); }

  void wait_full(std::uint32_t stage, std::uint32_t parity) {
    m.until([&] { return m.full[stage].is_over(parity); });
  }
  void store(std::uint64_t batch, std::uint32_t stage) {
    stored_ = stage;
    for (std::uint32_t i = 0; i < kInStage; ++i) m.begin_store(stage * kInStage + i, batch * kInStage + i);
    m.commit();
  }
  void wait_reads_but_one() {
    if (m.mutant != Mutant::waits_for_no_reads) m.until([&] { return m.have_read(1); });
  }
  void arrive_empty(std::uint32_t stage) {
    m.empty[m.mutant == Mutant::gives_back_too_early ? stored_ : stage].arrive();
  }
  void wait_stores() {
    m.until([&] { return m.have_written(); });
  }

  Barrier unused_{};
  std::uint32_t stored_ = 0;
};

// Returns a sentence about an error; empty if there is none.
std::string run_ring(std::uint64_t seed, Mutant mutant) {
  Splitmix rng(mix(seed) + 1);
  RingWalk walk;
  walk.stages = static_cast<std::uint32_t>(rng.between(2, 6));
  walk.step = rng.between(1, 3);
  walk.first = rng.below(walk.step);
  walk.end = rng.between(0, 20);
  Model model(seed, walk, mutant);
  ModelWarp filler{model}, drainer{model};
  if (!model.run([&] { fill_ring(walk, filler); }, [&] { drain_ring(walk, drainer); })) return "hung";
  if (model.overrun > 0) return "a stage was loaded into while it was read";
  for (std::uint64_t batch = 0; batch < walk.end; ++batch) {
    const bool moves = batch % walk.step == walk.first;
    for (std::uint64_t i = batch * kInStage; i < (batch + 1) * kInStage; ++i) {
      if (model.target[i] != (moves ? i : ~std::uint64_t{0})) return "a wrong byte";
    }
  }
  return "";
}

TEST(Ring, BringsEveryByteThroughInAnyOrder) {
  for (std::uint64_t seed = 1; seed <= 500; ++seed) ASSERT_EQ(run_ring(seed, Mutant::none), "") << "seed " << seed;
}

TEST(Ring, EveryMutantIsSeen) {
  for (const Mutant mutant : {Mutant::waits_for_no_reads, Mutant::gives_back_too_early, Mutant::waits_for_wrong_phase,
                              Mutant::expects_too_little}) {
    std::uint64_t seen = 0;
    for (std::uint64_t seed = 1; seed <= 200; ++seed) seen += !run_ring(seed, mutant).empty();
    EXPECT_GT(seen, 0u) << "mutant " << static_cast<int>(mutant);
  }
}

}  // namespace
}  // namespace kvtwin::test
