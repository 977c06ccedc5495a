// A slow model of HostedTree, and calls that numbers choose. The model predicts of each call whether it is accepted,
// its answer, the pages on each tier, which nodes may be evicted, and LRU's victims.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "policy/hosted/hosted_tree.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {

class HostedModel {
 public:
  explicit HostedModel(const HostedSetup& setup) : setup_(setup) { nodes_[0]; }

  // Returns an empty text, or how the tree's answer differs from the model's. `error`: what the tree returned.
  std::string follow(const Call& call, const char* error, const Answer& answer) {
    const std::optional<std::string> wrong = apply(call, error == nullptr, answer);
    if (wrong.has_value()) return std::string(name_of(call.verb)) + ": " + *wrong;
    return {};
  }

  Pages pages(Tier tier) const {
    Pages sum = 0;
    for (const auto& [id, node] : nodes_) sum += on(node, tier) ? node.keys.size() : 0;
    return sum;
  }
  std::size_t nodes() const { return nodes_.size() - 1; }
  bool evictable(std::uint32_t id, Tier tier) const {
    const Slow& node = nodes_.at(id);
    if (tier == Tier::device) return node.device && leases(id, 0) == 0 && !has_child(id, true);
    return node.host && !node.device && leases(id, 0) + leases(id, 1) == 0 && !has_child(id, false);
  }
  std::uint32_t lru_victim(Tier tier) const {
    std::uint32_t best = static_cast<std::uint32_t>(NodeId::none);
    for (const auto& [id, node] : nodes_) {
      if (id == 0 || !evictable(id, tier)) continue;
      if (best == static_cast<std::uint32_t>(NodeId::none) || node.stamp < nodes_.at(best).stamp) best = id;
    }
    return best;
  }

 private:
  struct Slow {
    std::uint32_t parent = 0;
    std::vector<PageKey> keys;
    bool device = false, host = false;
    std::uint32_t leased[2] = {0, 0};  // leases that end here
    std::uint64_t stamp = 0;
  };
  using Verdict = std::optional<std::string>;

  static bool on(const Slow& node, Tier tier) { return tier == Tier::device ? node.device : node.host; }
  bool known(Tier tier) const { return tier == Tier::device || (tier == Tier::host && setup_.host_pages > 0); }
  bool has(std::uint32_t id) const { return nodes_.contains(id); }
  bool has_child(std::uint32_t parent, bool on_device) const {
    return std::ranges::any_of(nodes_, [&](const auto& entry) {
      return entry.first != 0 && entry.second.parent == parent && (!on_device || entry.second.device);
    });
  }
  std::vector<std::uint32_t> path(std::uint32_t id) const {
    std::vector<std::uint32_t> up;
    for (; id != 0; id = nodes_.at(id).parent) up.push_back(id);
    return up;
  }
  std::uint32_t leases(std::uint32_t id, int tier) const {
    std::uint32_t sum = 0;
    for (const auto& [other, node] : nodes_) {
      const auto up = path(other);
      if (other == id || std::ranges::find(up, id) != up.end()) sum += node.leased[tier];
    }
    return sum;
  }

  struct Found {
    bool fits = true;
    std::uint32_t end = 0;
    std::size_t beyond = 0;  // pages of the end node that do not match
    Pages device = 0, host = 0;
  };
  Found find(std::span<const PageKey> keys) const {
    Found found;
    std::size_t at = 0;
    while (at < keys.size() && found.beyond == 0) {
      std::uint32_t next = 0;
      for (const auto& [id, node] : nodes_) {
        if (id != 0 && node.keys.front() == keys[at]) next = id;
      }
      if (next == 0) break;
      if (nodes_.at(next).parent != found.end) {
        found.fits = false;
        break;
      }
      const Slow& node = nodes_.at(next);
      std::size_t same = 0;
      while (same < node.keys.size() && at + same < keys.size() && node.keys[same] == keys[at + same]) ++same;
      (node.device ? found.device : found.host) += same;
      found.end = next;
      found.beyond = node.keys.size() - same;
      at += same;
    }
    return found;
  }
  void split(std::uint32_t id, std::size_t upper_pages, std::uint32_t upper_id) {
    Slow& lower = nodes_.at(id);
    Slow upper = lower;
    upper.keys.resize(upper_pages);
    upper.leased[0] = upper.leased[1] = 0;
    lower.keys.erase(lower.keys.begin(), lower.keys.begin() + static_cast<std::ptrdiff_t>(upper_pages));
    lower.parent = upper_id;
    nodes_[upper_id] = upper;
  }

  static Verdict accepted(bool expected, bool was) {
    if (expected == was) return std::nullopt;
    return expected ? "was refused" : "was accepted";
  }
  static Verdict equal(std::uint64_t expected, std::uint64_t was, const char* what) {
    if (expected == was) return std::nullopt;
    return std::string(what) + " is " + std::to_string(was) + " instead of " + std::to_string(expected);
  }

