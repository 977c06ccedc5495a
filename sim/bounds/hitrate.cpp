#include "sim/bounds/hitrate.hpp"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <unordered_set>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"
#include "policy/choices.hpp"
#include "policy/eviction.hpp"
#include "policy/index/radix_tree.hpp"
#include "policy/session_rules.hpp"
#include "sim/bounds/cost.hpp"
#include "sim/bounds/instant_engine.hpp"
#include "sim/bounds/opt.hpp"
#include "sim/bounds/tiers.hpp"

namespace kvtwin {
namespace {

// At this depth, in tokens, a token costs twice as much as the first token.
constexpr std::uint64_t kCostDepth = 53'000;

constexpr std::string_view kBounds[] = {"opt",           "opt-no-bypass", "opt-bit", "opt-cost",
                                        "opt-cost-plan", "opt-tiers",     "infinite"};

struct BlockHits {
  Pages device = 0, host = 0;
  bool rejected = false;
  Tokens unusable = 0, without_window = 0, without_state = 0;
};

// A cache that serves one request at a time.
class Replay {
 public:
  virtual ~Replay() = default;
  virtual BlockHits serve(const Arrival& arrival, const Visit& visit) = 0;
  virtual void hint(const Hint& hint, TimeNs time) {
    for_each_index([&](RadixTree& tree) { tree.hint(hint, time); });
  }
  // Calls `action` for each index of the cache, except the index of an engine.
  virtual void for_each_index(const std::function<void(RadixTree&)>& action) = 0;
};

// Inserts the blocks [first, first + blocks) of a request below `parent`, the node that ends before them. Returns the
// node where they end.
NodeId insert(RadixTree& tree, NodeId parent, const Arrival& arrival, Pages first, Pages blocks, std::uint64_t stamp) {
  while (blocks > 0) {
    const Pages pages = tree.shared_history_prefix(arrival.keys.subspan(first, blocks));
    parent = tree.insert(parent, arrival.keys.subspan(first, pages), std::vector<SlotId>(pages, SlotId{0}), {}, stamp,
                         arrival.priority);
    first += pages;
    blocks -= pages;
  }
  return parent;
}

SessionRules::Setup rules_for(const HitRateConfig& config, Pages device, Pages host) {
  return {config.hints == HintRule::obey, config.session_radix, device, host};
}

EvictionSetup setup_for(const HitRateConfig& config, Pages capacity, bool prefix_closed) {
  return {.capacity = capacity,
          .page_tokens = config.block_tokens,
          .doubling_tokens = kCostDepth,
          .prefix_closed = prefix_closed,
          .whole_nodes = config.whole_nodes};
}

// A cache with one tier.
class TierReplay final : public Replay {
 public:
  TierReplay(std::string_view eviction, Pages capacity, const HitRateConfig& config)
      : tree_(make_eviction(eviction, setup_for(config, capacity, true)), nullptr),
        rules_(tree_, rules_for(config, capacity, 0)),
        capacity_(capacity),
        whole_nodes_(config.whole_nodes) {
    tree_.set_split_refreshes(config.split_refreshes);
  }

  BlockHits serve(const Arrival& arrival, const Visit& visit) override {
    rules_.begin(visit);
    const PrefixMatch match = tree_.match(arrival.keys);
    const std::uint64_t stamp = tree_.next_stamp();
    tree_.visit(visit);
    tree_.raise_priority(match.end, arrival.priority);
    tree_.touch(match.end, stamp);
    const Pages missing = arrival.keys.size() - match.device_pages;
    const Pages room = make_room(match.end, missing);
    const NodeId end = insert(tree_, match.end, arrival, match.device_pages, room, stamp);
    rules_.finish(visit, end, arrival.keys.first(match.device_pages + room));
    return {match.device_pages, 0};
  }
  void hint(const Hint& hint, TimeNs time) override {
    Replay::hint(hint, time);
    rules_.hint(hint, time);
  }
  void for_each_index(const std::function<void(RadixTree&)>& action) override { action(tree_); }

