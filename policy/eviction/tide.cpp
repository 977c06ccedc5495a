// Seconds saved by a byte-second: what keeping a leaf will save (computing its chain again, deeper tokens costing more)
// times the rate at which its conversation is expected to come back for it (tide/returns.hpp). The least goes first;
// a last page that isn't full goes at once, unless such pages turn out to be used again as they are.
//
// A leaf's worth changes as it ages. Leaves are ordered by what they were worth when they were last asked, and for each
// page evicted the next few in turn, by their nodes' numbers, are asked again; those near to going, now or before, take
// their new place. What looks least is asked again before it goes. So of many leaves some are taken for what they were
// worth when as many pages ago as there are leaves to each asked.
// Who waits for a page is known to come for it, and about when: by its place in the queue and the pace of requests.
// Hints (session end, tool call) are learnt from like everything else; pins are kept until they end, a fifth of the
// tier at most, unless there is nothing else.
//
// Duel: what LRU would have saved of each visit is known from when its pages were last used (tide/lru_shadow.hpp).
// Leaves go in its order at first, and again once it has saved more than this one by as much as the two differ by in a
// few visits, or where it saves nearly all that is remembered. What was lost by then is owed, and paid off by a small
// share of what LRU misses of all that is remembered; then it is tried again. So what is lost stays small beside what
// there was to win. Where it isn't told what visits use, as of storage, there is nothing to judge by, nor to learn
// from: LRU's order stays.
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

constexpr std::uint64_t kGhosts = 8;              // times the tier's pages
constexpr std::uint32_t kAskAll = 64;             // where there are no more leaves, all are asked
constexpr TimeNs kSlowest = 3600 * kNsPerSecond;  // from one request to the next, as far as it counts
constexpr std::uint64_t kSomeReturns = 64;        // of conversations, before it counts whether last pages came back
constexpr std::uint64_t kFew =
    128;  // one in so many visits uses such a page again: too few for LRU's order to keep any
// How often each leaf is asked again while as many pages go as the tier holds; leaves to ask for each of them, and at a
// time, at most; so many nodes are gone through for each.
constexpr std::uint64_t kRounds = 256, kAskAgain = 8, kMostAtATime = 8192, kNodesEach = 16;
constexpr std::uint64_t kDue = 64;  // what is due is counted in such parts of a leaf
constexpr std::uint64_t kPartial = 1U << 13, kCosts = kPartial - 1;
constexpr std::uint64_t kNear = 8;  // times the least worth: who is worth more takes no new place yet
// Leaves that change over to another order: when it is taken, then whenever one is chosen.
constexpr std::size_t kMoveAtOnce = 4096, kMove = 2;

class Tide final : public EvictionPolicy, public LearnsFromVisits, public LooksAhead, public TakesHints {
 public:
  explicit Tide(const EvictionSetup& setup)
      : setup_(setup), gone_(kGhosts * setup.capacity, setup), lru_(setup.capacity), pins_(setup.capacity) {}

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
  // What was last heard of a session, where another hasn't taken its place.
  struct Session {
    std::uint64_t session = 0;
    RecordId record = kNoRecord;
    NodeId tail = NodeId::none;  // the end of its path
  };
  // What is known of a leaf beyond its marks.
  struct Claim {
    RequestId by = kNoRequest;       // waits for it
    RecordId pinned_as = kNoRecord;  // if that still is a pin's
  };

  // Of the last first visits: how many there were, how many of them went on from another, how many had a last page that
  // wasn't full; and how many pages that hadn't been they used again.
  struct Ends {
    std::uint64_t visits = 0, returns = 0, partial = 0, reused = 0;
  };

  bool on_path(const PolicyNode& node) const;
  void settle() {
    if (!resolved_) resolve(0, {});
  }
  void resolve(Pages resident, const TideMark& last);
  void start(RecordId record);
  void enter(const PolicyNode& node, const PolicyMarks* elsewhere);
  TideMark arrived(const PolicyMarks* elsewhere, RecordId record, std::uint64_t ways) const;
  void use(const PolicyNode& node, TideMark mark);

  void pin(const Session& session, const Hint& hint, TimeNs time);
  void renew(const Session& session);
  Session& session_of(std::uint64_t session) { return sessions_[session % sessions_.size()]; }

