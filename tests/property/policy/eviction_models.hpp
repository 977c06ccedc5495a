// Slow models of the eviction policies for requests of one page: every page is a leaf, so the tree does not matter. The
// models follow the definitions, with std::map and std::list. They share no code with the policies, except for the
// estimates of tide.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "policy/eviction/tide/returns.hpp"

namespace kvtwin::test {

struct PageRequest {
  std::uint64_t page = 0;
  std::uint64_t time = 0;           // ns
  std::uint64_t prompt_tokens = 1;  // at most one page
  std::uint64_t output_tokens = 0;
};

constexpr std::uint64_t kModelPageTokens = 512, kModelDoubling = 53'000;

// A cache of `capacity` > 0 pages. On a miss, a full cache evicts one page; then the new page enters.
class PageModel {
 public:
  explicit PageModel(std::uint64_t capacity) : capacity_(capacity) {}
  virtual ~PageModel() = default;

  bool serve(const PageRequest& request) {
    ++stamp_;
    request_ = request;
    begin();
    if (resident_.contains(request.page)) {
      hit(request.page);
      resident_[request.page].last = stamp_;
      return true;
    }
    if (resident_.size() == capacity_) {
      const std::uint64_t victim = choose();
      leave(victim);
      resident_.erase(victim);
    }
    resident_[request.page] = {stamp_, ++insertions_};
    enter(request.page);
    return false;
  }

 protected:
  struct Facts {
    std::uint64_t last = 0, inserted = 0;  // number of the last request; number of the insertion
  };

  virtual void begin() {}
  virtual void hit(std::uint64_t page) = 0;    // `last` is still the previous request of the page
  virtual std::uint64_t choose() = 0;          // returns the page to evict
  virtual void leave(std::uint64_t page) = 0;  // called before the page is removed
  virtual void enter(std::uint64_t page) = 0;

  // Returns the page with the smallest key(page). Ties: the oldest last request, then the oldest insertion.
  template <typename Key>
  std::uint64_t least(Key key) const {
    auto best = resident_.begin();
    for (auto it = resident_.begin(); it != resident_.end(); ++it) {
      const auto a = key(it->first), b = key(best->first);
      if (a < b || (a == b && std::pair(it->second.last, it->second.inserted) <
                                  std::pair(best->second.last, best->second.inserted))) {
        best = it;
      }
    }
    return best->first;
  }

  const std::uint64_t capacity_;
  std::map<std::uint64_t, Facts> resident_;
  std::uint64_t stamp_ = 0, insertions_ = 0;
  PageRequest request_;
};

// Remembers the last `max_pages` pages that were put, each with a number.
class PageMemory {
 public:
  explicit PageMemory(std::uint64_t max_pages) : max_pages_(max_pages) {}
  bool knows(std::uint64_t page) const {
    for (const auto& [known, number] : pages_) {
      if (known == page) return true;
    }
    return false;
  }
  // Removes the page and returns its number; 0 if the page is unknown.
  std::uint64_t take(std::uint64_t page) {
    for (auto it = pages_.begin(); it != pages_.end(); ++it) {
      if (it->first != page) continue;
      const std::uint64_t number = it->second;
      pages_.erase(it);
      return number;
    }
    return 0;
  }
  void put(std::uint64_t page, std::uint64_t number) {
    take(page);
    pages_.emplace_back(page, number);
    while (pages_.size() > max_pages_) pages_.pop_front();
  }
  void drop_oldest() { pages_.pop_front(); }
  std::uint64_t size() const { return pages_.size(); }

 private:
  std::uint64_t max_pages_;
  std::list<std::pair<std::uint64_t, std::uint64_t>> pages_;
};

// ---- by counts -----------------------------------------------------------------------------------------

class LfudaModel : public PageModel {
 public:
  explicit LfudaModel(std::uint64_t capacity, std::uint64_t cost = 1)
      : PageModel(capacity), cost_(cost), counts_(4 * capacity) {}

 protected:
  void hit(std::uint64_t page) override { use(page, known_[page].second + 1); }
  std::uint64_t choose() override {
    return least([this](std::uint64_t page) { return known_[page].first; });
  }
  void leave(std::uint64_t page) override {
    age_ = std::max(age_, known_[page].first);
    counts_.put(page, known_[page].second);
  }
  void enter(std::uint64_t page) override { use(page, counts_.take(page) + 1); }

