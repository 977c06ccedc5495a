// Seconds saved by a byte-second: what keeping a leaf will save (computing its chain again, deeper tokens costing more)
// times the rate at which its conversation is expected to come back for it (tide/returns.hpp). The least goes first;
// a last page that isn't full can't be used again and goes at once.
//
// A leaf's worth changes as it ages. All leaves lie in a heap by the worth they had when it was last asked for, and
// for each page evicted the next few in turn are asked again; what looks least is asked again before it goes. So of
// many leaves some are taken for what they were worth when as many pages ago as there are leaves to each asked.
// Duel: what LRU would have saved of each visit is known from when its pages were last used (tide/lru_shadow.hpp).
// While LRU saves more, by more than chance explains, or nearly all that is remembered, leaves go in its order; after a
// while, each time a longer one, it is tried again.
#include <algorithm>
#include <utility>
#include <vector>

#include "policy/eviction/ghosts.hpp"
#include "policy/eviction/ranked_leaves.hpp"
#include "policy/eviction/tide/lru_shadow.hpp"
#include "policy/eviction/tide/returns.hpp"

namespace kvtwin {
namespace {

__extension__ using Wide = __int128;

constexpr std::uint64_t kGhosts = 8;    // times the tier's pages
constexpr std::uint32_t kAskAll = 64;   // where there are no more leaves, all are asked
constexpr std::uint32_t kAskAgain = 8;  // leaves, for each page that goes

// Of the duel, in visits: what it remembers, how long an order is kept at least, how long LRU's at most.
constexpr std::uint16_t kMemory = 8192;
constexpr std::uint64_t kTrial = 256, kMostPatience = 1 << 20;
// Where all that is remembered would save but a 64th more than LRU does, there is more to lose than to win.
constexpr std::uint64_t kLittle = 64;

// What is kept of a node: who used it last, how it is expected to go on, how many ways lead on from it.
struct Mark {
  std::uint64_t record = 0;  // 40 bits
  std::uint64_t next = 0;    // 24 bits of the page behind it on the last path that went on
  std::uint64_t time = 0;    // of its last use, in 2^20 ns; 40 bits
  std::uint64_t ways = 0;    // 8 bits
  std::uint64_t chance = 0, gap_class = 0;
  bool partial = false;

  static Mark of(const PolicyMarks& marks) {
    return {marks.first >> 24,        marks.first & 0xffffff, marks.second >> 24,        marks.second >> 16 & 0xff,
            marks.second >> 8 & 0x3f, marks.second & 0xf,     (marks.second & 0x10) != 0};
  }
  PolicyMarks packed() const {
    return {record << 24 | next, time << 24 | ways << 16 | chance << 8 | (partial ? 0x10U : 0U) | gap_class};
  }
};

class Tide final : public EvictionPolicy {
 public:
  explicit Tide(const EvictionSetup& setup) : setup_(setup), gone_(kGhosts * setup.capacity), lru_(setup.capacity) {}

  void visit(const Visit& visit) override;
  void entered(const PolicyNode& node) override;
  void touched(const PolicyNode& node) override;
  void split(const PolicyNode& upper, const PolicyNode& lower) override;
  void evicted(const PolicyNode& node, Pages pages) override;
  Pages alike(std::span<const PageKey> keys) const override;

  void offer(const PolicyNode& node) override;
  void withdraw(NodeId node) override { leaves_.remove(node); }
  NodeId victim() override;
  std::size_t offered() const override { return leaves_.size(); }
  bool is_offered(NodeId node) const override { return leaves_.contains(node); }

 private:
  void resolve(Pages resident, const Mark& last);
  void use(const PolicyNode& node, Mark mark);
  Outlook outlook_of(const Mark& mark) const;
  std::uint64_t worth(std::uint64_t about) const;
  void ask_all();
  void ask_again(NodeId node, const LeafRank& rank) { leaves_.set(node, {worth(rank.third), rank.second, rank.third}); }
  std::uint64_t saved(Pages pages) const;
  void judge();
  void take_order(bool as_lru);

  EvictionSetup setup_;
  Returns returns_;
  Ghosts gone_;  // 256 times who used it last, plus the ways
  RankedLeaves leaves_;
  std::size_t turn_ = 0;  // whose turn it is to be asked
  std::uint32_t due_ = 1;
  std::vector<std::pair<NodeId, LeafRank>> all_;

  // The visit at work.
  RequestId request_ = kNoRequest;
  RecordId record_ = kNoRecord;
  TimeNs now_ = 0;
  Returns::Facts facts_;
  std::vector<std::uint64_t> path_;  // its keys' first words
  Pages full_ = 0;
  bool resolved_ = true, partial_ = false, counted_ = true;
  Mark mark_;  // for what it uses

