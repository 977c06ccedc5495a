#include "sim/adversarial_world.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <span>
#include <utility>

#include "policy/check.hpp"
#include "policy/substrate.hpp"
#include "sim/agenda.hpp"
#include "sim/operation_table.hpp"
#include "sim/page_arena.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kPieces = 4;  // of a page, in a transfer
constexpr std::size_t kMaxViolations = 100;

enum class Happening : std::uint8_t {
  load_done,
  load_failed,
  load_cancelled,
  load_partly_moved,
  backup_done,
  backup_failed,
  backup_cancelled,
  backup_partly_moved,
  cancel_too_late,
  lane_overtaken,
  completion_delayed,
  pass_done,
  pass_waited_for_gate,
  pass_waited_for_pass,
  gate_had_landed,
  gate_failed,
  burst_done,
  burst_cut,
  queued_pass_cancelled,
  timer_cancelled,
  reduction_delayed,
  slot_poisoned,
  count
};
constexpr std::array<std::string_view, static_cast<std::size_t>(Happening::count)> kHappeningNames = {
    "load_done",
    "load_failed",
    "load_cancelled",
    "load_partly_moved",
    "backup_done",
    "backup_failed",
    "backup_cancelled",
    "backup_partly_moved",
    "cancel_too_late",
    "lane_overtaken",
    "completion_delayed",
    "pass_done",
    "pass_waited_for_gate",
    "pass_waited_for_pass",
    "gate_had_landed",
    "gate_failed",
    "burst_done",
    "burst_cut",
    "queued_pass_cancelled",
    "timer_cancelled",
    "reduction_delayed",
    "slot_poisoned"};

// What this seed's world is like.
struct Manners {
  std::uint64_t transfer_ns = 0, pass_ns = 0, step_ns = 0;  // upper ends
  std::uint64_t completion_delay_ns = 0, reduction_delay_ns = 0, timer_delay_ns = 0;
  std::uint64_t most_pieces = 1;
  std::uint64_t load_failures = 0, backup_failures = 0;  // of 1,000
  std::array<bool, kLanes> fifo{};

  Manners(Chance& chance, bool faults) {
    const auto scale = [&chance](std::uint64_t decades) {  // log-uniform, or nothing at all
      std::uint64_t most = 1;
      for (std::uint64_t i = chance.below(decades + 1); i > 0; --i) most *= 10;
      return most == 1 ? 0 : most;
    };
    transfer_ns = scale(6);
    pass_ns = scale(6);
    step_ns = scale(5);
    completion_delay_ns = chance.in(1, 2) ? scale(5) : 0;
    reduction_delay_ns = chance.in(1, 2) ? scale(4) : 0;
    timer_delay_ns = chance.in(1, 2) ? scale(4) : 0;
    most_pieces = 1 + chance.below(kPieces);
    const bool loads_fail = chance.in(1, 2), backups_fail = chance.in(1, 2);
    if (faults && loads_fail) load_failures = chance.below(300);
    if (faults && backups_fail) backup_failures = chance.below(300);
    for (bool& lane : fifo) lane = chance.in(1, 2);
  }
};

constexpr std::string_view name_of(Lane lane) {
  return lane == Lane::h2d ? "h2d" : lane == Lane::d2h ? "d2h" : "compute";
}

std::string hex(std::uint64_t value) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 16; i > 0; --i, value >>= 4) text[i - 1] = digits[value & 15];
  return text;
}

class Adversary final : public AdversarialWorld, private Substrate {
 public:
  explicit Adversary(const AdversarialConfig& config)
      : config_(config),
        chance_(Chance::mix(config.seed + 1)),
        manners_(chance_, config.faults),
        device_(config.device_pages),
        host_(config.host_pages) {
    KV_CHECK(config.page_tokens > 0, "a page holds at least one token");
  }

  // World
  Substrate& substrate() override { return *this; }
  TimeNs now() const override { return now_; }
  void watch_lanes(LaneObserver*) override {}  // its times mean nothing
  void set_progress(void (*tick)(void* context, TimeNs now), void* context) override {
    tick_ = tick;
    tick_context_ = context;
  }
  void run(InputSource& source, InputHandler& handler) override;

