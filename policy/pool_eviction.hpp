// Which window or state leaves a pool that is full (cache.pool_eviction), for models with pools beside the pages of
// full attention. Each engine has one PoolEviction. A victim is one node: its window or state goes, or, if it is a leaf
// of the tree, the node as a whole, with its pages. PoolVictims finds the candidates.
//
// A policy is one file, policy/pool_eviction/NAME.cpp, that defines std::unique_ptr<PoolEviction>
// make_NAME_pool_eviction(const EngineConfig&, const Parameters&); the build finds the file by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/parameters.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct EngineConfig;

// A node that may go. Then a request that continues behind it computes the tokens [from, to) of its path again: `from`
// is the next point above behind which a request can continue. None, if no request can continue behind the node.
struct PoolCandidate {
  Tokens from = 0, to = 0;
  std::uint64_t idle = 0;  // accesses of the index since the last use of the node
  Bytes bytes = 0;         // of one rank, that become free, or of no use, in all pools of the tier
  bool inner = false;      // one further node of the tier, and no more, continues the path
};

class PoolEviction {
 public:
  virtual ~PoolEviction() = default;
  // True: the least recently used node of a pool goes, and the functions below say nothing.
  virtual bool by_use() const { return false; }
  // The candidate that is worth least goes; among equals the least recently used one.
  virtual std::uint64_t worth(const PoolCandidate& /*candidate*/) const { return 0; }
  // Whether pool 0 takes leaves by their worth, too, in place of cache.eviction's order.
  virtual bool orders_leaves() const { return false; }
};

// Known names.
std::span<const std::string_view> pool_eviction_names();
// Returns the policy of config.pool_eviction, a name with parameters or without; null for a text with a fault.
std::unique_ptr<PoolEviction> make_pool_eviction(const EngineConfig& config);

}  // namespace kvtwin