 private:
  void use(std::uint64_t page, std::uint64_t count) { known_[page] = {age_ + cost_ * count, count}; }
  std::uint64_t cost_, age_ = 0;
  PageMemory counts_;
  std::map<std::uint64_t, std::pair<std::uint64_t, std::uint64_t>> known_;  // H, count
};

class LrukModel : public PageModel {
 public:
  explicit LrukModel(std::uint64_t capacity) : PageModel(capacity), uses_(4 * capacity) {}

 protected:
  void hit(std::uint64_t page) override { before_[page] = resident_[page].last; }
  std::uint64_t choose() override {
    return least([this](std::uint64_t page) { return before_[page]; });
  }
  void leave(std::uint64_t page) override { uses_.put(page, resident_[page].last); }
  void enter(std::uint64_t page) override { before_[page] = uses_.take(page); }

 private:
  PageMemory uses_;
  std::map<std::uint64_t, std::uint64_t> before_;
};

class LruModel : public PageModel {  // marconi: no page is deeper than another
 public:
  using PageModel::PageModel;

 protected:
  void hit(std::uint64_t) override {}
  std::uint64_t choose() override {
    return least([](std::uint64_t) { return 0; });
  }
  void leave(std::uint64_t) override {}
  void enter(std::uint64_t) override {}
};

// ---- by lists: the front is evicted first --------------------------------------------------------------

using PageList = std::list<std::uint64_t>;

inline bool in(const PageList& list, std::uint64_t page) {
  return std::find(list.begin(), list.end(), page) != list.end();
}

class TwoQueuesModel : public PageModel {
 public:
  explicit TwoQueuesModel(std::uint64_t capacity)
      : PageModel(capacity), out_(std::max<std::uint64_t>(1, capacity / 2)) {}

 protected:
  void hit(std::uint64_t page) override {
    if (in(main_, page)) main_.splice(main_.end(), main_, std::find(main_.begin(), main_.end(), page));
  }
  std::uint64_t choose() override {
    const bool from_in = in_.size() > std::max<std::uint64_t>(1, capacity_ / 4);
    return (main_.empty() || (from_in && !in_.empty())) ? in_.front() : main_.front();
  }
  void leave(std::uint64_t page) override {
    if (in(in_, page)) out_.put(page, 1);
    in_.remove(page);
    main_.remove(page);
  }
  void enter(std::uint64_t page) override { (out_.take(page) == 1 ? main_ : in_).push_back(page); }

 private:
  PageList in_, main_;
  PageMemory out_;
};

class ArcModel : public PageModel {
 public:
  explicit ArcModel(std::uint64_t capacity) : PageModel(capacity), b1_(capacity), b2_(2 * capacity) {}

 protected:
  void hit(std::uint64_t page) override {
    t1_.remove(page);
    t2_.remove(page);
    t2_.push_back(page);
    trim();
  }
  std::uint64_t choose() override {
    return t2_.empty() || (t1_.size() > p_ && !t1_.empty()) ? t1_.front() : t2_.front();
  }
  void leave(std::uint64_t page) override {
    (in(t1_, page) ? b1_ : b2_).put(page, 1);
    t1_.remove(page);
    t2_.remove(page);
    trim();
  }
  void enter(std::uint64_t page) override {
    if (b1_.knows(page)) {
      p_ = std::min(capacity_, p_ + std::max<std::uint64_t>(1, b2_.size() / b1_.size()));
      b1_.take(page);
      t2_.push_back(page);
    } else if (b2_.knows(page)) {
      const std::uint64_t step = std::max<std::uint64_t>(1, b1_.size() / b2_.size());
      p_ = p_ > step ? p_ - step : 0;
      b2_.take(page);
      t2_.push_back(page);
    } else {
      t1_.push_back(page);
    }
    trim();
  }

 private:
  void trim() {
    while (b1_.size() > 0 && t1_.size() + b1_.size() > capacity_) b1_.drop_oldest();
    while (b2_.size() > 0 && t1_.size() + t2_.size() + b1_.size() + b2_.size() > 2 * capacity_) b2_.drop_oldest();
  }
  PageList t1_, t2_;
  PageMemory b1_, b2_;
  std::uint64_t p_ = 0;
};

class S3FifoModel : public PageModel {
 public:
  explicit S3FifoModel(std::uint64_t capacity)
      : PageModel(capacity),
        share_(std::max<std::uint64_t>(1, capacity / 10)),
        out_(std::max<std::uint64_t>(1, capacity - share_)) {}

