// SGLang 0.5.23: each pool has an order of use of its own, and its least recently used node goes. Source:
// mem_cache/unified_radix_cache.py, the lists of the components.
#include "policy/config.hpp"
#include "policy/pool_eviction.hpp"

namespace kvtwin {
namespace {

class LeastRecentlyUsed final : public PoolEviction {
 public:
  bool by_use() const override { return true; }
};

}  // namespace

std::unique_ptr<PoolEviction> make_lru_pool_eviction(const EngineConfig&, const Parameters&) {
  return std::make_unique<LeastRecentlyUsed>();
}

}  // namespace kvtwin
