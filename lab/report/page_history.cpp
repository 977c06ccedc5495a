#include "lab/report/page_history.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "policy/base/mix.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kStateBits = PageStates::kStateBits;
constexpr std::uint64_t kHere = 1;  // << tier: the tier has the page
constexpr std::uint64_t kWasOnDevice = 1 << kTiers, kWasOnHost = 2 << kTiers, kWasStored = 4 << kTiers,
                        kRefused = 8 << kTiers;

constexpr std::uint64_t here(Tier tier) { return kHere << static_cast<unsigned>(tier); }
constexpr std::uint64_t kInMemory = here(Tier::device) | here(Tier::host);
constexpr std::uint64_t kInStorage = here(Tier::disk) | here(Tier::shared_fs) | here(Tier::remote);

std::uint64_t fingerprint(std::uint64_t word) { return PageStates::fingerprint(word); }

}  // namespace

std::string_view name_of(MissCause cause) {
  switch (cause) {
    case MissCause::fresh: return "new";
    case MissCause::in_computation: return "in_computation";
    case MissCause::lost_while_waiting: return "lost_while_waiting";
    case MissCause::other_engine: return "other_engine";
    case MissCause::evicted_device: return "evicted_device";
    case MissCause::evicted_host: return "evicted_host";
    case MissCause::evicted_storage: return "evicted_storage";
    case MissCause::not_stored: return "not_stored";
    case MissCause::in_storage: return "in_storage";
    case MissCause::in_memory: return "in_memory";
  }
  return "unknown";
}

std::string_view meaning_of(MissCause cause) {
  switch (cause) {
    case MissCause::fresh: return "new";
    case MissCause::in_computation: return "in computation for another request";
    case MissCause::lost_while_waiting: return "evicted while the request waited";
    case MissCause::other_engine: return "on another engine only";
    case MissCause::evicted_device: return "evicted from the device";
    case MissCause::evicted_host: return "evicted from the host";
    case MissCause::evicted_storage: return "evicted from storage";
    case MissCause::not_stored: return "not taken by storage";
    case MissCause::in_storage: return "in storage and not fetched";
    case MissCause::in_memory: return "in memory and not used";
  }
  return "unknown";
}

class PageHistory::Inputs final : public InputHandler {
 public:
  Inputs(PageHistory& history, std::size_t seat, InputHandler* next) : history_(history), seat_(seat), next_(next) {}
  void handle(const Input& input) override {
    if (const auto* arrival = std::get_if<Arrival>(&input.what)) history_.arrived(seat_, *arrival);
    if (next_ != nullptr) next_->handle(input);
  }

 private:
  PageHistory& history_;
  std::size_t seat_;
  InputHandler* next_;
};

PageHistory::PageHistory(std::size_t engines, Tokens page_tokens, Observer& next, std::vector<std::size_t> disk_of)
    : page_tokens_(page_tokens),
      next_(next),
      disk_of_(std::move(disk_of)),
      engines_(std::max<std::size_t>(1, engines)) {
  for (std::size_t engine = 0; engine < disk_of_.size(); ++engine) disk_is_shared_ |= disk_of_[engine] != engine;
}

PageHistory::~PageHistory() = default;

InputHandler* PageHistory::inputs_of(std::size_t seat, InputHandler* next) {
  return inputs_.emplace_back(std::make_unique<Inputs>(*this, seat, next)).get();
}

Pages PageHistory::pages_of_an_engine() const {
  return std::ranges::max_element(engines_, {}, &Engine::distinct)->distinct;
}

Tokens PageHistory::repeated(std::span<const RequestId> requests) const {
  Tokens tokens = 0;
  for (const RequestId request : requests) {
    if (request < repeated_pages_.size()) tokens += repeated_pages_[request] * page_tokens_;
  }
  return tokens;
}

// ---- requests ----------------------------------------------------------------------------------------

void PageHistory::arrived(std::size_t engine, const Arrival& arrival) {
  if (arrival.part == RequestPart::decode || arrival.attempt > 0) return;
  forget(arrival.request);
  Waiting waits;
  waits.engine = engines_.size() == 1 ? 0 : engine;
  const Pages pages = std::min<Pages>(arrival.keys.size(), (arrival.prompt_tokens - 1) / page_tokens_);
  waits.pages.reserve(pages);
  for (const PageKey& key : arrival.keys.first(pages)) waits.pages.push_back(fingerprint(key.words[0]));
  while (waits.near < pages && is_near(waits, waits.near)) ++waits.near;
  waiting_.emplace(arrival.request, std::move(waits));
}

