// kvtwin's own eviction policy: evicts the leaf with the least expected saving per page and time.
// docs/internals/tide.md explains the model and the constants.
//
// Worth. A leaf's worth is the cost of computing its chain again (deeper tokens cost more) times the density of its
// expected returns (tide/returns.hpp): seconds saved per byte and second. A last page that is not full is evicted at
// once, unless such pages turn out to be used again as they are.
//
// Order. A leaf's worth changes as the leaf ages. Leaves are ordered by the worth that was computed last. For each
// evicted page, the worth of the next few leaves, by node number, is computed again. Leaves that are near to eviction,
// before or after, take their new place. The victim is computed again before it is returned. So some of many leaves are
// ordered by an earlier worth: from up to (leaves / leaves computed per evicted page) evictions ago.
//
// Queue and hints. A page that a waiting request wants has a known next use: the request's place in the queue times the
// pace of requests. Session ends and tool calls are facts of the regression, like all others. Pinned sessions stay
// until the pin ends, in a fifth of the tier at most, unless there is nothing else to evict.
//
// Guard. LruShadow tells what LRU would have saved in each visit. TideDuel decides from it whether the leaves are
// evicted in LRU's order or in tide's own order. On storage tiers no visit tells which pages it used, so there is
// nothing to judge by or to learn from, and the order stays LRU's.
#include <algorithm>
#include <array>
#include <unordered_set>
#include <utility>
#include <vector>

#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/eviction/tide/duel.hpp"
#include "policy/eviction/tide/lru_shadow.hpp"
#include "policy/eviction/tide/mark.hpp"
#include "policy/eviction/tide/pins.hpp"
#include "policy/eviction/tide/returns.hpp"
#include "policy/eviction/wanted.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kGhostsPerPage = 8;             // remembered pages per page of the tier
constexpr std::uint32_t kRescoreAllMaxLeaves = 64;      // with so few leaves, all are computed again
constexpr TimeNs kMaxRequestGap = 3600 * kNsPerSecond;  // a longer gap between two requests counts as this
constexpr std::uint64_t kPriorReturnsOfTails = 64;      // a prior, added to the returns that were seen
// LRU's order keeps last pages that are not full only if more than one visit in this many uses such a page again.
constexpr std::uint64_t kVisitsPerPartialReuse = 128;
// While as many pages are evicted as the tier holds, each leaf is computed again kRescoresPerTurnover times; per
// evicted page at most kMaxRescoresPerEvictedPage leaves are due, at a time at most kMaxRescoresAtOnce; for each of
// them, at most kMaxNodesScannedPerRescore node numbers are looked at.
constexpr std::uint64_t kRescoresPerTurnover = 256, kMaxRescoresPerEvictedPage = 8, kMaxRescoresAtOnce = 8192,
                        kMaxNodesScannedPerRescore = 16;
constexpr std::uint64_t kDuePerLeaf = 64;  // due_ is in units of 1/kDuePerLeaf leaf
constexpr std::uint64_t kPartialBit = 1U << 13, kMaxCost = kPartialBit - 1;
constexpr std::uint64_t kNearFactor = 8;  // a leaf worth more than this times the least worth keeps its place for now
// Leaves that move to the other order: at the switch, and then with each victim.
constexpr std::size_t kLeavesMovedAtSwitch = 4096, kLeavesMovedPerVictim = 2;

class Tide final : public EvictionPolicy, public LearnsFromVisits, public LooksAhead, public TakesHints {
 public:
  explicit Tide(const EvictionSetup& setup)
      : setup_(setup), ghosts_(kGhostsPerPage * setup.capacity, setup), lru_(setup.capacity), pins_(setup.capacity) {}

  void visit(const Visit& visit) override;
  void entered(const PolicyNode& node) override { enter(node, nullptr); }
  void copied(const PolicyNode& node, const PolicyMarks& elsewhere) override { enter(node, &elsewhere); }
  void touched(const PolicyNode& node) override;
  void split(const PolicyNode& upper, const PolicyNode& lower) override;
  void evicted(const PolicyNode& node, Pages pages) override;
  Pages shared_history_prefix(std::span<const PageKey> keys) const override;

