#include "policy/hosted/hosted_tree.hpp"

#include <array>
#include <limits>

#include "policy/choices.hpp"

namespace kvtwin {
namespace {

constexpr Pages kMaxPages = std::numeric_limits<std::uint32_t>::max();  // on a path, and of a tier

EvictionSetup setup_for(const HostedSetup& setup, Tier tier) {
  const bool device = tier == Tier::device;
  return {.capacity = device ? setup.device_pages : setup.host_pages,
          .page_tokens = setup.page_tokens,
          .doubling_tokens = setup.doubling_tokens,
          .prefix_closed = device,
          .whole_nodes = setup.whole_nodes};
}

PolicyRole role_of(Tier tier) { return tier == Tier::device ? PolicyRole::device : PolicyRole::host; }

constexpr const char* kNoNode = "there is no such node; pass a number that an earlier call returned";
constexpr const char* kNoTier = "there is no such tier; pass the device, or the host if the tree has host pages";
constexpr const char* kNoChain = "a key is known at another place; pass keys of a chain, from its first page on";
constexpr const char* kTooMany = "too many keys; pass at most 67,108,864";

}  // namespace

std::string_view name_of(CallVerb verb) {
  static constexpr std::array<std::string_view, kCallVerbs> kNames{
      "clear", "match",   "insert", "split", "place",   "drop", "touch", "count",  "raise",
      "lease", "release", "visit",  "queue", "unqueue", "hint", "share", "victim", "evict"};
  return static_cast<std::size_t>(verb) < kNames.size() ? kNames[static_cast<std::size_t>(verb)] : "unknown";
}

std::string with_numbers(std::string_view eviction, std::uint32_t slru_protected, Tokens tlru_threshold,
                         Tokens tlru_next_prompt) {
  std::string text(eviction);
  if (eviction == "slru" && slru_protected != kSlruProtected) {
    text += "(protected=" + std::to_string(slru_protected) + ")";
  } else if (eviction == "tlru" && (tlru_threshold != 0 || tlru_next_prompt != 0)) {
    text += "(threshold=" + std::to_string(tlru_threshold) + ", next_prompt=" + std::to_string(tlru_next_prompt) + ")";
  }
  return text;
}

std::string HostedTree::error_of(const HostedSetup& setup) {
  if (setup.eviction.size() > kMaxEvictionBytes) return "the name and its parameters have at most 1,024 bytes";
  if (std::string error = facts_of_policy(PolicyKind::eviction, setup.eviction).error; !error.empty()) return error;
  if (setup.device_pages == 0 || setup.device_pages > kMaxPages || setup.host_pages > kMaxPages) {
    return "a tier has 1 to 4,294,967,295 pages (the host tier: 0, if there is none)";
  }
  if (setup.page_tokens == 0 || setup.page_tokens > (Tokens{1} << 20)) return "a page has 1 to 1,048,576 tokens";
  if (setup.doubling_tokens == 0 || setup.doubling_tokens > (Tokens{1} << 40)) {
    return "the doubling depth is 1 to 2^40 tokens";
  }
  return "";
}

HostedTree::HostedTree(const HostedSetup& setup) : setup_(setup) { make_tree(); }

void HostedTree::make_tree() {
  auto device = make_eviction(setup_.eviction, setup_for(setup_, Tier::device));
  looks_ahead_ = dynamic_cast<LooksAhead*>(device.get()) != nullptr;
  takes_hints_ = dynamic_cast<TakesHints*>(device.get()) != nullptr;
  tree_ = std::make_unique<RadixTree>(
      std::move(device),
      setup_.host_pages == 0 ? nullptr : make_eviction(setup_.eviction, setup_for(setup_, Tier::host)));
  tree_->set_joins_nodes(false);
  tree_->set_split_refreshes(setup_.split_refreshes);
  if (setup_.hits_by_count) tree_->set_first_hits(0);
  pages_.clear();
  leases_.clear();
  queued_.clear();
}

const char* HostedTree::call(const Call& call, Answer& answer) {
  answer = {};
  if (call.keys.size() > kMaxKeys) return kTooMany;
  switch (call.verb) {
    case CallVerb::clear: make_tree(); return nullptr;
    case CallVerb::match: {
      if (!tree_->fits(call.keys)) return kNoChain;
      const PrefixMatch found = tree_->match(call.keys);
      answer = {found.end, found.device_pages, found.host_pages};
      return nullptr;
    }
    case CallVerb::insert: return insert(call, answer);
    case CallVerb::split: return split(call, answer);
    case CallVerb::place: return place(call);
    case CallVerb::drop: return is_inner(call.node) ? leave(call, tree_->node(call.node).facts.pages, false) : kNoNode;
    case CallVerb::evict: return leave(call, call.pages, true);
    case CallVerb::touch: return touch(call);
    case CallVerb::count:
      if (!is_inner(call.node)) return kNoNode;
      tree_->count_touch(call.node, tree_->node(call.node).facts.depth_pages - 1);
      return nullptr;
    case CallVerb::raise:
      if (!tree_->has(call.node)) return kNoNode;
      if (call.value != static_cast<std::int32_t>(call.value)) return "a priority has 32 bits";
      tree_->raise_priority(call.node, static_cast<std::int32_t>(call.value));
      return nullptr;
    case CallVerb::lease: return lease(call);
    case CallVerb::release: return release(call);
    case CallVerb::visit: return visit(call);
    case CallVerb::queue: return queue(call);
    case CallVerb::unqueue: return unqueue(call);
    case CallVerb::hint: return hint(call);
    case CallVerb::share:
      if (call.keys.empty()) return "there are no keys; pass those of the pages that are about to enter";
      answer.device_pages = tree_->shared_history_prefix(call.keys);
      return nullptr;
    case CallVerb::victim: return choose(call, answer);
  }
  return "there is no such call";
}

const char* HostedTree::insert(const Call& call, Answer& answer) {
  if (!tree_->has(call.node)) return kNoNode;
  if (!knows(call.tier)) return kNoTier;
  if (call.keys.empty()) return "there are no keys; a new node has pages";
  if (call.value != static_cast<std::int32_t>(call.value)) return "a priority has 32 bits";
  const Node& parent = tree_->node(call.node);
  if (call.tier == Tier::device && call.node != tree_->root() && !parent.device.resident()) {
    return "the parent is not on the device; place it there first";
  }
  if (parent.facts.depth_pages + call.keys.size() > kMaxPages) return "the path has too many pages";
  for (std::size_t i = 0; i < call.keys.size(); ++i) {
    if (pages_.insert(call.keys[i]).second) continue;
    for (std::size_t added = 0; added < i; ++added) pages_.erase(call.keys[added]);
    return "a page is in the tree already; match first, and insert the pages behind the match";
  }
  slots_.assign(call.keys.size(), 0);
  const bool device = call.tier == Tier::device;
  const std::span<const SlotId> none;
  answer.node = tree_->insert(call.node, call.keys, device ? std::span<const SlotId>(slots_) : none,
                              device ? none : std::span<const SlotId>(slots_), tree_->next_stamp(),
                              static_cast<std::int32_t>(call.value));
  return nullptr;
}

const char* HostedTree::split(const Call& call, Answer& answer) {
  if (!is_inner(call.node)) return kNoNode;
  if (call.pages == 0 || call.pages >= tree_->node(call.node).facts.pages) {
    return "both parts of a split have pages";
  }
  answer.node = tree_->split(call.node, call.pages);
  if (setup_.split_refreshes) tree_->stamp(call.node, tree_->next_stamp());
  return nullptr;
}

const char* HostedTree::place(const Call& call) {
  if (!is_inner(call.node)) return kNoNode;
  if (!knows(call.tier)) return kNoTier;
  const Node& node = tree_->node(call.node);
  slots_.assign(node.facts.pages, 0);
  if (call.tier == Tier::host) {
    if (node.host.resident()) return "the node is on the host already";
    tree_->set_slots(Tier::host, call.node, slots_);
    return nullptr;
  }
  if (node.device.resident()) return "the node is on the device already";
  if (node.parent != tree_->root() && !tree_->node(node.parent).device.resident()) {
    return "the parent is not on the device; place it there first";
  }
  tree_->set_slots(Tier::device, call.node, slots_);
  return nullptr;
}

const char* HostedTree::leave(const Call& call, Pages pages, bool victim) {
  if (!is_inner(call.node)) return kNoNode;
  if (!knows(call.tier)) return kNoTier;
  const bool device = call.tier == Tier::device;
  const Node& node = tree_->node(call.node);
  const bool stays = device ? node.host.resident() : node.device.resident();
  if (device ? !node.device.resident() : !node.host.resident()) return "the node is not on this tier";
  if (pages == 0 || pages > node.facts.pages) return "the node has fewer pages";
  if (victim && !tree_->is_offered(call.node, role_of(call.tier))) {
    return "the node may not be evicted: it is leased, has a child on the tier, or is on a higher tier";
  }
  if (device && (node.device.children > 0 || node.device.leases > 0)) {
    return "a node leaves the device after its children, and without a lease";
  }
  if (!device && node.host.leases > 0) return "the copy on the host is leased";
  if (!stays && (node.children > 0 || node.host.leases > 0 || node.device.leases > 0)) {
    return "a node with children or a lease keeps a copy; drop the children first";
  }
  if (victim) tree_->notify_evicted(role_of(call.tier), call.node, pages);
  if (stays) {
    if (pages < node.facts.pages) tree_->split(call.node, node.facts.pages - pages);
    tree_->clear(call.tier, call.node);
    return nullptr;
  }
  for (const PageKey& key : node.keys().last(pages)) pages_.erase(key);
  freed_.clear();
  tree_->remove_tail(call.node, pages, freed_, freed_);
  return nullptr;
}

const char* HostedTree::touch(const Call& call) {
  if (!tree_->has(call.node)) return kNoNode;
  if (call.value < 0 || call.value > static_cast<std::int64_t>(TouchKind::stamp_node)) return "there is no such touch";
  const std::uint64_t stamp = tree_->next_stamp();
  switch (static_cast<TouchKind>(call.value)) {
    case TouchKind::recency: tree_->touch(call.node, stamp, RadixTree::Touch::recency_only); break;
    case TouchKind::access: tree_->touch(call.node, stamp, RadixTree::Touch::access); break;
    case TouchKind::stamp:
      for (NodeId at = call.node; at != tree_->root(); at = tree_->node(at).parent) tree_->stamp(at, stamp);
      break;
    case TouchKind::stamp_node:
      if (call.node != tree_->root()) tree_->stamp(call.node, stamp);
      break;
  }
  return nullptr;
}

const char* HostedTree::lease(const Call& call) {
  if (!tree_->has(call.node)) return kNoNode;
  if (!knows(call.tier)) return kNoTier;
  Leases& held = leases_[static_cast<std::uint32_t>(call.node)];
  if (call.tier == Tier::device) {
    ++held.device;
    tree_->lease(Tier::device, call.node);
  } else {
    ++held.host;
    tree_->lease(Tier::host, call.node);
  }
  return nullptr;
}

const char* HostedTree::release(const Call& call) {
  if (!knows(call.tier)) return kNoTier;
  const auto held = leases_.find(static_cast<std::uint32_t>(call.node));
  const bool device = call.tier == Tier::device;
  if (held == leases_.end() || (device ? held->second.device : held->second.host) == 0) {
    return "no lease ends at this node";
  }
  --(device ? held->second.device : held->second.host);
  tree_->release(call.tier, call.node);
  if (held->second.device + held->second.host == 0) leases_.erase(held);
  return nullptr;
}

const char* HostedTree::visit(const Call& call) {
  if (call.time < now_) return "the time is before that of an earlier call";
  if (call.prompt_tokens > kMaxJournalTokens || call.output_tokens > kMaxJournalTokens) {
    return "a request has at most 2^62 tokens";
  }
  if (call.request == kNoRequest) return "a request's number is below 2^64 - 1";
  if (call.value != 0 && call.value != 1) return "a visit has the value 0, or 1 for a further visit of its request";
  now_ = call.time;
  visitor_ = call.request;
  tree_->visit({.request = call.request,
                .time = call.time,
                .session = call.session,
                .prompt_tokens = call.prompt_tokens,
                .output_tokens = call.output_tokens,
                .keys = call.keys,
                .further = call.value == 1,
                .parts = PromptParts::of(0, call.prompt_tokens, setup_.page_tokens)});
  return nullptr;
}

const char* HostedTree::queue(const Call& call) {
  if (!tree_->fits(call.keys)) return kNoChain;
  if (call.request == kNoRequest) return "a request's number is below 2^64 - 1";
  const auto kept = looks_ahead_ ? call.keys : std::span<const PageKey>();
  const auto [place, is_new] = queued_.try_emplace(call.request, kept.begin(), kept.end());
  if (!is_new) return "the request waits already";
  tree_->queue(call.request, call.keys, false);  // the host splits its nodes
  return nullptr;
}

const char* HostedTree::unqueue(const Call& call) {
  const auto place = queued_.find(call.request);
  if (place == queued_.end()) return "the request does not wait";
  const std::vector<PageKey> keys = std::move(place->second);
  queued_.erase(place);
  tree_->unqueue(call.request, tree_->fits(keys) ? std::span<const PageKey>(keys) : std::span<const PageKey>());
  return nullptr;
}

const char* HostedTree::hint(const Call& call) {
  if (call.hint >= HintKind::abort) return "a hint is session_end, tool_call_pending, pin or unpin";
  if (call.time < now_) return "the time is before that of an earlier call";
  if (call.value < 0 || call.value > std::int64_t{1} << 40) return "a hint's value is 0 to 2^40 ms";
  now_ = call.time;
  tree_->hint({call.hint, call.session, call.value}, call.time);
  return nullptr;
}

const char* HostedTree::choose(const Call& call, Answer& answer) {
  if (!knows(call.tier)) return kNoTier;
  const bool device = call.tier == Tier::device;
  answer.node = device ? tree_->device_victim() : tree_->host_victim();
  if (answer.node == NodeId::none) return nullptr;
  const Node& node = tree_->node(answer.node);
  answer.device_pages = node.facts.pages;
  log_.add({device ? DecisionKind::evict_device : DecisionKind::evict_host,
            device && node.host.resident() ? Reason::demoted : Reason::lost, visitor_, node.keys().back(),
            node.facts.pages});
  return nullptr;
}

}  // namespace kvtwin
