#include "policy/seam/contract.hpp"

#include <algorithm>
#include <numeric>
#include <variant>
#include <vector>

namespace kvtwin {
namespace {

std::uint8_t order_of(const StorageWork& work) {
  if (work.verb == StorageVerb::look_up) return 0;
  return static_cast<std::uint8_t>(1 + 4 * static_cast<unsigned>(work.tier) + (work.verb == StorageVerb::get ? 0 : 2) +
                                   (work.memory == Tier::device ? 1 : 0));
}

}  // namespace

// ---- the policy's side -----------------------------------------------------------------------------------

BrokenTerm SeamContract::judge(const Operation& operation) const {
  return std::visit([this](const auto& what) { return judge(what); }, operation);
}

BrokenTerm SeamContract::judge(const TransferOperation& transfer) const {
  const Plan& plan = transfer.plan;
  if (transfer.lane == Lane::compute) return "a transfer doesn't take the compute lane";
  const bool up = plan.direction == Direction::host_to_device;
  if ((transfer.lane == Lane::h2d && !up) || (transfer.lane == Lane::d2h && up)) return "a plan goes its lane's way";
  if (transfer.pages.empty() && transfer.parts.empty()) return "a transfer moves at least one page";
  for (const TransferOperation::Part& part : transfer.parts) {
    if (part.moves.empty() || part.plan.pages != part.moves.size()) return "a plan counts the pages it moves";
    if (part.plan.direction != plan.direction) return "a plan goes its lane's way";
    if (part.plan.bytes != part.plan.pages * part.plan.shape.page_bytes())
      return "a plan counts the bytes of its pages";
  }
  if (transfer.pages.empty()) return nullptr;
  if (plan.pages != transfer.pages.size()) return "a plan counts the pages it moves";
  if (plan.bytes != plan.pages * plan.shape.page_bytes()) return "a plan counts the bytes of its pages";
  if (const BrokenTerm broken = judge_path(plan); broken != nullptr) return broken;
  for (const Plan& other : transfer.beside) {
    if (const BrokenTerm broken = judge_beside(plan, other); broken != nullptr) return broken;
  }
  std::size_t at = 0;
  for (const PageRun& run : plan.runs) {
    if (run.pages == 0 || run.pages > transfer.pages.size() - at) return "a plan's runs are the page moves, in order";
    const bool descends = transfer.pages[at].source != run.source_first;
    for (std::uint32_t i = 0; i < run.pages; ++i, ++at) {
      const PageMove& move = transfer.pages[at];
      const std::uint32_t place = descends ? run.pages - 1 - i : i;
      if (move.source == kNoSlot || move.target == kNoSlot) return "a page moves from a slot to a slot";
      if (move.source != run.source_first + place || move.target != run.target_first + place) {
        return "a plan's runs are the page moves, in order";
      }
    }
  }
  return at == transfer.pages.size() ? nullptr : "a plan's runs are the page moves, in order";
}

// Breaks of a plan that an executor could not carry out, or only by writing to a page twice.
BrokenTerm SeamContract::judge_path(const Plan& plan) {
  if (plan.path == TransferPath::staged && plan.host_layout == Layout::layer_first) {
    return "a staged plan's pages lie together on the host";
  }
  const Bytes piece = piece_grid(plan.host_layout, plan.shape, 1, 1).piece_bytes;
  if (plan.path == TransferPath::ring && piece % kBulkCopyBytes != 0) return "bulk copies move multiples of 16 bytes";
  const bool grouped = plan.layer_groups > 1;
  if (plan.layer_groups == 0 || (grouped && plan.layer_groups > plan.shape.layers)) return "a layer group has layers";
  if (grouped && plan.direction == Direction::device_to_host) return "only loads land by layers";
  std::vector<PageRun> runs(plan.runs.begin(), plan.runs.end());
  std::ranges::sort(runs, {}, &PageRun::target_first);
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].target_first - runs[i - 1].target_first < runs[i - 1].pages) return "a slot takes one page";
  }
  return nullptr;
}