  void hint(const Hint& hint, TimeNs time) override;
  void queued(RequestId request, std::span<const PageKey> keys) override;
  void unqueued(RequestId request) override { wanted_.unqueued(request); }

  void offer(const PolicyNode& node) override;
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override;
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  // What is known about a session. Another session may take the entry.
  struct Session {
    std::uint64_t session = 0;
    RecordId record = kNoRecord;
    NodeId tail = NodeId::none;  // the end of its path
  };
  // What is known about a leaf beyond its marks.
  struct Claim {
    RequestId wanted_by = kNoRequest;  // the first waiting request that wants the leaf
    RecordId record = kNoRecord;       // the record of its last use; a pin may hold that record
  };

  // Counts over the last first visits: all visits; visits that continued a conversation; visits whose last page was not
  // full; such pages that were used again.
  struct Ends {
    std::uint64_t visits = 0, returns = 0, partial = 0, reused = 0;
  };

  bool on_path(const PolicyNode& node) const;
  void ensure_resolved() {
    if (!resolved_) resolve_path(0, {});
  }
  void resolve_path(Pages resident, const TideMark& last);
  void start_record(RecordId record);
  void enter(const PolicyNode& node, const PolicyMarks* elsewhere);
  TideMark mark_of_brought(const PolicyMarks* elsewhere, RecordId record, std::uint64_t ways) const;
  void mark_used(const PolicyNode& node, TideMark mark);

  void pin(const Session& session, const Hint& hint, TimeNs time);
  void rescore_tail(const Session& session);
  Session& session_of(std::uint64_t session) { return sessions_[session % sessions_.size()]; }

  Outlook outlook_of(const TideMark& mark) const;
  std::uint64_t cost_of(const PolicyNode& node) const;
  std::uint64_t worth(NodeId node, const LeafRank& rank) const;
  std::uint64_t density_after(std::uint64_t requests) const;
  void rescore_all();
  LeafRank scored(NodeId node, const LeafRank& rank) const { return {worth(node, rank), rank.second, rank.third}; }
  void rescore(NodeId node) { leaves_.set(node, order(), scored(node, leaves_.rank_of(node))); }
  void rescore_in_turn();
  std::int64_t saved_cost(Pages pages) const;
  void judge();
  std::size_t order() const { return duel_.as_lru() ? 1 : 0; }
  void move_to_order(std::size_t leaves);

  EvictionSetup setup_;
  Returns returns_;
  Ghosts ghosts_;  // value: 256 times the record of the last use, plus the ways; 0 ways: a last page that was not full
  LeafLists leaves_{2};              // list 0 by worth, list 1 in LRU's order
  std::size_t rescore_cursor_ = 0;   // the node number that is computed again next
  std::uint64_t due_ = kDuePerLeaf;  // in 1/kDuePerLeaf leaf
  std::vector<NodeId> leaves_to_rescore_;
  std::vector<std::pair<RecordId, Pages>> users_;  // of pages that come back, in order: the record of their last use

  // The visit at work.
  RecordId record_ = kNoRecord;
  TimeNs now_ = 0;
  Returns::Facts facts_;
  std::vector<PageKey> path_;
  Pages full_pages_ = 0;
  std::unordered_set<NodeId> brought_,
      brought_for_;  // nodes that entered off the path: since the last visit; just before this visit
  bool first_ = false, resolved_ = true, partial_ = false, judged_ = true;
  Ends ends_;
  std::uint64_t partial_worth_ = 0;  // of a last page that is not full, in 1/16 of a full page's worth
  bool partial_counts_ = false;      // such pages count like others in LRU's order
  TideMark mark_;                    // for the nodes that the visit uses
  std::uint64_t session_ = 0;
  // Requests are at work by turns. The record of each request's last visit; another request may take the entry.
  std::array<std::pair<RequestId, RecordId>, 4096> requests_{};
  RequestId request_ = kNoRequest;