 private:
  // Evicts until `wanted` blocks are free, or only blocks of the path that ends at `end` remain. Returns the free
  // blocks, at most `wanted`.
  Pages make_room(NodeId end, Pages wanted) {
    if (capacity_ - tree_.pages(Tier::device) >= wanted) return wanted;
    tree_.lease(Tier::device, end);
    while (capacity_ - tree_.pages(Tier::device) < wanted) {
      const NodeId victim = tree_.device_victim();
      if (victim == NodeId::none && rules_.drop_hold()) continue;
      if (victim == NodeId::none) break;
      const Pages pages = whole_nodes_ ? tree_.node(victim).facts.pages : 1;
      tree_.notify_evicted(PolicyRole::device, victim, pages);
      released_.clear();
      tree_.remove_tail(victim, pages, released_, released_);
    }
    tree_.release(Tier::device, end);
    return std::min(wanted, capacity_ - tree_.pages(Tier::device));
  }

  RadixTree tree_;
  SessionRules rules_;
  Pages capacity_;
  bool whole_nodes_;
  std::vector<SlotId> released_;  // slots have no meaning here
};

class InclusiveReplay final : public Replay {
 public:
  InclusiveReplay(std::string_view eviction, Pages device, const HitRateConfig& config)
      : device_(eviction, device, config), host_(eviction, config.host_capacity, config) {}

  BlockHits serve(const Arrival& arrival, const Visit& visit) override {
    const Pages device = device_.serve(arrival, visit).device;
    const Pages host = host_.serve(arrival, visit).device;
    return {device, host > device ? host - device : 0};
  }
  void hint(const Hint& hint, TimeNs time) override {
    device_.hint(hint, time);
    host_.hint(hint, time);
  }
  void for_each_index(const std::function<void(RadixTree&)>& action) override {
    device_.for_each_index(action);
    host_.for_each_index(action);
  }

 private:
  TierReplay device_, host_;
};

class ExclusiveReplay final : public Replay {
 public:
  ExclusiveReplay(std::string_view eviction, Pages device, const HitRateConfig& config)
      : tree_(make_eviction(eviction, setup_for(config, device, true)),
              make_eviction(eviction, setup_for(config, config.host_capacity, false))),
        rules_(tree_, rules_for(config, device, config.host_capacity)),
        device_capacity_(device),
        host_capacity_(config.host_capacity) {
    tree_.set_split_refreshes(config.split_refreshes);
  }

  BlockHits serve(const Arrival& arrival, const Visit& visit) override {
    rules_.begin(visit);
    const PrefixMatch match = tree_.match(arrival.keys);
    const std::uint64_t stamp = tree_.next_stamp();
    tree_.visit(visit);
    tree_.raise_priority(match.end, arrival.priority);
    tree_.touch(match.end, stamp);
    tree_.lease(Tier::device, match.end);
    const Pages hit = match.device_pages + match.host_pages;
    const Pages room = promote(match) ? make_room(arrival.keys.size() - hit, 0) : 0;
    tree_.release(Tier::device, match.end);
    const NodeId end = insert(tree_, match.end, arrival, hit, room, stamp);
    rules_.finish(visit, end, arrival.keys.first(hit + room));
    return {match.device_pages, match.host_pages};
  }
  void hint(const Hint& hint, TimeNs time) override {
    Replay::hint(hint, time);
    rules_.hint(hint, time);
  }
  void for_each_index(const std::function<void(RadixTree&)>& action) override { action(tree_); }

 private:
  // Moves the path's host blocks to the device, shallow blocks first. Returns false if the device cannot take all of
  // them.
  bool promote(const PrefixMatch& match) {
    path_.clear();
    for (NodeId at = match.end; at != match.device_end; at = tree_.node(at).parent) path_.push_back(at);
    for (std::size_t i = path_.size(); i-- > 0;) {
      const Pages pages = tree_.node(path_[i]).facts.pages;
      const Pages room = make_room(pages, pages);
      if (room == 0) return false;
      const NodeId moved = room < pages ? tree_.split(path_[i], room) : path_[i];
      tree_.set_slots(Tier::device, moved, std::vector<SlotId>(room, SlotId{0}));
      tree_.clear(Tier::host, moved);
      if (room < pages) return false;
    }
    return true;
  }

  // Frees device blocks: each victim moves to the host. The next `leaving` host blocks of the path are about to leave
  // the host, so they do not count against the host's capacity. Requires: `leaving` is 0 or at least `wanted`.
  Pages make_room(Pages wanted, Pages leaving) {
    while (device_capacity_ - tree_.pages(Tier::device) < wanted && demote_one(leaving)) {
    }
    return std::min(wanted, device_capacity_ - tree_.pages(Tier::device));
  }