  Outlook outlook_of(const TideMark& mark) const;
  std::uint64_t cost_of(const PolicyNode& node) const;
  std::uint64_t worth(NodeId node, const LeafRank& rank) const;
  std::uint64_t density_in(std::uint64_t requests) const;
  void ask_all();
  LeafRank asked(NodeId node, const LeafRank& rank) const { return {worth(node, rank), rank.second, rank.third}; }
  void ask_again(NodeId node) { leaves_.set(node, order(), asked(node, leaves_.rank_of(node))); }
  void ask_in_turn();
  std::int64_t saved(Pages pages) const;
  void judge();
  std::size_t order() const { return duel_.as_lru() ? 1 : 0; }
  void move_over(std::size_t leaves);

  EvictionSetup setup_;
  Returns returns_;
  Ghosts gone_;               // 256 times who used it last, plus the ways; no ways: of a page that wasn't full
  LeafLists leaves_{2};       // by their worth, and in LRU's order
  std::size_t turn_ = 0;      // whose turn it is to be asked
  std::uint64_t due_ = kDue;  // in 1/kDue of a leaf
  std::vector<NodeId> all_;
  std::vector<std::pair<RecordId, Pages>> users_;  // of pages that come back, in order: the record of their last use

  // The visit at work.
  RecordId record_ = kNoRecord;
  TimeNs now_ = 0;
  Returns::Facts facts_;
  std::vector<PageKey> path_;
  Pages full_ = 0;
  std::unordered_set<NodeId> brought_, brought_for_;  // entered off a path since the last visit; just before this one
  bool first_ = false, resolved_ = true, partial_ = false, counted_ = true;
  Ends ends_;
  std::uint64_t partial_worth_ = 0;  // of a page that isn't full, in 1/16 of what a full one is worth
  bool partial_counts_ = false;      // like any other in LRU's order
  TideMark mark_;                    // for what it uses
  std::uint64_t session_ = 0;
  // Requests are at work by turns: the record of each one's last visit, where another hasn't taken its place.
  std::array<std::pair<RequestId, RecordId>, 4096> requests_{};
  RequestId request_ = kNoRequest;

  std::array<Session, 4096> sessions_{};
  Wanted wanted_;
  TimeNs last_visit_ = -1, pace_ = 0;  // from one request to the next
  std::vector<Claim> claims_;          // by NodeId, once there may be any

  LruShadow lru_;
  TidePins pins_;
  TideDuel duel_;
  Pages known_pages_ = 0, lru_pages_ = 0, own_pages_ = 0;  // that have been here, that LRU hits, that are hit
};

// ---- visits

void Tide::visit(const Visit& visit) {
  settle();
  if (!counted_) {
    judge();
    returns_.learn();
  }
  now_ = visit.time;
  due_ = std::min(due_ + kDue, kDue * kMostAtATime);
  path_.assign(visit.keys.begin(), visit.keys.end());
  full_ = std::min<Pages>(path_.size(), (visit.prompt_tokens + visit.output_tokens) / setup_.page_tokens);
  if (!visit.further) full_ = std::min<Pages>(path_.size(), visit.prompt_tokens / setup_.page_tokens);
  partial_ = full_ < path_.size();
  facts_ = {visit.time, visit.prompt_tokens, visit.output_tokens, full_, 0, 0, kNoRecord};
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
    start(returns_.again(request == visit.request ? record : kNoRecord, facts_));
  } else {
    if (last_visit_ >= 0) pace_ += (std::min(now_ - last_visit_, kSlowest) - pace_) / 64;
    last_visit_ = now_;
    if (++ends_.visits == TideDuel::kMemory) {
      for (std::uint64_t* const count : {&ends_.visits, &ends_.returns, &ends_.partial, &ends_.reused}) *count /= 2;
    }
    ends_.partial += partial_ ? 1 : 0;
    const std::uint64_t expected = (ends_.returns + kSomeReturns) * ends_.partial;  // times ends_.visits
    partial_worth_ =
        std::min<std::uint64_t>(16, 16 * ends_.reused * ends_.visits / std::max<std::uint64_t>(1, expected));
    partial_counts_ = ends_.reused * kFew > ends_.visits;
  }
}

bool Tide::on_path(const PolicyNode& node) const {
  const Pages end = node.facts.depth_pages;
  return end > 0 && end <= path_.size() && path_[end - 1] == node.keys.back();
}