  std::array<Session, 4096> sessions_{};
  Wanted wanted_;
  TimeNs last_visit_ = -1, pace_ = 0;  // pace_: time between two requests
  std::vector<Claim> claims_;          // by NodeId; empty until there is a claim

  LruShadow lru_;
  TidePins pins_;
  TideDuel duel_;
  Pages known_pages_ = 0, lru_pages_ = 0, own_pages_ = 0;  // pages of the visit: remembered, hits of LRU, hits
};

// ---- visits

void Tide::visit(const Visit& visit) {
  ensure_resolved();
  if (!judged_) {
    judge();
    returns_.learn();
  }
  now_ = visit.time;
  due_ = std::min(due_ + kDuePerLeaf, kDuePerLeaf * kMaxRescoresAtOnce);
  path_.assign(visit.keys.begin(), visit.keys.end());
  full_pages_ = std::min<Pages>(path_.size(), (visit.prompt_tokens + visit.output_tokens) / setup_.page_tokens);
  if (!visit.further) full_pages_ = std::min<Pages>(path_.size(), visit.prompt_tokens / setup_.page_tokens);
  partial_ = full_pages_ < path_.size();
  facts_ = {visit.time, visit.prompt_tokens, visit.output_tokens, full_pages_, 0, 0, kNoRecord};
  request_ = visit.request;
  session_ = visit.session;
  lru_pages_ = own_pages_ = 0;
  first_ = !visit.further;
  resolved_ = visit.further;
  brought_for_.swap(brought_);
  brought_.clear();
  pins_.expire(now_);
  lru_.resize(setup_.capacity - pins_.pages());
  if (visit.further) {
    const auto& [request, record] = requests_[visit.request % requests_.size()];
    start_record(returns_.continue_record(request == visit.request ? record : kNoRecord, facts_));
  } else {
    if (last_visit_ >= 0) pace_ += (std::min(now_ - last_visit_, kMaxRequestGap) - pace_) / 64;
    last_visit_ = now_;
    if (++ends_.visits == TideDuel::kMemoryVisits) {
      for (std::uint64_t* const count : {&ends_.visits, &ends_.returns, &ends_.partial, &ends_.reused}) *count /= 2;
    }
    ends_.partial += partial_ ? 1 : 0;
    const std::uint64_t expected = (ends_.returns + kPriorReturnsOfTails) * ends_.partial;  // times ends_.visits
    partial_worth_ =
        std::min<std::uint64_t>(16, 16 * ends_.reused * ends_.visits / std::max<std::uint64_t>(1, expected));
    partial_counts_ = ends_.reused * kVisitsPerPartialReuse > ends_.visits;
  }
}

bool Tide::on_path(const PolicyNode& node) const {
  const Pages end = node.facts.depth_pages;
  return end > 0 && end <= path_.size() && path_[end - 1] == node.keys.back();
}

// Called as soon as the resident part of the path and the mark `last` at its end are known.
void Tide::resolve_path(Pages resident, const TideMark& last) {
  resolved_ = true;
  RecordId before = last.record;
  std::uint64_t ways = last.ways;
  Pages known = resident;
  Ghosts::Walk walk;
  for (; known < full_pages_; ++known) {
    const std::uint64_t* const ghost = ghosts_.find(path_[known], walk);
    if (ghost == nullptr) break;
    before = *ghost >> 8;
    ways = *ghost & 0xff;
    if (lru_.holds(before)) lru_pages_ = known + 1;
  }
  known_pages_ = known;
  if (known == full_pages_ && partial_) {
    const std::uint64_t* const ghost = ghosts_.find(path_.back(), walk);
    if (ghost != nullptr) known_pages_ = path_.size();
    if (ghost != nullptr && lru_.holds(*ghost >> 8)) lru_pages_ = path_.size();
  }
  before = returns_.latest(before);
  facts_.known = known;
  facts_.known_tokens = known * setup_.page_tokens;
  // A prefix that many conversations share tells nothing about the previous visit, unless it is all of that visit's
  // path.
  const bool goes_on = known > 0 && (ways < 2 || known + 1 >= returns_.pages_of(before));
  if (goes_on) facts_.previous = before;
  ends_.returns += goes_on ? 1 : 0;
  start_record(returns_.begin(facts_));
  judged_ = false;
}

