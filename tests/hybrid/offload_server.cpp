// Calls of vLLM's managers of offloaded KV, on kvtwin's. tests/vllm/offloading.py records them; here `id` is the
// request, and a chunk is [number of its prefix, group, tokens of the prefix].
//   begin, finish     of a request
//   look_up           of chunks in order: found; sources, 1 for a chunk that was read from a further tier
//   store, stored     prepare_store: what is stored (null: without room) in which slots, what is evicted;
//   complete_store load, loaded      prepare_load, complete_load touch end_step          asked, the chunks that each
//   further tier is to look up answer            a further tier's answers job               a copy between host and a
//   further tier has ended: `copied` of its chunks have arrived
// After each call: what has changed in the host tier, the copies that have been submitted [number, tier, to the host,
// chunks, slots], and usage: slots that are free, chunks that can be evicted, and incomplete ones.
#include <algorithm>
#include <cmath>
#include <map>
#include <stdexcept>

#include "policy/offload/tiered_chunks.hpp"
#include "tests/hybrid/tokens.hpp"

namespace kvtwin::test {
namespace {

ChunkKey key_of(const Json& named) {
  PageKey page;
  page.words = {named.at(0).get<std::uint64_t>(), 0, 0, 0};
  return {page, named.at(1).get<std::uint32_t>()};
}

Json named(const ChunkKey& key) {
  Json name = Json::array();
  name.push_back(key.key.words[0]);
  name.push_back(key.group);
  return name;
}

Json named(const Chunk& chunk) { return named(chunk.key); }

template <typename Chunks>
Json names_of(const Chunks& chunks) {
  Json names = Json::array();
  for (const auto& chunk : chunks) names.push_back(named(chunk));
  return names;
}

std::vector<Chunk> chunks_of(const Json& given) {
  std::vector<Chunk> chunks;
  for (const Json& chunk : given) chunks.push_back({key_of(chunk), chunk.at(2).get<Tokens>()});
  return chunks;
}

StorePressureConfig pressure_of(const Json& given) {
  constexpr double kPsPerSecond = 1e12;
  StorePressureConfig pressure;
  const std::string action = given.at("action");
  pressure.action = action == "drop" ? PressureAction::drop : PressureAction::throttle;
  pressure.high_ps_per_mib = static_cast<std::uint64_t>(std::llround(given.at("high").get<double>() * kPsPerSecond));
  pressure.low_ps_per_mib = static_cast<std::uint64_t>(std::llround(given.at("low").get<double>() * kPsPerSecond));
  pressure.warm_up_copies = given.at("warm_up");
  return pressure;
}

TieredChunksConfig config_of(const Json& given) {
  TieredChunksConfig config;
  const std::string eviction = given.at("eviction");
  config.host.chunks = given.at("chunks");
  config.host.eviction = eviction == "arc" ? ChunkEviction::arc : ChunkEviction::lru;
  config.host.store_threshold = given.value("threshold", 0U);
  config.host.remembered_offers = given.value("remembered", config.host.remembered_offers);
  config.chunk_bytes = given.at("chunk_bytes");
  if (given.contains("tiers")) {
    for (const Json& tier : given.at("tiers")) {
      TieredChunksConfig::Further& further = config.tiers.emplace_back();
      if (tier.contains("pressure")) further.pressure = pressure_of(tier.at("pressure"));
    }
  }
  return config;
}

std::string_view word_of(HostChunks::Change::Kind kind) {
  switch (kind) {
    case HostChunks::Change::Kind::evicted: return "evicted";
    case HostChunks::Change::Kind::failed: return "failed";
    case HostChunks::Change::Kind::stored: return "stored";
  }
  return "";
}

class OffloadServer final : public HybridServer {
 public:
  explicit OffloadServer(const Json& config) : chunks_(config_of(config)) {}