  LruShadow lru_;
  Pages lru_pages_ = 0, own_pages_ = 0;            // that it hits
  std::uint64_t lru_saved_ = 0, known_saved_ = 0;  // by the last visits
  Wide won_ = 0, squares_ = 0;                     // over LRU; of what each won or lost
  std::uint64_t judged_ = 0, patience_ = 1024;
  bool as_lru_ = false;
};

// ---- visits
// ----------------------------------------------------------------------------------------------------------

void Tide::visit(const Visit& visit) {
  const bool again = visit.further && visit.request == request_;
  if (!counted_) judge();
  now_ = visit.time;
  ++due_;
  path_.clear();
  for (const PageKey& key : visit.keys) path_.push_back(key.words[0]);
  full_ = std::min<Pages>(path_.size(), (visit.prompt_tokens + visit.output_tokens) / setup_.page_tokens);
  if (!visit.further) full_ = std::min<Pages>(path_.size(), visit.prompt_tokens / setup_.page_tokens);
  partial_ = full_ < path_.size();
  facts_ = {visit.time, visit.prompt_tokens, visit.output_tokens, full_, 0, 0, kNoRecord};
  resolved_ = false;
  request_ = visit.request;
  if (!again) record_ = kNoRecord;
  lru_pages_ = own_pages_ = 0;
}

// Now it is known how much of the path is there, and who used the last page of that before.
void Tide::resolve(Pages resident, const Mark& last) {
  resolved_ = true;
  if (record_ != kNoRecord) {  // the same request, further on
    returns_.extend(record_, facts_);
    const Outlook outlook = returns_.outlook(record_);
    mark_ = {record_, 0, static_cast<std::uint64_t>(now_) >> 20, 1, outlook.chance, outlook.gap_class, false};
    return;
  }
  own_pages_ = resident;
  Mark before = last;
  Pages known = resident;
  for (PageKey key; known < full_; ++known) {
    key.words[0] = path_[known];
    const std::uint64_t* const ghost = gone_.find(key);
    if (ghost == nullptr) break;
    before.record = *ghost >> 8;
    before.ways = *ghost & 0xff;
  }
  facts_.known = known;
  facts_.known_tokens = known * setup_.page_tokens;
  // What many share tells nothing of where one has been, unless it is all that was there.
  const bool goes_on = known > 0 && (before.ways < 2 || known + 1 >= returns_.pages_of(before.record));
  if (goes_on) facts_.previous = before.record;
  record_ = returns_.begin(facts_);
  lru_.begin_visit();
  counted_ = false;
  const Outlook outlook = returns_.outlook(record_);
  mark_ = {record_, 0, static_cast<std::uint64_t>(now_) >> 20, 1, outlook.chance, outlook.gap_class, false};
}

// The node is on the visit's path; `mark` is what was known of it.
void Tide::use(const PolicyNode& node, Mark mark) {
  Mark now = mark_;
  const Pages end = node.facts.depth_pages;
  now.next = mark.next;
  now.ways = std::max<std::uint64_t>(1, mark.ways);
  if (end < path_.size()) {
    const std::uint64_t next = path_[end] & 0xffffff;
    if (mark.next != 0 && next != mark.next) now.ways = std::min<std::uint64_t>(255, now.ways + 1);
    now.next = next;
  }
  now.partial = partial_ && end == path_.size();
  node.marks = now.packed();
}

void Tide::touched(const PolicyNode& node) {
  const Mark mark = Mark::of(node.marks);
  if (!resolved_) resolve(node.facts.depth_pages, mark);
  if (mark.record != record_) {
    if (lru_.holds(mark.record)) lru_pages_ = std::max<Pages>(lru_pages_, node.facts.depth_pages);
    lru_.move(node.keys.size(), mark.record);
  }
  use(node, mark);
}

void Tide::entered(const PolicyNode& node) {
  // Storage tiers don't tell depths.
  const Pages first = std::max<Pages>(node.facts.depth_pages, node.keys.size()) - node.keys.size();
  if (!resolved_) resolve(first, {});
  Mark mark;
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    const std::uint64_t* const ghost = gone_.find(node.keys[i]);
    const std::uint64_t last = ghost == nullptr ? 0 : *ghost >> 8;
    if (ghost != nullptr) mark.ways = *ghost & 0xff;
    if (last != record_) {
      if (last != 0 && lru_.holds(last)) lru_pages_ = std::max<Pages>(lru_pages_, first + i + 1);
      lru_.move(1, last);
    }
    if (ghost != nullptr) gone_.forget(node.keys[i]);
  }
  use(node, mark);
}

void Tide::split(const PolicyNode& upper, const PolicyNode& lower) {
  Mark mark = Mark::of(upper.marks);
  mark.next = lower.keys.front().words[0] & 0xffffff;
  mark.ways = 1;
  mark.partial = false;
  upper.marks = mark.packed();
}

void Tide::evicted(const PolicyNode& node, Pages pages) {
  const Mark mark = Mark::of(node.marks);
  for (std::size_t i = node.keys.size(); i > node.keys.size() - pages; --i) {
    gone_.put(node.keys[i - 1], mark.record << 8 | mark.ways);
  }
  due_ += kAskAgain * static_cast<std::uint32_t>(std::min<Pages>(pages, 1024));
}

// A last page that isn't full becomes a node of its own.
Pages Tide::alike(std::span<const PageKey> keys) const {
  const bool ends = partial_ && keys.back().words[0] == path_.back();
  return ends && keys.size() > 1 ? keys.size() - 1 : keys.size();
}

// ---- worth
// -----------------------------------------------------------------------------------------------------------

// What many ways lead on from will be used again, by whomever.
Outlook Tide::outlook_of(const Mark& mark) const {
  std::uint64_t chance = mark.chance;
  if (mark.ways >= 2) {
    const std::uint64_t shared = Returns::kChances - 2 * Returns::kChances / (2 * mark.ways + 1);
    chance = std::max(chance, std::min<std::uint64_t>(shared, Returns::kChances - 1));
  }
  return {static_cast<std::uint8_t>(chance), static_cast<std::uint8_t>(mark.gap_class)};
}

// About a leaf: the time of its last use (40 bits), chance, class and cost (6, 4 and 14 bits).
void Tide::offer(const PolicyNode& node) {
  const Mark mark = Mark::of(node.marks);
  const Outlook outlook = outlook_of(mark);
  // From the root to here, on average: who evicts a chain loses all of it in the end, and its end first.
  const Tokens depth = node.facts.depth_pages * setup_.page_tokens;
  const std::uint64_t cost =
      mark.partial ? 0 : std::min<std::uint64_t>(16383, 64 + 32 * depth / std::max<Tokens>(1, setup_.doubling_tokens));
  const std::uint64_t about =
      mark.time << 24 | std::uint64_t{outlook.chance} << 18 | std::uint64_t{outlook.gap_class} << 14 | cost;
  leaves_.set(node.id, {worth(about), node.facts.inserted, about});
}

std::uint64_t Tide::worth(std::uint64_t about) const {
  const std::uint64_t cost = about & 0x3fff;
  const Outlook outlook{static_cast<std::uint8_t>(about >> 18 & 0x3f), static_cast<std::uint8_t>(about >> 14 & 0xf)};
  const TimeNs age = now_ - static_cast<TimeNs>((about >> 24) << 20);
  if (cost == 0) return 0;
  return as_lru_ ? about >> 24 : returns_.density(outlook, age) * cost;
}

// Who is asked may go on to another place in the heap: a few are asked from a list of all.
void Tide::ask_all() {
  all_.clear();
  for (std::size_t i = 0; i < leaves_.size(); ++i) all_.emplace_back(leaves_.node_at(i), leaves_.rank_at(i));
  for (const auto& [node, rank] : all_) ask_again(node, rank);
}

NodeId Tide::victim() {
  if (leaves_.size() <= kAskAll) {
    if (due_ > 0) ask_all();
    due_ = 0;
    return leaves_.smallest();
  }
  for (; due_ > 0; --due_) {
    turn_ = turn_ + 1 < leaves_.size() ? turn_ + 1 : 0;
    ask_again(leaves_.node_at(turn_), leaves_.rank_at(turn_));
  }
  for (int tries = 0; tries < 16; ++tries) {
    const NodeId least = leaves_.smallest();
    ask_again(least, leaves_.rank_at(0));
    if (leaves_.smallest() == least) break;
  }
  return leaves_.smallest();
}

// ---- duel
// ------------------------------------------------------------------------------------------------------------

std::uint64_t Tide::saved(Pages pages) const {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 50;  // so that sums of squares fit
  const Tokens tokens = std::min<Tokens>(pages * setup_.page_tokens, Tokens{1} << 31);
  return std::min(kMost, tokens + tokens * tokens / (2 * std::max<Tokens>(1, setup_.doubling_tokens)));
}

void Tide::judge() {
  counted_ = true;
  ++judged_;
  const std::uint64_t own = saved(own_pages_), lru = saved(lru_pages_);
  lru_saved_ += lru - lru_saved_ / kMemory;
  known_saved_ += saved(facts_.known) - known_saved_ / kMemory;
  const bool little = known_saved_ < lru_saved_ + lru_saved_ / kLittle;
  if (as_lru_) {
    if (little || judged_ < patience_) return;
    return take_order(false);
  }
  const auto won = static_cast<Wide>(own) - static_cast<Wide>(lru);
  won_ += won - won_ / kMemory;
  squares_ += won * won - squares_ / kMemory;
  // Chance alone makes a loss of two deviations rare.
  const bool loses = won_ < 0 && won_ * won_ > 4 * squares_ && judged_ >= kTrial;
  if (!loses && !little) return;
  patience_ = loses ? std::min(2 * patience_, kMostPatience) : kTrial;
  take_order(true);
}

// The other order, for all leaves: their worth is another number now.
void Tide::take_order(bool as_lru) {
  as_lru_ = as_lru;
  judged_ = 0;
  won_ = 0;
  squares_ = 0;
  ask_all();
}

}  // namespace

std::unique_ptr<EvictionPolicy> make_tide(const EvictionSetup& setup) { return std::make_unique<Tide>(setup); }

}  // namespace kvtwin
