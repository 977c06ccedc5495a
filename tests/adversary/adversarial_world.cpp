#include "tests/adversary/adversarial_world.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <span>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/seam/live_source.hpp"
#include "policy/seam/substrate.hpp"
#include "sim/agenda.hpp"
#include "sim/operation_table.hpp"
#include "tests/adversary/page_arena.hpp"
#include "tests/adversary/page_store.hpp"
#include "tests/adversary/pass_parts.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kPieces = 4;  // number of parts of a page that a transfer moves separately
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
  // storage: first the faults of the medium, in the order of MediumFault
  write_error,
  torn_write,
  misdirected_write,
  lost_write,
  flipped_payload,
  flipped_header,
  flipped_key,
  no_room,
  read_error,
  short_read,
  misdirected_read,
  device_slow,
  node_dead,
  node_back_empty,
  look_up_whole,
  look_up_short,
  get_done,
  get_short,
  get_missing,
  get_cancelled,
  get_partly_moved,
  set_done,
  set_short,
  set_was_there,
  set_cancelled,
  remove_done,
  remove_short,
  store_full,
  store_evicted,
  page_quarantined,
  storage_cancel_too_late,
  storage_waited_for_turn,
  get_gated,
  hand_over_done,
  hand_over_failed,
  hand_over_cancelled,
  hand_over_waited_for_pass,
  hand_over_pass_failed,
  count
};
constexpr auto kFirstOfHandOver = static_cast<std::size_t>(Happening::hand_over_done);
constexpr auto kFirstOfStorage = static_cast<std::size_t>(Happening::write_error);
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
    "slot_poisoned",
    "write_error",
    "torn_write",
    "misdirected_write",
    "lost_write",
    "flipped_payload",
    "flipped_header",
    "flipped_key",
    "no_room",
    "read_error",
    "short_read",
    "misdirected_read",
    "device_slow",
    "node_dead",
    "node_back_empty",
    "look_up_whole",
    "look_up_short",
    "get_done",
    "get_short",
    "get_missing",
    "get_cancelled",
    "get_partly_moved",
    "set_done",
    "set_short",
    "set_was_there",
    "set_cancelled",
    "remove_done",
    "remove_short",
    "store_full",
    "store_evicted",
    "page_quarantined",
    "storage_cancel_too_late",
    "storage_waited_for_turn",
    "get_gated",
    "hand_over_done",
    "hand_over_failed",
    "hand_over_cancelled",
    "hand_over_waited_for_pass",
    "hand_over_pass_failed"};

// The behavior of the transfers and passes of one seed.
struct TransferBehavior {
  std::uint64_t transfer_ns = 0, pass_ns = 0, step_ns = 0;  // upper limits, as are the delays
  std::uint64_t completion_delay_ns = 0, reduction_delay_ns = 0, timer_delay_ns = 0;
  std::uint64_t max_pieces = 1;
  std::uint64_t load_failures = 0, backup_failures = 0;  // per 1,000 transfers
  std::array<bool, kLanes> fifo{};

  TransferBehavior(Chance& chance, bool faults) {
    const auto scale = [&chance](std::uint64_t decades) {  // a random power of ten up to 10^decades, or 0
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
    max_pieces = 1 + chance.below(kPieces);
    const bool loads_fail = chance.in(1, 2), backups_fail = chance.in(1, 2);
    if (faults && loads_fail) load_failures = chance.below(300);
    if (faults && backups_fail) backup_failures = chance.below(300);
    for (bool& lane : fifo) lane = chance.in(1, 2);
  }
};

// The behavior of the storage tiers of one seed. It has its own random stream, so that runs without storage do not
// depend on it.
struct StorageBehavior {
  std::uint64_t max_ns = 0;  // upper limit of an operation's time
  std::array<std::uint64_t, static_cast<std::size_t>(MediumFault::count)> faults{};  // per 1,000 pages
  std::uint64_t slow = 0, outages = 0;                                               // per 1,000 operations

  StorageBehavior(Chance chance, bool with_faults) {
    max_ns = 1;
    for (std::uint64_t i = chance.below(8); i > 0; --i) max_ns *= 10;
    if (!with_faults) return;
    for (std::size_t fault = 0; fault < faults.size(); ++fault) {
      // A run reads far fewer pages than it writes, so read faults get larger shares.
      const bool reads = fault >= static_cast<std::size_t>(MediumFault::read_error);
      faults[fault] = chance.in(1, 3) ? chance.below(reads ? 300 : 100) : 0;
    }
    slow = chance.in(1, 2) ? chance.below(100) : 0;
    outages = chance.in(1, 3) ? chance.below(100) : 0;
  }
};

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
        behavior_(chance_, config.faults),
        storage_(Chance(Chance::mix(config.seed + 2)), config.faults),
        sites_{Site(config.disk), Site(config.shared_fs), Site(config.remote)} {
    KV_CHECK(config.page_tokens > 0, "a page holds at least one token");
    device_.emplace_back(config.device_pages);
    host_.emplace_back(config.host_pages);
    for (const AdversarialConfig::Pool& pool : config.pools) {
      device_.emplace_back(pool.device_slots);
      host_.emplace_back(pool.host_slots);
    }
    if (!config.verifies_storage) {
      for (Site& site : sites_) site.pages.trust_the_medium();
    }
  }

  // World
  Substrate& substrate() override { return *this; }
  TimeNs now() const override { return now_; }
  void watch_lanes(LaneObserver*) override {}  // the times of this world mean nothing
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
  void join(AdversarialPeers& peers, std::uint32_t seat, InputHandler& handler) override {
    peers_ = &peers;
    seat_ = seat;
    handler_ = &handler;
  }
  TimeNs next_time() override {
    while (!agenda_.empty() && records_[agenda_.top().slot].ticket != agenda_.top().ticket) agenda_.pop();
    return agenda_.empty() ? -1 : agenda_.top().time;
  }
  void step() override {
    const AgendaEntry entry = agenda_.pop();
    now_ = entry.time;
    handle_entry(entry);
  }
  void give(Input input, TimeNs now) override {
    now_ = input.now = now;
    deliver(input);
  }
  PageArena& device(std::size_t pool) override { return device_[pool]; }

 private:
  enum class Kind : std::uint8_t { transfer, storage, forward, timer, reduction, hand_over };
  enum class Stage : std::uint8_t { moving, landed, queued, gated, running, ending };