  bool demote_one(Pages leaving) {
    NodeId victim = tree_.device_victim();
    while (victim == NodeId::none && rules_.drop_hold()) victim = tree_.device_victim();
    if (victim == NodeId::none) return false;
    tree_.notify_evicted(PolicyRole::device, victim, 1);
    released_.clear();
    if (host_capacity_ == 0) {
      tree_.remove_tail(victim, 1, released_, released_);
      return true;
    }
    if (tree_.pages(Tier::host) == host_capacity_ + leaving) {
      NodeId dropped = tree_.host_victim();
      while (dropped == NodeId::none && rules_.drop_hold()) dropped = tree_.host_victim();
      KV_CHECK(dropped != NodeId::none, "a host without the path's blocks has a leaf");
      tree_.notify_evicted(PolicyRole::host, dropped, 1);
      tree_.remove_tail(dropped, 1, released_, released_);
    }
    const Pages pages = tree_.node(victim).facts.pages;
    if (pages > 1) tree_.split(victim, pages - 1);  // the lower part keeps the node id
    constexpr SlotId kAny = 0;
    tree_.set_slots(Tier::host, victim, {&kAny, 1});
    tree_.clear(Tier::device, victim);
    return true;
  }

  RadixTree tree_;
  SessionRules rules_;
  Pages device_capacity_, host_capacity_;
  std::vector<NodeId> path_;
  std::vector<SlotId> released_;
};

class EngineReplay final : public Replay {
 public:
  explicit EngineReplay(const EngineConfig& config) : page_tokens_(config.shape.page_tokens), engine_(config) {}

  BlockHits serve(const Arrival& arrival, const Visit& visit) override {
    Arrival own = arrival;
    own.session = visit.session;
    const RequestRecord& record = engine_.serve(own, visit.time);
    return {record.hit[Tier::device] / page_tokens_,
            record.hit[Tier::host] / page_tokens_,
            record.rejected != Reason::none,
            record.unusable,
            record.without_window,
            record.without_state};
  }
  void hint(const Hint& hint, TimeNs time) override { engine_.hint(hint, time); }
  void for_each_index(const std::function<void(RadixTree&)>&) override {}

 private:
  Tokens page_tokens_;
  InstantEngine engine_;
};

// Prefill cost of a prompt's first `tokens` tokens: in ns, or without a cost model in 1/53,000 of the cost of the first
// token. Integers, so sums are exact.
UnsignedWide prefill_cost(const HitRateConfig& config, Tokens tokens) {
  if (tokens == 0) return 0;
  if (config.cost == nullptr) return UnsignedWide{tokens} * kCostDepth + UnsignedWide{tokens} * (tokens - 1) / 2;
  ForwardShape shape;
  shape.prefill_tokens = tokens;
  shape.prefill_pairs = tokens * (tokens + 1) / 2;
  shape.prefill_sequences = 1;
  return static_cast<UnsignedWide>(config.cost->forward_ns(shape, 1));
}

// Adds up the result of one eviction policy and one capacity.
class Tally {
 public:
  Tally(const HitRateConfig& config, std::string eviction, Pages capacity) : config_(config) {
    sum_.eviction = std::move(eviction);
    sum_.capacity_blocks = capacity;
    sum_.host_capacity_blocks = config.host_capacity;
  }

  void add(Pages blocks, Tokens tokens, BlockHits hits) {
    ++sum_.requests;
    sum_.lookup_blocks += blocks;
    sum_.lookup_tokens += tokens;
    sum_.rejected += hits.rejected ? 1 : 0;
    sum_.device_hit_blocks += hits.device;
    sum_.host_hit_blocks += hits.host;
    const Tokens hit_tokens = std::min(tokens, (hits.device + hits.host) * config_.block_tokens);
    sum_.hit_tokens += hit_tokens;
    sum_.unusable_tokens += hits.unusable;
    sum_.without_window_tokens += hits.without_window;
    sum_.without_state_tokens += hits.without_state;
    saved_ += cost(hit_tokens);
    total_ += cost(tokens);
    load_milli_ +=
        UnsignedWide{hit_tokens - std::min(hit_tokens, hits.device * config_.block_tokens)} * config_.host_load_milli;
  }

