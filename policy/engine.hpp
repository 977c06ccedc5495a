// One serving engine: request scheduler and hierarchical cache as explicit state machines. Fed by one
// stream of inputs, it answers with operations on its Substrate. Owns all policy state; single-threaded,
// deterministic; fails only by KV_CHECK. A newcomer starts at Engine::handle in engine.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "policy/decision.hpp"
#include "policy/event.hpp"
#include "policy/layout.hpp"
#include "policy/plan.hpp"
#include "policy/substrate.hpp"
#include "policy/types.hpp"

namespace kvtwin {

// When pages are written from L1 to L2: at their first complete insert, at their second, or when they leave L1.
enum class WritePolicy : std::uint8_t { write_through, write_through_selective, write_back };
// Exclusive (with write_back): what has been loaded back leaves L2, so that L2 holds what L1 doesn't; but for the
// clean reserve, which is on both.
enum class Tiering : std::uint8_t { inclusive, exclusive };
enum class RequestOrder : std::uint8_t { fcfs, longest_prefix };
enum class EvictUnit : std::uint8_t { page, node };

struct EngineConfig {
  KvShape shape;  // of one rank; shape.page_tokens is the page size of every tier
  std::uint32_t ranks = 1;

  // cache
  Pages device_pages = 0;
  Pages host_pages = 0;  // 0 = no host tier
  Layout host_layout = Layout::page_first;
  IoBackend io = IoBackend::automatic;
  PlannerLimits planner;
  std::string eviction = "lru";  // a name of eviction_names()
  EvictUnit evict_unit = EvictUnit::page;
  WritePolicy write_policy = WritePolicy::write_through;
  // write_back: the share of L1, in 1/1024, that is kept free or ready to be evicted, by writing ahead of need.
  std::uint32_t clean_reserve = 102;
  Tiering tiering = Tiering::inclusive;
  bool reclaim_shadowed = false;      // L2 short of room first drops copies of what L1 holds too
  std::uint32_t backup_retries = 0;   // of a copy that failed, before it is given up
  std::uint32_t write_threshold = 0;  // complete inserts before a node is backed up; 0 = the policy's own
  Tokens load_back_min_tokens = 10;   // shorter host hits are computed again
  Pages load_back_quota_pages = 0;    // most pages that one request loads back; 0 = no quota
  bool cache_output = true;           // generated pages enter the index

  // scheduler
  RequestOrder order = RequestOrder::fcfs;
  std::uint32_t order_window = 128;    // a step looks at that many waiting, in order of arrival
  std::uint32_t overtake_limit = 128;  // then a waiting request goes first: no starvation
  std::uint32_t max_running = 256;     // requests
  std::uint64_t max_waiting = 0;       // further arrivals are rejected; 0 = no limit
  Tokens chunk_tokens = 8192;          // prefill tokens of one pass
  std::uint32_t burst_steps = 64;      // decode steps submitted at once; an input that matters ends a burst early
  // Share of the running requests' outstanding output that admission keeps free, in 1/1024: SGLang's
  // new-token ratio. Falls by `decay` per decode step to `min`, rises to `initial` on retraction.
  std::uint32_t reserve_initial = 717, reserve_min = 100, reserve_decay_steps = 600;
};

class Engine final : public InputHandler {
 public:
  // All references must outlive the engine. `observer` may be null.
  Engine(const EngineConfig& config, Substrate& substrate, DecisionLog& decisions, Observer* observer);
  ~Engine() override;

  void handle(const Input& input) override;

  // Nothing waits, runs or is in flight.
  bool idle() const;
  // Every invariant of scheduler, cache, tree and pools. O(state); for tests.
  void check_invariants() const;
  // One sentence on what still waits; for a run that ends with work left.
  std::string state_summary() const;

  Pages device_pages_used_max() const;
  Pages host_pages_used_max() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