// Now it is known how much of the path is there, and who used the last page of that before.
void Tide::resolve(Pages resident, const TideMark& last) {
  resolved_ = true;
  RecordId before = last.record;
  std::uint64_t ways = last.ways;
  Pages known = resident;
  Ghosts::Walk walk;
  for (; known < full_; ++known) {
    const std::uint64_t* const ghost = gone_.find(path_[known], walk);
    if (ghost == nullptr) break;
    before = *ghost >> 8;
    ways = *ghost & 0xff;
    if (lru_.holds(before)) lru_pages_ = known + 1;
  }
  known_pages_ = known;
  if (known == full_ && partial_) {
    const std::uint64_t* const ghost = gone_.find(path_.back(), walk);
    if (ghost != nullptr) known_pages_ = path_.size();
    if (ghost != nullptr && lru_.holds(*ghost >> 8)) lru_pages_ = path_.size();
  }
  before = returns_.latest(before);
  facts_.known = known;
  facts_.known_tokens = known * setup_.page_tokens;
  // What many share tells nothing of where one has been, unless it is all that was there.
  const bool goes_on = known > 0 && (ways < 2 || known + 1 >= returns_.pages_of(before));
  if (goes_on) facts_.previous = before;
  ends_.returns += goes_on ? 1 : 0;
  start(returns_.begin(facts_));
  counted_ = false;
}

void Tide::start(RecordId record) {
  record_ = record;
  lru_.begin_visit();
  const Outlook outlook = returns_.outlook(record_);
  mark_ = {record_, 0, static_cast<std::uint64_t>(now_) >> 20, 1, outlook.chance, outlook.gap_class, false};
  requests_[request_ % requests_.size()] = {request_, record_};
  if (session_ == 0) return;
  session_of(session_) = {session_, record_, NodeId::none};
  pins_.follow(session_, record_, returns_.pages_of(record_));
}

// The node is on the visit's path; `mark` is what was known of it.
void Tide::use(const PolicyNode& node, TideMark mark) {
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
  if (end == full_ && session_ != 0) session_of(session_).tail = node.id;
}

void Tide::touched(const PolicyNode& node) {
  TideMark mark = TideMark::of(node.marks);
  if (!on_path(node)) {  // read ahead of the visit that it is for
    mark.time = static_cast<std::uint64_t>(now_) >> 20;
    node.marks = mark.packed();
    return;
  }
  if (!resolved_) resolve(node.facts.depth_pages, mark);
  // What was loaded for it wasn't there.
  if (!brought_for_.contains(node.id)) own_pages_ = std::max<Pages>(own_pages_, node.facts.depth_pages);
  if (mark.record != record_) {
    ends_.reused += first_ && mark.partial ? 1 : 0;
    if (lru_.holds(mark.record)) lru_pages_ = std::max<Pages>(lru_pages_, node.facts.depth_pages);
    lru_.move(node.keys.size(), mark.record, record_);
  }
  use(node, mark);
}

// On the visit's path it is used. Else it was brought, as far as is known after its last use: ahead of a visit, or as a
// copy of what is leaving another tier.
void Tide::enter(const PolicyNode& node, const PolicyMarks* elsewhere) {
  const bool used = on_path(node);
  if (used) settle();
  RecordId last = kNoRecord;
  std::uint64_t ways = 0;
  Pages remembered = 0;
  users_.clear();
  gone_.recall_each(node.keys, [&](auto, std::uint64_t value) {
    last = value >> 8;
    ways = value & 0xff;
    ends_.reused += first_ && used && ways == 0 ? 1 : 0;
    ++remembered;
    if (users_.empty() || users_.back().first != last) users_.emplace_back(last, 0);
    ++users_.back().second;
  });
  const TideMark mark = used && elsewhere == nullptr ? TideMark{.ways = ways} : arrived(elsewhere, last, ways);
  const RecordId user = used ? record_ : mark.record;
  lru_.move(node.keys.size() - remembered, kNoRecord, user);
  for (const auto& [before, pages] : users_) {
    if (before != user) lru_.move(pages, before, user);
  }
  if (used) {
    use(node, mark);
  } else {
    node.marks = mark.packed();
    brought_.insert(node.id);
  }
}

TideMark Tide::arrived(const PolicyMarks* elsewhere, RecordId record, std::uint64_t ways) const {
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
    gone_.put_tail(full, 1, mark.record << 8);
    full = full.first(full.size() - 1);
    mark.partial = false;
    if (pages < node.keys.size()) node.marks = mark.packed();  // of what is left of it
  }
  gone_.put_tail(full, pages - (node.keys.size() - full.size()),
                 mark.record << 8 | std::max<std::uint64_t>(1, mark.ways));
  const std::uint64_t each = kDue * kRounds * leaves_.size() / std::max<Pages>(1, setup_.capacity);
  due_ = std::min(due_ + std::min(each, kDue * kAskAgain) * pages, kDue * kMostAtATime);
}

