#include "policy/route_groups.hpp"

#include <unordered_map>
#include <utility>
#include <vector>

#include "policy/base/check.hpp"
#include "policy/base/tiers.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {
namespace {

class GroupedRouter final : public Router {
 public:
  GroupedRouter(std::unique_ptr<Router> outer, std::vector<std::unique_ptr<Router>> inner, std::size_t groups)
      : outer_(std::move(outer)), inner_(std::move(inner)), groups_(groups), living_(inner_.size(), groups) {
    if (outer_ != nullptr && outer_->follows_pages()) copies_.resize(inner_.size());
  }

  std::size_t route(const Arrival& arrival) override {
    const std::size_t whole = outer_ == nullptr ? 0 : outer_->route(arrival);
    return whole * groups_ + inner_[whole]->route(arrival);
  }
  void ended(std::size_t engine) override {
    if (outer_ != nullptr) outer_->ended(engine / groups_);
    inner_[engine / groups_]->ended(engine % groups_);
  }
  void gone(std::size_t engine) override {
    inner_[engine / groups_]->gone(engine % groups_);
    if (--living_[engine / groups_] == 0 && outer_ != nullptr) outer_->gone(engine / groups_);
  }
  void admitted(std::size_t engine, Tokens prompt) override {
    if (outer_ != nullptr) outer_->admitted(engine / groups_, prompt);
    inner_[engine / groups_]->admitted(engine % groups_, prompt);
  }
  void left(std::size_t engine, Tokens prompt) override {
    if (outer_ != nullptr) outer_->left(engine / groups_, prompt);
    inner_[engine / groups_]->left(engine % groups_, prompt);
  }
  bool follows_pages() const override {
    return (outer_ != nullptr && outer_->follows_pages()) || inner_[0]->follows_pages();
  }
  void stored(std::size_t engine, Tier tier, std::span<const PageKey> keys) override {
    if (inner_[0]->follows_pages()) inner_[engine / groups_]->stored(engine % groups_, tier, keys);
    if (copies_.empty()) return;
    auto& copies = copies_[engine / groups_][tier];
    changed_.clear();
    for (const PageKey& key : keys) {
      if (copies[key]++ == 0) changed_.push_back(key);
    }
    if (!changed_.empty()) outer_->stored(engine / groups_, tier, changed_);
  }
  void removed(std::size_t engine, Tier tier, std::span<const PageKey> keys) override {
    if (inner_[0]->follows_pages()) inner_[engine / groups_]->removed(engine % groups_, tier, keys);
    if (copies_.empty()) return;
    auto& copies = copies_[engine / groups_][tier];
    changed_.clear();
    for (const PageKey& key : keys) {
      const auto at = copies.find(key);
      if (at == copies.end() || --at->second > 0) continue;
      copies.erase(at);
      changed_.push_back(key);
    }
    if (!changed_.empty()) outer_->removed(engine / groups_, tier, changed_);
  }
  void stored_for_all(std::span<const PageKey> keys) override {
    if (outer_ != nullptr && outer_->follows_pages()) outer_->stored_for_all(keys);
    for (const auto& router : inner_) {
      if (router->follows_pages()) router->stored_for_all(keys);
    }
  }

 private:
  std::unique_ptr<Router> outer_;  // null: there is only one engine
  std::vector<std::unique_ptr<Router>> inner_;
  std::size_t groups_;
  std::vector<std::size_t> living_;  // groups, by engine
  // By engine and tier: how many of its groups have a page. Empty unless the outer router follows pages.
  std::vector<PerTier<std::unordered_map<PageKey, std::uint32_t, PageKeyHash>>> copies_;
  std::vector<PageKey> changed_;
};

}  // namespace

std::unique_ptr<Router> make_grouped_router(std::string_view text, const RouterSetup& setup) {
  KV_CHECK(setup.engines % setup.groups == 0, "each engine has as many groups");
  RouterSetup of_groups = setup, of_engines = setup;
  of_groups.engines = setup.groups;
  of_engines.engines = setup.engines / setup.groups;
  of_engines.device_pages *= setup.groups;
  of_engines.host_pages *= setup.groups;
  of_groups.groups = of_engines.groups = 1;
  std::unique_ptr<Router> outer;
  if (of_engines.engines > 1) {
    outer = make_router(text, of_engines);
    if (outer == nullptr) return nullptr;
  }
  std::vector<std::unique_ptr<Router>> inner;
  for (std::size_t engine = 0; engine < of_engines.engines; ++engine) {
    of_groups.seed = setup.seed + engine;
    inner.push_back(make_router(setup.group_policy, of_groups));
    if (inner.back() == nullptr) return nullptr;
  }
  return std::make_unique<GroupedRouter>(std::move(outer), std::move(inner), setup.groups);
}

}  // namespace kvtwin
