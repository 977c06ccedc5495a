#include "policy/hand_over.hpp"

#include <algorithm>

#include "policy/base/check.hpp"
#include "policy/scheduler.hpp"

namespace kvtwin {
namespace {

// Writes of one request that may fail in a row; after one more, the decode engine computes the prompt itself.
constexpr std::uint32_t kMaxFailures = 3;

std::pair<RequestId, std::uint32_t> id_of(const Request& request) {
  return {request.record.request, request.record.attempt};
}

}  // namespace

void HandOvers::begin(const Arrival& arrival) {
  const Tokens page = config_.shape.page_tokens;
  Part& part = parts_[{arrival.request, arrival.attempt}];
  part.peer = arrival.peer;
  part.prompt = arrival.prompt_tokens;
  part.pages = (arrival.prompt_tokens + page - 1) / page;
}

// A part that has ended needs no room: the decode engine has been told. The contract forgets a part when its last write
// is done, which may be before this is agreed on; so a damaged journal may give room twice.
void HandOvers::take_room(const Notice& room) {
  const auto at = parts_.find({room.request, room.attempt});
  if (at == parts_.end() || at->second.dropped || at->second.room) return;
  Part& part = at->second;
  const Pages pages = part.pages - room.first;
  KV_CHECK(room.first <= part.pages && pages <= room.slots.size(), "room is for the rest of the prompt");
  part.room = true;
  part.first = part.written = room.first;
  const auto beside = room.slots.begin() + static_cast<std::ptrdiff_t>(pages);
  part.targets.assign(room.slots.begin(), beside);
  part.targets_beside.assign(beside, room.slots.end());
}

bool HandOvers::is_open(const Request& request) const {
  const auto at = parts_.find(id_of(request));
  return at != parts_.end() && !at->second.dropped;
}

bool HandOvers::has_room(const Request& request) const {
  const auto at = parts_.find(id_of(request));
  return at != parts_.end() && at->second.room;
}

void HandOvers::write(const Request& request, Tokens tokens, OperationId pass) {
  const auto at = parts_.find(id_of(request));
  KV_CHECK(at != parts_.end() && !at->second.dropped, "a part is written until it ends");
  Part& part = at->second;
  // A failure that this rank knows and that is not committed yet does not count. The world fails this write then.
  if (!part.room || part.failed) return;
  // Whether a pass has failed is a matter of this rank, and settle() decides by it.
  KV_CHECK(pass == OperationId::none || config_.hand_over.unit == HandOverUnit::layers,
           "only layers write beside a pass");
  const Tokens page = config_.shape.page_tokens;
  const bool whole = tokens >= request.record.prompt_tokens;
  const Pages end = whole ? part.pages : tokens / page;
  if (end <= part.written) return;
  const Pages first = part.written;
  sources_.clear();
  targets_.clear();
  moves_.clear();
  for (Pages i = first; i < end; ++i) {
    sources_.push_back(request.slots[i]);
    targets_.push_back(part.targets[i - part.first]);
    moves_.push_back({request.keys[i], sources_.back(), targets_.back()});
  }
  join_runs(sources_, targets_, runs_);
  const HandOverConfig& terms = config_.hand_over;
  HandOverOperation operation;
  operation.request = request.record.request;
  operation.attempt = request.record.attempt;
  operation.peer = part.peer;
  const bool layers = pass != OperationId::none && terms.unit == HandOverUnit::layers;
  const std::uint32_t groups =
      layers ? std::max(1U, std::min(config_.shape.layers, config_.planner.layer_groups_max)) : 1;
  operation.work = hand_over_work(terms.from, terms.to, end - first, runs_.size(), groups, terms.staged);
  operation.first = first;
  operation.tokens = std::min(request.record.prompt_tokens, end * page) - first * page;
  operation.last = whole;
  operation.pass = pass;
  operation.pages = moves_;
  if (whole) hand_beside(request, part, operation);
  const OperationId id = substrate_.submit(operation);
  flights_.push({{id}, at->first, first, end - first, whole});
  ++part.flights;
  part.written = end;
  sink_.event({.kind = EventKind::hand_over_submitted,
               .pages = end - first,
               .operation = id,
               .request = request.record.request});
}

// The windows and the states, which are those of the prompt's end, go with the last page.
void HandOvers::hand_beside(const Request& request, const Part& part, HandOverOperation& operation) {
  sources_.clear();
  cache_.handed(request.lease, part.prompt, operation.pass == OperationId::none, request.pools, sources_);
  KV_CHECK(sources_.size() == part.targets_beside.size(), "room is for all windows and states");
  const HandOverConfig& terms = config_.hand_over;
  const Tokens page = config_.shape.page_tokens;
  moves_beside_.clear();
  std::vector<Pages> counts;
  for (const Tokens window : config_.windows()) {
    const Pages slots = handed_slots(window, part.prompt, page);
    const Pages first = window == 0 ? part.pages - 1 : first_window_page(window, part.prompt, page);
    for (Pages i = 0; i < slots; ++i) {
      const std::size_t at = moves_beside_.size();
      moves_beside_.push_back({request.keys[first + i], sources_[at], part.targets_beside[at]});
    }
    add_beside(operation.work, terms.from, terms.to, counts.size(), window == 0, slots);
    counts.push_back(slots);
  }
  std::span<const PageMove> rest = moves_beside_;
  for (std::size_t pool = 0; pool < counts.size(); ++pool) {
    operation.parts.push_back({pool, rest.first(counts[pool])});
    rest = rest.subspan(counts[pool]);
  }
}

bool HandOvers::reads_pages(const Request& request) const {
  const auto at = parts_.find(id_of(request));
  return at != parts_.end() && at->second.flights > 0;
}

void HandOvers::linger(const Request& request, NodeId lease, std::vector<SlotId> slots, RequestPools pools) {
  lingering_.push_back({id_of(request), lease, std::move(slots), std::move(pools)});
}

void HandOvers::drop(RequestId request, std::uint32_t attempt, bool peer_lost) {
  const auto at = parts_.find({request, attempt});
  if (at == parts_.end()) return;
  at->second.dropped = true;
  at->second.peer_lost |= peer_lost;
  for (const Flight& flight : flights_.all()) {
    if (flight.part == at->first && !flight.complete) substrate_.cancel(flight.id);
  }
  end_if_quiet(at);
}

bool HandOvers::commit(const Acknowledged& agreed) {
  return flights_.acknowledge(agreed, [this](const Flight& flight, bool done) { settle(flight, done); });
}

void HandOvers::settle(const Flight& flight, bool done) {
  const auto at = parts_.find(flight.part);
  KV_CHECK(at != parts_.end() && at->second.flights > 0, "a part stays known while it is written");
  Part& part = at->second;
  --part.flights;
  sink_.event({.kind = EventKind::hand_over_ended,
               .reason = done ? Reason::none : Reason::transfer_failed,
               .pages = flight.pages,
               .operation = flight.id,
               .request = flight.part.first});
  if (!done && !part.failed) {
    part.failed = true;
    part.written = flight.first;
    // A write that failed with its pass is no failure of the way to the peer. On this rank, the write may be done.
    if (flight.status != Status::gate_failed) ++part.failures;
  }
  if (done) part.failures = 0;
  if (part.flights == 0) part.failed = false;
  if (done && flight.last && !part.dropped) {
    ended_.push_back({flight.part.first, flight.part.second, true});
  } else if (part.failures > kMaxFailures && part.flights == 0 && !part.dropped) {
    ended_.push_back({flight.part.first, flight.part.second, false});
  }
  if (part.flights > 0) return;
  std::erase_if(lingering_, [&](Lingering& pages) {
    if (pages.part != flight.part) return false;
    cache_.free(pages.slots);
    cache_.release(pages.lease);
    cache_.leave_pools(pages.pools);
    return true;
  });
  // A part whose last write was cancelled too late has been handed over.
  if (done && flight.last) {
    parts_.erase(at);
  } else {
    end_if_quiet(at);
  }
}

void HandOvers::end_if_quiet(std::map<PartId, Part>::iterator at) {
  const Part& part = at->second;
  if (!part.dropped || part.flights > 0) return;
  if (!part.peer_lost) {
    Notice notice;
    notice.kind = NoticeKind::withdrawn;
    notice.request = at->first.first;
    notice.attempt = at->first.second;
    substrate_.notify(part.peer, notice);
  }
  parts_.erase(at);
}

void HandOvers::send(NoticeKind kind, const Request& request, Pages first, std::span<const SlotId> slots) {
  std::vector<Pages> beside;
  for (const Tokens window : kind == NoticeKind::room ? config_.windows() : std::vector<Tokens>()) {
    beside.push_back(handed_slots(window, request.record.prompt_tokens, config_.shape.page_tokens));
  }
  Notice notice;
  notice.kind = kind;
  notice.request = request.record.request;
  notice.attempt = request.record.attempt;
  notice.first = first;
  notice.slots = slots;
  notice.beside = beside;
  substrate_.notify(request.record.peer, notice);
}

void HandOvers::lingering_pools(std::vector<const RequestPools*>& pools) const {
  for (const Lingering& kept : lingering_) pools.push_back(&kept.pools);
}

Pages HandOvers::lingering_pages() const {
  Pages pages = 0;
  for (const Lingering& kept : lingering_) pages += kept.slots.size();
  return pages;
}

}  // namespace kvtwin