// All shapes of a slot stay together: the same pages in the same slots.
BrokenTerm SeamContract::judge_beside(const Plan& plan, const Plan& other) {
  if (other.shape.layers == 0) return "a plan beside another has a shape";
  if (other.direction != plan.direction) return "a plan beside another goes its way";
  if (const BrokenTerm broken = judge_path(other); broken != nullptr) return broken;
  if (other.pages != plan.pages || !std::ranges::equal(other.runs, plan.runs)) {
    return "a plan beside another has its pages";
  }
  if (other.bytes != other.pages * other.shape.page_bytes())
    return "a plan beside another counts the bytes of its pages";
  return nullptr;
}

BrokenTerm SeamContract::judge(const StorageOperation& operation) const {
  const StorageWork& work = operation.work;
  if (!is_storage(work.tier)) return "a storage operation is one of a storage tier";
  if (work.memory != Tier::host && work.memory != Tier::device) return "a storage operation's slots are L1's or L2's";
  if (operation.pages.empty()) return "a storage operation has at least one page";
  if (work.pages != operation.pages.size()) return "a storage operation counts its pages";
  if (work.page_bytes == 0 || work.objects == 0 || work.ranks == 0) return "a storage operation weighs something";
  const bool moves = work.verb == StorageVerb::get || work.verb == StorageVerb::set;
  if (operation.pool != 0 && !moves) return "only what moves has slots of a pool";
  if (!operation.needs.empty() && work.verb != StorageVerb::look_up) return "only a look-up has needs";
  for (const StorageOperation::Need& need : operation.needs) {
    if (need.pool == 0 || need.trailing == 0) return "a look-up needs objects of the pools beside pool 0";
  }
  for (const StoragePage& page : operation.pages) {
    if ((page.slot != kNoSlot) != moves) return "a page that moves has a slot, and no other";
  }
  return nullptr;
}

BrokenTerm SeamContract::judge(const HandOverOperation& operation) const {
  const Pages pages = operation.pages.size();
  if (pages == 0) return "a hand-over writes at least one page";
  const HandOverWork& work = operation.work;
  if (work.pages != pages) return "a hand-over counts its pages";
  if (work.bytes == 0 || work.writes == 0 || work.layer_groups == 0) return "a hand-over weighs something";
  const Tokens most = pages * terms_.page_tokens;
  if (operation.tokens > most || operation.tokens + terms_.page_tokens <= most)
    return "only the last page is partly full";
  const auto part = parts_.find({operation.request, operation.attempt});
  if (part == parts_.end() || !part->second.room) return "a hand-over waits for the decode engine's room";
  const PrefillPart& room = part->second;
  if (operation.first < room.first || operation.first + pages > room.end()) {
    return "a hand-over writes pages for which there is room";
  }
  for (Pages i = 0; i < pages; ++i) {
    const PageMove& move = operation.pages[i];
    if (move.source == kNoSlot) return "a page moves from a slot to a slot";
    if (move.target != room.slots[operation.first - room.first + i]) return "a page goes to the slot leased for it";
  }
  if (operation.last && operation.first + pages != room.end()) return "the last hand-over writes the last page";
  if (const BrokenTerm broken = judge_handed(operation, room); broken != nullptr) return broken;
  if (operation.pass == OperationId::none) return nullptr;
  const Open* const pass = find(operation.pass);
  return pass != nullptr && pass->kind == Kind::pass ? nullptr : "a hand-over waits for a pass in flight";
}

// Windows and states go with the last page, each to the slot leased for it.
BrokenTerm SeamContract::judge_handed(const HandOverOperation& operation, const PrefillPart& room) {
  if (!operation.last) return operation.parts.empty() ? nullptr : "windows and states go with the last page";
  std::size_t at = room.slots.size() - room.beside;
  for (const HandOverOperation::Part& part : operation.parts) {
    for (const PageMove& move : part.moves) {
      if (move.source == kNoSlot) return "a window or state moves from a slot to a slot";
      if (at == room.slots.size() || move.target != room.slots[at++]) return "a window or state goes to its slot";
    }
  }
  return at == room.slots.size() ? nullptr : "the last hand-over writes all windows and states";
}

BrokenTerm SeamContract::judge_notice(const Notice& notice) const {
  switch (notice.kind) {
    case NoticeKind::room: {
      if (expected_.contains({notice.request, notice.attempt})) return "room is given once";
      const Pages beside = std::accumulate(notice.beside.begin(), notice.beside.end(), Pages{0});
      return notice.slots.size() <= beside ? "room has at least one page" : nullptr;
    }
    case NoticeKind::cancel:
    case NoticeKind::withdrawn: return nullptr;
    case NoticeKind::handed:
    case NoticeKind::peer_lost: break;
  }
  return "only the world gives this notice";
}