 protected:
  void hit(std::uint64_t page) override { uses_[page] = std::min(3, uses_[page] + 1); }
  std::uint64_t choose() override {
    for (;;) {
      if (main_.empty() || (small_.size() >= share_ && !small_.empty())) {
        const std::uint64_t page = small_.front();
        if (uses_[page] <= 1) return page;
        small_.pop_front();
        uses_[page] = 0;
        main_.push_back(page);
      } else {
        const std::uint64_t page = main_.front();
        if (uses_[page]-- == 0) return page;
        main_.splice(main_.end(), main_, main_.begin());
      }
    }
  }
  void leave(std::uint64_t page) override {
    if (in(small_, page)) out_.put(page, 1);
    small_.remove(page);
    main_.remove(page);
  }
  void enter(std::uint64_t page) override {
    uses_[page] = 0;
    (out_.take(page) == 1 ? main_ : small_).push_back(page);
  }

 private:
  std::uint64_t share_;
  PageMemory out_;
  PageList small_, main_;
  std::map<std::uint64_t, int> uses_;
};

class SieveModel : public PageModel {
 public:
  using PageModel::PageModel;

 protected:
  void hit(std::uint64_t page) override { used_[page] = true; }
  std::uint64_t choose() override {
    for (;; ++hand_) {
      if (hand_ == line_.end()) hand_ = line_.begin();
      if (!used_[*hand_]) return *hand_;
      used_[*hand_] = false;
    }
  }
  void leave(std::uint64_t) override { hand_ = line_.erase(hand_); }
  void enter(std::uint64_t page) override {
    used_[page] = false;
    line_.push_back(page);
  }

 private:
  PageList line_;  // oldest first
  PageList::iterator hand_ = line_.end();
  std::map<std::uint64_t, bool> used_;
};

// ---- by cost, age and time -----------------------------------------------------------------------------

class PgdsfModel : public PageModel {
 public:
  explicit PgdsfModel(std::uint64_t capacity) : PageModel(capacity), gone_(4 * capacity) {}

 protected:
  // Every page has the cost of a page at depth 0.
  void hit(std::uint64_t page) override { use(page); }
  std::uint64_t choose() override {
    return least([this](std::uint64_t page) { return priority_[page]; });
  }
  void leave(std::uint64_t page) override {
    clock_ = std::max(clock_, priority_[page]);
    gone_.put(page, 1);
  }
  void enter(std::uint64_t page) override {
    if (gone_.take(page) == 0) uses_[page] = 0;
    use(page);
  }

 private:
  void use(std::uint64_t page) {
    constexpr std::uint64_t kCost = 1024 + 1024 * kModelPageTokens / (2 * kModelDoubling);
    priority_[page] = clock_ + ++uses_[page] * kCost;
  }
  PageMemory gone_;
  std::map<std::uint64_t, std::uint64_t> uses_, priority_;
  std::uint64_t clock_ = 0;
};

class TailLruModel : public PageModel {
 public:
  using PageModel::PageModel;

 protected:
  void hit(std::uint64_t page) override {
    const std::uint64_t before = lengths_[page];
    if (request_.prompt_tokens > before) growth_ += request_.prompt_tokens - before - growth_ / 16;
    enter(page);
  }
  std::uint64_t choose() override {
    return least([this](std::uint64_t page) { return kept_[page] > 0; });
  }
  void leave(std::uint64_t) override {}
  void enter(std::uint64_t page) override {
    lengths_[page] = request_.prompt_tokens + request_.output_tokens;
    const std::uint64_t next = lengths_[page] + growth_ / 16;
    kept_[page] = next > 4096 ? next - 4096 : 0;
  }

 private:
  std::map<std::uint64_t, std::uint64_t> lengths_, kept_;
  std::uint64_t growth_ = 0;
};

// The last full window of values, and the window that is being filled.
struct Windows {
  __extension__ using Wide = unsigned __int128;
  explicit Windows(std::uint64_t values) : length(values) {}
  void add(std::uint64_t value) {
    filling.push_back(value);
    if (filling.size() < length) return;
    full = filling;
    filling.clear();
  }
  Wide sum() const {
    Wide result = 0;
    for (const std::uint64_t value : full) result += value;
    for (const std::uint64_t value : filling) result += value;
    return result;
  }
  std::uint64_t count() const { return full.size() + filling.size(); }
  std::uint64_t length;
  std::vector<std::uint64_t> full, filling;
};

// The state of wa and ttl per page: the time of the last visit, and whether this visit was a later turn. A request is a
// later turn if its page is in the cache or was evicted recently.
class TimedModel : public PageModel {
 public:
  explicit TimedModel(std::uint64_t capacity) : PageModel(capacity), gone_(4 * capacity) {}