  struct Sequence {
    RequestId request = kNoRequest;
    Tokens context = 0, fresh = 0;
    std::size_t first = 0, pages = 0;  // position and number of the pages in Record::slots and Record::keys
  };
  struct Move : PageMove {
    std::size_t pool = 0;                  // as in Event; the key is that of the pool's object
    std::size_t tokens = ~std::size_t{0};  // hand-overs: of the page that move
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
    TimeNs ready = 0;  // passes, storage: earliest time of the completion; other completions may have to come first
    // transfers and storage
    std::vector<Move> moves;
    std::size_t pages_moved = 0;  // of pool 0, the first moves
    Bytes page_bytes = 0;
    TimeNs landing = 0;
    std::uint64_t pieces = 1, piece = 0, order = 0;  // `order`: random bits that assign page parts to pieces
    std::vector<Waiter> waiters;                     // passes for which the operation is a gate
    // storage
    StorageWork work;
    PageKey space;
    std::size_t pool = 0;
    std::vector<StoragePage> pages;
    std::vector<StorageOperation::Need> needs;
    std::vector<Pages> usable;
    std::vector<PageImage> staged;  // bytes between slot and store
    TimeNs begins = 0;              // the operation has no effect before this time
    Pages counted = 0;
    bool cut = false;
    // passes
    std::vector<Sequence> sequences;
    std::vector<SlotId> slots;
    std::vector<PageKey> keys;
    PassParts parts;
    std::uint64_t steps = 1;
    std::uint32_t open_gates = 0, unanswered_gates = 0;
    bool gate_failed = false, awaits_answers = false;
    // hand-overs
    RequestId request = kNoRequest;
    std::uint32_t attempt = 0, peer = 0;
    Pages first = 0;
    Tokens tokens = 0;
    bool last = false;
    OperationId pass = OperationId::none;
    TimeNs started = 0;  // the pass got the lane
    TimeNs ends = 0;     // the pass writes its last token
  };
  struct LaneEnds {
    TimeNs landing = 0, completion = 0;
  };
  struct Site {
    explicit Site(const AdversarialStore& store) : pages(store.pages, store.evicts) {}
    PageStore pages;
    TimeNs dead_from = 0, dead_until = 0;
    bool comes_back_empty = false;
  };
  // Storage operations of one order end in the order of submission. For each tier and memory (L1 or L2), there is one
  // order for gets, and one for sets and removes.
  static constexpr std::size_t kOrders = 4 * kStorageTiers;

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
  PageArena& source_of(const Record& record, std::size_t pool) {
    return record.lane == Lane::h2d ? host_[pool] : device_[pool];
  }
  PageArena& target_of(const Record& record, std::size_t pool) {
    return record.lane == Lane::h2d ? device_[pool] : host_[pool];
  }
  void add_part_moves(Record& record, std::size_t pool, std::span<const PageMove> moves) const {
    for (const PageMove& move : moves) {
      record.moves.push_back({{pool_page_key(move.key, pool), move.source, move.target}, pool});
    }
  }
  void move_piece(std::uint32_t slot);
  void copy_piece(Record& record, std::uint64_t piece, std::size_t pages);
  void land(std::uint32_t slot);
  void cut_transfer(Record& record);
  void notify_landing(std::uint32_t slot, bool landed);
  void notify_completion(const Record& load);

  OperationId submit_hand_over(const HandOverOperation& operation);
  void begin_hand_over();
  void move_hand_over(std::uint32_t slot);
  void land_hand_over(std::uint32_t slot);
  void pass_over(OperationId pass, bool counts);
  void notify(std::uint32_t peer, const Notice& notice) override { peers_->post(seat_, peer, notice); }
  OperationId submit_storage(const StorageOperation& operation);
  void plan_storage(Record& record);
  void go_on_with_storage(std::uint32_t slot);
  void do_storage_piece(Record& record, std::uint64_t piece, std::size_t pages);
  void cut_storage(Record& record);
  void fetch(Record& record, std::size_t page);
  void store_for_strangers(Site& site, const PageKey& key);
  void commit(Record& record, std::size_t page);
  void look_up(Record& record);
  void count_page(Record& record, Cause cause);
  bool reachable(Site& site);
  MediumFault draw_fault(MediumFault first, MediumFault last);
  void land_storage(std::uint32_t slot);
  void note_storage_end(const Record& record);
  void settle_slots(Record& record);
  void end_next_in_order(std::size_t order);
  static std::size_t place_of(Tier tier) { return static_cast<std::size_t>(tier) - kMemoryTiers; }
  Site& site_of(const Record& record) { return sites_[place_of(record.work.tier)]; }
  PageArena& memory_of(const Record& record) {
    return record.work.memory == Tier::device ? device_[record.pool] : host_[record.pool];
  }
  static bool moves_pages(const Record& record) {
    return record.work.verb == StorageVerb::get || record.work.verb == StorageVerb::set;
  }
  static std::size_t order_of(const StorageWork& work) {
    return 4 * place_of(work.tier) + (work.verb == StorageVerb::get ? 0U : 2U) +
           (work.memory == Tier::device ? 1U : 0U);
  }
  static std::uint64_t turn_of(const Record& record, std::size_t page) {
    return page * record.pieces / record.pages.size();
  }

  void enter_lane(std::uint32_t slot);
  void start_pass(std::uint32_t slot);
  void fail_pass(std::uint32_t slot);
  void run_pass(std::uint32_t slot);
  void end_pass(std::uint32_t slot);
  Tokens fresh_by(const Record& record, const Sequence& sequence, std::uint64_t pieces) const;
  static Tokens fresh_after(const Record& record, const Sequence& sequence, std::uint64_t steps);
  PassParts::Reports reports_of(const Record& record);
  std::span<PageArena> beside_device() { return std::span(device_).subspan(1); }
  // Calls visit(index, sequence) for the sequences of a pass whose engine has pools beside pool 0.
  template <typename Visit>
  static void each_part(const Record& record, Visit visit) {
    for (std::size_t at = 0; at < record.sequences.size() && !record.parts.empty(); ++at) {
      const Sequence& sequence = record.sequences[at];
      visit(at, PassParts::Sequence{sequence.request, sequence.context,
                                    std::span(record.keys).subspan(sequence.first, sequence.pages)});
    }
  }
  void check_context(const Record& record, std::uint64_t steps);
  void write_range(const Record& record, const Sequence& sequence, Tokens from, Tokens to);