  void add_hint(bool has_effect) {
    ++sum_.hints;
    if (!has_effect) ++sum_.idle_hints;
  }

  // For a bound whose saved cost is not the cost of its hit tokens.
  void replace_saved(std::uint64_t saved) { saved_ = saved; }
  void set_net_saved(std::uint64_t saved) { net_saved_ = saved; }

  HitRate result() {
    sum_.hit_blocks = sum_.device_hit_blocks + sum_.host_hit_blocks;
    sum_.block_hit_ratio = ratio(sum_.hit_blocks, sum_.lookup_blocks);
    sum_.token_hit_ratio = ratio(sum_.hit_tokens, sum_.lookup_tokens);
    const double unit = config_.cost == nullptr ? static_cast<double>(kCostDepth) : static_cast<double>(kNsPerSecond);
    sum_.saved_cost = static_cast<double>(saved_) / unit;
    sum_.total_cost = static_cast<double>(total_) / unit;
    const auto saved_milli = static_cast<__int128>(net_saved_ ? *net_saved_ : saved_) * 1000;
    const auto net = net_saved_ ? saved_milli : saved_milli - static_cast<__int128>(load_milli_);
    sum_.net_saved_cost = static_cast<double>(net) / (unit * 1000.0);
    return sum_;
  }

 private:
  UnsignedWide cost(Tokens tokens) const { return prefill_cost(config_, tokens); }
  static double ratio(std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  }

  const HitRateConfig& config_;
  HitRate sum_;
  UnsignedWide saved_ = 0, total_ = 0, load_milli_ = 0;
  std::optional<UnsignedWide> net_saved_;  // set by bounds that compute the net saved cost
};

// One row of the result. `replay` is null for a bound.
struct Run {
  Tally tally;
  std::unique_ptr<Replay> replay;
  bool takes_hints = false;  // the policy
};

std::unique_ptr<Replay> make_replay(std::string_view eviction, std::size_t at, const HitRateConfig& config) {
  if (!config.engines.empty()) {
    EngineConfig engine = config.engines[at];
    engine.eviction = eviction;
    return std::make_unique<EngineReplay>(engine);
  }
  const Pages capacity = config.capacities[at];
  if (config.host_capacity == 0) return std::make_unique<TierReplay>(eviction, capacity, config);
  if (config.exclusive) return std::make_unique<ExclusiveReplay>(eviction, capacity, config);
  return std::make_unique<InclusiveReplay>(eviction, capacity, config);
}

void check(const HitRateConfig& config) {
  const std::vector<std::string_view> known = hit_rate_evictions();
  for (const std::string& eviction : config.evictions) {
    const std::string_view name = policy_text(eviction).name;
    if (std::ranges::find(known, name) == known.end() && !is_policy_name(PolicyKind::eviction, name)) {
      std::string names;
      for (const std::string_view one : known) names.append(names.empty() ? "" : " ").append(one);
      throw HitRateError("eviction \"" + eviction + "\" is not known; there are: " + names + ".");
    }
    if (!config.engines.empty() && std::ranges::find(kBounds, eviction) != std::end(kBounds)) {
      throw HitRateError("eviction \"" + eviction +
                         "\" is a bound and has no write policy; leave out the bound or the write policy.");
    }
    if (eviction == "opt-tiers") {
      if (config.host_capacity == 0)
        throw HitRateError("eviction \"opt-tiers\" needs a host; ask for opt-cost instead.");
      continue;
    }
    if (eviction.starts_with("opt") && config.exclusive) {
      throw HitRateError("eviction \"" + eviction +
                         "\" knows no exclusive tiers; ask for the sum of both capacities instead.");
    }
    if (eviction.starts_with("opt-cost") && config.host_capacity > 0) {
      throw HitRateError("eviction \"" + eviction + "\" knows one tier; ask for the larger capacity alone instead.");
    }
  }
  if (config.exclusive && config.host_capacity == 0) {
    throw HitRateError("exclusive needs a host capacity above 0.");
  }
  if (!config.engines.empty()) {
    if (config.queue_view > 0) throw HitRateError("with a write policy no request waits; leave out the queue view.");
    KV_CHECK(config.engines.size() == config.capacities.size() && !config.exclusive, "one engine per capacity");
  }
  if (config.hints == HintRule::ignore && config.end_hints > 0) {
    throw HitRateError("hints that are ignored have no effect; leave out the end hints, or do not ignore hints.");
  }
  if (config.session_radix && config.end_hints > 0) {
    throw HitRateError("with end hints each request is a session of its own; leave out them or the references.");
  }
  if (config.exclusive && config.whole_nodes) {
    throw HitRateError("exclusive tiers evict single blocks; leave out one of exclusive and whole nodes.");
  }
}

// The data that the bounds need about the stream.
struct History {
  RequestLog log;
  std::vector<std::uint32_t> blocks, seen_before;  // by request: started blocks; hits of an infinite cache
  std::vector<Tokens> tokens;