// A last page that isn't full becomes a node of its own.
Pages Tide::shared_history_prefix(std::span<const PageKey> keys) const {
  const bool ends = partial_ && keys.back() == path_.back();
  return wanted_.equally_wanted_prefix(ends && keys.size() > 1 ? keys.first(keys.size() - 1) : keys);
}

// ---- what is said

void Tide::hint(const Hint& hint, TimeNs time) {
  if (hint.subject == 0 || hint.kind == HintKind::abort) return;
  if (hint.kind == HintKind::unpin) pins_.unpin(hint.subject);
  Session& session = session_of(hint.subject);
  if (session.session != hint.subject) return;
  if (hint.kind == HintKind::session_end) returns_.say(session.record, Said::ends);
  if (hint.kind == HintKind::tool_call_pending) returns_.say(session.record, Said::awaits_tool);
  if (hint.kind == HintKind::pin) pin(session, hint, time);
  renew(session);
}

void Tide::pin(const Session& session, const Hint& hint, TimeNs time) {
  constexpr TimeNs kMs = 1'000'000;
  const bool bounded = hint.value > 0 && hint.value < (TidePins::kForever - time) / kMs;
  const TimeNs until = bounded ? time + hint.value * kMs : TidePins::kForever;
  claims_.resize(std::max<std::size_t>(1, claims_.size()));
  pins_.pin(session.session, session.record, returns_.pages_of(session.record), until);
}

// The end of its path, if that is on offer.
void Tide::renew(const Session& session) {
  if (session.tail == NodeId::none || !leaves_.contains(session.tail) || !returns_.knows(session.record)) return;
  const LeafRank& rank = leaves_.rank_of(session.tail);
  // Another may have taken it over since.
  if (rank.second >> 24 != static_cast<std::uint64_t>(returns_.time_of(session.record)) >> 20) return;
  const Outlook outlook = returns_.outlook(session.record);
  const std::uint64_t about = (rank.second & ~(std::uint64_t{0x3ff} << 14)) | std::uint64_t{outlook.chance} << 18 |
                              std::uint64_t{outlook.gap_class} << 14;
  if (!claims_.empty()) {
    const auto node = static_cast<std::size_t>(session.tail);
    if (node >= claims_.size()) claims_.resize(node + 1);
    claims_[node].pinned_as = session.record;
  }
  leaves_.set(session.tail, order(), asked(session.tail, {0, about, rank.third}));
}

void Tide::queued(RequestId request, std::span<const PageKey> keys) {
  wanted_.queued(request, keys);
  claims_.resize(std::max<std::size_t>(1, claims_.size()));
}

// ---- worth

// What many ways lead on from will be used again, by whomever.
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

// A leaf's rank: its worth; the time of its last use (40 bits), chance, class, is it partial, cost (6, 4, 1 and 13
// bits); which access was its last (44 bits) and which insertion its own: where one access is the last of two leaves.
void Tide::offer(const PolicyNode& node) {
  const TideMark mark = TideMark::of(node.marks);
  const Outlook outlook = outlook_of(mark);
  const std::uint64_t about = mark.time << 24 | std::uint64_t{outlook.chance} << 18 |
                              std::uint64_t{outlook.gap_class} << 14 | (mark.partial ? kPartial : 0) | cost_of(node);
  if (!claims_.empty()) {
    const auto id = static_cast<std::size_t>(node.id);
    if (id >= claims_.size()) claims_.resize(id + 1);
    claims_[id] = {wanted_.first(node.keys.back()), mark.record};
  }
  leaves_.set(node.id, order(),
              asked(node.id, {0, about, node.facts.last_access << 20 | (node.facts.inserted & 0xfffff)}));
}

// From the root to here, on average: who evicts a chain loses all of it in the end, and its end first.
std::uint64_t Tide::cost_of(const PolicyNode& node) const {
  const Tokens depth = node.facts.depth_pages * setup_.page_tokens;
  return std::min<std::uint64_t>(kCosts, 64 + 32 * depth / std::max<Tokens>(1, setup_.doubling_tokens));
}

