// vLLM's server with a host tier (tests/vllm/offloaded_server.py), on kvtwin's cache. A prefix that the host tier has
// is loaded before the first pass.
#include <map>
#include <stdexcept>

#include "policy/cache.hpp"
#include "tests/hybrid/instant_world.hpp"
#include "tests/hybrid/tokens.hpp"

namespace kvtwin::test {
namespace {

class Chunks final : public DecisionSink {
 public:
  void decided(const Decision& decision) override {
    if (decision.kind == DecisionKind::backup && decision.reason == Reason::none) stored += decision.pages;
    if (decision.kind == DecisionKind::evict_host) evicted += decision.pages;
  }
  Pages stored = 0, evicted = 0;
};

EngineConfig config_of(const Json& given) {
  const VllmPool pool = vllm_pool_of(given);
  EngineConfig config;
  config.shape = {
      .layers = 1, .planes = 1, .heads = 1, .head_bytes = 16, .page_tokens = static_cast<std::uint32_t>(pool.page)};
  config.style = "vllm";
  config.chunk_tokens = given.value("chunk", Tokens{8192});
  config.block_groups = pool.config;
  config.block_offload.shape = config.shape;
  config.block_offload.host.chunks = given.at("host_chunks");
  if (given.value("host_eviction", "lru") == "arc") config.block_offload.host.eviction = ChunkEviction::arc;
  config.state_points = "align(retention=" + std::to_string(given.value("retention", Tokens{0})) + ")";
  config.host_pages = config.block_offload.host.chunks;
  config.device_pages =
      BlockGroups(pool.config, pool.page).longest_request(pool.config.blocks - 1, config.chunk_tokens);
  return config;
}

class VllmHostServer final : public HybridServer {
 public:
  explicit VllmHostServer(const Json& given)
      : config_(config_of(given)),
        decisions_(&chunks_),
        sink_(world_, decisions_, nullptr),
        storage_(config_, world_, sink_),
        cache_(config_, world_, storage_, sink_) {}

  Json run(const Json& operation) override {
    const Chunks before = chunks_;
    const std::uint64_t blocks = cache_.blocks().evicted_blocks();
    Json outcome = operation.at("op") == "start" ? start(operation) : finish(operation);
    const Pages stored = chunks_.stored - before.stored, evicted = chunks_.evicted - before.evicted;
    outcome["stored"] = stored;
    outcome["host_evicted"] = evicted;
    used_ += stored - evicted;
    if (!outcome.contains("refused")) outcome["evicted_blocks"] = cache_.blocks().evicted_blocks() - blocks;
    outcome["usage"] = {{"blocks", cache_.blocks().capacity() + 1},
                        {"busy", cache_.blocks().busy_blocks()},
                        {"hashed", cache_.blocks().known_keys()},
                        {"free", config_.block_offload.host.chunks - used_}};
    return outcome;
  }

  void check() const override {
    std::vector<const RequestPools*> pools;
    for (const auto& [id, request] : running_) pools.push_back(&request.pools);
    cache_.check_invariants(0, 0, pools);
  }

 private:
  struct Running {
    std::vector<std::uint64_t> tokens;
    std::vector<PageKey> keys;
    std::vector<SlotId> slots;
    RequestPools pools;
  };

  Tokens page() const { return config_.shape.page_tokens; }

