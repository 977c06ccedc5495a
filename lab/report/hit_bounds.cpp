#include "lab/report/hit_bounds.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>
#include <variant>

#include "lab/report/saved_time.hpp"
#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"
#include "sim/bounds/states.hpp"
#include "sim/bounds/tiers.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kPsPerSecond = 1'000'000'000'000;
// The longest load time of a token, as for EngineConfig: two of them fit into 64 bits.
constexpr std::uint64_t kMaxTokenPs = 9'000'000'000'000'000'000;

constexpr std::uint32_t kOpen = ~std::uint32_t{0};  // the request has not ended

std::uint64_t limited_ps(UnsignedWide ps) {
  return static_cast<std::uint64_t>(std::min<UnsignedWide>(ps, kMaxTokenPs));
}

std::uint64_t token_ps(Bytes bytes, std::uint64_t rate, Tokens tokens) {
  if (rate == 0) return 0;
  return limited_ps(UnsignedWide{bytes} * kPsPerSecond / rate / tokens);
}

// Returns the time per token of one batch that is read without host memory, by the cost model.
std::uint64_t direct_ps(const Setup& setup, Tier tier) {
  const EngineConfig& engine = setup.engine;
  StorageWork work{StorageVerb::get,       tier,        Tier::device, engine.storage_batch_pages, setup.page_bytes(),
                   engine.storage_objects, engine.ranks};
  const TransferCost cost = setup.cost->storage(work);
  const Tokens tokens = work.pages * engine.shape.page_tokens;
  return limited_ps(static_cast<UnsignedWide>(cost.latency_ns) * 1000 / tokens +
                    token_ps(cost.bytes, cost.bytes_per_second, tokens));
}

}  // namespace

std::vector<TierWorth> tier_worths(const Setup& setup) {
  const EngineConfig& engine = setup.engine;
  const Pages engines = setup.world.engines;
  const std::uint64_t link =
      token_ps(setup.page_bytes(), setup.cost->coefficients().moves.host_to_device.link_rate, engine.shape.page_tokens);
  std::vector<TierWorth> tiers{{Tier::device, engines * engine.device_pages, 0}};
  if (engine.host_pages != 0) tiers.push_back({Tier::host, engines * engine.host_pages, link});
  for (const StorageTierConfig& tier : engine.storage) {
    std::uint64_t load = limited_ps(UnsignedWide{tier.read_token_ps} + link);
    if (engine.path == CachePath::direct) load = direct_ps(setup, tier.tier);
    if (engine.path == CachePath::automatic) load = std::min(load, direct_ps(setup, tier.tier));
    tiers.push_back({tier.tier, setup.stores_of(tier.tier) * tier.pages, load});
  }
  for (std::size_t i = tiers.size() - 1; i-- > 0;) tiers[i].load_ps = std::min(tiers[i].load_ps, tiers[i + 1].load_ps);
  return tiers;
}

Pages states_of(const Setup& setup) {
  if (setup.has_storage()) return 0;
  Pages states = 0;
  for (const PoolConfig& pool : setup.engine.pools) {
    if (pool.closure == Closure::point) states += pool.device_slots + pool.host_slots;
  }
  return states * setup.world.engines;
}

HitBounds::HitBounds(Tokens page_tokens, std::vector<TierWorth> tiers, Pages states, const CostModel& cost,
                     Observer* next)
    : page_tokens_(page_tokens), tiers_(std::move(tiers)), states_(states), cost_(cost), next_(next) {
  KV_CHECK(!tiers_.empty(), "there is a device");
}

void HitBounds::handle(const Input& input) {
  const auto* const arrival = std::get_if<Arrival>(&input.what);
  if (arrival == nullptr) return;
  if (arrival->request >= prompts_.size()) prompts_.resize(arrival->request + 1);
  Prompt& prompt = prompts_[arrival->request];
  // With the pages of an answer that later prompts contain, where the trace has their keys. The last token of an answer
  // is not computed.
  const Tokens tokens = arrival->prompt_tokens + std::max<Tokens>(1, arrival->output_tokens) - 1;
  const auto pages = arrival->keys.first(std::min<Pages>(arrival->keys.size(), tokens / page_tokens_));
  if (!pages.empty()) {
    prompt.has_pages = true;
    prompt.logged = static_cast<std::uint32_t>(log_.requests());
    prompt.countable =
        static_cast<std::uint32_t>(std::min<Pages>(pages.size(), (arrival->prompt_tokens - 1) / page_tokens_));
    log_.add(pages);
    logged_tokens_.push_back(arrival->prompt_tokens);
    requests_.push_back(arrival->request);
    ends_.push_back(kOpen);
  }
}