// A page that isn't full counts for as much as such pages are used again while conversations go on.
// Of what somebody waits for it is known when it will be used, as it is: about as many requests from now as wait before
// that one. And what nobody waits for won't be before all that wait have been served.
std::uint64_t Tide::worth(NodeId node, const LeafRank& rank) const {
  constexpr std::uint64_t kPinnedWorth = std::uint64_t{1} << 63, kWantedWorth = std::uint64_t{1} << 62;
  const std::uint64_t about = rank.second, if_wanted = about & kCosts;
  const std::uint64_t cost = (about & kPartial) != 0 ? if_wanted * partial_worth_ / 16 : if_wanted;
  const Outlook outlook{static_cast<std::uint8_t>(about >> 18 & 0x3f), static_cast<std::uint8_t>(about >> 14 & 0xf)};
  const TimeNs age = now_ - static_cast<TimeNs>((about >> 24) << 20);
  const auto id = static_cast<std::size_t>(node);
  const Claim claim = id < claims_.size() ? claims_[id] : Claim{};
  const RequestId first = wanted_.first_waiting(), last = wanted_.last_waiting();
  std::uint64_t worth = 0;
  if (claim.by != kNoRequest && first <= claim.by && claim.by <= last) {
    worth = duel_.as_lru() ? kWantedWorth - (claim.by - first) : density_in(claim.by - first) * if_wanted;
  } else if (duel_.as_lru() && (cost > 0 || partial_counts_)) {
    worth = rank.third;
  } else if (cost > 0) {
    std::uint64_t density = returns_.density(outlook, age);
    if (wanted_.any()) density = std::min(density, density_in(last - first + 1));
    worth = density * cost;
  }
  return pins_.holds(claim.pinned_as, now_) ? worth | kPinnedWorth : worth;
}

// Of what is used after so many requests.
std::uint64_t Tide::density_in(std::uint64_t requests) const {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 49) - 1;
  const std::uint64_t us = std::min<std::uint64_t>(requests, 1U << 20) * (static_cast<std::uint64_t>(pace_) / 1'000);
  return std::min(kMost, (std::uint64_t{1} << 54) / (1 + us / 1'000));
}

void Tide::ask_all() {
  all_.clear();
  for (const std::size_t list : {0U, 1U}) leaves_.each(list, [this](NodeId node) { all_.push_back(node); });
  for (const NodeId node : all_) ask_again(node);
}

void Tide::ask_in_turn() {
  const std::uint64_t least = leaves_.smallest_rank(order()).first;
  if (least == 0) return;  // who is worth nothing goes first, as last pages do that aren't full
  if (duel_.as_lru() && claims_.empty()) due_ = 0;  // nobody was ever waited for or pinned: nobody's worth changes
  std::uint64_t asks = due_ / kDue;
  for (std::uint64_t nodes = kNodesEach * asks; asks > 0 && nodes > 0; --nodes) {
    turn_ = turn_ + 1 < leaves_.nodes() ? turn_ + 1 : 0;
    const auto node = static_cast<NodeId>(turn_);
    if (leaves_.list_of(node) != order()) continue;
    --asks;
    const LeafRank& before = leaves_.rank_of(node);
    const LeafRank now = asked(node, before);
    if (std::min(before.first, now.first) / kNear <= least) leaves_.set(node, order(), now);
  }
  due_ %= kDue;
}

NodeId Tide::victim() {
  if (leaves_.size() <= kAskAll) {
    if (due_ > 0 || leaves_.size(1 - order()) > 0) ask_all();
    due_ = 0;
    return leaves_.smallest(order());
  }
  move_over(kMove);
  ask_in_turn();
  NodeId least = leaves_.smallest(order()), before = NodeId::none;
  for (int tries = 0; tries < 16 && least != before; ++tries) {
    ask_again(least);
    before = least;
    least = leaves_.smallest(order());
  }
  return least;
}

// ---- duel

std::int64_t Tide::saved(Pages pages) const {
  constexpr Tokens kMost = Tokens{1} << 36;  // so that what is made of it fits
  const Tokens tokens = std::min<Tokens>(pages * setup_.page_tokens, Tokens{1} << 31);
  return static_cast<std::int64_t>(
      std::min(kMost, tokens + tokens * tokens / (2 * std::max<Tokens>(1, setup_.doubling_tokens))));
}

// When the other order is taken, each leaf's worth is another number: if there are many leaves, those that would have
// gone first by the old order get theirs in the new one first, and go by it.
void Tide::judge() {
  counted_ = true;
  if (duel_.judge({saved(lru_pages_), saved(known_pages_), saved(own_pages_)}, setup_.follows_visits)) {
    move_over(kMoveAtOnce);
  }
}

void Tide::move_over(std::size_t leaves) {
  const std::size_t from = 1 - order();
  for (; leaves > 0 && leaves_.size(from) > 0; --leaves) ask_again(leaves_.smallest(from));
}

}  // namespace

std::unique_ptr<EvictionPolicy> make_tide(const EvictionSetup& setup) { return std::make_unique<Tide>(setup); }

}  // namespace kvtwin