  void add(const Arrival& arrival) {
    seen_before.push_back(static_cast<std::uint32_t>(log.add(arrival.keys)));
    blocks.push_back(static_cast<std::uint32_t>(arrival.keys.size()));
    tokens.push_back(arrival.prompt_tokens);
  }
};

// Computes the rows of the bounds after the whole stream has been read.
class Bounds {
 public:
  Bounds(const HitRateConfig& config, History& history)
      : config_(config), history_(history), future_(std::move(history.log), turns()) {}

  void fill(std::string_view bound, Pages capacity, Tally& tally) {
    if (bound == "opt-cost" || bound == "opt-cost-plan") {
      const CostBound& cost = cost_bound(capacity);
      add(tally, bound == "opt-cost" ? cost.kept : cost.plan_hits, {});
      if (bound == "opt-cost") tally.replace_saved(cost.saved);
    } else if (bound == "opt-tiers") {
      fill_tiers(capacity, tally);
    } else if (bound == "infinite") {
      add(tally, history_.seen_before, {});
    } else {
      auto* hits = opt_hits;
      if (bound == "opt-no-bypass") hits = opt_no_bypass_hits;
      if (bound == "opt-bit") hits = opt_bit_hits;
      add(tally, hits(future_, capacity),
          config_.host_capacity == 0 ? std::vector<std::uint32_t>{} : hits(future_, config_.host_capacity));
    }
  }

 private:
  // A request of the warm-up fills the cache, and its hits are worth nothing.
  std::vector<Turn> turns() const {
    std::vector<Turn> turns;
    for (std::uint32_t r = 0; r < history_.blocks.size(); ++r) {
      turns.push_back({r, r < config_.warm_up ? 0 : history_.blocks[r]});
    }
    return turns;
  }

  // `device`, `host`: the hit prefix of each request. An empty `host` means no host tier.
  void add(Tally& tally, const std::vector<std::uint32_t>& device, const std::vector<std::uint32_t>& host) const {
    for (std::size_t r = config_.warm_up; r < device.size(); ++r) {
      const Pages more = host.empty() || host[r] <= device[r] ? 0 : host[r] - device[r];
      tally.add(history_.blocks[r], history_.tokens[r], {device[r], more});
    }
  }

  Tokens tokens(std::size_t request, std::uint32_t blocks) const {
    return std::min(history_.tokens[request], blocks * config_.block_tokens);
  }

  std::uint64_t cost(std::size_t request, std::uint32_t blocks) const {
    return static_cast<std::uint64_t>(prefill_cost(config_, tokens(request, blocks)));
  }

  const CostBound& cost_bound(Pages capacity) {
    const auto [at, fresh] = cost_bounds_.try_emplace(capacity);
    if (fresh) {
      at->second = opt_cost(future_, capacity, [&](std::size_t r, std::uint32_t blocks) { return cost(r, blocks); });
    }
    return at->second;
  }

  void fill_tiers(Pages device, Tally& tally) const {
    const TierLevel levels[] = {{&future_, device, 0},
                                {&future_, device + config_.host_capacity, config_.host_load_milli}};
    const TierBound bound = opt_tiers(
        levels, [&](std::uint32_t r, std::uint32_t blocks) { return cost(r, blocks); },
        [&](std::uint32_t r, std::uint32_t blocks) { return tokens(r, blocks); });
    add(tally, opt_hits(future_, device), bound.kept);
    tally.set_net_saved(bound.saved);
  }