void HitBounds::decided(const Decision& decision) {
  if (is_of_hint(decision.request)) return;
  switch (decision.kind) {
    case DecisionKind::admit: return admitted(decision.request);
    case DecisionKind::prefetch: {
      Prompt& prompt = prompts_[decision.request];
      prompt.prefetched_from =
          prompt.countable - std::min(prompt.countable, static_cast<std::uint32_t>(decision.pages));
      return;
    }
    case DecisionKind::commit:
      if (decision.pages == 0) return;
      if (prompts_[decision.request].admitted) {
        near_turns_.push_back({prompts_[decision.request].logged, 0});
      } else {
        brought_for_.insert(decision.request);
      }
      return;
    case DecisionKind::abort:
      if (brought_for_.erase(decision.request) != 0) near_turns_.push_back({prompts_[decision.request].logged, 0});
      return;
    default: return;
  }
}

void HitBounds::admitted(RequestId request) {
  Prompt& prompt = prompts_[request];
  brought_for_.erase(request);
  if (prompt.has_pages) {
    for (auto other = brought_for_.begin(); other != brought_for_.end();) {
      const Prompt& waits = prompts_[*other];
      const bool hit = log_.shared(waits.logged, prompt.logged) > waits.prefetched_from;
      if (hit) near_turns_.push_back({waits.logged, 0});
      other = hit ? brought_for_.erase(other) : std::next(other);
    }
    // After a retraction the request uses its pages again, and the report does not count them as hits.
    turns_.push_back({prompt.logged, prompt.admitted ? 0 : prompt.countable});
    near_turns_.push_back(turns_.back());
  }
  prompt.admitted = true;
}

void HitBounds::on_event(const Event& event) {
  if (event.kind == EventKind::finished) {
    const RequestRecord& r = *event.record;
    if (r.request < prompts_.size() && prompts_[r.request].has_pages && !turns_.empty()) {
      ends_[prompts_[r.request].logged] = static_cast<std::uint32_t>(turns_.size() - 1);
    }
    Saved saved{r.request, static_cast<__int128>(prefill_saved_ns(cost_, r.prompt_tokens, r.hit.sum())) * 1000};
    for (const TierWorth& tier : tiers_) saved.ps -= static_cast<__int128>(r.hit[tier.tier]) * tier.load_ps;
    saved_.push_back(saved);
  }
  if (next_ != nullptr) next_->on_event(event);
}

std::vector<Turn> HitBounds::counted(const std::vector<Turn>& turns, const std::vector<bool>& counts) const {
  std::vector<Turn> all = turns;
  if (counts.empty()) return all;
  for (Turn& turn : all) {
    if (!counts[requests_[turn.request]]) turn.counted = 0;
  }
  return all;
}

TimeNs HitBounds::saved_most(const Future& all, const Future& near) const {
  std::vector<TierLevel> levels;
  Pages room = 0;
  for (const TierWorth& tier : tiers_) {
    room += tier.pages;
    const bool between = !levels.empty() && levels.size() + 1 < tiers_.size();
    levels.push_back({between ? &near : &all, room, tier.load_ps});
  }
  const auto tokens = [&](std::uint32_t, std::uint32_t blocks) { return blocks * page_tokens_; };
  const auto computing = [&](std::uint32_t request, std::uint32_t blocks) {
    return static_cast<std::uint64_t>(prefill_saved_ns(cost_, logged_tokens_[request], blocks * page_tokens_));
  };
  return static_cast<TimeNs>(opt_tiers(levels, computing, tokens).saved);
}

HitBounds::Found HitBounds::reckon(const std::vector<RequestId>* of) const {
  std::vector<bool> counts;
  if (of != nullptr) {
    counts.resize(prompts_.size());
    for (const RequestId request : *of) counts[request] = true;
  }
  const Future future(log_, counted(turns_, counts));
  const auto add = [&](const std::vector<std::uint32_t>& hits, Tokens& tokens, TimeNs& saved) {
    for (std::size_t turn = 0; turn < hits.size(); ++turn) {
      tokens += hits[turn] * page_tokens_;
      saved += prefill_saved_ns(cost_, logged_tokens_[turns_[turn].request], hits[turn] * page_tokens_);
    }
  };
  Pages room = 0;
  for (const TierWorth& tier : tiers_) room += tier.pages;
  Found found;
  add(opt_hits(future, room), found.opt, found.opt_saved);
  add(lru_hits(future, room), found.lru, found.lru_saved);
  if (states_ > 0) {
    const std::vector<Turn> turns = counted(turns_, counts);
    std::vector<std::uint32_t> ends;
    for (std::uint32_t turn = 0; turn < turns.size(); ++turn) {
      const std::uint32_t end = ends_[turns[turn].request];
      ends.push_back(end == kOpen ? static_cast<std::uint32_t>(turns.size() - 1) : std::max(end, turn));
    }
    found.with_states = std::min<Tokens>(found.opt, opt_state_hits(log_, turns, ends, states_) * page_tokens_);
  }
  Wide saved_ps = 0;
  for (const Saved& one : saved_) saved_ps += counts.empty() || counts[one.request] ? one.ps : 0;
  found.saved = static_cast<TimeNs>(std::max<Wide>(saved_ps / 1000, std::numeric_limits<TimeNs>::min()));
  if (turns_.size() <= kMaxAdmissionsForSaved) {
    found.saved_most = saved_most(future, Future(log_, counted(near_turns_, counts)));
  }
  return found;
}

}  // namespace kvtwin