  void handle_entry(const AgendaEntry& entry);
  void finish(std::uint32_t slot);
  void deliver(const Input& input);

  AdversarialConfig config_;
  Chance chance_;
  TransferBehavior behavior_;
  StorageBehavior storage_;
  std::vector<PageArena> device_, host_;  // by pool, as in Event
  std::array<Site, kStorageTiers> sites_;
  TimeNs now_ = 0;
  std::uint64_t last_id_ = 0, delivered_ = 0;
  std::vector<Record> records_;
  std::vector<std::uint32_t> free_;
  OperationTable table_;
  Agenda agenda_;
  std::array<LaneEnds, kLanes> ends_{};
  std::array<std::deque<std::uint32_t>, kOrders> turns_;
  std::deque<std::uint32_t> passes_;  // queue of the compute lane; the first pass has the lane
  std::deque<std::uint32_t> writes_;  // hand-overs; the first one moves
  // By request and attempt: the first page of a hand-over that was not done.
  std::map<std::pair<RequestId, std::uint32_t>, Pages> lost_from_;
  AdversarialPeers* peers_ = nullptr;
  std::uint32_t seat_ = 0;
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
  Record& record = records_[slot];  // reused, so that the vectors keep their capacity
  record.id = OperationId{++last_id_};
  record.kind = kind;
  record.stage = stage;
  record.lane = Lane::compute;
  record.cancelled = record.gate_failed = record.awaits_answers = false;
  record.completion = Completion{.id = record.id};
  record.open_gates = record.unanswered_gates = 0;
  record.waiters.clear();
  record.piece = 0;
  record.pieces = 1 + chance_.below(behavior_.max_pieces);
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
                        std::string(spec_of(record.lane).name) + ", page " + hex(key.words[0]) + " in slot " +
                        std::to_string(slot) + ": " + std::string(what));
}

void Adversary::check_slot(const Record& record, const PageArena& arena, const PageKey& key, SlotId slot) {
  if (config_.tracks_slots && !arena.allocated(slot)) violation(record, key, slot, "uses a slot that was released");
}

void Adversary::on_event(const Event& event) {
  const bool allocated = event.kind == EventKind::slots_allocated;
  if (!allocated && event.kind != EventKind::slots_released) return;
  PageArena& arena = (event.tier == Tier::device ? device_ : host_)[event.pool];
  for (const SlotId slot : event.slots) {
    KV_CHECK(arena.contains(slot), "a slot lies inside its pool");
    arena.set_allocated(slot, allocated);
    arena.poison(slot);
    if (!allocated) note(Happening::slot_poisoned);
  }
}

std::vector<std::pair<std::string_view, std::uint64_t>> Adversary::coverage() const {
  std::vector<std::pair<std::string_view, std::uint64_t>> result;
  const bool stores = sites_[0].pages.capacity() + sites_[1].pages.capacity() > 0;
  const std::size_t listed = stores ? kFirstOfHandOver : kFirstOfStorage;
  for (std::size_t i = 0; i < happened_.size(); ++i) {
    if (i >= listed && (i < kFirstOfHandOver || peers_ == nullptr)) continue;
    result.emplace_back(kHappeningNames[i], happened_[i]);
  }
  return result;
}

// ---- the substrate -------------------------------------------------------------------------------------

OperationId Adversary::submit(const Operation& operation) {
  if (const auto* transfer = std::get_if<TransferOperation>(&operation)) return submit_transfer(*transfer);
  if (const auto* storage = std::get_if<StorageOperation>(&operation)) return submit_storage(*storage);
  if (const auto* hand_over = std::get_if<HandOverOperation>(&operation)) return submit_hand_over(*hand_over);
  return submit_forward(std::get<ForwardOperation>(operation));
}

OperationId Adversary::call_at(TimeNs time) {
  const std::uint32_t slot = new_record(Kind::timer, Stage::ending);
  schedule(slot, std::max(time, now_) + static_cast<TimeNs>(chance_.below(behavior_.timer_delay_ns + 1)));
  return records_[slot].id;
}

OperationId Adversary::reduce_min(const ReduceVector& values) {
  const std::uint32_t slot = new_record(Kind::reduction, Stage::ending);
  records_[slot].values = values;
  const TimeNs time = later(behavior_.reduction_delay_ns);
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
  if (record.stage == Stage::ending || record.stage == Stage::landed || chance_.in(1, 8)) {
    note(record.kind == Kind::storage ? Happening::storage_cancel_too_late : Happening::cancel_too_late);
    return;
  }
  record.cancelled = true;
  if (record.kind == Kind::hand_over) {
    if (record.completion.status == Status::done) record.completion.status = Status::cancelled;
    if (record.stage == Stage::moving) schedule(slot, between(now_, std::max(now_, record.landing)));
    begin_hand_over();
    return;
  }
  if (record.kind == Kind::transfer || record.kind == Kind::storage) {
    schedule(slot, between(now_, std::max(now_, record.landing)));
  } else if (record.stage == Stage::queued) {
    note(Happening::queued_pass_cancelled);
    std::erase(passes_, slot);
    record.stage = Stage::ending;
    record.completion.status = Status::cancelled;
    schedule(slot, later(behavior_.completion_delay_ns));
  } else if (record.stage == Stage::running && record.steps > 1) {
    record.ends = between(now_, std::max(now_, record.ends));
    if (record.piece > 0) schedule(slot, record.ends);  // otherwise run_pass() is scheduled now and uses `ends`
  }
}

// ---- transfers -----------------------------------------------------------------------------------------