  const HitRateConfig& config_;
  const History& history_;
  Future future_;
  std::map<Pages, CostBound> cost_bounds_;  // by capacity; opt-cost and opt-cost-plan share one entry
};

// All replayed caches. Each input goes to every cache.
class Replays {
 public:
  Replays(std::vector<Run>& runs, const HitRateConfig& config) : runs_(runs), config_(config) {}

  void serve(const Input& input, const Arrival& arrival, std::uint64_t session) {
    KV_CHECK(arrival.prompt_tokens > 0, "a prompt has a token");
    const Pages started = (arrival.prompt_tokens - 1) / config_.block_tokens + 1;
    const Pages blocks = config_.engines.empty() ? arrival.keys.size() : started;
    if (config_.engines.empty()) {
      KV_CHECK(blocks <= started, "a key is of a started block");
    } else {
      KV_CHECK(arrival.keys.size() >= arrival.prompt_tokens / config_.block_tokens,
               "an arrival has a key for every full block");
    }
    PromptParts parts = PromptParts::of(arrival.system_tokens, arrival.prompt_tokens, config_.block_tokens);
    parts.prompt_pages = static_cast<std::uint32_t>(arrival.keys.size());  // a started block counts
    const Visit visit{.request = arrival.request,
                      .time = input.now,
                      .session = session,
                      .prompt_tokens = arrival.prompt_tokens,
                      .output_tokens = arrival.output_tokens,
                      .keys = arrival.keys,
                      .parts = parts};
    const bool counts = served_++ >= config_.warm_up;
    for (Run& run : runs_) {
      if (run.replay == nullptr) continue;
      const BlockHits hits = run.replay->serve(arrival, visit);
      if (counts) run.tally.add(blocks, arrival.prompt_tokens, hits);
    }
  }
  void for_each_index(const std::function<void(RadixTree&)>& action) {
    for (Run& run : runs_) {
      if (run.replay != nullptr) run.replay->for_each_index(action);
    }
  }
  void hint(const Hint& hint, TimeNs time) {
    if (hint.kind == HintKind::abort || config_.hints == HintRule::ignore) return;
    for (Run& run : runs_) {
      if (run.replay == nullptr) continue;
      run.tally.add_hint(has_effect(run, hint.kind));
      const bool is_move = hint.kind == HintKind::demote || hint.kind == HintKind::prefetch;
      if (!is_move || !config_.engines.empty()) run.replay->hint(hint, time);
    }
  }

 private:
  bool has_effect(const Run& run, HintKind kind) const {
    const bool obeys = config_.hints == HintRule::obey;
    switch (kind) {
      case HintKind::session_end: return obeys || config_.session_radix || run.takes_hints;
      case HintKind::pin:
      case HintKind::unpin: return obeys || run.takes_hints;
      case HintKind::tool_call_pending: return run.takes_hints;
      case HintKind::share: return obeys;
      case HintKind::demote: return obeys && !config_.engines.empty() && config_.host_capacity > 0;
      case HintKind::prefetch:  // no storage tier
      case HintKind::abort: break;
    }
    return false;
  }

  std::vector<Run>& runs_;
  const HitRateConfig& config_;
  std::uint64_t served_ = 0;
};

// A source that has been read to its end, so the replay can look ahead.
class BufferedSource {
 public:
  explicit BufferedSource(InputSource& source) {
    for (Input input; source.next(input);) {
      auto* const arrival = std::get_if<Arrival>(&input.what);
      keys_.emplace_back();
      if (arrival != nullptr) {
        keys_.back().assign(arrival->keys.begin(), arrival->keys.end());
        arrival->keys = keys_.back();
        requests_.push_back(inputs_.size());
      }
      inputs_.push_back(input);
    }
  }

  void replay(Replays& replays, const HitRateConfig& config, const std::function<void(const Arrival&)>& remember) {
    const std::vector<bool> ends = config.end_hints == 0 ? std::vector<bool>{} : session_end_hints(config);
    std::size_t served = 0, waiting = 0;
    for (const Input& input : inputs_) {
      if (const auto* const hint = std::get_if<Hint>(&input.what)) {
        if (ends.empty()) replays.hint(*hint, input.now);
        continue;
      }
      const Arrival& arrival = request(served);
      remember(arrival);
      for (; waiting < requests_.size() && waiting <= served + config.queue_view; ++waiting) {
        const Arrival& next = request(waiting);
        if (waiting > served) replays.for_each_index([&](RadixTree& tree) { tree.queue(next.request, next.keys); });
      }
      replays.for_each_index([&](RadixTree& tree) { tree.unqueue(arrival.request, arrival.keys); });
      replays.serve(input, arrival, ends.empty() ? arrival.session : served + 1);
      if (!ends.empty() && ends[served]) replays.hint({HintKind::session_end, served + 1, 0}, input.now);
      ++served;
    }
  }