  // AdversarialWorld
  void on_event(const Event& event) override;
  const std::vector<std::string>& violations() const override { return violations_; }
  std::uint64_t violation_count() const override { return violation_count_; }
  std::vector<std::pair<std::string_view, std::uint64_t>> coverage() const override;

 private:
  enum class Kind : std::uint8_t { transfer, forward, timer, reduction };
  enum class Stage : std::uint8_t { moving, queued, gated, running, ending };

  struct Sequence {
    RequestId request = kNoRequest;
    Tokens context = 0, fresh = 0;
    std::size_t first = 0, pages = 0;  // in slots and keys of the record
  };
  struct Waiter {
    std::uint32_t pass = 0;
    OperationId id = OperationId::none;
  };
  struct Record {
    OperationId id = OperationId::none;
    Kind kind = Kind::timer;
    Stage stage = Stage::ending;
    Lane lane = Lane::compute;
    std::uint32_t ticket = 0;
    bool cancelled = false;
    Completion completion;
    ReduceVector values{};
    TimeNs answered = 0;  // transfers: its completion's time; passes: their gates' latest, which comes first
    // transfers
    std::vector<PageMove> moves;
    Bytes page_bytes = 0;
    TimeNs landing = 0;
    std::uint64_t pieces = 1, piece = 0, order = 0;  // `order`: which part of which page moves when
    std::vector<Waiter> waiters;
    // passes
    std::vector<Sequence> sequences;
    std::vector<SlotId> slots;
    std::vector<PageKey> keys;
    std::uint64_t steps = 1;
    std::uint32_t open_gates = 0;
    bool gate_failed = false;
    TimeNs started = 0, ends = 0;  // holds the lane, writes its last token
  };
  struct LaneEnds {
    TimeNs landing = 0, completion = 0;
  };

  // Substrate
  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override;
  OperationId reduce_min(const ReduceVector& values) override;
  void cancel(OperationId id) override;

  std::uint32_t new_record(Kind kind, Stage stage);
  void schedule(std::uint32_t slot, TimeNs time);
  TimeNs later(std::uint64_t most) { return now_ + static_cast<TimeNs>(chance_.below(most + 1)); }
  TimeNs between(TimeNs from, TimeNs to) {
    return from + static_cast<TimeNs>(chance_.below(static_cast<std::uint64_t>(to - from) + 1));
  }
  void note(Happening what) { ++happened_[static_cast<std::size_t>(what)]; }
  void violation(const Record& record, const PageKey& key, SlotId slot, std::string_view what);
  void check_slot(const Record& record, const PageArena& arena, const PageKey& key, SlotId slot);

  OperationId submit_transfer(const TransferOperation& operation);
  OperationId submit_forward(const ForwardOperation& operation);
  PageArena& source_of(const Record& record) { return record.lane == Lane::h2d ? host_ : device_; }
  PageArena& target_of(const Record& record) { return record.lane == Lane::h2d ? device_ : host_; }
  void move_piece(std::uint32_t slot);
  void copy_parts(Record& record, std::uint64_t piece, std::size_t pages);
  void land(std::uint32_t slot);
  void cut_transfer(Record& record);
  void tell_waiters(std::uint32_t slot, bool landed);

  void enter_lane(std::uint32_t slot);
  void start_pass(std::uint32_t slot);
  void fail_pass(std::uint32_t slot);
  void run_pass(std::uint32_t slot);
  void end_pass(std::uint32_t slot);
  Tokens fresh_by(const Record& record, const Sequence& sequence, std::uint64_t pieces) const;
  void check_context(const Record& record, std::uint64_t steps);
  void write_range(const Record& record, const Sequence& sequence, Tokens from, Tokens to);

  void handle_entry(const AgendaEntry& entry);
  void finish(std::uint32_t slot);
  void deliver(const Input& input);