void PageHistory::admitted(const Event& event) {
  const RequestRecord& record = *event.record;
  const auto found = waiting_.find(record.request);
  if (found == waiting_.end() || record.part == RequestPart::decode) return;
  const Waiting& waits = found->second;
  const Pages hit = record.hit.sum() / page_tokens_;
  std::uint32_t repeated = static_cast<std::uint32_t>(waits.pages.size());
  constexpr Pages kAhead = 8;
  for (Pages page = hit; page < waits.pages.size(); ++page) {
    if (page + kAhead < waits.pages.size()) states_.prefetch(waits.pages[page + kAhead]);  // most are new
    // The pages that were hit are known.
    const MissCause cause = cause_of(waits, page, add(waits.pages[page], Chain::all, 0));
    ++missed_[cause];
    if (cause == MissCause::fresh) --repeated;
  }
  if (record.request >= repeated_pages_.size()) repeated_pages_.resize(record.request + 1);
  repeated_pages_[record.request] = repeated;
  forget(record.request);
}

void PageHistory::asked(const Event& event) {
  const auto found = waiting_.find(event.request);
  if (found == waiting_.end() || event.reason == Reason::too_short) return;
  if (event.reason == Reason::not_backed_up) not_backed_up(event.request);
  Waiting& waits = found->second;
  if (event.pages <= waits.asked) return;
  Pages& sum = engines_[waits.engine].asked;
  sum += event.pages - waits.asked;
  asked_sum_ += event.pages - waits.asked;
  waits.asked = event.pages;
  asked_most_ = std::max(asked_most_, sum);
}

void PageHistory::not_backed_up(RequestId request) {
  const Waiting& waits = waiting_.find(request)->second;
  Pages first = 0;
  while (first < waits.pages.size() && is_near(waits, first)) ++first;
  if (first != 0) ++not_on_host_[own(waits.engine, waits.pages[first - 1])];
}

void PageHistory::on_host(const Event& event) {
  mark(event, kWasOnHost | here(Tier::host));
  if (not_on_host_.empty()) return;
  for (const PageKey& key : event.keys) {
    const auto awaited = not_on_host_.find(place_of(event, key));
    if (awaited == not_on_host_.end()) continue;
    backed_up_later_ += awaited->second;
    not_on_host_.erase(awaited);
  }
}

void PageHistory::found_nothing(RequestId request) {
  const auto found = waiting_.find(request);
  if (found == waiting_.end()) return;
  Waiting& waits = found->second;
  waits.found_nothing = true;
  Pages first = 0;
  while (first < waits.pages.size() && is_near(waits, first)) ++first;
  if (first < waits.pages.size()) ++empty_look_ups_[cause_of(waits, first)];
}

void PageHistory::forget(RequestId request) {
  const auto found = waiting_.find(request);
  if (found == waiting_.end()) return;
  engines_[found->second.engine].asked -= found->second.asked;
  waiting_.erase(found);
}

bool PageHistory::is_near(const Waiting& of, Pages page) const {
  return (state(own(of.engine, of.pages[page]), Chain::own) & kInMemory) != 0;
}

MissCause PageHistory::cause_of(const Waiting& of, Pages page) const {
  return cause_of(of, page, state(of.pages[page], Chain::all));
}