OperationId Adversary::submit_transfer(const TransferOperation& operation) {
  KV_CHECK(operation.lane == Lane::h2d || operation.lane == Lane::d2h, "this world has no such lane");
  const std::uint32_t slot = new_record(Kind::transfer, Stage::moving);
  Record& record = records_[slot];
  record.lane = operation.lane;
  record.moves.clear();
  for (const PageMove& move : operation.pages) record.moves.push_back({move});
  record.pages_moved = record.moves.size();
  if (!config_.pools.empty()) {  // of blocks, this world has those of full attention only
    for (const TransferOperation::Part& part : operation.parts) add_part_moves(record, part.pool + 1, part.moves);
  }
  record.page_bytes = operation.plan.pages == 0 ? 0 : operation.bytes() / operation.plan.pages;
  record.order = chance_.next();
  for (const Move& move : record.moves) {
    PageArena& from = source_of(record, move.pool);
    PageArena& to = target_of(record, move.pool);
    KV_CHECK(from.contains(move.source) && to.contains(move.target), "a page moves between slots of the pools");
    check_slot(record, from, move.key, move.source);
    check_slot(record, to, move.key, move.target);
    to.poison(move.target);
  }
  LaneEnds& lane = ends_[static_cast<std::size_t>(record.lane)];
  record.landing = later(behavior_.transfer_ns);
  if (behavior_.fifo[static_cast<std::size_t>(record.lane)]) record.landing = std::max(record.landing, lane.landing);
  if (record.landing < lane.landing) note(Happening::lane_overtaken);
  lane.landing = std::max(lane.landing, record.landing);
  const std::uint64_t failures = record.lane == Lane::h2d ? behavior_.load_failures : behavior_.backup_failures;
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
  copy_piece(record, record.piece, record.moves.size());
  if (++record.piece == record.pieces) {
    land(slot);
    return;
  }
  schedule(slot, record.piece + 1 == record.pieces ? record.landing : between(now_, record.landing));
}