  Verdict apply(const Call& call, bool ok, const Answer& answer) {
    const auto id = static_cast<std::uint32_t>(call.node);
    switch (call.verb) {
      case CallVerb::clear:
        nodes_.clear();
        nodes_[0];
        waiting_.clear();
        return accepted(true, ok);
      case CallVerb::match: return match(call, ok, answer);
      case CallVerb::insert: return insert(call, ok, answer);
      case CallVerb::split: {
        const bool may = id != 0 && has(id) && call.pages > 0 && call.pages < nodes_.at(id).keys.size();
        if (const Verdict wrong = accepted(may, ok); wrong || !ok) return wrong;
        split(id, call.pages, static_cast<std::uint32_t>(answer.node));
        if (setup_.split_refreshes) nodes_.at(id).stamp = ++stamp_;
        return std::nullopt;
      }
      case CallVerb::place: {
        const bool may =
            id != 0 && has(id) && known(call.tier) && !on(nodes_.at(id), call.tier) &&
            (call.tier == Tier::host || nodes_.at(id).parent == 0 || nodes_.at(nodes_.at(id).parent).device);
        if (may && ok) (call.tier == Tier::device ? nodes_.at(id).device : nodes_.at(id).host) = true;
        return accepted(may, ok);
      }
      case CallVerb::drop: return leave(call, has(id) ? nodes_.at(id).keys.size() : 0, false, ok);
      case CallVerb::evict: return leave(call, call.pages, true, ok);
      case CallVerb::touch: {
        const bool may = has(id) && call.value >= 0 && call.value <= 3;
        if (!may || !ok) return accepted(may, ok);
        ++stamp_;
        auto up = path(id);
        if (call.value == 3 && !up.empty()) up.resize(1);
        for (const std::uint32_t touched : up) nodes_.at(touched).stamp = stamp_;
        return std::nullopt;
      }
      case CallVerb::count: return accepted(id != 0 && has(id), ok);
      case CallVerb::raise: return accepted(has(id), ok);
      case CallVerb::lease:
      case CallVerb::release: {
        const int tier = call.tier == Tier::device ? 0 : 1;
        const bool ends = call.verb == CallVerb::release;
        const bool may = has(id) && known(call.tier) && (!ends || nodes_.at(id).leased[tier] > 0);
        if (may && ok) nodes_.at(id).leased[tier] += ends ? ~0U : 1U;
        return accepted(may, ok);
      }
      case CallVerb::visit:
        if (call.time >= now_ && ok) now_ = call.time;
        return ok ? std::nullopt : accepted(call.time >= now_, ok);
      case CallVerb::hint:
        if (call.time >= now_ && ok) now_ = call.time;
        return ok ? std::nullopt : accepted(call.time >= now_ && call.hint < HintKind::abort, ok);
      case CallVerb::queue: {
        const bool may = find(call.keys).fits && !waiting_.contains(call.request);
        if (may) waiting_.insert(call.request);
        return accepted(may, ok);
      }
      case CallVerb::unqueue: return accepted(waiting_.erase(call.request) > 0, ok);
      case CallVerb::share:
        if (!ok) return accepted(!call.keys.empty(), ok);
        if (answer.device_pages < 1 || answer.device_pages > call.keys.size()) return "a node has 1 page, up to all";
        return std::nullopt;
      case CallVerb::victim: return victim(call, ok, answer);
    }
    return "is unknown";
  }

  Verdict match(const Call& call, bool ok, const Answer& answer) {
    const Found found = find(call.keys);
    if (const Verdict wrong = accepted(found.fits, ok); wrong || !ok) return wrong;
    if (const Verdict wrong = equal(found.device, answer.device_pages, "device_pages")) return wrong;
    if (const Verdict wrong = equal(found.host, answer.host_pages, "host_pages")) return wrong;
    if (found.beyond == 0) return equal(found.end, static_cast<std::uint32_t>(answer.node), "the end");
    split(found.end, nodes_.at(found.end).keys.size() - found.beyond, static_cast<std::uint32_t>(answer.node));
    if (setup_.split_refreshes) nodes_.at(found.end).stamp = ++stamp_;
    return std::nullopt;
  }

  Verdict insert(const Call& call, bool ok, const Answer& answer) {
    const auto parent = static_cast<std::uint32_t>(call.node);
    std::set<PageKey> pages;
    for (const auto& [id, node] : nodes_) pages.insert(node.keys.begin(), node.keys.end());
    bool may = has(parent) && known(call.tier) && !call.keys.empty();
    for (const PageKey& key : call.keys) may = may && pages.insert(key).second;
    if (may && call.tier == Tier::device && parent != 0) may = nodes_.at(parent).device;
    if (const Verdict wrong = accepted(may, ok); wrong || !ok) return wrong;
    const auto id = static_cast<std::uint32_t>(answer.node);
    if (has(id)) return "a new node has the number of another one";
    nodes_[id] = {parent,  {call.keys.begin(), call.keys.end()}, call.tier == Tier::device, call.tier == Tier::host, {},
                  ++stamp_};
    return std::nullopt;
  }