  AdversarialConfig config_;
  Chance chance_;
  Manners manners_;
  PageArena device_, host_;
  TimeNs now_ = 0;
  std::uint64_t last_id_ = 0, delivered_ = 0;
  std::vector<Record> records_;
  std::vector<std::uint32_t> free_;
  OperationTable table_;
  Agenda agenda_;
  std::array<LaneEnds, kLanes> ends_{};
  std::deque<std::uint32_t> passes_;  // the compute lane; the first one holds it
  InputHandler* handler_ = nullptr;
  Input arrival_;
  void (*tick_)(void*, TimeNs) = nullptr;
  void* tick_context_ = nullptr;
  std::vector<std::string> violations_;
  std::uint64_t violation_count_ = 0;
  std::array<std::uint64_t, static_cast<std::size_t>(Happening::count)> happened_{};
};

// ---- records -------------------------------------------------------------------------------------------

std::uint32_t Adversary::new_record(Kind kind, Stage stage) {
  std::uint32_t slot = static_cast<std::uint32_t>(records_.size());
  if (free_.empty()) {
    records_.emplace_back();
  } else {
    slot = free_.back();
    free_.pop_back();
  }
  Record& record = records_[slot];  // its vectors keep their capacity
  record.id = OperationId{++last_id_};
  record.kind = kind;
  record.stage = stage;
  record.lane = Lane::compute;
  record.cancelled = record.gate_failed = false;
  record.completion = Completion{.id = record.id};
  record.open_gates = 0;
  record.piece = 0;
  record.pieces = 1 + chance_.below(manners_.most_pieces);
  record.answered = 0;
  table_.insert(record.id, slot);
  return slot;
}

void Adversary::schedule(std::uint32_t slot, TimeNs time) {
  agenda_.push(AgendaEntry{std::max(time, now_), records_[slot].id, slot, ++records_[slot].ticket});
}

void Adversary::violation(const Record& record, const PageKey& key, SlotId slot, std::string_view what) {
  ++violation_count_;
  if (violations_.size() == kMaxViolations) return;
  violations_.push_back("at " + std::to_string(now_) + " ns, operation " +
                        std::to_string(static_cast<std::uint64_t>(record.id)) + " on lane " +
                        std::string(name_of(record.lane)) + ", page " + hex(key.words[0]) + " in slot " +
                        std::to_string(slot) + ": " + std::string(what));
}

void Adversary::check_slot(const Record& record, const PageArena& arena, const PageKey& key, SlotId slot) {
  if (config_.tracks_slots && !arena.allocated(slot)) violation(record, key, slot, "uses a slot that was released");
}

void Adversary::on_event(const Event& event) {
  const bool allocated = event.kind == EventKind::slots_allocated;
  if (!allocated && event.kind != EventKind::slots_released) return;
  PageArena& arena = event.tier == Tier::device ? device_ : host_;
  for (const SlotId slot : event.slots) {
    KV_CHECK(arena.contains(slot), "a slot lies inside its pool");
    arena.set_allocated(slot, allocated);
    arena.poison(slot);
    if (!allocated) note(Happening::slot_poisoned);
  }
}

std::vector<std::pair<std::string_view, std::uint64_t>> Adversary::coverage() const {
  std::vector<std::pair<std::string_view, std::uint64_t>> result;
  for (std::size_t i = 0; i < happened_.size(); ++i) result.emplace_back(kHappeningNames[i], happened_[i]);
  return result;
}

// ---- the substrate -------------------------------------------------------------------------------------

OperationId Adversary::submit(const Operation& operation) {
  if (const auto* transfer = std::get_if<TransferOperation>(&operation)) return submit_transfer(*transfer);
  KV_CHECK(std::holds_alternative<ForwardOperation>(operation), "this world has no storage yet");
  return submit_forward(std::get<ForwardOperation>(operation));
}

OperationId Adversary::call_at(TimeNs time) {
  const std::uint32_t slot = new_record(Kind::timer, Stage::ending);
  schedule(slot, std::max(time, now_) + static_cast<TimeNs>(chance_.below(manners_.timer_delay_ns + 1)));
  return records_[slot].id;
}

OperationId Adversary::reduce_min(const ReduceVector& values) {
  const std::uint32_t slot = new_record(Kind::reduction, Stage::ending);
  records_[slot].values = values;
  const TimeNs time = later(manners_.reduction_delay_ns);
  if (time > now_) note(Happening::reduction_delayed);
  schedule(slot, time);
  return records_[slot].id;
}