// Copies the page parts of this piece, and compares them with the correct bytes. So a source that changed during the
// transfer is detected.
void Adversary::copy_piece(Record& record, std::uint64_t piece, std::size_t pages) {
  constexpr std::size_t part = kPageBytes / kPieces;
  for (std::size_t page = 0; page < pages; ++page) {
    const Move& move = record.moves[page];
    PageArena& from = source_of(record, move.pool);
    PageArena& to = target_of(record, move.pool);
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

// Ends a cancelled transfer: the first pages are complete, the others are poisoned.
void Adversary::cut_transfer(Record& record) {
  const std::size_t whole = chance_.below(record.moves.size() + 1);
  if (record.completion.status != Status::failed) {
    for (std::uint64_t piece = record.piece; piece < record.pieces; ++piece) copy_piece(record, piece, whole);
    for (std::size_t i = whole; i < record.moves.size(); ++i) {
      target_of(record, record.moves[i].pool).poison(record.moves[i].target);
    }
    record.completion.status = Status::cancelled;
  }
  record.completion.bytes = std::min(whole, record.pages_moved) * record.page_bytes * config_.ranks;
  if (whole > 0) note(record.lane == Lane::h2d ? Happening::load_partly_moved : Happening::backup_partly_moved);
}

void Adversary::land(std::uint32_t slot) {
  Record& record = records_[slot];
  const Status status = record.completion.status;
  record.stage = Stage::ending;
  if (status == Status::done) record.completion.bytes = record.pages_moved * record.page_bytes * config_.ranks;
  const bool load = record.lane == Lane::h2d;
  note(status == Status::done     ? (load ? Happening::load_done : Happening::backup_done)
       : status == Status::failed ? (load ? Happening::load_failed : Happening::backup_failed)
                                  : (load ? Happening::load_cancelled : Happening::backup_cancelled));
  LaneEnds& lane = ends_[static_cast<std::size_t>(record.lane)];
  TimeNs completion = later(behavior_.completion_delay_ns);
  if (behavior_.fifo[static_cast<std::size_t>(record.lane)]) completion = std::max(completion, lane.completion);
  lane.completion = std::max(lane.completion, completion);
  if (completion > now_) note(Happening::completion_delayed);
  schedule(slot, completion);
  notify_landing(slot, status == Status::done);
}

void Adversary::notify_landing(std::uint32_t slot, bool landed) {
  for (std::size_t i = 0; i < records_[slot].waiters.size(); ++i) {
    const Waiter waiter = records_[slot].waiters[i];
    Record& pass = records_[waiter.pass];
    if (pass.id != waiter.id || pass.stage == Stage::ending) continue;
    --pass.open_gates;
    pass.gate_failed |= !landed;
    if (pass.stage == Stage::gated) start_pass(waiter.pass);
  }
}

// A successful pass completes after its gates have completed.
void Adversary::notify_completion(const Record& load) {
  for (const Waiter& waiter : load.waiters) {
    Record& pass = records_[waiter.pass];
    if (pass.id != waiter.id) continue;
    if (--pass.unanswered_gates == 0 && pass.awaits_answers) schedule(waiter.pass, pass.ready);
  }
}

// ---- hand-overs ----------------------------------------------------------------------------------------

// One hand-over moves at a time. Of one request, those that lack the pages of a failed one fail too.
OperationId Adversary::submit_hand_over(const HandOverOperation& operation) {
  const std::uint32_t slot = new_record(Kind::hand_over, Stage::queued);
  Record& record = records_[slot];
  record.lane = Lane::peer;
  record.moves.clear();
  Tokens left = operation.tokens;
  for (const PageMove& move : operation.pages) {
    record.moves.push_back({move, 0, std::min(left, config_.page_tokens)});
    left -= record.moves.back().tokens;
  }
  record.pages_moved = record.moves.size();
  const Tokens page = config_.page_tokens, in_last = (operation.tokens - 1) % page + 1;
  for (const HandOverOperation::Part& part : operation.parts) {
    add_part_moves(record, part.pool + 1, part.moves);
    if (config_.pools[part.pool].state) {
      record.moves.back().key = state_key(part.moves.back().key, in_last, page, part.pool + 1);
    } else {
      record.moves.back().tokens = in_last;
    }
  }
  record.page_bytes = operation.work.bytes / operation.work.pages;
  record.order = chance_.next();
  record.request = operation.request;
  record.attempt = operation.attempt;
  record.peer = operation.peer;
  record.tokens = operation.tokens;
  record.last = operation.last;
  record.pass = table_.find(operation.pass) == kNoSlotIndex ? OperationId::none : operation.pass;
  if (chance_.in(behavior_.load_failures, 1000)) record.completion.status = Status::failed;
  record.first = operation.first;
  for (const Move& move : record.moves) {
    PageArena& from = device_[move.pool];
    PageArena& to = peers_->device_of(record.peer, move.pool);
    KV_CHECK(from.contains(move.source) && to.contains(move.target), "a page moves between slots of the pools");
    check_slot(record, from, move.key, move.source);
    check_slot(record, to, move.key, move.target);
    to.poison(move.target);
  }
  const OperationId id = record.id;
  if (record.pass != OperationId::none) note(Happening::hand_over_waited_for_pass);
  writes_.push_back(slot);
  begin_hand_over();
  return id;
}

void Adversary::begin_hand_over() {
  if (writes_.empty()) return;
  const std::uint32_t slot = writes_.front();
  Record& record = records_[slot];
  if (record.stage != Stage::queued || (record.pass != OperationId::none && !record.cancelled)) return;
  if (const auto lost = lost_from_.find({record.request, record.attempt}); lost != lost_from_.end()) {
    if (record.first <= lost->second) {
      lost_from_.erase(lost);
    } else if (record.completion.status == Status::done) {
      record.completion.status = Status::failed;
    }
  }
  record.stage = Stage::moving;
  record.landing = later(behavior_.transfer_ns);
  schedule(slot, record.pieces == 1 ? record.landing : between(now_, record.landing));
}

void Adversary::move_hand_over(std::uint32_t slot) {
  Record& record = records_[slot];
  const bool dead = peers_->is_dead(record.peer);
  constexpr std::size_t part = kPageBytes / kPieces;
  for (std::size_t page = 0; page < record.moves.size(); ++page) {
    const Move& move = record.moves[page];
    PageArena& from = device_[move.pool];
    PageArena& to = peers_->device_of(record.peer, move.pool);
    if (record.completion.status == Status::gate_failed) continue;
    if (!dead) {
      check_slot(record, from, move.key, move.source);
      check_slot(record, to, move.key, move.target);
    }
    if (record.completion.status != Status::done) {
      to.scribble(move.target, chance_);
      continue;
    }
    const PageImage right = image_of(move.key);
    const std::size_t valid = move.tokens * kPageBytes / config_.page_tokens;
    std::uint64_t draw = Chance::mix(record.order + page);
    bool wrong = false;
    for (std::size_t i = 0; i < kPieces; ++i, draw >>= 8) {
      if ((draw & 0xFF) % record.pieces != record.piece) continue;
      const std::byte* const source = from.at(move.source) + i * part;
      const std::size_t bytes = valid > i * part ? std::min(part, valid - i * part) : 0;
      wrong |= std::memcmp(source, right.data() + i * part, bytes) != 0;
      std::memcpy(to.at(move.target) + i * part, source, part);
    }
    if (wrong) violation(record, move.key, move.source, "the source doesn't hold this page's bytes");
  }
  if (++record.piece >= record.pieces || record.cancelled) {
    land_hand_over(slot);
  } else {
    schedule(slot, record.piece + 1 == record.pieces ? record.landing : between(now_, std::max(now_, record.landing)));
  }
}

void Adversary::land_hand_over(std::uint32_t slot) {
  Record& record = records_[slot];
  Completion& completion = record.completion;
  record.stage = Stage::ending;
  if (completion.status == Status::done && peers_->is_dead(record.peer)) completion.status = Status::failed;
  const bool done = completion.status == Status::done;
  note(done                                       ? Happening::hand_over_done
       : completion.status == Status::cancelled   ? Happening::hand_over_cancelled
       : completion.status == Status::gate_failed ? Happening::hand_over_pass_failed
                                                  : Happening::hand_over_failed);
  if (done) completion.bytes = record.pages_moved * record.page_bytes;
  if (!done) lost_from_.try_emplace({record.request, record.attempt}, record.first);
  if (done && record.last) {
    Notice handed;
    handed.kind = NoticeKind::handed;
    handed.request = record.request;
    handed.attempt = record.attempt;
    peers_->post(seat_, record.peer, handed);
  }
  schedule(slot, later(behavior_.completion_delay_ns));
}

// A pass is over: the hand-overs of its pages may move, or fail.
void Adversary::pass_over(OperationId pass, bool counts) {
  for (const std::uint32_t slot : writes_) {
    Record& record = records_[slot];
    if (record.pass != pass) continue;
    record.pass = OperationId::none;
    if (!counts && record.completion.status != Status::cancelled) record.completion.status = Status::gate_failed;
  }
  begin_hand_over();
}

// ---- storage -------------------------------------------------------------------------------------------

OperationId Adversary::submit_storage(const StorageOperation& operation) {
  const std::uint32_t slot = new_record(Kind::storage, Stage::moving);
  Record& record = records_[slot];
  record.work = operation.work;
  record.lane = lane_of(operation.work);
  record.space = operation.space;
  record.pool = operation.pool;
  record.needs.assign(operation.needs.begin(), operation.needs.end());
  record.usable.clear();
  record.pages.assign(operation.pages.begin(), operation.pages.end());
  record.staged.resize(record.pages.size());
  record.order = chance_.next();
  record.counted = 0;
  record.cut = false;
  KV_CHECK(site_of(record).pages.capacity() > 0, "this world has no such tier");
  for (const StoragePage& page : record.pages) {
    if (!moves_pages(record)) break;
    KV_CHECK(memory_of(record).contains(page.slot), "a page moves between a store and a slot of the pools");
    check_slot(record, memory_of(record), page.key, page.slot);
    if (record.work.verb == StorageVerb::get) memory_of(record).poison(page.slot);
  }
  plan_storage(record);
  if (record.work.verb != StorageVerb::look_up) turns_[order_of(record.work)].push_back(slot);
  schedule(slot, between(record.begins, record.landing));
  return record.id;
}

// Determines begin and landing of a storage operation. A set or remove begins after earlier sets and removes of the
// same page have landed.
void Adversary::plan_storage(Record& record) {
  Site& site = site_of(record);
  if (now_ >= site.dead_until && chance_.in(storage_.outages, 1000)) {
    site.dead_from = later(storage_.max_ns);
    site.dead_until = site.dead_from + 1 + static_cast<TimeNs>(chance_.below(10 * storage_.max_ns));
    site.comes_back_empty = chance_.in(1, 2);
  }
  record.begins = now_;
  const StorageVerb verb = record.work.verb;
  if (verb == StorageVerb::look_up) record.pieces = 1;
  for (const std::size_t way : {0U, 1U}) {
    if (verb != StorageVerb::set && verb != StorageVerb::remove) break;
    for (const std::uint32_t earlier : turns_[(order_of(record.work) & ~std::size_t{1}) + way]) {
      const auto touched = [&](const StoragePage& page) {
        return std::ranges::find(record.pages, page.key, &StoragePage::key) != record.pages.end();
      };
      if (records_[earlier].stage != Stage::moving || !std::ranges::any_of(records_[earlier].pages, touched)) continue;
      record.begins = std::max(record.begins, records_[earlier].landing);
    }
  }
  std::uint64_t span = chance_.below(storage_.max_ns + 1);
  if (chance_.in(storage_.slow, 1000)) {
    span *= 100;
    note(Happening::device_slow);
  }
  LaneEnds& lane = ends_[static_cast<std::size_t>(record.lane)];
  record.landing = record.begins + static_cast<TimeNs>(span);
  if (behavior_.fifo[static_cast<std::size_t>(record.lane)]) record.landing = std::max(record.landing, lane.landing);
  if (record.landing < lane.landing) note(Happening::lane_overtaken);
  lane.landing = std::max(lane.landing, record.landing);
}

// Called once per piece, and then once to land. A cancel makes the next call come earlier.
void Adversary::go_on_with_storage(std::uint32_t slot) {
  Record& record = records_[slot];
  if (record.piece == record.pieces) {
    land_storage(slot);
    return;
  }
  if (record.cancelled) {
    cut_storage(record);
    land_storage(slot);
    return;
  }
  do_storage_piece(record, record.piece, record.pages.size());
  ++record.piece;
  schedule(slot, record.piece == record.pieces ? record.landing : between(now_, record.landing));
}

// Processes one piece, page by page: the store access of the pages whose turn it is, and the memory accesses of the
// page parts that are due. A get writes the parts after the store access; a set reads them before the store access.
void Adversary::do_storage_piece(Record& record, std::uint64_t piece, std::size_t pages) {
  if (record.work.verb == StorageVerb::look_up) {
    look_up(record);
    return;
  }
  const bool get = record.work.verb == StorageVerb::get;
  constexpr std::size_t part = kPageBytes / kPieces;
  for (std::size_t page = 0; page < pages; ++page) {
    const std::uint64_t turn = turn_of(record, page);
    const StoragePage& moved = record.pages[page];
    if (get && turn == piece) fetch(record, page);
    std::uint64_t draw = Chance::mix(record.order + page);
    const PageImage right = image_of(moved.key);
    bool wrong = false;
    for (std::size_t i = 0; i < kPieces && moves_pages(record); ++i, draw >>= 8) {
      const std::uint64_t due = get ? turn + (draw & 0xFF) % (record.pieces - turn) : (draw & 0xFF) % (turn + 1);
      if (due != piece || (get && page > record.counted)) continue;
      std::byte* const staged = record.staged[page].data() + i * part;
      std::byte* const held = memory_of(record).at(moved.slot) + i * part;
      wrong |= !get && std::memcmp(held, right.data() + i * part, part) != 0;
      get ? std::memcpy(held, staged, part) : std::memcpy(staged, held, part);
    }
    if (wrong) violation(record, moved.key, moved.slot, "the source doesn't hold this page's bytes");
    if (!get && turn == piece) commit(record, page);
  }
}

// Ends a cancelled storage operation: completes the first pages, and leaves the others undone.
void Adversary::cut_storage(Record& record) {
  record.cut = true;
  if (record.work.verb == StorageVerb::look_up || now_ < record.begins) return;
  std::size_t begun = 0;
  while (begun < record.pages.size() && turn_of(record, begun) < record.piece) ++begun;
  const std::size_t whole = begun + chance_.below(record.pages.size() - begun + 1);
  for (; record.piece < record.pieces; ++record.piece) do_storage_piece(record, record.piece, whole);
}

void Adversary::fetch(Record& record, std::size_t page) {
  if (record.completion.cause != Cause::none) return;
  Site& site = site_of(record);
  if (!reachable(site)) {
    count_page(record, Cause::unreachable);
    return;
  }
  const PageKey& key = record.pages[page].key;
  const bool there = site.pages.contains(record.space, key);
  const MediumFault fault = there ? draw_fault(MediumFault::read_error, MediumFault::misdirected_read) : MediumFault{};
  const Cause cause = site.pages.get(record.space, key, fault, chance_, record.staged[page]);
  if (cause == Cause::corrupt) note(Happening::page_quarantined);
  if (cause == Cause::missing) note(Happening::get_missing);
  count_page(record, cause);
}

void Adversary::store_for_strangers(Site& site, const PageKey& key) {
  for (const PageKey& space : config_.strangers) {
    PageKey theirs = key;
    theirs.words[3] ^= space.words[0] | 1;
    if (!site.pages.contains(space, key)) site.pages.put(space, key, image_of(theirs), MediumFault::none, chance_);
  }
}

void Adversary::commit(Record& record, std::size_t page) {
  if (record.completion.cause != Cause::none) return;
  Site& site = site_of(record);
  const PageKey& key = record.pages[page].key;
  if (!reachable(site)) {
    count_page(record, Cause::unreachable);
    return;
  }
  if (record.work.verb == StorageVerb::remove) {
    site.pages.remove(record.space, key);
    count_page(record, Cause::none);
    return;
  }
  if (spec_of(record.work.tier).shared) store_for_strangers(site, key);
  const bool there = site.pages.contains(record.space, key);
  if (there) note(Happening::set_was_there);
  const MediumFault fault = there ? MediumFault{} : draw_fault(MediumFault::write_error, MediumFault::no_room);
  const std::uint64_t evicted = site.pages.evicted();
  const Cause cause = site.pages.put(record.space, key, record.staged[page], fault, chance_);
  if (site.pages.evicted() > evicted) note(Happening::store_evicted);
  if (cause == Cause::full && fault != MediumFault::no_room) note(Happening::store_full);
  count_page(record, cause);
}

void Adversary::look_up(Record& record) {
  Site& site = site_of(record);
  if (!reachable(site)) {
    count_page(record, Cause::unreachable);
    return;
  }
  const auto missing = [&](const StoragePage& page) { return !site.pages.contains(record.space, page.key); };
  const auto first = std::ranges::find_if(record.pages, missing);
  record.counted = static_cast<Pages>(first - record.pages.begin());
  const auto there = [&](std::size_t pool, Pages page) {
    return site.pages.contains(record.space, pool_page_key(record.pages[page].key, pool));
  };
  record.usable = usable_lengths(record.needs, record.needs.empty() ? 0 : record.counted, there);
  if (first != record.pages.end()) count_page(record, Cause::missing);
}

// Records the result of one page: counts the page, or, if there is a cause, ends the operation's progress.
void Adversary::count_page(Record& record, Cause cause) {
  record.completion.cause = cause;
  if (cause == Cause::none) ++record.counted;
}

bool Adversary::reachable(Site& site) {
  if (now_ < site.dead_from || site.dead_until == 0) return true;
  if (now_ < site.dead_until) {
    note(Happening::node_dead);
    return false;
  }
  if (std::exchange(site.comes_back_empty, false)) {
    site.pages.clear();
    note(Happening::node_back_empty);
  }
  return true;
}

MediumFault Adversary::draw_fault(MediumFault first, MediumFault last) {
  for (auto fault = static_cast<std::size_t>(first); fault <= static_cast<std::size_t>(last); ++fault) {
    if (!chance_.in(storage_.faults[fault], 1000)) continue;
    ++happened_[kFirstOfStorage + fault - 1];
    return static_cast<MediumFault>(fault);
  }
  return MediumFault::none;
}

void Adversary::land_storage(std::uint32_t slot) {
  Record& record = records_[slot];
  Completion& completion = record.completion;
  completion.pages = record.counted;
  completion.usable = record.usable;
  if (record.counted < record.pages.size()) {
    const bool answered = record.work.verb == StorageVerb::look_up && completion.cause == Cause::missing;
    completion.status = answered                                        ? Status::done
                        : record.cut && completion.cause == Cause::none ? Status::cancelled
                                                                        : Status::failed;
  }
  if (moves_pages(record)) {
    completion.bytes = record.counted * record.work.page_bytes * record.work.ranks;
    settle_slots(record);
  }
  note_storage_end(record);
  record.ready = later(behavior_.completion_delay_ns);
  if (record.ready > now_) note(Happening::completion_delayed);
  record.stage = Stage::landed;
  if (record.work.verb == StorageVerb::look_up) {
    record.stage = Stage::ending;
    schedule(slot, record.ready);
  } else if (turns_[order_of(record.work)].front() == slot) {
    end_next_in_order(order_of(record.work));
  } else {
    note(Happening::storage_waited_for_turn);
  }
  notify_landing(slot, completion.status == Status::done);
}

// Checks the world's own guarantee: a page that a get counts has the bytes of its key. Other slots of a get end with
// random bytes.
void Adversary::settle_slots(Record& record) {
  PageArena& memory = memory_of(record);
  for (std::size_t i = 0; i < record.pages.size(); ++i) {
    const StoragePage& page = record.pages[i];
    check_slot(record, memory, page.key, page.slot);
    if (record.work.verb == StorageVerb::set) continue;
    if (i >= record.counted) {
      chance_.in(1, 2) ? memory.scribble(page.slot, chance_) : memory.poison(page.slot);
      continue;
    }
    const PageImage right = image_of(page.key);
    if (std::memcmp(memory.at(page.slot), right.data(), kPageBytes) != 0) {
      violation(record, page.key, page.slot, "a page that is counted isn't what belongs under its key");
    }
  }
}

void Adversary::note_storage_end(const Record& record) {
  const bool all = record.counted == record.pages.size();
  const bool cancelled = record.completion.status == Status::cancelled;
  switch (record.work.verb) {
    case StorageVerb::look_up: note(all ? Happening::look_up_whole : Happening::look_up_short); break;
    case StorageVerb::get:
      note(all ? Happening::get_done : cancelled ? Happening::get_cancelled : Happening::get_short);
      if (!all && record.counted > 0) note(Happening::get_partly_moved);
      break;
    case StorageVerb::set:
      note(all ? Happening::set_done : cancelled ? Happening::set_cancelled : Happening::set_short);
      break;
    case StorageVerb::remove: note(all ? Happening::remove_done : Happening::remove_short); break;
  }
}

// Schedules the end of the first operation of an order, if the operation has landed.
void Adversary::end_next_in_order(std::size_t order) {
  if (turns_[order].empty()) return;
  const std::uint32_t slot = turns_[order].front();
  if (records_[slot].stage != Stage::landed) return;
  records_[slot].stage = Stage::ending;
  schedule(slot, records_[slot].ready);
}

// ---- passes --------------------------------------------------------------------------------------------

OperationId Adversary::submit_forward(const ForwardOperation& operation) {
  KV_CHECK(operation.steps > 0, "a forward pass has at least one step");
  KV_CHECK(operation.shape.draft_tokens == 0, "this world decodes without a draft model");
  const std::uint32_t slot = new_record(Kind::forward, Stage::queued);
  Record& record = records_[slot];
  record.steps = operation.steps;
  record.sequences.clear();
  record.slots.clear();
  record.keys.clear();
  record.parts.take(operation.parts, operation.sequences.size());
  KV_CHECK(record.parts.empty() == config_.pools.empty(), "this world has the engine's pools");
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
    Record& gating = records_[load];
    KV_CHECK(gating.kind == Kind::transfer || (gating.kind == Kind::storage && gating.lane == Lane::direct_read),
             "only a load into L1 can gate a forward pass");
    if (gating.kind == Kind::storage) note(Happening::get_gated);
    gating.waiters.push_back({slot, record.id});
    ++record.unanswered_gates;
    if (gating.stage == Stage::ending || gating.stage == Stage::landed) {  // landed, but not completed
      note(Happening::gate_had_landed);
      record.gate_failed |= gating.completion.status != Status::done;
    } else {
      ++record.open_gates;
    }
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
  const auto span = static_cast<std::uint64_t>(chance_.below(behavior_.pass_ns + 1)) +
                    record.steps * chance_.below(behavior_.step_ns + 1);
  record.ends = now_ + static_cast<TimeNs>(span);
  schedule(slot, now_);
}

// Ends a pass whose gate has failed. The pages that the pass would have written get random bytes.
void Adversary::fail_pass(std::uint32_t slot) {
  Record& record = records_[slot];
  note(Happening::gate_failed);
  for (const Sequence& sequence : record.sequences) {
    const Tokens pages = (sequence.context + config_.page_tokens - 1) / config_.page_tokens;
    for (std::size_t i = static_cast<std::size_t>(pages); i < sequence.pages; ++i) {
      device_[0].scribble(record.slots[sequence.first + i], chance_);
    }
  }
  each_part(record, [&](std::size_t at, const PassParts::Sequence& sequence) {
    record.parts.fail(at, sequence, config_.page_tokens, beside_device(), chance_);
  });
  record.stage = Stage::ending;
  record.completion.status = Status::gate_failed;
  record.completion.stalled_ns = now_ - record.started;
  schedule(slot, later(behavior_.completion_delay_ns));
}

// Called once to check the context, and then once per piece to write tokens. A cancelled burst ends early.
void Adversary::run_pass(std::uint32_t slot) {
  Record& record = records_[slot];
  const bool cut = record.cancelled && record.steps > 1;
  if (record.piece == 0) {
    check_context(record, 0);
    const PassParts::Reports reports = reports_of(record);
    each_part(record, [&](std::size_t at, const PassParts::Sequence& sequence) {
      record.parts.begin(at, sequence, config_.page_tokens, beside_device(), reports);
    });
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
  const PassParts::Reports reports = reports_of(record);
  each_part(record, [&](std::size_t at, const PassParts::Sequence& sequence) {
    record.parts.end(at, sequence, fresh_after(record, record.sequences[at], steps), config_.page_tokens,
                     beside_device(), reports);
  });
  record.completion.steps = steps;
  if (steps < record.steps) record.completion.status = Status::cancelled;
  note(record.steps == 1 ? Happening::pass_done : steps < record.steps ? Happening::burst_cut : Happening::burst_done);
  record.stage = Stage::ending;
  record.ready = later(behavior_.completion_delay_ns);
  record.awaits_answers = record.unanswered_gates > 0;
  if (!record.awaits_answers) schedule(slot, record.ready);
}

// Returns the number of new tokens that the first `pieces` pieces of the pass write. The pieces of a burst are whole
// steps.
Tokens Adversary::fresh_by(const Record& record, const Sequence& sequence, std::uint64_t pieces) const {
  if (record.steps > 1) return std::min<Tokens>(sequence.fresh, record.steps * pieces / record.pieces);
  return sequence.fresh * pieces / record.pieces;
}

Tokens Adversary::fresh_after(const Record& record, const Sequence& sequence, std::uint64_t steps) {
  if (record.steps > 1) return std::min<Tokens>(sequence.fresh, steps);
  return steps > 0 ? sequence.fresh : 0;
}

PassParts::Reports Adversary::reports_of(const Record& record) {
  return {[&](std::size_t pool, const PageKey& key, SlotId slot) { check_slot(record, device_[pool], key, slot); },
          [&](const PageKey& key, SlotId slot, const std::string& what) { violation(record, key, slot, what); }};
}

// Checks the bytes of the context and of the tokens that `steps` steps have added.
void Adversary::check_context(const Record& record, std::uint64_t steps) {
  for (const Sequence& sequence : record.sequences) {
    Tokens left = sequence.context + fresh_after(record, sequence, steps);
    for (std::size_t i = 0; i < sequence.pages && left > 0; ++i) {
      const Tokens tokens = std::min<Tokens>(left, config_.page_tokens);
      left -= tokens;
      const SlotId slot = record.slots[sequence.first + i];
      const PageKey& key = record.keys[sequence.first + i];
      check_slot(record, device_[0], key, slot);
      const PageImage right = image_of(key);
      const std::size_t bytes = tokens * kPageBytes / config_.page_tokens;
      if (std::memcmp(device_[0].at(slot), right.data(), bytes) != 0) {
        violation(record, key, slot,
                  "request " + std::to_string(sequence.request) + " would attend to wrong bytes in page " +
                      std::to_string(i) + " of its context");
      }
    }
  }
}

// Writes the new tokens [from, to) of the sequence.
void Adversary::write_range(const Record& record, const Sequence& sequence, Tokens from, Tokens to) {
  if (!record.parts.empty()) {
    const std::span keys = std::span(record.keys).subspan(sequence.first, sequence.pages);
    record.parts.write(static_cast<std::size_t>(&sequence - record.sequences.data()),
                       {sequence.request, sequence.context, keys}, from, to, config_.page_tokens, beside_device());
  }
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
    std::memcpy(device_[0].at(record.slots[sequence.first + page]) + first, right.data() + first, last - first);
    from = stop;
  }
}

// ---- the stream of inputs ------------------------------------------------------------------------------

void Adversary::run(InputSource& source, InputHandler& handler) {
  handler_ = &handler;
  auto* const live = dynamic_cast<LiveSource*>(&source);
  bool more = source.next(arrival_);
  for (;;) {
    while (!agenda_.empty() && records_[agenda_.top().slot].ticket != agenda_.top().ticket) agenda_.pop();
    const TimeNs arrives = std::max(now_, arrival_.now);
    if (!agenda_.empty() && (!more || agenda_.top().time <= arrives)) {
      const AgendaEntry entry = agenda_.pop();
      now_ = entry.time;
      handle_entry(entry);
      if (live != nullptr && live->overtake(arrival_, more)) more = true;
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
  const Record& record = records_[entry.slot];
  switch (record.stage) {
    case Stage::moving:
      if (record.kind == Kind::hand_over) {
        move_hand_over(entry.slot);
      } else {
        record.kind == Kind::storage ? go_on_with_storage(entry.slot) : move_piece(entry.slot);
      }
      break;
    case Stage::running: run_pass(entry.slot); break;
    case Stage::ending: finish(entry.slot); break;
    case Stage::landed:
    case Stage::queued:
    case Stage::gated: KV_CHECK(false, "what waits for another has no time of its own"); break;
  }
}

void Adversary::finish(std::uint32_t slot) {
  Record& record = records_[slot];
  ++record.ticket;
  if (record.kind == Kind::forward && !passes_.empty() && passes_.front() == slot) {
    passes_.pop_front();
    if (!passes_.empty()) enter_lane(passes_.front());
  }
  if (record.kind == Kind::storage && record.work.verb != StorageVerb::look_up) {
    const std::size_t order = order_of(record.work);
    turns_[order].pop_front();
    end_next_in_order(order);
  }
  if (record.kind == Kind::hand_over) {
    writes_.pop_front();
    begin_hand_over();
  }
  if (record.kind == Kind::forward && peers_ != nullptr) {
    pass_over(record.id, record.completion.steps > 0 && record.completion.status != Status::gate_failed);
  }
  notify_completion(record);
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