 private:
  const Arrival& request(std::size_t ordinal) const { return std::get<Arrival>(inputs_[requests_[ordinal]].what); }

  std::vector<bool> session_end_hints(const HitRateConfig& config) const {
    std::vector<bool> hints(requests_.size());
    std::unordered_set<std::uint64_t> later;  // first words of the keys of later requests
    for (std::size_t i = requests_.size(); i-- > 0;) {
      const Arrival& arrival = request(i);
      const Pages full = std::min<Pages>(arrival.prompt_tokens / config.block_tokens, arrival.keys.size());
      const bool ends = full == 0 || !later.contains(arrival.keys[full - 1].words[0]);
      hints[i] = (mixed(i) % 100 < config.end_hints) == ends;
      for (const PageKey& key : arrival.keys) later.insert(key.words[0]);
    }
    return hints;
  }
  // SplitMix64's finalizer (Steele, Lea, Flood 2014).
  static std::uint64_t mixed(std::uint64_t x) {
    x = (x + 1) * 0x9e3779b97f4a7c15ULL;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
    return x ^ x >> 31;
  }

  std::deque<std::vector<PageKey>> keys_;
  std::vector<Input> inputs_;
  std::vector<std::size_t> requests_;  // positions of the requests in inputs_
};

}  // namespace

std::span<const std::string_view> hit_rate_bounds() { return kBounds; }

std::vector<std::string_view> hit_rate_evictions() {
  const auto names = eviction_names();
  std::vector<std::string_view> all(names.begin(), names.end());
  all.insert(all.end(), std::begin(kBounds), std::end(kBounds));
  return all;
}

std::vector<HitRate> replay_hit_rates(InputSource& source, const HitRateConfig& config) {
  check(config);
  std::vector<Run> runs;
  bool bounds = false;
  for (const std::string& eviction : config.evictions) {
    const bool is_bound = std::ranges::find(kBounds, eviction) != std::end(kBounds);
    bounds = bounds || is_bound;
    const std::unique_ptr<EvictionPolicy> policy = is_bound ? nullptr : make_eviction(eviction);
    const bool takes_hints = dynamic_cast<const TakesHints*>(policy.get()) != nullptr;
    if (config.session_radix && !is_bound && dynamic_cast<const OrdersReferences*>(policy.get()) == nullptr) {
      throw HitRateError("eviction \"" + eviction +
                         "\" has no rank of leaves, which references of sessions come before; ask for one that SGLang "
                         "has, for example lru.");
    }
    for (std::size_t i = 0; i < config.capacities.size(); ++i) {
      runs.push_back({Tally(config, eviction, config.capacities[i]),
                      is_bound ? nullptr : make_replay(eviction, i, config), takes_hints});
    }
  }
  History history;
  Replays replays(runs, config);
  const auto remember = [&](const Arrival& arrival) {
    if (bounds) history.add(arrival);
  };
  if (config.queue_view > 0 || config.end_hints > 0) {
    BufferedSource buffered(source);
    buffered.replay(replays, config, remember);
  } else {
    for (Input input; source.next(input);) {
      const auto* const arrival = std::get_if<Arrival>(&input.what);
      if (arrival == nullptr) {
        replays.hint(std::get<Hint>(input.what), input.now);
        continue;
      }
      remember(*arrival);
      replays.serve(input, *arrival, arrival->session);
    }
  }
  std::optional<Bounds> bound_rows;
  if (bounds) bound_rows.emplace(config, history);
  std::vector<HitRate> results;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].replay == nullptr) {
      const std::size_t per_eviction = config.capacities.size();
      bound_rows->fill(config.evictions[i / per_eviction], config.capacities[i % per_eviction], runs[i].tally);
    }
    results.push_back(runs[i].tally.result());
  }
  return results;
}

}  // namespace kvtwin