void Adversary::cancel(OperationId id) {
  const std::uint32_t slot = table_.find(id);
  if (slot == kNoSlotIndex) return;
  Record& record = records_[slot];
  if (record.kind == Kind::timer) {
    note(Happening::timer_cancelled);
    schedule(slot, now_);
    return;
  }
  if (record.kind == Kind::reduction || record.cancelled) return;
  if (record.stage == Stage::ending || chance_.in(1, 8)) {
    note(Happening::cancel_too_late);
    return;
  }
  record.cancelled = true;
  if (record.kind == Kind::transfer) {
    schedule(slot, between(now_, std::max(now_, record.landing)));
  } else if (record.stage == Stage::queued) {
    note(Happening::queued_pass_cancelled);
    std::erase(passes_, slot);
    record.stage = Stage::ending;
    record.completion.status = Status::cancelled;
    schedule(slot, later(manners_.completion_delay_ns));
  } else if (record.stage == Stage::running && record.steps > 1) {
    record.ends = between(now_, std::max(now_, record.ends));
    if (record.piece > 0) schedule(slot, record.ends);  // else its start, due now, goes on from here
  }
}

// ---- transfers -----------------------------------------------------------------------------------------

OperationId Adversary::submit_transfer(const TransferOperation& operation) {
  KV_CHECK(operation.lane == Lane::h2d || operation.lane == Lane::d2h, "this world has no such lane");
  const std::uint32_t slot = new_record(Kind::transfer, Stage::moving);
  Record& record = records_[slot];
  record.lane = operation.lane;
  record.moves.assign(operation.pages.begin(), operation.pages.end());
  record.page_bytes = operation.plan.pages == 0 ? 0 : operation.plan.bytes / operation.plan.pages;
  record.order = chance_.next();
  record.waiters.clear();
  for (const PageMove& move : record.moves) {
    KV_CHECK(source_of(record).contains(move.source) && target_of(record).contains(move.target),
             "a page moves between slots of the pools");
    check_slot(record, source_of(record), move.key, move.source);
    check_slot(record, target_of(record), move.key, move.target);
    target_of(record).poison(move.target);
  }
  LaneEnds& lane = ends_[static_cast<std::size_t>(record.lane)];
  record.landing = later(manners_.transfer_ns);
  if (manners_.fifo[static_cast<std::size_t>(record.lane)]) record.landing = std::max(record.landing, lane.landing);
  if (record.landing < lane.landing) note(Happening::lane_overtaken);
  lane.landing = std::max(lane.landing, record.landing);
  const std::uint64_t failures = record.lane == Lane::h2d ? manners_.load_failures : manners_.backup_failures;
  if (chance_.in(failures, 1000)) record.completion.status = Status::failed;
  schedule(slot, record.pieces == 1 ? record.landing : between(now_, record.landing));
  return record.id;
}

void Adversary::move_piece(std::uint32_t slot) {
  Record& record = records_[slot];
  if (record.cancelled) {
    cut_transfer(record);
    land(slot);
    return;
  }
  copy_parts(record, record.piece, record.moves.size());
  if (++record.piece == record.pieces) {
    land(slot);
    return;
  }
  schedule(slot, record.piece + 1 == record.pieces ? record.landing : between(now_, record.landing));
}

// Copies what belongs to this piece, and looks at it: a source that changed under the transfer shows here.
void Adversary::copy_parts(Record& record, std::uint64_t piece, std::size_t pages) {
  PageArena& from = source_of(record);
  PageArena& to = target_of(record);
  constexpr std::size_t part = kPageBytes / kPieces;
  for (std::size_t page = 0; page < pages; ++page) {
    const PageMove& move = record.moves[page];
    if (record.completion.status == Status::failed) {
      to.scribble(move.target, chance_);
      continue;
    }
    std::uint64_t draw = Chance::mix(record.order + page);
    const PageImage right = image_of(move.key);
    bool wrong = false;
    for (std::size_t i = 0; i < kPieces; ++i, draw >>= 8) {
      if ((draw & 0xFF) % record.pieces != piece) continue;
      const std::byte* source = from.at(move.source) + i * part;
      wrong |= std::memcmp(source, right.data() + i * part, part) != 0;
      std::memcpy(to.at(move.target) + i * part, source, part);
    }
    if (wrong) violation(record, move.key, move.source, "the source doesn't hold this page's bytes");
  }
}

