#include <algorithm>
#include <map>
#include <numeric>
#include <stdexcept>

#include "policy/cache.hpp"
#include "tests/hybrid/instant_world.hpp"
#include "tests/hybrid/tokens.hpp"

namespace kvtwin::test {
namespace {

class Evictions final : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind != EventKind::evicted || event.tier != Tier::device) return;
    if (event.reason == Reason::quota) return;  // the sequences count what makes room
    if (counts.size() <= event.pool) counts.resize(event.pool + std::size_t{1});
    counts[event.pool] += event.pages;
  }
  std::vector<Pages> counts;
};

EngineConfig config_of(const Json& given) {
  EngineConfig config;
  config.shape = {.layers = 1, .planes = 1, .heads = 1, .head_bytes = 16, .page_tokens = 1};
  config.evict_unit = EvictUnit::node;
  config.split_refreshes = config.look_ups_refresh = true;
  config.count_touches = TouchCount::insert;
  constexpr std::string_view kKeys[] = {"page",
                                        "full_tokens",
                                        "window",
                                        "window_tokens",
                                        "states",
                                        "chunk",
                                        "strategy",
                                        "state_chunk",
                                        "max_states_per_path",
                                        "track_interval",
                                        "eviction",
                                        "host_tokens",
                                        "host_states",
                                        "host_window_tokens",
                                        "write_policy",
                                        "load_back_min_tokens",
                                        "session_radix",
                                        "window_eviction_interval"};
  for (const auto& [key, value] : given.items()) {
    if (std::ranges::find(kKeys, key) == std::end(kKeys)) throw std::runtime_error("config: unknown key " + key);
  }
  const auto number = [&](const char* key, Tokens otherwise = 0) { return given.value(key, otherwise); };
  const Tokens window = number("window"), states = number("states");
  const std::string strategy = given.value("strategy", "extra_buffer");
  config.shape.page_tokens = static_cast<std::uint32_t>(number("page", 1));
  config.chunk_tokens = number("chunk", config.chunk_tokens);
  config.states_per_path = static_cast<std::uint32_t>(std::max(given.value("max_states_per_path", -1), 0));
  config.eviction = given.value("eviction", config.eviction);
  config.write_policy = given.value("write_policy", config.write_policy);
  config.reclaim_shadowed = config.write_policy == "write_back";
  config.reclaim_order = ReclaimOrder::shadowed;
  config.load_back_min_tokens = number("load_back_min_tokens", config.load_back_min_tokens);
  config.window_release_tokens = number("window_eviction_interval", config.window_release_tokens);
  config.session_radix = given.value("session_radix", false);
  const Tokens page = config.shape.page_tokens;
  config.device_pages = number("full_tokens") / page;
  config.host_pages = number("host_tokens") / page;
  if (window > 0)
    config.pools.push_back(
        {Closure::tail, window, number("window_tokens") / page, number("host_window_tokens") / page, config.shape});
  if (states > 0) config.pools.push_back({Closure::point, 0, states, number("host_states"), config.shape});
  config.state_points = strategy;
  if (strategy == "extra_buffer") {
    config.state_points += "(chunk=" + std::to_string(number("state_chunk", 64)) +
                           ", interval=" + std::to_string(number("track_interval", 256)) + ")";
  }
  return config;
}

class SglangServer final : public HybridServer {
 public:
  explicit SglangServer(const Json& given)
      : config_(config_of(given)),
        state_grid_(
            given.value("strategy", "") == "no_buffer"
                ? std::lcm(std::max(given.value("state_chunk", Tokens{64}), config_.shape.page_tokens + Tokens{0}),
                           Tokens{config_.shape.page_tokens})
                : 0),
        sink_(world_, decisions_, &evictions_),
        storage_(config_, world_, sink_),
        cache_(config_, world_, storage_, sink_) {}

  Json run(const Json& operation) override {
    evictions_.counts.assign(1 + config_.pools.size(), 0);
    Json outcome = operation.at("op") == "start"   ? start(operation)
                   : operation.at("op") == "close" ? close(operation)
                                                   : finish(operation);
    Json evicted = {{"full", evictions_.counts[0] * page()}, {"window", 0}, {"states", 0}};
    Json usage = {{"full", used(0)}};
    for (std::size_t at = 0; at < config_.pools.size(); ++at) {
      const bool window = config_.pools[at].closure == Closure::tail;
      evicted[window ? "window" : "states"] = evictions_.counts[at + 1] * (window ? page() : 1);
      usage[window ? "window" : "states"] = cache_.pool_used(at, Tier::device) * (window ? page() : 1);
    }
    if (config_.host_pages > 0) {
      Json host = {{"kv", cache_.host_used() * page()}};
      for (std::size_t at = 0; at < config_.pools.size(); ++at) {
        const bool window = config_.pools[at].closure == Closure::tail;
        host[window ? "swa" : "mamba"] = cache_.pool_used(at, Tier::host) * (window ? page() : 1);
      }
      usage["host"] = host;
    }
    outcome["evicted"] = evicted;
    outcome["usage"] = usage;
    return outcome;
  }

  void check() const override {
    Pages owned = 0;
    std::vector<const RequestPools*> pools;
    for (const auto& [id, request] : running_) {
      owned += request.slots.size() - request.shared;
      pools.push_back(&request.pools);
    }
    cache_.check_invariants(owned, 0, pools);
  }

 private:
  struct Running {
    std::vector<std::uint64_t> tokens;
    std::vector<PageKey> keys;
    std::vector<SlotId> slots;
    std::uint64_t session = 0, session_began = 0;
    Pages shared = 0;
    NodeId lease = NodeId::none;
    RequestPools pools;
    Cache::Counted counted;
  };