 protected:
  struct Last {
    std::uint64_t time = 0;
    bool later = false;
  };
  virtual void returned(const Last& last) = 0;
  virtual void visited(std::uint64_t page) = 0;

  void hit(std::uint64_t page) override {
    returned(last_[page]);
    last_[page] = {request_.time, true};
    visited(page);
  }
  void leave(std::uint64_t page) override { gone_.put(page, 1); }
  void enter(std::uint64_t page) override {
    const bool known = known_;
    if (gone_.take(page) == 1) returned(last_[page]);
    last_[page] = {request_.time, known};
    visited(page);
  }
  // Before the eviction, because the eviction may make gone_ forget this page.
  void begin() override { known_ = gone_.knows(request_.page); }

  PageMemory gone_;
  std::map<std::uint64_t, Last> last_;
  bool known_ = false;
};

class WaModel : public TimedModel {
 public:
  explicit WaModel(std::uint64_t capacity)
      : TimedModel(capacity), life_(std::max<std::uint64_t>(1024, capacity)), kinds_{Kind(capacity), Kind(capacity)} {
    decay_.push_back(Windows::Wide{1} << 62);
    while (decay_.size() < 1408) decay_.push_back(decay_.back() * 4540188453729421604ULL >> 62);
  }

 protected:
  using Wide = Windows::Wide;

  void returned(const Last& last) override {
    kinds_[last.later].times.add(request_.time - last.time);
    kinds_[last.later].events.add(1);
  }
  void visited(std::uint64_t page) override { kinds_[last_[page].later].events.add(0); }
  void leave(std::uint64_t page) override {
    life_.add(request_.time - last_[page].time);
    TimedModel::leave(page);
  }
  std::uint64_t choose() override {
    Wide chance[2] = {};
    for (const int later : {0, 1}) chance[later] = chance_of(later);
    // The candidates are the oldest page of each category. Evicts the one whose category is less likely to return.
    std::uint64_t first[2] = {};
    bool any[2] = {};
    for (const auto& [page, facts] : resident_) {
      const int k = last_[page].later;
      if (!any[k] || rank(page) < rank(first[k])) first[k] = page;
      any[k] = true;
    }
    if (!any[0] || !any[1]) return any[0] ? first[0] : first[1];
    if (chance[0] != chance[1]) return chance[0] < chance[1] ? first[0] : first[1];
    return rank(first[0]) < rank(first[1]) ? first[0] : first[1];
  }

 private:
  struct Kind {
    explicit Kind(std::uint64_t capacity) : times(std::max<std::uint64_t>(4096, 2 * capacity)), events(times.length) {}
    Windows times, events;
  };
  std::pair<std::uint64_t, std::uint64_t> rank(std::uint64_t page) {
    return {last_[page].time, resident_[page].inserted};
  }
  Wide decay(Wide x) const { return x < decay_.size() ? decay_[static_cast<std::size_t>(x)] >> 31 : 0; }
  Wide chance_of(int later) {
    const Kind& kind = kinds_[static_cast<std::size_t>(later)];
    std::uint64_t oldest = ~std::uint64_t{0};
    for (const auto& [page, facts] : resident_) {
      if (last_[page].later == (later == 1)) oldest = std::min(oldest, last_[page].time);
    }
    const Wide sum = kind.times.sum();
    if (sum == 0 || life_.sum() == 0 || oldest == ~std::uint64_t{0}) return 0;
    const Wide age = Wide{request_.time - oldest} * 64 * kind.times.count() / sum;
    const Wide life = life_.sum() * 64 * kind.times.count() / (sum * life_.count());
    const auto reused = static_cast<std::uint64_t>(kind.events.sum());
    const std::uint64_t visits = std::max<std::uint64_t>(1, kind.events.count() - reused);
    return Wide{std::min<std::uint64_t>(65'536, reused * 65'536 / visits)} * decay(age) * (decay(0) - decay(life));
  }