// A cancel: the first pages are whole, the others hold nothing.
void Adversary::cut_transfer(Record& record) {
  const std::size_t whole = chance_.below(record.moves.size() + 1);
  if (record.completion.status != Status::failed) {
    for (std::uint64_t piece = record.piece; piece < record.pieces; ++piece) copy_parts(record, piece, whole);
    for (std::size_t i = whole; i < record.moves.size(); ++i) target_of(record).poison(record.moves[i].target);
    record.completion.status = Status::cancelled;
  }
  record.completion.bytes = whole * record.page_bytes * config_.ranks;
  if (whole > 0) note(record.lane == Lane::h2d ? Happening::load_partly_moved : Happening::backup_partly_moved);
}

void Adversary::land(std::uint32_t slot) {
  Record& record = records_[slot];
  const Status status = record.completion.status;
  record.stage = Stage::ending;
  if (status == Status::done) record.completion.bytes = record.moves.size() * record.page_bytes * config_.ranks;
  const bool load = record.lane == Lane::h2d;
  note(status == Status::done     ? (load ? Happening::load_done : Happening::backup_done)
       : status == Status::failed ? (load ? Happening::load_failed : Happening::backup_failed)
                                  : (load ? Happening::load_cancelled : Happening::backup_cancelled));
  LaneEnds& lane = ends_[static_cast<std::size_t>(record.lane)];
  TimeNs completion = later(manners_.completion_delay_ns);
  if (manners_.fifo[static_cast<std::size_t>(record.lane)]) completion = std::max(completion, lane.completion);
  lane.completion = std::max(lane.completion, completion);
  if (completion > now_) note(Happening::completion_delayed);
  record.answered = completion;
  schedule(slot, completion);
  tell_waiters(slot, status == Status::done);
}

void Adversary::tell_waiters(std::uint32_t slot, bool landed) {
  for (std::size_t i = 0; i < records_[slot].waiters.size(); ++i) {
    const Waiter waiter = records_[slot].waiters[i];
    Record& pass = records_[waiter.pass];
    if (pass.id != waiter.id || pass.stage == Stage::ending) continue;
    --pass.open_gates;
    pass.gate_failed |= !landed;
    pass.answered = std::max(pass.answered, records_[slot].answered);
    if (pass.stage == Stage::gated) start_pass(waiter.pass);
  }
}

// ---- passes --------------------------------------------------------------------------------------------

OperationId Adversary::submit_forward(const ForwardOperation& operation) {
  KV_CHECK(operation.steps > 0, "a forward pass has at least one step");
  const std::uint32_t slot = new_record(Kind::forward, Stage::queued);
  Record& record = records_[slot];
  record.steps = operation.steps;
  record.sequences.clear();
  record.slots.clear();
  record.keys.clear();
  for (const SequenceWork& work : operation.sequences) {
    const std::size_t pages = std::min(work.slots.size(), work.keys.size());
    record.sequences.push_back({work.request, work.context_tokens, work.new_tokens, record.slots.size(), pages});
    record.slots.insert(record.slots.end(), work.slots.begin(),
                        work.slots.begin() + static_cast<std::ptrdiff_t>(pages));
    record.keys.insert(record.keys.end(), work.keys.begin(), work.keys.begin() + static_cast<std::ptrdiff_t>(pages));
  }
  for (const OperationId gate : operation.gates) {
    const std::uint32_t load = table_.find(gate);
    if (load == kNoSlotIndex) continue;
    KV_CHECK(records_[load].kind == Kind::transfer, "only a transfer can gate a forward pass");
    if (records_[load].stage == Stage::ending) {  // landed or not, its completion is still to come
      note(Happening::gate_had_landed);
      record.gate_failed |= records_[load].completion.status != Status::done;
      record.answered = std::max(record.answered, records_[load].answered);
      continue;
    }
    records_[load].waiters.push_back({slot, record.id});
    ++record.open_gates;
  }
  const OperationId id = record.id;
  passes_.push_back(slot);
  if (passes_.size() == 1) {
    enter_lane(slot);
  } else {
    note(Happening::pass_waited_for_pass);
  }
  return id;
}