BrokenTerm SeamContract::judge(const ForwardOperation& pass) const {
  if (pass.sequences.empty()) return "a pass has at least one sequence";
  if (pass.steps == 0) return "a pass has at least one step";
  const ForwardShape& shape = pass.shape;
  if (shape.prefill_sequences > 0 && pass.steps != 1) return "prefill takes one step";
  if (std::uint64_t{shape.prefill_sequences} + shape.decode_sequences != pass.sequences.size()) {
    return "a pass's shape counts its sequences";
  }
  Tokens tokens = 0, context = 0, decoded = 0;
  std::size_t prefills = shape.prefill_sequences;  // the first ones
  for (const SequenceWork& sequence : pass.sequences) {
    const bool decodes = prefills == 0;
    if (!decodes) --prefills;
    const Tokens all = sequence.context_tokens + sequence.new_tokens;
    if (sequence.new_tokens == 0) return "a sequence computes at least one token";
    if (sequence.keys.size() != sequence.slots.size()) return "each page of a sequence has a slot and a key";
    if (sequence.slots.size() * terms_.page_tokens < all) return "a sequence's spans cover context and new tokens";
    if (std::ranges::find(sequence.slots, kNoSlot) != sequence.slots.end()) return "a sequence's pages lie in slots";
    tokens += sequence.new_tokens;
    if (shape.draft_tokens != 0 && decodes) {
      decoded += sequence.new_tokens;
      const Tokens max_yield = pass.steps * (std::uint64_t{shape.draft_tokens} + 1);
      if (sequence.new_tokens < pass.steps || sequence.new_tokens > max_yield) return "a step yields what it verifies";
      if (sequence.new_tokens > sequence.yield.after(pass.steps)) return "a burst writes what its steps yield";
    }
    context += sequence.context_tokens;
  }
  if (shape.draft_tokens == 0) decoded = shape.decode_sequences * pass.steps;
  if (tokens != shape.prefill_tokens + decoded) return "a pass's shape counts its tokens";
  if (context != shape.prefill_context_tokens + shape.decode_context_tokens) return "a pass's shape counts its context";
  for (const OperationId gate : pass.gates) {
    const Open* load = find(gate);
    if (load == nullptr || load->kind != Kind::load) return "a gate is a load into L1 in flight";
  }
  return nullptr;
}

BrokenTerm SeamContract::judge_cancel(OperationId id) const {
  const auto number = static_cast<std::uint64_t>(id);
  return number >= 1 && number <= last_id_ ? nullptr : "only a known operation is cancelled";
}

void SeamContract::cancelled(OperationId id) {
  Open* const open = find(id);
  if (open != nullptr) open->cancelled = true;
}

void SeamContract::notified(const Notice& notice) {
  const RequestPartId id{notice.request, notice.attempt};
  if (notice.kind == NoticeKind::room && handed_early_.erase(id) == 0) expected_.insert(id);
  if (notice.kind == NoticeKind::withdrawn) parts_.erase({notice.request, notice.attempt});
}

// ---- the world's answers to calls -------------------------------------------------------------------------

BrokenTerm SeamContract::open(OperationId id, Kind kind, TimeNs since) {
  if (static_cast<std::uint64_t>(id) != last_id_ + 1) return "operation ids are 1, 2, 3 ...";
  ++last_id_;
  Open& added = open_.emplace_back();
  added.id = id;
  added.kind = kind;
  added.since = since;
  return nullptr;
}