void Tide::start_record(RecordId record) {
  record_ = record;
  lru_.begin_visit();
  const Outlook outlook = returns_.outlook(record_);
  mark_ = {record_, 0, static_cast<std::uint64_t>(now_) >> 20, 1, outlook.chance, outlook.gap_class, false};
  requests_[request_ % requests_.size()] = {request_, record_};
  if (session_ == 0) return;
  session_of(session_) = {session_, record_, NodeId::none};
  pins_.follow(session_, record_, returns_.pages_of(record_));
}

// The node is on the visit's path. `mark`: the node's mark before the visit.
void Tide::mark_used(const PolicyNode& node, TideMark mark) {
  TideMark now = mark_;
  const Pages end = node.facts.depth_pages;
  now.next = mark.next;
  now.ways = std::max<std::uint64_t>(1, mark.ways);
  if (end < path_.size()) {
    const std::uint64_t next = path_[end].words[0] & 0xffffff;
    if (mark.next != 0 && next != mark.next) now.ways = std::min<std::uint64_t>(255, now.ways + 1);
    now.next = next;
  }
  now.partial = partial_ && end == path_.size();
  node.marks = now.packed();
  if (end == full_pages_ && session_ != 0) session_of(session_).tail = node.id;
}

void Tide::touched(const PolicyNode& node) {
  TideMark mark = TideMark::of(node.marks);
  if (!on_path(node)) {  // brought for a later visit
    mark.time = static_cast<std::uint64_t>(now_) >> 20;
    node.marks = mark.packed();
    return;
  }
  if (!resolved_) resolve_path(node.facts.depth_pages, mark);
  // A node that was loaded for this visit was no hit.
  if (!brought_for_.contains(node.id)) own_pages_ = std::max<Pages>(own_pages_, node.facts.depth_pages);
  if (mark.record != record_) {
    ends_.reused += first_ && mark.partial ? 1 : 0;
    if (lru_.holds(mark.record)) lru_pages_ = std::max<Pages>(lru_pages_, node.facts.depth_pages);
    lru_.move(node.keys.size(), mark.record, record_);
  }
  mark_used(node, mark);
}

// A node on the visit's path is used. Any other node was brought for a later visit or is a copy of what leaves another
// tier; its last use is the last known one.
void Tide::enter(const PolicyNode& node, const PolicyMarks* elsewhere) {
  const bool used = on_path(node);
  if (used) ensure_resolved();
  RecordId last = kNoRecord;
  std::uint64_t ways = 0;
  Pages remembered = 0;
  users_.clear();
  ghosts_.recall_each(node.keys, [&](auto, std::uint64_t value) {
    last = value >> 8;
    ways = value & 0xff;
    ends_.reused += first_ && used && ways == 0 ? 1 : 0;
    ++remembered;
    if (users_.empty() || users_.back().first != last) users_.emplace_back(last, 0);
    ++users_.back().second;
  });
  const TideMark mark = used && elsewhere == nullptr ? TideMark{.ways = ways} : mark_of_brought(elsewhere, last, ways);
  const RecordId user = used ? record_ : mark.record;
  lru_.move(node.keys.size() - remembered, kNoRecord, user);
  for (const auto& [before, pages] : users_) {
    if (before != user) lru_.move(pages, before, user);
  }
  if (used) {
    mark_used(node, mark);
  } else {
    node.marks = mark.packed();
    brought_.insert(node.id);
  }
}