  Windows life_;
  std::vector<Kind> kinds_;
  std::vector<Wide> decay_;
};

class TtlModel : public TimedModel {
 public:
  using TimedModel::TimedModel;

 protected:
  using Wide = Windows::Wide;

  void begin() override {
    TimedModel::begin();
    if (stamp_ % 64 == 0) find_pins();
  }
  void hit(std::uint64_t page) override {
    TimedModel::hit(page);
    ++hits_;
  }
  void returned(const Last& last) override {
    const std::uint64_t time = request_.time - last.time;
    if (unit_ == 0) unit_ = time;
    if (unit_ > 0) ++kinds_[last.later].returns[end_of_bin(Wide{time} * 16 / unit_)];
  }
  void visited(std::uint64_t page) override {
    Kind& kind = kinds_[last_[page].later];
    ++kind.visits;
    ends_[page] = 16 * request_.time + kind.pin * unit_;
  }
  std::uint64_t choose() override {
    return least([this](std::uint64_t page) { return ends_[page] > 16 * request_.time; });
  }

 private:
  struct Kind {
    std::map<std::uint64_t, std::uint64_t> returns;  // end of a bin -> number of returns in the bin
    std::uint64_t visits = 0, pin = 0;
  };
  // The ends of the bins: 1, 2, ..., 8, then four per octave.
  static std::uint64_t end_of_bin(Wide time) {
    std::uint64_t end = 0, step = 1;
    do {
      if (end == 8 * step) step *= 2;
      end += step;
    } while (end <= time);
    return end;
  }
  void find_pins() {
    if (unit_ == 0) return;
    for (Kind& kind : kinds_) {
      kind.pin = 0;
      Wide best = 0, within = 0, spent = 0;
      for (const auto& [end, pages] : kind.returns) {
        if (Wide{end} * unit_ > Wide{request_.time} * 16) break;
        within += pages;
        spent += Wide{end} * unit_ * pages;
        const Wide rest = kind.visits > within ? kind.visits - within : 0;
        const Wide paid = spent + rest * end * unit_;
        const Wide rent = 1024 * paid * hits_ / (Wide{request_.time} * 16 * capacity_);
        if (1024 * within > rent && 1024 * within - rent > best) best = 1024 * within - rent, kind.pin = end;
      }
      if (kind.visits < 64 * capacity_) continue;
      kind.visits /= 2;
      for (auto& [end, pages] : kind.returns) pages /= 2;
    }
  }

  Kind kinds_[2];
  std::map<std::uint64_t, std::uint64_t> ends_;
  std::uint64_t unit_ = 0, hits_ = 0;
};

class LhdModel : public PageModel {
 public:
  explicit LhdModel(std::uint64_t capacity) : PageModel(capacity), round_(std::max<std::uint64_t>(1024, capacity)) {
    for (std::size_t bin = 0; bin <= kBins; ++bin) starts_.push_back(bin == 0 ? 0 : next(starts_.back()));
    for (auto& density : densities_) {
      for (std::size_t bin = 0; bin < kBins; ++bin) density.push_back((std::uint64_t{1} << 32) / (starts_[bin] + 1));
    }
    for (auto& events : hits_) events.resize(kBins);
    for (auto& events : losses_) events.resize(kBins);
  }

 protected:
  void hit(std::uint64_t page) override {
    count(hits_, page);
    ++uses_[page];
  }
  std::uint64_t choose() override {
    // The oldest page of each class and span of ages.
    std::map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> oldest;
    for (const auto& [page, facts] : resident_) {
      std::uint64_t span = 0;
      while (stamp_ - facts.last >= std::uint64_t{1} << 2 * span) ++span;
      const auto [it, first] = oldest.try_emplace({class_of(page), span}, page);
      if (!first && facts.last < resident_[it->second].last) it->second = page;
    }
    std::set<std::uint64_t> candidates;
    for (const auto& [group, page] : oldest) candidates.insert(page);
    return least([&](std::uint64_t page) {
      return std::pair(!candidates.contains(page), densities_[class_of(page)][bin_of(page)]);
    });
  }
  void leave(std::uint64_t page) override { count(losses_, page); }
  void enter(std::uint64_t page) override { uses_[page] = 1; }

 private:
  static constexpr std::size_t kBins = 96;
  using Events = std::vector<std::uint64_t>;