BrokenTerm SeamContract::submitted(const Operation& operation, OperationId id, TimeNs now) {
  if (const auto* transfer = std::get_if<TransferOperation>(&operation)) {
    return open(id, transfer->lane == Lane::h2d ? Kind::load : Kind::transfer, now);
  }
  if (const auto* storage = std::get_if<StorageOperation>(&operation)) {
    const bool gates = storage->work.verb == StorageVerb::get && storage->work.memory == Tier::device;
    const BrokenTerm broken = open(id, gates ? Kind::load : Kind::storage, now);
    if (broken != nullptr) return broken;
    open_.back().verb = storage->work.verb;
    open_.back().pages = storage->work.pages;
    open_.back().has_needs = !storage->needs.empty();
    open_.back().order = order_of(storage->work);
    return nullptr;
  }
  if (const auto* hand_over = std::get_if<HandOverOperation>(&operation)) {
    const BrokenTerm broken = open(id, Kind::hand_over, now);
    if (broken != nullptr) return broken;
    open_.back().pass = hand_over->pass;
    open_.back().part = {hand_over->request, hand_over->attempt};
    open_.back().first = hand_over->first;
    open_.back().last = hand_over->last;
    const auto part = parts_.find(open_.back().part);
    if (part == parts_.end()) return nullptr;
    open_.back().lacks_pages = part->second.gap.is_before(hand_over->first);
    if (!open_.back().lacks_pages) part->second.gap.written(static_cast<std::uint64_t>(id));
    return nullptr;
  }
  const auto& pass = std::get<ForwardOperation>(operation);
  const BrokenTerm broken = open(id, Kind::pass, now);
  if (broken != nullptr) return broken;
  open_.back().steps = pass.steps;
  for (const OperationId gate : pass.gates) {
    ++open_.back().gates;
    if (find(gate) == nullptr) continue;  // answered already
    ++open_.back().gates_open;
    gates_.push_back({gate, id});
  }
  return nullptr;
}

BrokenTerm SeamContract::timer_set(TimeNs time, OperationId id) { return open(id, Kind::timer, time); }

BrokenTerm SeamContract::reduction_entered(const ReduceVector& values, OperationId id) {
  const BrokenTerm broken = open(id, Kind::reduction, 0);
  if (broken == nullptr) open_.back().values = values;
  return broken;
}

// ---- the world's inputs -----------------------------------------------------------------------------------

const SeamContract::Open* SeamContract::find(OperationId id) const {
  const auto at = std::ranges::lower_bound(open_, id, {}, &Open::id);
  return at != open_.end() && at->id == id ? &*at : nullptr;
}

void SeamContract::close(OperationId id) {
  const auto at = std::ranges::lower_bound(open_, id, {}, &Open::id);
  open_.erase(at);
}

BrokenTerm SeamContract::take(const Input& input) {
  if (input.now < last_now_) return "time never goes back";
  last_now_ = input.now;
  return std::visit([&](const auto& what) { return take(what, input.now); }, input.what);
}

BrokenTerm SeamContract::take(const Arrival& arrival, TimeNs) {
  const bool again = arrival.attempt > 0;
  if ((arrival.request < next_request_ && !again) || arrival.request == kNoRequest) return "arrivals come in order";
  if (again && !sent_again_.emplace(arrival.request, arrival.attempt).second) {
    return "a request that is sent again is a new attempt";
  }
  if (again && has_living_part(arrival)) return "a request is sent again after the notice that its engine is lost";
  next_request_ = std::max(next_request_, arrival.request + 1);
  if (arrival.prompt_tokens == 0 || arrival.output_tokens == 0) return "a request has a prompt and an output";
  if (arrival.system_tokens > arrival.prompt_tokens) return "a system prompt is a part of the prompt";
  if (arrival.keys.size() > arrival.prompt_tokens + arrival.output_tokens) return "a key names at least one token";
  PageKey prior;  // all zero before the first page
  for (const PageKey& key : arrival.keys) {
    if (priors_.emplace(key, prior).first->second != prior) return "a key names one chain of pages";
    prior = key;
  }
  return take_part(arrival);
}

BrokenTerm SeamContract::take_part(const Arrival& arrival) {
  switch (arrival.part) {
    case RequestPart::whole: return nullptr;
    case RequestPart::prefill: {
      if (terms_.role != EngineRole::prefill) return "a prefill part goes to a prefill engine";
      const Pages full = arrival.prompt_tokens / terms_.page_tokens;
      PrefillPart& part = parts_[{arrival.request, arrival.attempt}];
      part.peer = arrival.peer;
      part.pages = full + (arrival.prompt_tokens % terms_.page_tokens != 0 ? 1 : 0);
      part.beside = 0;
      for (const Tokens window : terms_.windows) {
        part.beside += handed_slots(window, arrival.prompt_tokens, terms_.page_tokens);
      }
      return nullptr;
    }
    case RequestPart::decode: break;
  }
  return terms_.role == EngineRole::decode ? nullptr : "a decode part goes to a decode engine";
}