void Adversary::enter_lane(std::uint32_t slot) {
  Record& record = records_[slot];
  record.stage = Stage::gated;
  record.started = now_;
  if (record.open_gates > 0) note(Happening::pass_waited_for_gate);
  start_pass(slot);
}

void Adversary::start_pass(std::uint32_t slot) {
  Record& record = records_[slot];
  if (record.gate_failed) {
    fail_pass(slot);
    return;
  }
  if (record.open_gates > 0) return;
  record.stage = Stage::running;
  record.completion.stalled_ns = now_ - record.started;
  const auto span = static_cast<std::uint64_t>(chance_.below(manners_.pass_ns + 1)) +
                    record.steps * chance_.below(manners_.step_ns + 1);
  record.ends = now_ + static_cast<TimeNs>(span);
  schedule(slot, now_);
}

// What it would have written holds anything.
void Adversary::fail_pass(std::uint32_t slot) {
  Record& record = records_[slot];
  note(Happening::gate_failed);
  for (const Sequence& sequence : record.sequences) {
    const Tokens pages = (sequence.context + config_.page_tokens - 1) / config_.page_tokens;
    for (std::size_t i = static_cast<std::size_t>(pages); i < sequence.pages; ++i) {
      device_.scribble(record.slots[sequence.first + i], chance_);
    }
  }
  record.stage = Stage::ending;
  record.completion.status = Status::gate_failed;
  record.completion.stalled_ns = now_ - record.started;
  schedule(slot, later(manners_.completion_delay_ns));
}

// Comes once to check the context, then at every piece of the writing; a burst that was cut comes early.
void Adversary::run_pass(std::uint32_t slot) {
  Record& record = records_[slot];
  const bool cut = record.cancelled && record.steps > 1;
  if (record.piece == 0) {
    check_context(record, 0);
  } else if (cut || record.piece == record.pieces) {
    end_pass(slot);
    return;
  } else {
    for (const Sequence& sequence : record.sequences) {
      write_range(record, sequence, fresh_by(record, sequence, record.piece - 1),
                  fresh_by(record, sequence, record.piece));
    }
  }
  ++record.piece;
  const bool last = cut || record.piece == record.pieces;
  schedule(slot, last ? record.ends : between(now_, std::max(now_, record.ends)));
}

void Adversary::end_pass(std::uint32_t slot) {
  Record& record = records_[slot];
  std::uint64_t steps = record.steps;
  if (record.cancelled && steps > 1) {
    const std::uint64_t least = std::max<std::uint64_t>(1, steps * (record.piece - 1) / record.pieces);
    steps = least + chance_.below(steps - least + 1);
  }
  for (const Sequence& sequence : record.sequences) {
    const Tokens all = record.steps > 1 ? std::min<Tokens>(sequence.fresh, steps) : sequence.fresh;
    write_range(record, sequence, fresh_by(record, sequence, record.piece - 1), all);
  }
  check_context(record, steps);
  record.completion.steps = steps;
  if (steps < record.steps) record.completion.status = Status::cancelled;
  note(record.steps == 1 ? Happening::pass_done : steps < record.steps ? Happening::burst_cut : Happening::burst_done);
  record.stage = Stage::ending;
  schedule(slot, std::max(record.answered, later(manners_.completion_delay_ns)));
}

// New tokens written after so many of the pass's pieces. A burst's pieces are whole steps.
Tokens Adversary::fresh_by(const Record& record, const Sequence& sequence, std::uint64_t pieces) const {
  if (record.steps > 1) return std::min<Tokens>(sequence.fresh, record.steps * pieces / record.pieces);
  return sequence.fresh * pieces / record.pieces;
}