  // The starts of the bins: 0, 1, ..., 8, then four per octave.
  static std::uint64_t next(std::uint64_t start) {
    std::uint64_t step = 1;
    while (start >= 8 * step) step *= 2;
    return start + step;
  }
  std::size_t class_of(std::uint64_t page) {
    return uses_[page] < 2 ? 0 : uses_[page] < 4 ? 1 : uses_[page] < 8 ? 2 : 3;
  }
  std::size_t bin_of(std::uint64_t page) {
    std::size_t bin = 0;
    while (bin + 1 < kBins && starts_[bin + 1] <= stamp_ - resident_[page].last) ++bin;
    return bin;
  }
  void count(Events (&events)[4], std::uint64_t page) {
    events[class_of(page)][bin_of(page)] += 256;
    if (++counted_ < round_) return;
    counted_ = 0;
    for (std::size_t c = 0; c < 4; ++c) learn(hits_[c], losses_[c], densities_[c]);
  }
  void learn(Events& hits, Events& losses, Events& density) const {
    using Wide = Windows::Wide;
    for (std::size_t age = 0; age < kBins; ++age) {
      Wide gains = 0, room = 0;
      for (std::size_t bin = age; bin < kBins; ++bin) {
        gains += hits[bin];
        const Wide here = hits[bin] + losses[bin];
        for (std::size_t lived = age; lived < bin; ++lived) room += here * (starts_[lived + 1] - starts_[lived]);
        room += here * (starts_[bin + 1] - starts_[bin]) / 2;
      }
      density[age] = room == 0 ? 0 : static_cast<std::uint64_t>((gains << 32) / room);
    }
    for (Events* const events : {&hits, &losses}) {
      for (std::uint64_t& pages : *events) pages -= pages / 8;
    }
  }

  std::uint64_t round_, counted_ = 0;
  std::vector<std::uint64_t> starts_;
  Events hits_[4], losses_[4], densities_[4];
  std::map<std::uint64_t, std::uint64_t> uses_;
};

// ---- tide ----------------------------------------------------------------------------------------------

// The model uses the policy's own estimates of returns (policy/eviction/tide/returns.hpp has other tests). It models
// the rest: when the estimates are updated, which pages are remembered, LRU as a list, and the duel with LRU.
class TideModel final : public PageModel {
 public:
  explicit TideModel(std::uint64_t capacity) : PageModel(capacity), gone_(8 * capacity) {}

 protected:
  void begin() override {
    if (visits_ > 0) judge();
    if (visits_ > 0) returns_.learn();
    if (++visits_ == 8192) {
      for (std::uint64_t* const count : {&visits_, &ends_, &partial_, &reused_}) *count /= 2;
    }
    partial_ += request_.prompt_tokens < kModelPageTokens ? 1 : 0;
    const std::uint64_t expected = std::max<std::uint64_t>(1, (ends_ + 64) * partial_);
    partial_cost_ = kCost * std::min<std::uint64_t>(16, 16 * reused_ * visits_ / expected) / 16;
    partial_counts_ = 128 * reused_ > visits_;
  }
  void hit(std::uint64_t page) override { use(page, true); }
  std::uint64_t choose() override {
    return least([this](std::uint64_t page) {
      const Page& of = pages_[page];
      return std::tuple(worth(page), of.time, of.outlook.chance, of.outlook.gap_class, of.partial);
    });
  }
  void leave(std::uint64_t page) override { gone_.put(page, pages_[page].record); }
  void enter(std::uint64_t page) override { use(page, false); }

 private:
  static constexpr std::uint64_t kCost = 64 + 32 * kModelPageTokens / kModelDoubling;
  struct Page {
    RecordId record = kNoRecord;
    Outlook outlook;
    std::uint64_t time = 0;
    bool partial = false;
  };