  Json start(const Json& operation) {
    const RequestId id = operation.at("id");
    Running request;
    request.tokens = tokens_of(operation.at("prompt"));
    request.keys = keys_of(request.tokens, page());
    request.pools.request = id;
    const Tokens prompt = request.tokens.size();
    const std::span<const PageKey> keys = std::span(request.keys).first((prompt - 1) / page());
    const PrefixMatch match = cache_.look_up(keys, id);
    Json outcome = {{"hit", match.device_pages * page()}, {"loaded", match.host_pages * page()}};
    cache_.lease(match);
    if (!has_room(match, keys, prompt) || !cache_.enter_pools(keys, match, prompt, request.pools)) {
      cache_.release(match);
      return refused(request, id, outcome);
    }
    outcome["junction"] = request.pools.tables.junction;
    if (match.host_pages > 0) {
      cache_.load_back(keys, match, id, prompt, &request.pools);
      move_all();
      cache_.loaded(request.pools, keys, (match.device_pages + match.host_pages) * page());
    }
    cache_.path_slots(match.end, request.pools, request.slots);
    for (Tokens from = request.slots.size() * page(); from < prompt;) {
      const Tokens to =
          from + cache_.cut_chunk(request.pools, from, std::min(config_.chunk_tokens, prompt - from), prompt);
      if (!pass(request, to, to == prompt)) return refused(request, id, outcome);
      from = to;
    }
    running_.emplace(id, std::move(request));
    return outcome;
  }

  // Whether the first pass has room. A request that does not enter changes nothing. A load has a check of its own.
  bool has_room(const PrefixMatch& match, std::span<const PageKey> keys, Tokens prompt) const {
    const BlockGroups::Hit hit = cache_.blocks().find(keys, keys.size() * page());
    RequestPools before;
    before.tables.junction = hit.longest > hit.tokens ? hit.longest : 0;
    const Tokens tokens = std::min(config_.chunk_tokens, prompt - hit.tokens);
    const Tokens to = hit.tokens + cache_.cut_chunk(before, hit.tokens, tokens, prompt);
    return match.host_pages > 0 || cache_.blocks().wanted(hit, to) <= cache_.blocks().free_blocks();
  }

  Json refused(Running& request, RequestId id, Json outcome) {
    cache_.leave_pools(request.pools);
    cache_.request_ended(id);
    outcome["hit"] = 0;
    outcome["refused"] = true;
    return outcome;
  }

  // Computes the tokens up to `to`. vLLM gives back what the next pass does not need when that begins.
  bool pass(Running& request, Tokens to, bool keeps) {
    const Pages pages = (to + page() - 1) / page();
    if (pages > request.slots.size() && !cache_.allocate(pages - request.slots.size(), request.slots, request.pools)) {
      return false;
    }
    cache_.insertable(request.pools, request.keys, to, to, 0, keeps);
    move_all();
    return true;
  }

  Json finish(const Json& operation) {
    const RequestId id = operation.at("id");
    const auto at = running_.find(id);
    if (at == running_.end()) return {{"refused", true}};
    Running& request = at->second;
    const std::vector<std::uint64_t> answer = tokens_of(Json::array({operation.at("answer")}));
    const Tokens prompt = request.tokens.size();
    request.tokens.insert(request.tokens.end(), answer.begin(), answer.end());
    request.keys = keys_of(request.tokens, page());
    Json outcome = Json::object();
    for (Tokens length = prompt; length + 1 < request.tokens.size(); ++length) {
      cache_.track_decode(request.pools, request.keys, length, 0, 0);
      if (!pass(request, length + 1, true)) {
        outcome["preempted"] = length - prompt;
        break;
      }
    }
    cache_.leave_pools(request.pools);
    cache_.request_ended(id);
    running_.erase(at);
    return outcome;
  }

  void move_all() {
    cache_.submit_loads();
    cache_.submit_backups(false);
    for (const OperationId id : world_.take_ends()) {
      Completion completion;
      completion.id = id;
      cache_.complete(completion);
    }
    cache_.commit({cache_.backups_complete(), cache_.backup_failure()},
                  {cache_.loads_complete(), cache_.load_failure()});
  }

  const EngineConfig config_;
  InstantWorld world_;
  Chunks chunks_;
  DecisionLog decisions_;
  const EventSink sink_;
  Storage storage_;
  Cache cache_;
  std::map<RequestId, Running> running_;
  Pages used_ = 0;
};

}  // namespace

std::unique_ptr<HybridServer> make_vllm_host_server(const Json& config) {
  return std::make_unique<VllmHostServer>(config);
}

}  // namespace kvtwin::test
