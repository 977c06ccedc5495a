// A chunk's rank: the number of its use, then its place in the use. All chunks of a running request have one number,
// and later positions go first. When the request has finished, each chunk gets a number of its own, in the same order.
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "policy/base/check.hpp"
#include "policy/offload/chunk_order.hpp"

namespace kvtwin {
namespace {

class LruChunkOrder final : public ChunkOrder {
 public:
  void enter(const Chunk& chunk, RequestId request) override {
    ranks_[chunk.key] = {{number_of(request), place_of(chunk)}, false};
  }
  void remove(const ChunkKey& key) override { ranks_.erase(key); }
  void allow(const ChunkKey& key) override {
    Ranked& ranked = ranks_.at(key);
    ranked.allowed = true;
    allowed_.emplace(ranked.rank, key);
  }
  void forbid(const ChunkKey& key) override {
    Ranked& ranked = ranks_.at(key);
    KV_CHECK(ranked.allowed, "only a chunk that could be evicted is held back");
    ranked.allowed = false;
    allowed_.erase({ranked.rank, key});
  }
  void touch(std::span<const Chunk> chunks) override {
    for (std::size_t i = chunks.size(); i-- > 0;) renew(chunks[i].key);
  }
  void miss(std::span<const Chunk>) override {}
  void see(std::span<const Chunk> chunks, RequestId request) override {
    const std::uint64_t number = number_of(request);
    for (const Chunk& chunk : chunks) {
      const auto known = ranks_.find(chunk.key);
      const Rank rank = {number, place_of(chunk)};
      if (known != ranks_.end() && known->second.rank < rank) put(*known, rank);
    }
  }
  void finish(std::span<const Use> uses, RequestId request) override {
    for (std::size_t i = uses.size(); i-- > 0;) renew(uses[i].chunk.key);
    numbers_.erase(request);
  }
  std::optional<std::vector<ChunkKey>> evict(std::size_t chunks, const ChunkKeySet& kept) override {
    std::vector<ChunkKey> victims;
    for (auto at = allowed_.begin(); at != allowed_.end() && victims.size() < chunks; ++at) {
      if (!kept.contains(at->second)) victims.push_back(at->second);
    }
    if (victims.size() < chunks) return std::nullopt;
    for (const ChunkKey& key : victims) {
      allowed_.erase({ranks_.at(key).rank, key});
      ranks_.erase(key);
    }
    return victims;
  }

 private:
  struct Rank {
    std::uint64_t number = 0;
    std::uint64_t place = 0;
    friend auto operator<=>(const Rank&, const Rank&) = default;
  };
  struct Ranked {
    Rank rank;
    bool allowed = false;
  };
  using Ranks = std::unordered_map<ChunkKey, Ranked, ChunkKeyHash>;  // looked up only, never iterated

  static std::uint64_t place_of(const Chunk& chunk) { return ~chunk.end; }
  std::uint64_t number_of(RequestId request) {
    const auto [at, is_new] = numbers_.try_emplace(request, next_);
    next_ += is_new ? 1 : 0;
    return at->second;
  }
  void renew(const ChunkKey& key) {
    const auto known = ranks_.find(key);
    if (known != ranks_.end()) put(*known, {next_++, ~std::uint64_t{0}});
  }
  void put(Ranks::value_type& known, const Rank& rank) {
    auto& [key, ranked] = known;
    if (ranked.allowed) allowed_.erase({ranked.rank, key});
    ranked.rank = rank;
    if (ranked.allowed) allowed_.emplace(rank, key);
  }

  std::uint64_t next_ = 0;
  std::map<RequestId, std::uint64_t> numbers_;  // of running requests
  Ranks ranks_;
  std::set<std::pair<Rank, ChunkKey>> allowed_;
};

}  // namespace

std::unique_ptr<ChunkOrder> make_lru_chunk_order() { return std::make_unique<LruChunkOrder>(); }

}  // namespace kvtwin
