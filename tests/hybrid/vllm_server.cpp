#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>

#include "policy/index/block_groups.hpp"
#include "tests/hybrid/tokens.hpp"

namespace kvtwin::test {
namespace {

constexpr Tokens kUnit = 16;  // the kernels' block of attention

Bytes state_bytes(const Json& given) {
  Bytes bytes = 0;
  for (std::size_t i = 0; i < given.at("state_shapes").size(); ++i) {
    Bytes elements = given.at("state_dtypes").at(i) == "float32" ? 4 : 2;
    for (const Json& size : given.at("state_shapes").at(i)) elements *= size.get<Bytes>();
    bytes += elements;
  }
  return bytes;
}

}  // namespace

VllmPool vllm_pool_of(const Json& given) {
  constexpr std::string_view kKeys[] = {"memory",       "layers",      "heads",        "head_size", "window",
                                        "window_heads", "block",       "chunk",        "retention", "state_shapes",
                                        "state_dtypes", "host_chunks", "host_eviction"};
  for (const auto& [key, value] : given.items()) {
    if (std::ranges::find(kKeys, key) == std::end(kKeys)) throw std::runtime_error("config: unknown key " + key);
  }
  const auto heads = given.at("heads").get<Bytes>();
  const auto row_of = [&](Bytes of) { return 4 * of * given.at("head_size").get<Bytes>(); };  // K and V, 2 bytes each
  struct Kind {
    BlockGroup group;
    std::uint64_t layers;
    Bytes row;  // 0: a state
    Tokens block;
  };
  std::vector<Kind> kinds;
  const Json& layers = given.at("layers");
  auto block = given.value("block", kUnit);
  for (const auto& [name, closure] :
       {std::pair{"full", Closure::path}, std::pair{"window", Closure::tail}, std::pair{"state", Closure::point}}) {
    const std::uint64_t count = layers.value(name, std::uint64_t{0});
    if (count == 0) continue;
    const bool windows = closure == Closure::tail;
    Bytes row = closure == Closure::point ? 0 : row_of(windows ? given.value("window_heads", heads) : heads);
    kinds.push_back({{closure, windows ? given.at("window").get<Tokens>() : 0}, count, row, 0});
    if (closure == Closure::point) {
      const Bytes unit = kUnit * row_of(heads);
      block = std::max(block, kUnit * ((state_bytes(given) + unit - 1) / unit));
    }
  }
  Bytes bytes = 0;
  for (const Kind& kind : kinds) bytes = std::max(bytes, kind.row * block);
  VllmPool pool;
  pool.page = 1;
  std::uint64_t fewest = kinds.front().layers, most = fewest;
  for (Kind& kind : kinds) {
    kind.block = kind.row == 0 ? block : bytes / kind.row;
    pool.page = std::lcm(pool.page, kind.block);
    fewest = std::min(fewest, kind.layers);
    most = std::max(most, kind.layers);
  }
  const std::uint64_t size = 2 * most < 3 * fewest ? most : fewest;
  for (Kind& kind : kinds) {
    kind.group.blocks_per_page = static_cast<std::uint32_t>(pool.page / kind.block);
    pool.config.groups.insert(pool.config.groups.end(), (kind.layers + size - 1) / size, kind.group);
  }
  pool.config.blocks = static_cast<std::uint32_t>(given.at("memory").get<Bytes>() / (bytes * size));
  if (given.contains("retention")) {
    const Json& retention = given.at("retention");
    pool.config.retention = retention.is_null() ? std::nullopt : std::optional(retention.get<Tokens>());
  }
  return pool;
}

namespace {

class VllmServer final : public HybridServer {
 public:
  explicit VllmServer(const Json& given)
      : pool_(vllm_pool_of(given)), chunk_(given.value("chunk", Tokens{8192})), cache_(pool_.config, pool_.page) {}

  Json run(const Json& operation) override {
    const std::uint64_t before = cache_.evicted_blocks();
    Json outcome = operation.at("op") == "start" ? start(operation) : finish(operation);
    if (!outcome.contains("refused")) outcome["evicted_blocks"] = cache_.evicted_blocks() - before;
    outcome["usage"] = {{"blocks", cache_.capacity() + 1}};
    const bool equal_blocks =
        std::ranges::all_of(pool_.config.groups, [](const BlockGroup& group) { return group.blocks_per_page == 1; });
    if (equal_blocks) outcome["usage"].update({{"busy", cache_.busy_blocks()}, {"hashed", cache_.known_keys()}});
    return outcome;
  }

  void check() const override {
    std::vector<const BlockTables*> requests;
    for (const auto& [id, request] : running_) requests.push_back(&request.tables);
    cache_.check_invariants(requests);
  }

 private:
  struct Running {
    std::vector<std::uint64_t> tokens;
    std::vector<PageKey> keys;
    BlockTables tables;
  };

  Json start(const Json& operation) {
    Running request;
    request.tokens = tokens_of(operation.at("prompt"));
    request.keys = keys_of(request.tokens, pool_.page);
    const Tokens prompt = request.tokens.size();
    const BlockGroups::Hit hit = cache_.find(request.keys, prompt - 1);
    const std::vector<Tokens> groups = cache_.longest_of_each(request.keys, prompt - 1);
    if (!prefill(request, hit)) {
      cache_.leave(request.tables);
      return {{"hit", 0}, {"refused", true}};
    }
    const Tokens junction = request.tables.junction;
    running_.emplace(operation.at("id"), std::move(request));
    return {{"hit", hit.tokens}, {"junction", junction}, {"groups", groups}};
  }

  bool prefill(Running& request, const BlockGroups::Hit& hit) {
    const Tokens prompt = request.tokens.size();
    BlockTables cut;  // before the request enters
    cut.junction = hit.longest > hit.tokens ? hit.longest : 0;
    for (Tokens from = hit.tokens; from < prompt;) {
      const bool first = from == hit.tokens;
      const BlockTables& tables = first ? cut : request.tables;
      const Tokens to = from + cache_.cut_chunk(tables, from, std::min(chunk_, prompt - from), prompt, chunk_);
      if (first) {
        if (cache_.wanted(hit, to) > cache_.free_blocks()) return false;
        cache_.enter(request.tables, hit, prompt);
      }
      if (!cache_.allocate(request.tables, from, to)) return false;
      cache_.publish(request.tables, request.keys, to);
      from = to;
    }
    return true;
  }

  Json finish(const Json& operation) {
    const auto at = running_.find(operation.at("id"));
    if (at == running_.end()) return {{"refused", true}};
    Running& request = at->second;
    const std::vector<std::uint64_t> answer = tokens_of(Json::array({operation.at("answer")}));
    const Tokens prompt = request.tokens.size();
    request.tokens.insert(request.tokens.end(), answer.begin(), answer.end());
    request.keys = keys_of(request.tokens, pool_.page);
    Json outcome = Json::object();
    for (Tokens length = prompt; length + 1 < request.tokens.size(); ++length) {
      if (!cache_.allocate(request.tables, length, length + 1)) {
        outcome["preempted"] = length - prompt;
        break;
      }
      cache_.publish(request.tables, request.keys, length + 1);
    }
    cache_.leave(request.tables);
    running_.erase(at);
    return outcome;
  }

  const VllmPool pool_;
  const Tokens chunk_;
  BlockGroups cache_;
  std::map<std::uint64_t, Running> running_;
};

}  // namespace

std::unique_ptr<HybridServer> make_vllm_server(const Json& config) {
  if (config.contains("host_chunks")) return make_vllm_host_server(config);
  return std::make_unique<VllmServer>(config);
}

}  // namespace kvtwin::test
