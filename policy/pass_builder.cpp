#include "policy/pass_builder.hpp"

#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/base/mutant.hpp"

namespace kvtwin {
namespace {

// Decode steps of a burst while the head of the queue waits for room. The reserve shrinks with each step, so the head
// may fit in the middle of a longer burst.
constexpr std::uint64_t kMaxStepsWhileBlocked = 8;

// The rank of a request that others have overtaken too often: larger than any rank of an order.
constexpr std::uint64_t kOverdueRank = ~std::uint64_t{0};

}  // namespace

bool Scheduler::form(TimeNs step_time, Pass& pass) {
  step_time_ = step_time;
  pass.prefill.clear();
  pass.decode.clear();
  pass.shape = ForwardShape{};
  pass.steps = 1;
  settle_loads();
  await_writes();
  lease_expected();
  Builder builder(*this, pass);
  do {
    if (style_->compose(builder)) return true;
  } while (looks_up_again_ || retract_parked());
  return false;
}

// Notes whether writes to storage keep a request from being admitted.
void Scheduler::await_writes() {
  const bool any = !waiting_.empty() || !expected_.empty();
  const Pages writing = any ? cache_.awaited_writes() : 0;
  if ((writing > 0) == awaits_writes_) return;
  awaits_writes_ = writing > 0;
  sink_.event({.kind = EventKind::store_awaited, .pages = writing});
}

void Scheduler::Builder::begin(std::uint64_t decode_steps) {
  KV_CHECK(pass_.prefill.empty() && pass_.decode.empty(), "a pass that has a part is submitted");
  s_.blocked_ = false;
  s_.held_ = 0;
  s_.looks_up_again_ = false;
  s_.no_room_ = nullptr;
  retracted_ = false;
  reserved_ = decode_steps == 0 ? 0 : decode_pages(s_.running_, decode_steps, true);
}

// ---- prefill -----------------------------------------------------------------------------------------

Tokens Scheduler::Builder::continue_prefill(Tokens budget) {
  return s_.chunked_ == nullptr ? 0 : extend(*s_.chunked_, budget);
}

bool Scheduler::Builder::chunk_fits(Tokens budget) {
  if (s_.chunked_ == nullptr) return true;
  const Request& request = *s_.chunked_;
  const Tokens tokens = std::min(request.prefill_target - request.kv_tokens, budget);
  const Pages end = s_.pages_for(request.kv_tokens + tokens);
  return s_.cache_.make_room(end - std::min<Pages>(end, request.slots.size()), request.lease) == Room::now;
}

Tokens Scheduler::Builder::admit(Tokens budget) {
  if (s_.chunked_ != nullptr) return 0;
  if (s_.awaits_writes_) {
    ++s_.held_;
    return 0;
  }
  const Tokens before = budget;
  order_window();
  RequestId youngest = 0;
  for (Request* const request : s_.candidates_) {
    if (budget == 0 || s_.chunked_ != nullptr) break;
    const bool full = s_.running_.size() + s_.leased_.size() + pass_.prefill.requests.size() >= s_.config_.max_running;
    const Admission admission = full ? Admission::no_room : s_.admit(*request, budget, reserved_);
    if (admission == Admission::held) {
      ++s_.held_;
      continue;
    }
    if (admission == Admission::no_room) {
      s_.blocked_ = true;
      s_.no_room_ = request;
      break;
    }
    budget -= extend(*request, budget);
    youngest = std::max(youngest, request->record.request);
  }
  if (s_.order_->reorders()) {
    const std::size_t window = std::min<std::size_t>(s_.config_.order_window, s_.waiting_.size());
    for (std::size_t i = 0; i < window && s_.waiting_[i]->record.request < youngest; ++i) ++s_.waiting_[i]->overtaken;
  }
  return before - budget;
}

// Sets candidates_ to the requests that may be admitted now, best first, and at most as many as a step looks at.
void Scheduler::Builder::order_window() {
  const std::size_t window = std::min<std::size_t>(s_.config_.order_window, s_.waiting_.size());
  s_.candidates_.assign(s_.waiting_.begin(), s_.waiting_.begin() + static_cast<std::ptrdiff_t>(window));
  if (!s_.order_->reorders()) return;
  s_.ranked_.clear();
  for (Request* const request : s_.candidates_) {
    const PrefixMatch found = s_.cache_.peek(request->keys);
    const bool overdue = request->overtaken >= s_.config_.overtake_limit;
    const Tokens cached = (found.device_pages + found.host_pages) * s_.config_.shape.page_tokens;
    const WaitingRequest facts{.prompt_tokens = request->record.prompt_tokens,
                               .device_pages = found.device_pages,
                               .host_pages = found.host_pages,
                               .priority = request->priority,
                               .prefill_tokens = request->prefill_target,
                               .cached_tokens = std::min(cached, request->prefill_target - 1),
                               .computed_tokens = s_.prefill_tokens_ - request->prefill_tokens_before};
    s_.ranked_.emplace_back(overdue ? kOverdueRank : std::min(s_.order_->rank(facts), kOverdueRank - 1), request);
  }
  std::ranges::stable_sort(s_.ranked_, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::ranges::transform(s_.ranked_, s_.candidates_.begin(), [](const auto& pair) { return pair.second; });
}

// Adds the request's next chunk to the pass, as much as budget and room allow. Returns the number of tokens.
Tokens Scheduler::Builder::extend(Request& request, Tokens budget) {
  Tokens tokens = std::min(budget, request.prefill_target - request.kv_tokens);
  tokens = s_.cache_.cut_chunk(request.pools, request.kv_tokens, tokens, request.prefill_target);
  Pages more = s_.pages_for(request.kv_tokens + tokens) - request.slots.size();
  if (more + reserved_ > s_.cache_.obtainable_pages()) s_.cache_.release_windows(request.pools, request.kv_tokens);
  const bool all = s_.cache_.make_room(more + reserved_, request.lease) == Room::now;
  const Pages obtainable = s_.cache_.obtainable_pages();
  const Pages room = all ? more : std::max(obtainable, reserved_) - reserved_;
  if (more > room) {
    more = room;
    tokens = (request.slots.size() + room) * s_.config_.shape.page_tokens - request.kv_tokens;
  }
  const bool rest = request.kv_tokens + tokens < request.prefill_target;
  s_.chunked_ = rest ? &request : nullptr;
  if (tokens == 0) return 0;
  s_.cache_.allocate(more, request.slots, request.pools);
  s_.ensure_keys(request, request.slots.size());
  pass_.prefill.add(request, tokens);
  pass_.shape.prefill_tokens += tokens;
  s_.prefill_tokens_ += tokens;
  pass_.shape.prefill_pairs += tokens * request.kv_tokens + tokens * (tokens + 1) / 2;
  pass_.shape.prefill_context_tokens += request.kv_tokens;
  ++pass_.shape.prefill_sequences;
  pass_.shape.copied_states += std::exchange(request.copies_state, false) ? 1 : 0;
  if (KV_MUTANT(1)) {
    request.kv_tokens += tokens;
    s_.publish(request, Publish::prompt);
    request.kv_tokens -= tokens;
  }
  ++request.record.prefill_passes;
  s_.decide(DecisionKind::prefill, rest ? Reason::chunk : Reason::none, request, request.slots.size());
  return tokens;
}

// ---- decode ------------------------------------------------------------------------------------------

// Returns the pages that the requests need for `steps` decode steps, beside the pages that they have; as
// Cache::pages_apart() counts them.
Pages Scheduler::Builder::decode_pages(std::span<Request* const> requests, std::uint64_t steps, bool beside) const {
  Pages pages = 0;
  for (const Request* request : requests) {
    const Pages held = request->slots.size();
    pages += std::max(s_.pages_for(request->kv_tokens + s_.yield_of(*request, steps)), held) - held;
  }
  return s_.cache_.pages_apart(pages, beside);
}

// Sets decoding_ to the running requests whose next tokens the budget pays, oldest admission first.
void Scheduler::Builder::choose_decoding(Tokens budget) {
  s_.decoding_.clear();
  for (Request* request : s_.running_) {
    if (budget < tokens_per_step()) break;
    s_.decoding_.push_back(request);
    budget -= tokens_per_step();
  }
}

// A burst of several steps ends with the first request that finishes, and is short while the head of the queue waits
// for room. The pages of the whole burst are allocated at its start. Tokens that a draft proposes and that are not
// accepted are in slots of the step's own, outside the pool.
std::uint64_t Scheduler::Builder::make_decode_room(std::uint64_t max_steps, Tokens budget) {
  for (;;) {
    choose_decoding(budget);
    const std::span<Request* const> requests = s_.decoding_;
    if (requests.empty()) return 0;
    std::uint64_t steps = s_.steps_to_poll(s_.blocked_ ? std::min(max_steps, kMaxStepsWhileBlocked) : max_steps);
    for (const Request* request : requests) steps = std::min(steps, s_.steps_left(*request));
    s_.cache_.prepare(decode_pages(requests, steps));
    while (steps > 1 && decode_pages(requests, steps) > s_.cache_.obtainable_pages()) steps /= 2;
    Room room = s_.cache_.make_room(decode_pages(requests, steps), s_.cache_.tree().root());
    if (room == Room::never) {
      for (Request* request : requests) s_.cache_.release_windows(request->pools, request->kv_tokens);
      room = s_.cache_.make_room(decode_pages(requests, steps), s_.cache_.tree().root());
    }
    if (room == Room::now) return steps;
    // If there is no victim, the last running request waits for an acknowledgement.
    if (room == Room::later || !retract()) return 0;
  }
}

bool Scheduler::Builder::has_decode_room(Tokens budget) {
  choose_decoding(budget);
  const Pages pages = decode_pages(s_.decoding_, 1);
  return !s_.decoding_.empty() && s_.cache_.make_room(pages, s_.cache_.tree().root()) == Room::now;
}

Tokens Scheduler::Builder::decode(std::uint64_t steps) {
  for (Request* request : s_.decoding_) {
    pass_.decode.add(*request, 0);
    pass_.shape.decode_context_tokens += request->kv_tokens;
    if (s_.config_.draft_tokens != 0) pass_.shape.decode_yield_x1024 += s_.yield_x1024(*request);
  }
  pass_.shape.decode_sequences = static_cast<std::uint32_t>(s_.decoding_.size());
  pass_.shape.draft_tokens = s_.config_.draft_tokens;
  set_steps(steps);
  return s_.decoding_.size() * tokens_per_step();
}

void Scheduler::Builder::lengthen(std::uint64_t max_steps) {
  KV_CHECK(pass_.prefill.empty(), "prefill takes one step");
  const std::span<Request* const> requests = pass_.decode.requests;
  std::uint64_t steps = s_.steps_to_poll(max_steps);
  for (const Request* request : requests) steps = std::min(steps, s_.steps_left(*request));
  while (steps > 1 && decode_pages(requests, steps) > s_.cache_.obtainable_pages()) steps /= 2;
  const bool room =
      steps > 1 && s_.cache_.make_room(decode_pages(requests, steps), s_.cache_.tree().root()) == Room::now;
  if (room) set_steps(steps);
}

// Allocates the pages of so many decode steps, for which there is room.
void Scheduler::Builder::set_steps(std::uint64_t steps) {
  for (std::size_t i = 0; i < pass_.decode.requests.size(); ++i) {
    Request& request = *pass_.decode.requests[i];
    const Tokens tokens = s_.yield_of(request, steps);
    const Pages pages = s_.pages_for(request.kv_tokens + tokens);
    if (pages > request.slots.size()) {
      const bool room = s_.cache_.allocate(pages - request.slots.size(), request.slots, request.pools);
      KV_CHECK(room, "the burst's room was counted before");
      s_.ensure_keys(request, request.slots.size());
    }
    pass_.decode.new_tokens[i] = tokens;
  }
  pass_.steps = steps;
}

// ---- giving pages back -------------------------------------------------------------------------------

bool Scheduler::Builder::retract() {
  const bool found = s_.retract_victim(s_.step_time_);
  retracted_ |= found;
  return found;
}

bool Scheduler::Builder::release_loaded_prefix() {
  // A transfer in flight may make the room. Loads of this step are not submitted yet.
  const auto loading = [](const Request* request) { return request->load_since >= 0; };
  if (s_.cache_.anything_in_flight() || std::ranges::any_of(s_.holders_, loading)) return false;
  const bool runs = !s_.running_.empty() || s_.chunked_ != nullptr;
  if (!runs && !s_.blocked_) return false;
  Request* youngest = nullptr;
  for (Request* request : s_.holders_) {
    if (!runs && request == s_.no_room_) continue;  // its own prefix does not keep it waiting
    if (youngest == nullptr || youngest->record.request < request->record.request) youngest = request;
  }
  if (youngest != nullptr) s_.release_prefix(*youngest, Reason::capacity);
  return youngest != nullptr;
}

}  // namespace kvtwin