  Verdict leave(const Call& call, Pages pages, bool victim, bool ok) {
    const auto id = static_cast<std::uint32_t>(call.node);
    bool may = id != 0 && has(id) && known(call.tier) && on(nodes_.at(id), call.tier);
    if (may) {
      const Slow& node = nodes_.at(id);
      const bool device = call.tier == Tier::device, stays = device ? node.host : node.device;
      may = pages > 0 && pages <= node.keys.size() && (!victim || evictable(id, call.tier));
      may = may && (device ? leases(id, 0) == 0 && !has_child(id, true) : leases(id, 1) == 0);
      may = may && (stays || (!has_child(id, false) && leases(id, 0) + leases(id, 1) == 0));
    }
    if (const Verdict wrong = accepted(may, ok); wrong || !ok) return wrong;
    Slow& node = nodes_.at(id);
    const bool device = call.tier == Tier::device, stays = device ? node.host : node.device;
    if (!stays) {
      node.keys.resize(node.keys.size() - pages);
      if (node.keys.empty()) nodes_.erase(id);
      return std::nullopt;
    }
    if (pages < node.keys.size()) return "leaves a part of a node that is on both tiers, which no caller here does";
    (device ? node.device : node.host) = false;
    return std::nullopt;
  }

  Verdict victim(const Call& call, bool ok, const Answer& answer) const {
    if (const Verdict wrong = accepted(known(call.tier), ok); wrong || !ok) return wrong;
    const auto id = static_cast<std::uint32_t>(answer.node);
    const std::uint32_t lru = lru_victim(call.tier);
    if (setup_.eviction == "lru") return equal(lru, id, "the victim");
    if (answer.node == NodeId::none) return equal(lru, id, "the victim");
    if (!has(id) || id == 0 || !evictable(id, call.tier)) return "the victim may not be evicted";
    return equal(nodes_.at(id).keys.size(), answer.device_pages, "the victim's pages");
  }

  const HostedSetup setup_;
  std::map<std::uint32_t, Slow> nodes_;
  std::set<RequestId> waiting_;
  std::uint64_t stamp_ = 0;
  TimeNs now_ = 0;
};

// The next call, from numbers below a bound: `draw(bound)`. Most calls fit the tree's state, some do not.
template <class Draw>
Call draw_call(Draw draw, const HostedTree& tree, std::vector<PageKey>& keys, TimeNs& now) {
  Call call;
  static constexpr CallVerb kOften[] = {CallVerb::insert, CallVerb::match,  CallVerb::touch,
                                        CallVerb::evict,  CallVerb::victim, CallVerb::visit};
  const std::uint64_t pick = draw(kCallVerbs + 2 * std::size(kOften));
  call.verb = pick < kCallVerbs ? static_cast<CallVerb>(pick) : kOften[(pick - kCallVerbs) % std::size(kOften)];
  if (call.verb == CallVerb::clear && draw(16) != 0) call.verb = CallVerb::insert;
  call.tier = draw(3) == 0 ? Tier::host : Tier::device;
  const std::uint64_t live = tree.tree().nodes() + 2;
  call.node = NodeId{static_cast<std::uint32_t>(draw(live + 1))};
  if (draw(64) == 0) call.node = NodeId::none;
  call.request = draw(8);
  call.session = draw(3);
  call.time = draw(32) == 0 ? now - 1 : (now += static_cast<TimeNs>(draw(1 << 20)));
  call.prompt_tokens = draw(200);
  call.output_tokens = draw(50);
  call.hint = static_cast<HintKind>(draw(5));
  call.value = static_cast<std::int64_t>(draw(4));
  if (call.verb == CallVerb::visit) call.value %= 2;
  // A chain: two symbols on each of up to eight pages.
  std::vector<std::uint64_t> symbols(draw(9));
  for (std::uint64_t& symbol : symbols) symbol = draw(2);
  keys = chain(symbols);
  const bool whole = tree.tree().has(call.node) && call.node != tree.tree().root();
  call.pages = whole ? tree.tree().node(call.node).facts.pages : draw(4);
  if (call.verb == CallVerb::split) call.pages = draw(6);
  // Pages of a node on one tier may leave it one by one.
  if (whole && draw(4) == 0 && call.verb == CallVerb::evict &&
      !(tree.tree().node(call.node).device.resident() && tree.tree().node(call.node).host.resident())) {
    call.pages = draw(call.pages + 2);
  }
  if (call.verb == CallVerb::insert && draw(16) != 0) {  // where the chain leaves the tree
    if (tree.tree().fits(keys)) {
      const PrefixMatch found = tree.tree().peek(keys);
      const Pages depth = found.device_pages + found.host_pages;
      const bool at_end = found.end == tree.tree().root() || tree.tree().node(found.end).facts.depth_pages == depth;
      if (at_end) {
        call.node = found.end;
        keys.erase(keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(depth));
      }
    }
  } else if (!keys.empty() && draw(24) == 0) {
    keys.erase(keys.begin());  // no longer a chain from its first page on
  }
  call.keys = keys;
  return call;
}

}  // namespace kvtwin::test