  Tokens page() const { return config_.shape.page_tokens; }
  Tokens used(std::size_t) const { return cache_.device_used() * page(); }

  // As SGLang counts them: pages on L1 that lack a window count only if L2 has them too.
  Tokens matched_tokens(const PrefixMatch& match) const {
    Pages pages = match.device_pages;
    for (NodeId id = match.end; id != match.device_end; id = cache_.tree().node(id).parent) {
      if (cache_.tree().node(id).host.resident()) pages += cache_.tree().node(id).facts.pages;
    }
    return pages * page();
  }

  Json start(const Json& operation) {
    Running& request = running_[operation.at("id")];
    request.session = operation.value("session", std::uint64_t{0});
    request.session_began = cache_.request_of_session_began(request.session);
    request.tokens = tokens_of(operation.at("prompt"));
    request.keys = keys_of(request.tokens, page());
    const Tokens prompt = request.tokens.size();
    const std::span<const PageKey> keys = std::span(request.keys).first((prompt - 1) / page());
    const PrefixMatch match = cache_.look_up(keys, operation.at("id"));
    cache_.lease(match);
    if (!cache_.enter_pools(keys, match, prompt, request.pools)) throw std::runtime_error("too few states");
    Tokens branch = request.pools.branch;
    if (state_grid_ != 0) {  // without buffers, no state is left at a branch, and only the engine counts its grid
      const Tokens present = match.present * page() / state_grid_ * state_grid_;
      branch = present > matched_tokens(match) ? present : 0;
    }
    request.lease = match.device_end;
    request.shared = match.device_pages;
    if (match.host_pages > 0 && cache_.load_back(keys, match, 0, prompt, &request.pools) == Reason::none) {
      cache_.lease(match.end);
      cache_.release(request.lease);
      request.lease = match.end;
      request.shared += match.host_pages;
    }
    cache_.take_states(request.pools, request.lease);
    cache_.submit_loads();
    cache_.path_slots(request.lease, request.pools, request.slots);
    const Tokens hit = request.shared * page();
    const Tokens chunk = config_.chunk_tokens / page() * page();
    for (Tokens from = hit; from < prompt;) {
      const Tokens to = std::min(prompt, from + chunk);
      take(request, to);
      cache_.track_prefill(request.pools, from, to);
      publish(request, to, false);
      end_copies();
      from = to;
    }
    return {{"hit", hit},
            {"device", match.device_pages * page()},
            {"host", hit - match.device_pages * page()},
            {"full_present", match.present * page()},
            {"branch", branch == 0 ? Json() : Json(branch)}};
  }

  Json finish(const Json& operation) {
    const auto at = running_.find(operation.at("id"));
    if (at == running_.end()) throw std::runtime_error("the request does not run");
    Running& request = at->second;
    const Tokens prompt = request.tokens.size();
    std::vector<std::uint64_t> answer = tokens_of(Json::array({operation.at("answer")}));
    answer.pop_back();
    request.tokens.insert(request.tokens.end(), answer.begin(), answer.end());
    request.keys = keys_of(request.tokens, page());
    for (Tokens length = prompt + 1; length <= request.tokens.size(); ++length) {
      cache_.track_decode(request.pools, request.keys, length - 1, 1, request.shared);
      take(request, length);
    }
    publish(request, request.tokens.size(), true);
    cache_.free(std::span(request.slots).subspan(request.shared));
    cache_.release(request.lease);
    cache_.leave_pools(request.pools);
    cache_.request_of_session_ended(request.session);
    running_.erase(at);
    end_copies();
    return Json::object();
  }

  Json close(const Json& operation) {
    cache_.hint({.kind = HintKind::session_end, .subject = operation.at("session")}, 0);
    return Json::object();
  }

  void end_copies() {
    cache_.submit_backups(false);
    cache_.submit_loads();
    for (const OperationId id : world_.take_ends()) cache_.complete({.id = id});
    cache_.commit({cache_.backups_complete()}, {cache_.loads_complete()});
  }

  void take(Running& request, Tokens length) {
    const Pages pages = (length + page() - 1) / page();
    if (!cache_.allocate(pages - request.slots.size(), request.slots, request.pools)) {
      throw std::runtime_error("the request does not fit");
    }
  }

  void publish(Running& request, Tokens computed, bool last) {
    const Tokens length = cache_.insertable(request.pools, request.keys, computed, computed, request.shared, last);
    const Pages pages = length / page();
    NodeId end = NodeId::none;
    if (pages > 0) {
      end = cache_.insert(std::span(request.keys).first(pages), std::span(request.slots).first(pages), request.shared,
                          false, request.counted, 0, nullptr, &request.pools);
      cache_.lease(end);
      cache_.release(request.lease);
      request.lease = end;
      request.shared = pages;
      request.counted.touches = request.counted.backup_hits = std::max(request.counted.touches, pages);
    }
    cache_.inserted(request.pools, end, computed, request.shared, last);
    if (last && pages > 0) cache_.request_of_session_finished(request.session, request.session_began, end);
  }

  const EngineConfig config_;
  const Tokens state_grid_;  // of no_buffer
  InstantWorld world_;
  DecisionLog decisions_;
  Evictions evictions_;
  EventSink sink_;
  Storage storage_;
  Cache cache_;
  std::map<std::uint64_t, Running> running_;
};

}  // namespace

std::unique_ptr<HybridServer> make_sglang_server(const Json& config) { return std::make_unique<SglangServer>(config); }

}  // namespace kvtwin::test