// Returns whether a part of an earlier attempt has not ended, and nothing shows that it will.
bool SeamContract::has_living_part(const Arrival& again) const {
  for (auto at = parts_.lower_bound({again.request, 0}); at != parts_.end(); ++at) {
    if (at->first.first != again.request || at->first.second >= again.attempt) return false;
    if (!lost_peers_.contains(at->second.peer)) return true;
  }
  return false;
}

BrokenTerm SeamContract::take(const Completion& completion, TimeNs now) {
  const Open* const open = find(completion.id);
  if (open == nullptr && answered_.contains(static_cast<std::uint64_t>(completion.id))) return nullptr;
  if (open == nullptr) return "a completion answers an operation in flight, once";
  switch (open->kind) {
    case Kind::transfer:
    case Kind::load:
    case Kind::storage:
      if (completion.status == Status::gate_failed) return "only a pass has gates";
      if (completion.status == Status::cancelled && !open->cancelled && !terms_.cancels_unrequested) {
        return "only what was cancelled ends cancelled";
      }
      if (const BrokenTerm broken = take_pages(*open, completion); broken != nullptr) return broken;
      if (open->kind == Kind::load) open_gates(*open, completion.status);
      if (open->pages > 0 && terms_.duplicates) answered_.insert(static_cast<std::uint64_t>(completion.id));
      break;
    case Kind::hand_over:
      if (const BrokenTerm broken = take_hand_over(*open, completion); broken != nullptr) return broken;
      break;
    case Kind::pass: {
      const BrokenTerm broken = take_pass(*open, completion, now);
      if (broken != nullptr) return broken;
      break;
    }
    case Kind::timer: return "a timer is answered by its firing";
    case Kind::reduction: return "a reduction is answered by its result";
  }
  close(completion.id);
  return nullptr;
}

BrokenTerm SeamContract::take_hand_over(const Open& open, const Completion& completion) {
  if (completion.status == Status::cancelled && !open.cancelled && !terms_.cancels_unrequested) {
    return "only what was cancelled ends cancelled";
  }
  if (completion.status == Status::gate_failed && open.pass == OperationId::none) return "only a pass has gates";
  if (completion.status != Status::done) {
    if (!open.lacks_pages) lose_pages(open);
    return nullptr;
  }
  if (find(open.pass) != nullptr) return "a hand-over ends after its pass";
  if (open.lacks_pages) return "a hand-over is done after the pages before its own";
  if (open.last && !terms_.ranks_decide) parts_.erase(open.part);
  return nullptr;
}

// The request's later hand-overs lack the pages of the failed one, up to one that writes them again.
void SeamContract::lose_pages(const Open& failed) {
  for (Open& later : open_) {
    if (later.id <= failed.id || later.kind != Kind::hand_over || later.part != failed.part) continue;
    if (later.first <= failed.first) return;
    later.lacks_pages = true;
  }
  const auto at = parts_.find(failed.part);
  if (at != parts_.end()) at->second.gap.failed(failed.first, static_cast<std::uint64_t>(failed.id));
}

BrokenTerm SeamContract::take_pages(const Open& open, const Completion& completion) const {
  if (completion.pages > open.pages) return "no more pages are counted than were given";
  if (open.pages == 0) return nullptr;
  const bool all = completion.pages == open.pages;
  if (completion.status == Status::done && !all && open.verb != StorageVerb::look_up) {
    return "a storage operation that is done counts all its pages";
  }
  if (completion.status != Status::done && all) return "a storage operation that counts all its pages is done";
  if (!completion.usable.empty()) {
    if (!open.has_needs) return "only a look-up with needs tells usable lengths";
    const bool ascends = std::ranges::is_sorted(completion.usable, std::ranges::less_equal());
    if (completion.usable.front() == 0 || completion.usable.back() > completion.pages || !ascends) {
      return "usable lengths ascend, and are of pages that are there";
    }
  }
  for (const Open& earlier : open_) {
    if (earlier.id >= open.id) break;
    if (open.order != 0 && earlier.order == open.order) return "storage operations of one verb and tier end in order";
  }
  return nullptr;
}

