// Sends a request to the engine to which its longest known prefix was sent last, if the prefix is at least a share of
// the prompt (cluster.route_min_prefix) and the engines' loads are even (cluster.route_uneven_*); else to the least
// loaded engine (the rule of SGLang's cache-aware router). The load is the number of requests that were sent and have
// not ended. Ties go to the first engine.
#include <algorithm>
#include <unordered_map>
#include <utility>

#include "policy/route.hpp"
#include "policy/route/open_requests.hpp"

namespace kvtwin {
namespace {

// Pages remembered before the older half is forgotten.
constexpr std::size_t kMaxRememberedPages = std::size_t{1} << 20;

class PrefixAffinity final : public Router {
 public:
  explicit PrefixAffinity(const RouterSetup& setup) : setup_(setup), open_(setup) {}

  std::size_t route(const Arrival& arrival) override {
    std::size_t engine = open_.least();
    const std::size_t known = known_pages(arrival.keys);
    const bool long_enough = 1024 * known >= setup_.min_prefix_x1024 * arrival.keys.size();
    if (known > 0 && long_enough && !open_.uneven()) {
      if (const std::size_t last = *sent_to(arrival.keys[known - 1]); !open_.is_gone(last)) engine = last;
    }
    if (young_.size() + arrival.keys.size() > kMaxRememberedPages) old_ = std::exchange(young_, {});
    for (const PageKey& key : arrival.keys) young_[key] = engine;
    open_.sent(engine);
    return engine;
  }

  void ended(std::size_t engine) override { open_.ended(engine); }
  void gone(std::size_t engine) override { open_.gone(engine); }

 private:
  using Pages = std::unordered_map<PageKey, std::size_t, PageKeyHash>;

  const std::size_t* sent_to(const PageKey& key) const {
    for (const Pages* pages : {&young_, &old_}) {
      if (const auto found = pages->find(key); found != pages->end()) return &found->second;
    }
    return nullptr;
  }

  // A request that was sent with a page was sent with all pages before it.
  std::size_t known_pages(std::span<const PageKey> keys) const {
    const auto unknown = std::ranges::partition_point(keys, [this](const PageKey& key) { return sent_to(key); });
    return static_cast<std::size_t>(unknown - keys.begin());
  }

  const RouterSetup setup_;
  OpenRequests open_;
  Pages young_, old_;
};

}  // namespace

std::unique_ptr<Router> make_prefix_affinity_router(const RouterSetup& setup) {
  return std::make_unique<PrefixAffinity>(setup);
}

}  // namespace kvtwin