TideMark Tide::mark_of_brought(const PolicyMarks* elsewhere, RecordId record, std::uint64_t ways) const {
  TideMark mark;
  if (elsewhere != nullptr) {
    mark = TideMark::of(*elsewhere);
  } else if (returns_.knows(record)) {
    const Outlook outlook = returns_.outlook(record);
    mark = {record,           0, static_cast<std::uint64_t>(returns_.time_of(record)) >> 20, ways, outlook.chance,
            outlook.gap_class};
  } else {
    mark = {record, 0, static_cast<std::uint64_t>(now_) >> 20, ways, Returns::kChances / 4, 2};
  }
  return mark;
}

void Tide::split(const PolicyNode& upper, const PolicyNode& lower) {
  TideMark mark = TideMark::of(upper.marks);
  mark.next = lower.keys.front().words[0] & 0xffffff;
  mark.ways = 1;
  mark.partial = false;
  upper.marks = mark.packed();
}

void Tide::evicted(const PolicyNode& node, Pages pages) {
  TideMark mark = TideMark::of(node.marks);
  std::span<const PageKey> full = node.keys;
  if (mark.partial) {
    ghosts_.remember_tail(full, 1, mark.record << 8);
    full = full.first(full.size() - 1);
    mark.partial = false;
    if (pages < node.keys.size()) node.marks = mark.packed();  // for the rest of the node
  }
  ghosts_.remember_tail(full, pages - (node.keys.size() - full.size()),
                        mark.record << 8 | std::max<std::uint64_t>(1, mark.ways));
  const std::uint64_t each = kDuePerLeaf * kRescoresPerTurnover * leaves_.size() / std::max<Pages>(1, setup_.capacity);
  due_ = std::min(due_ + std::min(each, kDuePerLeaf * kMaxRescoresPerEvictedPage) * pages,
                  kDuePerLeaf * kMaxRescoresAtOnce);
}

// A last page that is not full becomes a node of its own.
Pages Tide::shared_history_prefix(std::span<const PageKey> keys) const {
  const bool ends = partial_ && keys.back() == path_.back();
  return wanted_.equally_wanted_prefix(ends && keys.size() > 1 ? keys.first(keys.size() - 1) : keys);
}

// ---- hints

void Tide::hint(const Hint& hint, TimeNs time) {
  if (hint.subject == 0 || hint.kind == HintKind::abort) return;
  if (hint.kind == HintKind::unpin) pins_.unpin(hint.subject);
  Session& session = session_of(hint.subject);
  if (session.session != hint.subject) return;
  if (hint.kind == HintKind::session_end) returns_.note_hint(session.record, SessionHint::ends);
  if (hint.kind == HintKind::tool_call_pending) returns_.note_hint(session.record, SessionHint::awaits_tool);
  if (hint.kind == HintKind::pin) pin(session, hint, time);
  rescore_tail(session);
}

void Tide::pin(const Session& session, const Hint& hint, TimeNs time) {
  constexpr TimeNs kMs = 1'000'000;
  const bool bounded = hint.value > 0 && hint.value < (TidePins::kForever - time) / kMs;
  const TimeNs until = bounded ? time + hint.value * kMs : TidePins::kForever;
  claims_.resize(std::max<std::size_t>(1, claims_.size()));
  pins_.pin(session.session, session.record, returns_.pages_of(session.record), until);
}

// Computes the worth of the session's tail again, if the tail is on offer.
void Tide::rescore_tail(const Session& session) {
  if (session.tail == NodeId::none || !leaves_.contains(session.tail) || !returns_.knows(session.record)) return;
  const LeafRank& rank = leaves_.rank_of(session.tail);
  // Another record may have used the tail since.
  if (rank.second >> 24 != static_cast<std::uint64_t>(returns_.time_of(session.record)) >> 20) return;
  const Outlook outlook = returns_.outlook(session.record);
  const std::uint64_t about = (rank.second & ~(std::uint64_t{0x3ff} << 14)) | std::uint64_t{outlook.chance} << 18 |
                              std::uint64_t{outlook.gap_class} << 14;
  if (!claims_.empty()) {
    const auto node = static_cast<std::size_t>(session.tail);
    if (node >= claims_.size()) claims_.resize(node + 1);
    claims_[node].record = session.record;
  }
  leaves_.set(session.tail, order(), scored(session.tail, {0, about, rank.third}));
}