BrokenTerm SeamContract::take_pass(const Open& pass, const Completion& completion, TimeNs now) const {
  if (completion.stalled_ns > now - pass.since) return "a pass stalls no longer than it takes";
  if (completion.steps > pass.steps) return "a pass does no more steps than were submitted";
  switch (completion.status) {
    case Status::done:
      if (completion.steps != pass.steps) return "a pass that is done did all its steps";
      break;
    case Status::cancelled:
      if (!pass.cancelled && !((terms_.bursts_end_early || terms_.ranks_decide) && pass.steps > 1)) {
        return "only what was cancelled ends cancelled";
      }
      break;
    case Status::failed:
    case Status::gate_failed:
      if (completion.steps != 0) return "a pass that failed did no step";
      if (completion.status == Status::gate_failed && pass.gates == 0) return "only a pass with gates fails by one";
      break;
  }
  if (completion.steps == 0) return nullptr;
  if (pass.gate_lost) return "a pass whose gate failed did no step";
  return pass.gates_open == 0 ? nullptr : "a pass is answered after its gates";
}

BrokenTerm SeamContract::take(const TimerFired& timer, TimeNs now) {
  const Open* const open = find(timer.id);
  if (open == nullptr || open->kind != Kind::timer) return "a firing answers a timer that is set, once";
  if (now < open->since && !open->cancelled) return "a timer isn't early";
  close(timer.id);
  return nullptr;
}

BrokenTerm SeamContract::take(const Reduction& reduction, TimeNs) {
  const Open* const open = find(reduction.id);
  if (open == nullptr || open->kind != Kind::reduction) return "a result answers a reduction that was entered, once";
  if (reduction.values.size() < open->values.size()) return "a minimum is as wide as our own vector";
  for (std::size_t i = 0; i < reduction.values.size(); ++i) {
    // Journals of version 2 have zeros after the engine's own values.
    const std::int64_t ours = i < open->values.size() ? open->values[i] : 0;
    if (reduction.values[i] > ours) return "a minimum isn't above our own value";
    // Ranks agree on times and totals. Only a damaged world could return a negative one.
    if (reduction.values[i] < 0 && ours >= 0) return "a minimum of times and totals isn't negative";
  }
  close(reduction.id);
  return nullptr;
}

BrokenTerm SeamContract::take(const Notice& notice, TimeNs) {
  const RequestPartId id{notice.request, notice.attempt};
  const bool to_prefill = notice.kind == NoticeKind::room || notice.kind == NoticeKind::cancel;
  if (terms_.role == EngineRole::both) return "only an engine with a role has peers";
  if (notice.kind != NoticeKind::peer_lost && to_prefill != (terms_.role == EngineRole::prefill)) {
    return "a notice goes to the engine with the role for it";
  }
  switch (notice.kind) {
    case NoticeKind::room: {
      const auto at = parts_.find(id);
      if (at == parts_.end()) return nullptr;  // the part has ended
      PrefillPart& part = at->second;
      if (part.room) return "room is given once";
      if (notice.first > part.pages || part.pages - notice.first + part.beside != notice.slots.size()) {
        return "room is for the rest of the prompt";
      }
      part.room = true;
      part.first = notice.first;
      part.slots.assign(notice.slots.begin(), notice.slots.end());
      return nullptr;
    }
    case NoticeKind::handed:
      if (expected_.erase(id) > 0 || (terms_.ranks_decide && handed_early_.insert(id).second)) return nullptr;
      return "only leased pages are handed over, once";
    case NoticeKind::withdrawn: expected_.erase(id); return nullptr;
    case NoticeKind::peer_lost: lost_peers_.insert(notice.peer); return nullptr;
    case NoticeKind::cancel: return nullptr;
  }
  return "a notice is of a kind that there is";
}

// A load has been answered: the passes that it gates have one gate less.
void SeamContract::open_gates(const Open& load, Status status) {
  std::erase_if(gates_, [&](const Gate& gate) {
    if (gate.load != load.id) return false;
    Open* const pass = find(gate.pass);
    if (pass != nullptr) {
      --pass->gates_open;
      pass->gate_lost |= status != Status::done;
    }
    return true;
  });
}

}  // namespace kvtwin