  Json run(const Json& call) override {
    chunks_.set_time(call.at("now").get<TimeNs>());
    Json outcome = answer_to(call);
    outcome["changes"] = Json::array();
    for (const HostChunks::Change& change : chunks_.take_changes()) {
      Json line = Json::array();
      line.push_back(word_of(change.kind));
      line.push_back(names_of(change.chunks));
      outcome["changes"].push_back(line);
    }
    outcome["jobs"] = Json::array();
    for (const TieredChunks::Job& job : chunks_.take_jobs()) {
      Json line = Json::array();
      line.push_back(job.number);
      line.push_back(job.tier);
      line.push_back(job.to_host);
      line.push_back(names_of(job.chunks));
      line.push_back(Json(job.slots));
      outcome["jobs"].push_back(line);
    }
    const HostChunks& host = chunks_.host();
    outcome["usage"] =
        Json(std::vector<std::uint32_t>{host.free_slots(), host.evictable_chunks(), host.incomplete_chunks()});
    return outcome;
  }
  void check() const override { chunks_.host().check_invariants(); }

 private:
  Json answer_to(const Json& call) {
    const std::string op = call.at("op");
    Json outcome = Json::object();
    if (op == "end_step") {
      outcome["asked"] = end_step();
      return outcome;
    }
    if (op == "answer") {
      outcome["answers"] = answer(call);
      return outcome;
    }
    if (op == "job") {
      chunks_.complete(call.at("number"), call.at("copied"));
      return outcome;
    }
    const RequestId request = call.at("id");
    if (op == "begin") {
      chunks_.begin(request);
    } else if (op == "finish") {
      chunks_.finish(request);
    } else {
      of_chunks(op, chunks_of(call.at("chunks")), request, call, outcome);
    }
    return outcome;
  }

  void of_chunks(const std::string& op, const std::vector<Chunk>& chunks, RequestId request, const Json& call,
                 Json& outcome) {
    if (op == "look_up") {
      outcome["found"] = Json::array();
      outcome["sources"] = Json::array();
      for (const Chunk& chunk : chunks) outcome["found"].push_back(name_of(chunks_.look_up(chunk, request)));
      for (const Chunk& chunk : chunks) outcome["sources"].push_back(chunks_.source_of(chunk.key, request) ? 1 : 0);
    } else if (op == "store") {
      const auto store = chunks_.prepare_store(chunks, request);
      outcome["stored"] = store ? names_of(store->chunks) : Json();
      if (!store) return;
      outcome["slots"] = Json(store->slots);
      outcome["evicted"] = names_of(store->evicted);
    } else if (op == "stored") {
      chunks_.complete_store(chunks, request, call.at("success"));
    } else if (op == "load") {
      outcome["slots"] = Json(chunks_.prepare_load(chunks, request));
    } else if (op == "loaded") {
      chunks_.complete_load(chunks);
    } else if (op == "touch") {
      chunks_.touch(chunks);
    } else {
      throw std::runtime_error("unknown call " + op);
    }
  }

  Json end_step() {
    Json asked = Json::array();
    for (const TieredChunks::LookUps& look_ups : chunks_.end_step()) {
      Json line = Json::array();
      line.push_back(look_ups.tier);
      line.push_back(Json::array());
      for (const TierLookUps::Asked& one : look_ups.asked) {
        line.at(1).push_back(named(one.key));
        asked_[look_ups.tier].push_back(one);
      }
      asked.push_back(line);
    }
    return asked;
  }

  // vLLM answers the chunks of all steps so far, those of one request together; an answer takes effect by its chunk.
  Json answer(const Json& call) {
    const std::uint32_t tier = call.at("tier");
    std::vector<TierLookUps::Answer> answers;
    Json lines = Json::array();
    for (const Json& line : call.at("answers")) {
      const ChunkKey key = key_of(line);
      const auto one = std::ranges::find(asked_[tier], key, &TierLookUps::Asked::key);
      if (one == asked_[tier].end()) throw std::runtime_error("a chunk is answered that was not asked for");
      answers.push_back({*one, line.at(2).get<bool>()});
      asked_[tier].erase(one);
      lines.push_back(line);
    }
    if (!asked_[tier].empty()) throw std::runtime_error("a chunk is asked for that vLLM did not ask for");
    chunks_.answer(tier, answers);
    return lines;
  }

  TieredChunks chunks_;
  std::map<std::uint32_t, std::vector<TierLookUps::Asked>> asked_;  // by tier, not answered yet
};

}  // namespace

std::unique_ptr<HybridServer> make_offload_server(const Json& config) {
  return std::make_unique<OffloadServer>(config);
}

}  // namespace kvtwin::test