void Tide::queued(RequestId request, std::span<const PageKey> keys) {
  wanted_.queued(request, keys);
  claims_.resize(std::max<std::size_t>(1, claims_.size()));
}

// ---- worth

// A node with several different continuations is likely to be used again, by any conversation.
Outlook Tide::outlook_of(const TideMark& mark) const {
  Outlook outlook{static_cast<std::uint8_t>(mark.chance), static_cast<std::uint8_t>(mark.gap_class)};
  if (returns_.knows(mark.record)) outlook = returns_.outlook(mark.record);
  if (mark.ways >= 2) {
    const std::uint64_t shared = Returns::kChances - 2 * Returns::kChances / (2 * mark.ways + 1);
    const std::uint64_t chance = std::max<std::uint64_t>(outlook.chance, shared);
    outlook.chance = static_cast<std::uint8_t>(std::min<std::uint64_t>(chance, Returns::kChances - 1));
  }
  return outlook;
}

// A leaf's rank:
//   first    the worth
//   second   time of the last use (40 bits), chance (6), gap class (4), partial (1), cost (13)
//   third    number of the last access (44 bits), insertion number (20), for leaves with one last access
void Tide::offer(const PolicyNode& node) {
  const TideMark mark = TideMark::of(node.marks);
  const Outlook outlook = outlook_of(mark);
  const std::uint64_t about = mark.time << 24 | std::uint64_t{outlook.chance} << 18 |
                              std::uint64_t{outlook.gap_class} << 14 | (mark.partial ? kPartialBit : 0) | cost_of(node);
  if (!claims_.empty()) {
    const auto id = static_cast<std::size_t>(node.id);
    if (id >= claims_.size()) claims_.resize(id + 1);
    claims_[id] = {wanted_.first(node.keys.back()), mark.record};
  }
  leaves_.set(node.id, order(),
              scored(node.id, {0, about, node.facts.last_access << 20 | (node.facts.inserted & 0xfffff)}));
}

// The average over the chain from the root to the leaf: a policy that evicts a chain loses all of it in the end,
// starting with its end.
std::uint64_t Tide::cost_of(const PolicyNode& node) const {
  const Tokens depth = node.facts.depth_pages * setup_.page_tokens;
  return std::min<std::uint64_t>(kMaxCost, 64 + 32 * depth / std::max<Tokens>(1, setup_.doubling_tokens));
}

// The worth of a last page that is not full is multiplied by how often such pages are used again, compared with how
// often conversations continue.
// The next use of a page that a waiting request wants is known: about as many requests from now as wait before that
// request. A page that no waiting request wants is not used before all waiting requests are served.
std::uint64_t Tide::worth(NodeId node, const LeafRank& rank) const {
  constexpr std::uint64_t kPinnedWorth = std::uint64_t{1} << 63, kWantedWorth = std::uint64_t{1} << 62;
  const std::uint64_t about = rank.second, if_wanted = about & kMaxCost;
  const std::uint64_t cost = (about & kPartialBit) != 0 ? if_wanted * partial_worth_ / 16 : if_wanted;
  const Outlook outlook{static_cast<std::uint8_t>(about >> 18 & 0x3f), static_cast<std::uint8_t>(about >> 14 & 0xf)};
  const TimeNs age = now_ - static_cast<TimeNs>((about >> 24) << 20);
  const auto id = static_cast<std::size_t>(node);
  const Claim claim = id < claims_.size() ? claims_[id] : Claim{};
  const RequestId first = wanted_.first_waiting(), last = wanted_.last_waiting();
  std::uint64_t worth = 0;
  if (claim.wanted_by != kNoRequest && first <= claim.wanted_by && claim.wanted_by <= last) {
    worth =
        duel_.as_lru() ? kWantedWorth - (claim.wanted_by - first) : density_after(claim.wanted_by - first) * if_wanted;
  } else if (duel_.as_lru() && (cost > 0 || partial_counts_)) {
    worth = rank.third;
  } else if (cost > 0) {
    std::uint64_t density = returns_.density(outlook, age);
    if (wanted_.any()) density = std::min(density, density_after(last - first + 1));
    worth = density * cost;
  }
  return pins_.holds(claim.record, now_) ? worth | kPinnedWorth : worth;
}