// The context and what `steps` steps have added to it.
void Adversary::check_context(const Record& record, std::uint64_t steps) {
  for (const Sequence& sequence : record.sequences) {
    const Tokens fresh = record.steps > 1 ? std::min<Tokens>(sequence.fresh, steps) : (steps > 0 ? sequence.fresh : 0);
    Tokens left = sequence.context + fresh;
    for (std::size_t i = 0; i < sequence.pages && left > 0; ++i) {
      const Tokens tokens = std::min<Tokens>(left, config_.page_tokens);
      left -= tokens;
      const SlotId slot = record.slots[sequence.first + i];
      const PageKey& key = record.keys[sequence.first + i];
      check_slot(record, device_, key, slot);
      const PageImage right = image_of(key);
      const std::size_t bytes = tokens * kPageBytes / config_.page_tokens;
      if (std::memcmp(device_.at(slot), right.data(), bytes) != 0) {
        violation(record, key, slot,
                  "request " + std::to_string(sequence.request) + " would attend to wrong bytes in page " +
                      std::to_string(i) + " of its context");
      }
    }
  }
}

// New tokens [from, to) of the sequence.
void Adversary::write_range(const Record& record, const Sequence& sequence, Tokens from, Tokens to) {
  from += sequence.context;
  to += sequence.context;
  while (from < to) {
    const auto page = static_cast<std::size_t>(from / config_.page_tokens);
    if (page >= sequence.pages) return;
    const Tokens page_start = page * config_.page_tokens;
    const Tokens stop = std::min(to, page_start + config_.page_tokens);
    const PageImage right = image_of(record.keys[sequence.first + page]);
    const std::size_t first = (from - page_start) * kPageBytes / config_.page_tokens;
    const std::size_t last = (stop - page_start) * kPageBytes / config_.page_tokens;
    std::memcpy(device_.at(record.slots[sequence.first + page]) + first, right.data() + first, last - first);
    from = stop;
  }
}

// ---- the stream of inputs ------------------------------------------------------------------------------

void Adversary::run(InputSource& source, InputHandler& handler) {
  handler_ = &handler;
  bool more = source.next(arrival_);
  for (;;) {
    while (!agenda_.empty() && records_[agenda_.top().slot].ticket != agenda_.top().ticket) agenda_.pop();
    const TimeNs arrives = std::max(now_, arrival_.now);
    if (!agenda_.empty() && (!more || agenda_.top().time <= arrives)) {
      const AgendaEntry entry = agenda_.pop();
      now_ = entry.time;
      handle_entry(entry);
    } else if (more) {
      now_ = arrival_.now = arrives;
      deliver(arrival_);
      more = source.next(arrival_);
    } else {
      return;
    }
  }
}

void Adversary::handle_entry(const AgendaEntry& entry) {
  switch (records_[entry.slot].stage) {
    case Stage::moving: move_piece(entry.slot); break;
    case Stage::running: run_pass(entry.slot); break;
    case Stage::ending: finish(entry.slot); break;
    case Stage::queued:
    case Stage::gated: KV_CHECK(false, "a pass that waits has no time of its own"); break;
  }
}

void Adversary::finish(std::uint32_t slot) {
  Record& record = records_[slot];
  ++record.ticket;
  if (record.kind == Kind::forward && !passes_.empty() && passes_.front() == slot) {
    passes_.pop_front();
    if (!passes_.empty()) enter_lane(passes_.front());
  }
  table_.erase(record.id);
  const OperationId id = std::exchange(record.id, OperationId::none);
  Input input{now_, record.completion};
  if (record.kind == Kind::timer) input.what = TimerFired{id};
  if (record.kind == Kind::reduction) input.what = Reduction{id, record.values};
  free_.push_back(slot);
  deliver(input);
}

void Adversary::deliver(const Input& input) {
  if (++delivered_ % 1000 == 0 && tick_ != nullptr) tick_(tick_context_, now_);
  handler_->handle(input);
}

}  // namespace

std::unique_ptr<AdversarialWorld> make_adversarial_world(const AdversarialConfig& config) {
  return std::make_unique<Adversary>(config);
}

}  // namespace kvtwin