// `shared`: the state of the page's place for all engines.
MissCause PageHistory::cause_of(const Waiting& of, Pages page, std::uint64_t shared) const {
  std::uint64_t mine = shared;
  if (engines_.size() != 1) {
    mine = state(own(of.engine, of.pages[page]), Chain::own);
    if (disk_of(of.engine) != of.engine) {
      mine |= state(own(disk_of(of.engine), of.pages[page]), Chain::all) & (here(Tier::disk) | kWasStored | kRefused);
    }
  }
  const std::uint64_t all = mine | shared;
  if (all == 0) return MissCause::fresh;
  if ((mine & kInMemory) != 0) return MissCause::in_memory;
  if (page < of.near) return MissCause::lost_while_waiting;
  // A shared store evicts by itself; only a look-up shows it.
  const bool gone = of.found_nothing && (disk_is_shared_ || (all & here(Tier::disk)) == 0);
  if ((all & kInStorage) != 0 && !gone) return MissCause::in_storage;
  if ((all & kWasStored) != 0) return MissCause::evicted_storage;
  if ((all & kRefused) != 0) return MissCause::not_stored;
  if ((mine & kWasOnHost) != 0) return MissCause::evicted_host;
  if ((mine & kWasOnDevice) != 0) return MissCause::evicted_device;
  return (all & kWasOnDevice) != 0 ? MissCause::other_engine : MissCause::in_computation;
}

// ---- pages -------------------------------------------------------------------------------------------

// Of one engine, a page has one state; of several, one for each engine and one for the shared tiers.
std::uint64_t PageHistory::own(std::size_t engine, std::uint64_t page) const {
  return engines_.size() == 1 ? page : fingerprint(mixed_bits(page + (engine + 1) * kGoldenRatio64));
}

std::uint64_t PageHistory::place_of(const Event& event, const PageKey& key) const {
  const std::uint64_t page = fingerprint(key.words[0]);
  if (spec_of(event.tier).shared) return page;
  return own(event.tier == Tier::disk ? disk_of(event.engine) : event.engine, page);
}

// Returns 0 for an unknown page. A known page without a state has kStateBits + 1 alone.
std::uint64_t PageHistory::state(std::uint64_t page, Chain chain) const {
  const std::uint64_t* const word = states_.find(page, cursors_[chain]);
  return word == nullptr ? 0 : (*word & kStateBits) | (kStateBits + 1);
}

// Returns the state before, as state() does.
std::uint64_t PageHistory::add(std::uint64_t page, Chain chain, std::uint64_t set, std::uint64_t clear) {
  const auto [word, is_new] = states_.add(page, cursors_[chain]);
  const std::uint64_t before = is_new ? 0 : (*word & kStateBits) | (kStateBits + 1);
  *word = (*word & ~clear) | set;
  return before;
}

void PageHistory::mark(const Event& event, std::uint64_t set, std::uint64_t clear) {
  const Chain chain = spec_of(event.tier).shared ? Chain::all : Chain::own;
  for (const PageKey& key : event.keys) add(place_of(event, key), chain, set, clear);
}

void PageHistory::computed(const Event& event) {
  const bool one = engines_.size() == 1;
  Pages& distinct = engines_[one ? 0 : event.engine].distinct;
  for (const PageKey& key : event.keys) {
    const std::uint64_t page = fingerprint(key.words[0]);
    const bool is_new =
        (add(own(event.engine, page), Chain::own, kWasOnDevice | here(Tier::device)) & kWasOnDevice) == 0;
    if (is_new) ++distinct;
    const bool is_first = one ? is_new : (add(page, Chain::all, kWasOnDevice) & kWasOnDevice) == 0;
    if (is_first) ++distinct_pages_;
  }
}

void PageHistory::on_event(const Event& event) {
  switch (event.kind) {
    case EventKind::admitted: admitted(event); break;
    case EventKind::finished:
    case EventKind::rejected:
    case EventKind::aborted:
    case EventKind::handed_over:
    case EventKind::hand_over_dropped: forget(event.record->request); break;
    case EventKind::prefetch_issued:
    case EventKind::prefetch_declined: asked(event); break;
    case EventKind::prefetch_revoked:
      if (event.reason == Reason::miss) found_nothing(event.request);
      break;
    case EventKind::pages_stored:
      if (event.tier == Tier::device) {
        computed(event);
      } else {
        on_host(event);
      }
      break;
    case EventKind::pages_removed: mark(event, 0, here(event.tier)); break;
    case EventKind::store_done: mark(event, kWasStored | here(event.tier), kRefused); break;
    case EventKind::store_dropped: mark(event, kRefused); break;
    case EventKind::evicted:
      if (is_storage(event.tier)) mark(event, 0, here(event.tier));
      break;
    default: break;
  }
  next_.on_event(event);
}

}  // namespace kvtwin