// Returns the density of a page that is used after `requests` more requests.
std::uint64_t Tide::density_after(std::uint64_t requests) const {
  constexpr std::uint64_t kMaxDensity = (std::uint64_t{1} << 49) - 1;
  const std::uint64_t us = std::min<std::uint64_t>(requests, 1U << 20) * (static_cast<std::uint64_t>(pace_) / 1'000);
  return std::min(kMaxDensity, (std::uint64_t{1} << 54) / (1 + us / 1'000));
}

void Tide::rescore_all() {
  leaves_to_rescore_.clear();
  for (const std::size_t list : {0U, 1U})
    leaves_.each(list, [this](NodeId node) { leaves_to_rescore_.push_back(node); });
  for (const NodeId node : leaves_to_rescore_) rescore(node);
}

void Tide::rescore_in_turn() {
  const std::uint64_t least = leaves_.smallest_rank(order()).first;
  if (least == 0) return;  // such leaves, as last pages that are not full, are evicted first anyway
  if (duel_.as_lru() && claims_.empty()) due_ = 0;  // no page was ever wanted or pinned, so no worth changes
  std::uint64_t rescores = due_ / kDuePerLeaf;
  for (std::uint64_t nodes = kMaxNodesScannedPerRescore * rescores; rescores > 0 && nodes > 0; --nodes) {
    rescore_cursor_ = rescore_cursor_ + 1 < leaves_.nodes() ? rescore_cursor_ + 1 : 0;
    const auto node = static_cast<NodeId>(rescore_cursor_);
    if (leaves_.list_of(node) != order()) continue;
    --rescores;
    const LeafRank& before = leaves_.rank_of(node);
    const LeafRank now = scored(node, before);
    if (std::min(before.first, now.first) / kNearFactor <= least) leaves_.set(node, order(), now);
  }
  due_ %= kDuePerLeaf;
}

NodeId Tide::victim() {
  if (leaves_.size() <= kRescoreAllMaxLeaves) {
    if (due_ > 0 || leaves_.size(1 - order()) > 0) rescore_all();
    due_ = 0;
    return leaves_.smallest(order());
  }
  move_to_order(kLeavesMovedPerVictim);
  rescore_in_turn();
  NodeId least = leaves_.smallest(order()), before = NodeId::none;
  for (int tries = 0; tries < 16 && least != before; ++tries) {
    rescore(least);
    before = least;
    least = leaves_.smallest(order());
  }
  return least;
}

// ---- guard

std::int64_t Tide::saved_cost(Pages pages) const {
  constexpr Tokens kMaxCostTokens = Tokens{1} << 36;  // so that products of it fit
  const Tokens tokens = std::min<Tokens>(pages * setup_.page_tokens, Tokens{1} << 31);
  return static_cast<std::int64_t>(
      std::min(kMaxCostTokens, tokens + tokens * tokens / (2 * std::max<Tokens>(1, setup_.doubling_tokens))));
}

// After a switch of the order, each leaf needs a new score. Leaves are scored again in the old order. With many leaves,
// the first ones may be evicted by their new score before the last ones have one.
void Tide::judge() {
  judged_ = true;
  if (duel_.judge({saved_cost(lru_pages_), saved_cost(known_pages_), saved_cost(own_pages_)}, setup_.follows_visits)) {
    move_to_order(kLeavesMovedAtSwitch);
  }
}

void Tide::move_to_order(std::size_t leaves) {
  const std::size_t from = 1 - order();
  for (; leaves > 0 && leaves_.size(from) > 0; --leaves) rescore(leaves_.smallest(from));
}

}  // namespace

std::unique_ptr<EvictionPolicy> make_tide(const EvictionSetup& setup) { return std::make_unique<Tide>(setup); }

}  // namespace kvtwin
