// One launch of a kernel, and one CTA of the launch: its warps, barriers, bulk copies, and the choice of what runs
// next.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/cuda_twin/runtime.hpp"
#include "tests/gpu_sim/clocks.hpp"
#include "tests/gpu_sim/shadow.hpp"
#include "tests/gpu_sim/simulator.hpp"
#include "tests/gpu_sim/warp.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::gpu_sim {

// Ends a CTA whose kernel cannot go on. The violation has been reported.
struct Fault {};

struct LaunchOrder {
  const Kernel* kernel = nullptr;
  std::string name;
  std::uint32_t ctas = 0, threads = 0, dynamic_bytes = 0;
  std::vector<std::byte> parameters;
  std::uint64_t seed = 0;
  bool counting = false;
};

class Launch : public LaunchOrder {
 public:
  explicit Launch(LaunchOrder order) : LaunchOrder(std::move(order)), rng(seed) {}

  // Executes all CTAs. Returns false if a CTA could not go on.
  bool run(const twin::Reach& reach);

  // Reports a violation; a kind of violation once per line. `line` = 0: of no instruction.
  void report(const std::string& what, std::uint32_t line, const std::string& where);
  // Returns the place, or null if the GPU does not reach it.
  std::byte* reachable(std::uint64_t at, std::uint32_t bytes);

  test::Splitmix rng;
  Shadow shadow;                     // of global memory
  std::vector<std::byte> registers;  // of the CTA that runs; at its begin, what the last CTA left
  Counts counts;

 private:
  const twin::Reach* reach_ = nullptr;
  std::set<std::pair<std::string, std::uint32_t>> reported_;
  std::uint64_t known_begin_[4] = {}, known_end_[4] = {};  // ranges that were reachable
  std::uint32_t known_ = 0;
};

class Cta {
 public:
  Cta(Launch& launch, std::uint32_t number);
  // Executes all threads to their end. Errors: Fault.
  void run();

 private:
  friend class Warp;

  enum class Wait : std::uint8_t { none, cta, warp, barrier, group };
  struct Group {  // bulk stores of one thread
    std::uint32_t unread = 0, unwritten = 0;
  };
  struct Thread {
    Wait wait = Wait::none;
    std::uint32_t line = 0, next = 0;  // of the wait; next: the block after it
    std::uint32_t barrier = 0, parity = 0, most = 0;
    bool reads_only = false;
    std::vector<Group> groups;  // the last one is open
    std::uint32_t clock = 1, fence_clock = 0;
    // Shared by threads that met at a barrier. Its component of the thread itself is not kept up to date.
    std::shared_ptr<const Past> past = std::make_shared<const Past>();
    Past fenced;  // the past at the last fence between the proxies
  };
  struct Expect {
    std::uint32_t thread, clock, line;
  };
  struct Barrier {
    std::uint32_t arrivals = 0, pending = 0, phase = 0;
    std::int64_t bytes = 0;  // expected and not here
    std::uint32_t init_thread = 0, init_clock = 0;
    Past arrived, ended;  // the past of the arrivals of this phase; of all phases that have ended
    std::vector<Expect> expects;
  };
  struct Copy {
    bool load = false, read = false, done = false;
    std::uint32_t shared = 0, bytes = 0, line = 0;
    std::uint64_t global = 0;
    std::uint32_t thread = 0, group = 0;   // of a store
    std::uint32_t barrier = 0, phase = 0;  // of a load; the phase that its end belongs to
    std::vector<std::byte> held;
  };
  struct Region {  // of shared memory
    std::uint32_t end = 0;
    std::shared_ptr<Copy> load;
    std::vector<std::shared_ptr<Copy>> stores;
  };

  // ---- the choice of what runs ----
  Warp* drawn_warp();
  void run_block(Warp& warp);
  bool still_together(Warp& warp) const;
  void choose_lanes(Warp& warp, bool diverging);
  [[noreturn]] void report_deadlock();

  // ---- waits ----
  void block(Warp& warp, std::uint32_t lane, Wait wait, std::uint32_t next, std::uint32_t line);
  void resume(std::uint32_t thread);
  void end_cta_barrier_if_all_there();
  void publish(std::uint32_t thread) { ++threads_[thread].clock; }
  Past past_of(std::uint32_t thread) const;
  void join_all(const std::vector<std::uint32_t>& threads);
  void leave(std::uint32_t thread);

  // ---- accesses ----
  std::byte* reachable(std::uint32_t thread, std::uint64_t at, std::uint32_t bytes, std::uint32_t line);
  std::string where(std::uint32_t thread) const;
  bool is_before(const Access& access, std::uint32_t thread);
  bool is_before(std::uint32_t other, std::uint32_t clock, std::uint32_t thread);
  void check(Shadow& shadow, const char* memory, std::uint32_t thread, std::uint64_t at, std::uint32_t bytes,
             bool write, bool strong, std::uint32_t line);
  void count(std::uint32_t line, std::uint64_t at, std::uint32_t bytes, bool write);
  void count_block(const Warp& warp);

  // ---- mbarriers and bulk copies ----
  Barrier& barrier_at(std::uint32_t at, std::uint32_t thread, std::uint32_t line, bool by_copies);
  std::uint32_t barrier_number(std::uint32_t at) { return barrier_numbers_.at(at); }
  void end_phase_if_complete(std::uint32_t at, Barrier& barrier);
  bool has_ended(const Barrier& barrier, std::uint32_t parity) const { return (barrier.phase & 1) != parity; }
  void see_barrier(std::uint32_t at, std::uint32_t thread);
  bool is_ordered(const Copy& copy, std::uint32_t thread);
  void check_regions(std::uint32_t thread, std::uint32_t at, std::uint32_t bytes, bool write, std::uint32_t line,
                     const char* by);
  void split_region(std::uint32_t at);
  void add_to_regions(const std::shared_ptr<Copy>& copy);
  void start(const std::shared_ptr<Copy>& copy);
  void check_async_access(std::uint32_t thread, std::uint32_t at, std::uint32_t bytes, bool write, std::uint32_t line);
  bool step_copy();  // returns false if there is no copy under way
  bool is_over(const Thread& thread, std::uint32_t most, bool reads_only) const;
  void see_groups(std::uint32_t thread, std::uint32_t most);
  std::byte* in_shared(std::uint32_t at) { return shared_.data() + (at - kSharedBase); }
  bool holds_shared(std::uint32_t at, std::uint64_t bytes) const {
    return at >= kSharedBase && at - kSharedBase + bytes <= shared_.size();
  }

  Launch& launch_;
  const std::uint32_t number_;
  std::vector<std::byte> shared_;
  std::vector<Warp> warps_;
  std::vector<Thread> threads_;
  Shadow shadow_;  // of shared memory
  std::uint32_t live_ = 0, at_barrier_ = 0;
  // How the launch runs; drawn.
  std::uint32_t diverging_percent_ = 0, copy_percent_ = 0, lane_order_ = 0;
  std::map<std::uint32_t, Barrier> barriers_;               // by address
  std::map<std::uint32_t, std::uint32_t> barrier_numbers_;  // in order of initialisation
  std::vector<std::shared_ptr<Copy>> under_way_;
  std::map<std::uint32_t, Region> regions_;  // by first byte; they do not overlap
  struct Counted {
    std::uint32_t line;
    bool write;
    std::uint64_t first_sector, last_sector;
  };
  std::vector<Counted> counted_;  // of the current block
};

}  // namespace kvtwin::gpu_sim