  void use(std::uint64_t page, bool there) {
    const bool full = request_.prompt_tokens == kModelPageTokens;
    const bool remembered = !there && gone_.knows(page);
    const RecordId before = there ? pages_[page].record : gone_.take(page);
    own_ = there;
    const bool goes_on = there || (full && remembered);
    known_ = there || remembered;
    lru_hit_ = known_ != 0 && std::ranges::find(lru_, page) != lru_.end();
    if (known_ != 0 && pages_[page].partial) ++reused_;  // pages_ also keeps evicted pages
    if (goes_on) ++ends_;
    const RecordId record = returns_.begin(
        {static_cast<TimeNs>(request_.time), request_.prompt_tokens, request_.output_tokens, static_cast<Pages>(full),
         static_cast<Pages>(goes_on), static_cast<Tokens>(goes_on) * kModelPageTokens, goes_on ? before : kNoRecord});
    pages_[page] = {record, returns_.outlook(record), request_.time >> 20, !full};
    lru_.remove(page);
    lru_.push_front(page);
    if (lru_.size() > capacity_) lru_.pop_back();
  }
  std::uint64_t worth(std::uint64_t page) const {
    const Page& of = pages_.at(page);
    if (as_lru_) return of.partial && partial_cost_ == 0 && !partial_counts_ ? 0 : resident_.at(page).last;
    const TimeNs age = static_cast<TimeNs>(request_.time) - static_cast<TimeNs>(of.time << 20);
    return returns_.density(of.outlook, age) * (of.partial ? partial_cost_ : kCost);
  }

  void judge() {
    ++judged_;
    __extension__ using Wide = __int128;
    constexpr std::int64_t kMemory = 8192;
    constexpr std::int64_t saves = kModelPageTokens + kModelPageTokens * kModelPageTokens / (2 * kModelDoubling);
    const std::int64_t won = (own_ - lru_hit_) * saves;
    lru_saved_ += lru_hit_ * saves - lru_saved_ / kMemory;
    known_saved_ += known_ * saves - known_saved_ / kMemory;
    const bool little = known_saved_ < lru_saved_ + lru_saved_ / 64;
    if (as_lru_) {
      owed_ -= 128 * won + (known_ - lru_hit_) * saves;
      if (little || judged_ < 64 || owed_ > 0) return;
      as_lru_ = false;
    } else {
      const bool ahead = won_ > 0 && won_ * won_ * differing_ > 32 * 32 * 256 * squares_;
      won_ += (ahead && won > 0 ? 0 : won) - won_ / kMemory;
      squares_ += Wide{won} * won - squares_ / kMemory;
      differing_ += (won == 0 ? 0 : 256) - differing_ / kMemory;
      const bool loses = won_ < 0 && won_ * won_ * differing_ > 9 * 256 * squares_;
      if (!loses && !little) return;
      as_lru_ = true;
    }
    owed_ = 128 * std::max<Wide>(0, -won_);
    judged_ = 0;
    won_ = squares_ = differing_ = 0;
  }

  Returns returns_;
  PageMemory gone_;
  std::map<std::uint64_t, Page> pages_;
  std::list<std::uint64_t> lru_;
  bool as_lru_ = true;
  int own_ = 0, known_ = 0, lru_hit_ = 0;
  std::uint64_t visits_ = 0, ends_ = 0, partial_ = 0, reused_ = 0, partial_cost_ = 0;
  bool partial_counts_ = false;
  std::int64_t judged_ = 0, lru_saved_ = 0, known_saved_ = 0;
  __extension__ __int128 won_ = 0, squares_ = 0, differing_ = 0, owed_ = 0;
};

// Returns null if there is no model of this policy.
inline std::unique_ptr<PageModel> make_model(std::string_view eviction, std::uint64_t capacity) {
  if (eviction == "lfuda") return std::make_unique<LfudaModel>(capacity);
  if (eviction == "gdsf") return std::make_unique<LfudaModel>(capacity, kModelDoubling);
  if (eviction == "pgdsf") return std::make_unique<PgdsfModel>(capacity);
  if (eviction == "lruk") return std::make_unique<LrukModel>(capacity);
  if (eviction == "2q") return std::make_unique<TwoQueuesModel>(capacity);
  if (eviction == "arc") return std::make_unique<ArcModel>(capacity);
  if (eviction == "s3fifo") return std::make_unique<S3FifoModel>(capacity);
  if (eviction == "sieve") return std::make_unique<SieveModel>(capacity);
  if (eviction == "lhd") return std::make_unique<LhdModel>(capacity);
  if (eviction == "wa") return std::make_unique<WaModel>(capacity);
  if (eviction == "ttl") return std::make_unique<TtlModel>(capacity);
  if (eviction == "tail_lru") return std::make_unique<TailLruModel>(capacity);
  if (eviction == "marconi") return std::make_unique<LruModel>(capacity);
  if (eviction == "tide") return std::make_unique<TideModel>(capacity);
  return nullptr;
}

}  // namespace kvtwin::test
