// One seat of a simulated world: operations and their ids, FIFO lanes, the compute lane, gates, cancel, and the ordered
// stream of the seat's inputs.
//
// The core does not know how links are shared: a FlowBackend reports the rate of each flow. The core does not know
// other seats either: Seats (seats.hpp) owns the clock, chooses the next seat, and delivers arrivals.
//
//              start_flow                               Input
//   WorldCore ------------> FlowBackend     WorldCore ---------> InputHandler
//             <------------                           <---------
//          flow_rate, flow_ended                       Substrate
//
// Stages of a transfer or storage operation (held: storage only, waits for an older operation):
//
//   queued --> latency --> flowing --> landed [--> held] --> answered
//      \----------\-----------\-- cancel --> ending [--> held] --^
//
// Stages of a pass:  queued --> waiting (for gates) --> ending --> answered
//
// Stages of a hand-over:  queued --> [waiting (for its pass)] --> { latency --> flowing --> landed } per group of
// layers
//
// Backend's loop: while Seats::next_time() is before the end of every flow (see Seats::step), call Seats::step().
// Cost: one push and one pop of a heap per input; no allocation in steady state. Thread: single-threaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "policy/seam/hand_over_gap.hpp"
#include "policy/seam/substrate.hpp"
#include "sim/agenda.hpp"
#include "sim/links.hpp"
#include "sim/next_steps.hpp"
#include "sim/operation_table.hpp"
#include "sim/pipeline.hpp"
#include "sim/store_model.hpp"
#include "sim/world.hpp"

namespace kvtwin {

// Shares links among flows. A flow is named by its seat and by its slot in the WorldCore of that seat. Each lane of a
// seat has at most one flow.
class FlowBackend {
 public:
  virtual ~FlowBackend() = default;
  // Starts a flow at the current time (a whole ns). The backend calls WorldCore::flow_rate, now or later, whenever the
  // rate changes, and WorldCore::flow_ended once.
  virtual void start_flow(std::uint32_t seat, std::uint32_t slot, const Flow& flow) = 0;
  // Cancels a flow. The backend makes no further call for the flow.
  virtual void stop_flow(std::uint32_t seat, std::uint32_t slot) = 0;
};

// The reductions of an engine whose ranks have a seat each. The WorldCore of each rank calls this interface.
class Collective {
 public:
  virtual ~Collective() = default;
  // The answer is WorldCore::answer_reduction.
  virtual void reduction_entered(std::uint32_t seat, std::uint32_t slot) = 0;
};

// The passes of seats that compute together: the ranks of an engine, or its groups of attention. `ordinal` is the
// number of passes that the seat had submitted before this pass.
class JointPasses {
 public:
  virtual ~JointPasses() = default;
  // The pass holds its compute lane. The answer is WorldCore::end_pass_at, which can be called again until the pass
  // ends.
  virtual void pass_started(std::uint32_t seat, std::uint64_t ordinal, std::uint32_t slot) = 0;
  virtual void pass_ready(std::uint32_t seat, std::uint64_t ordinal) = 0;  // all gates have landed
  virtual void pass_failed(std::uint32_t seat, std::uint64_t ordinal) = 0;
  virtual void pass_cancelled(std::uint32_t seat, std::uint64_t ordinal) = 0;
  virtual void pass_ended(std::uint32_t seat, std::uint64_t ordinal) = 0;
};

// The other engines of a world with roles.
class PeerPost {
 public:
  virtual ~PeerPost() = default;
  // Delivers the notice to the engine whose first seat is `to`, after `delay`, with the sender filled in. If each rank
  // has a seat: once all ranks of the sender have called this.
  virtual void post(std::uint32_t from, std::uint32_t to, const Notice& notice, TimeNs delay) = 0;
  // The last pages of a request have landed in the seat `to`, by the hand-over of this number of `from`. Delivers
  // `handed`, once the pages of all ranks have.
  virtual void landed(std::uint32_t from, std::uint32_t to, const Notice& handed, std::uint64_t number) = 0;
  virtual bool is_dead(std::uint32_t seat) const = 0;
  // A staged hand-over to this seat has ended.
  virtual void staged_at(std::uint32_t seat, const LaneSpan& span) = 0;
  // Some bytes of a hand-over have landed on `receivers` ranks of this seat's engine. Returns the time at which all of
  // its ranks have them.
  virtual TimeNs copied_at(std::uint32_t seat, Bytes bytes, std::uint32_t receivers) = 0;
};

// The state that all seats of a world share.
struct SharedState {
  TimeNs now = 0;
  std::uint64_t delivered = 0;  // number of delivered inputs
  void (*tick)(void* context, TimeNs now) = nullptr;
  void* tick_context = nullptr;
};

// A seat's place in its world. Ownership: all references are borrowed and outlive the seat.
struct SeatPlace {
  std::uint32_t seat = 0;
  std::uint32_t rank = 0;     // if each rank has a seat
  std::uint32_t machine = 0;  // number of its host
  SharedState& shared;
  NextSteps& next_steps;             // the seat marks itself when the time of its next step may have changed
  Collective* collective = nullptr;  // null: this seat speaks for all ranks
  JointPasses* passes = nullptr;     // null: its passes are its own
  PeerPost* peers = nullptr;
  PerTier<StoreModel*> stores{};
};

// The result of a pass.
struct PassEnd {
  Status status = Status::done;
  std::uint64_t steps = 0;
  TimeNs stalled_ns = 0;
  TimeNs time = 0;
  TimeNs duration_ns = -1;  // of a step of several groups; -1 = that of the pass
};

// The effect of the gates on a pass: its first step takes `first_step_ns` and ends no earlier than `finish`.
struct PassGates {
  TimeNs first_step_ns = 0;
  TimeNs finish = 0;
};

class WorldCore final : public Substrate {
 public:
  WorldCore(const WorldConfig& config, FlowBackend& backend, const SeatPlace& place);

  std::uint32_t seat() const { return seat_; }
  TimeNs now() const override { return now_; }
  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override;
  OperationId reduce_min(const ReduceVector& values) override;
  void cancel(OperationId id) override;
  void notify(std::uint32_t peer, const Notice& notice) override;

  // The engine of this seat is dead: its transfers stop, and it gets no more input.
  void kill();

  // Requires: `handler` outlives the run.
  void begin(InputHandler& handler) { handler_ = &handler; }
  // Returns the time of the next step, or kNever if only flows remain.
  TimeNs next_time();
  // Handles the next entry of the agenda, at the shared time.
  void step();
  void deliver(const Input& input);

  // For Collective and JointPasses. `slot`: an entered reduction, or a pass that holds its compute lane.
  const ReduceVector& reduction(std::uint32_t slot) const { return operations_[slot].values; }
  void answer_reduction(std::uint32_t slot, const ReduceVector& values, TimeNs time);
  PassGates pass_gates(std::uint32_t slot) const { return operations_[slot].forward.gates; }
  TimeNs pass_ns(std::uint32_t slot) const { return operations_[slot].forward.total_ns; }
  std::uint64_t pass_steps(std::uint32_t slot) const { return operations_[slot].forward.steps; }
  const ForwardShape& pass_shape(std::uint32_t slot) const { return operations_[slot].forward.shape; }
  // Returns the result of the pass if it starts at `start`, waits for `gates`, and is cancelled at `cancel_time` (-1:
  // not cancelled).
  PassEnd plan_pass(std::uint32_t slot, TimeNs start, const PassGates& gates, TimeNs cancel_time) const;
  void end_pass_at(std::uint32_t slot, TimeNs start, const PassEnd& end);

  void flow_rate(std::uint32_t slot, const Instant& since, double bytes_per_ns);
  // The flow has landed, by its current rate. The completion follows at the nearest ns.
  void flow_ended(std::uint32_t slot);
  Instant flow_end(std::uint32_t slot) const { return operations_[slot].piece.end(); }

  void watch_lanes(LaneObserver* observer) { lanes_ = observer; }
  const Links& links() const { return links_; }
  // Returns the bytes that crossed the host's memory, of all ranks together, for ended operations: see dram_crossings.
  Bytes dram_bytes() const { return dram_bytes_; }
  void received_staged(const LaneSpan& span) {
    if (lanes_ != nullptr) lanes_->on_lane(span);
  }
  TimeNs copy_among_ranks(Bytes bytes, std::uint32_t receivers);
  // Returns whether every submitted operation has been answered.
  bool all_answered() const { return in_flight_ == 0; }

 private:
  // transfer: also the get, set and remove of a storage tier.
  enum class Kind : std::uint8_t { transfer, look_up, forward, timer, reduction, hand_over };
  // held: the storage operation has ended, and waits for the end of an operation that was submitted earlier; the bytes
  // of the hand-over have landed, and the peer's ranks copy them.
  enum class Stage : std::uint8_t { queued, latency, flowing, landed, waiting, ending, held };

  struct Transfer {
    Lane lane = Lane::h2d;
    TransferCost cost;
    bool storage = false;
    std::uint32_t ranks = 1;         // number of ranks that move the same bytes
    std::uint32_t layer_groups = 1;  // a gated pass waits for each group; the pages of a get arrive as a whole
    Pages pages = 0;                 // pages to move
    Bytes page_bytes = 0;            // of one rank
    Bytes plan_bytes = 0;            // of one rank, all pages
    double flow_bytes = 0.0;         // of one rank
    TimeNs lane_since = 0;
    TimeNs flow_since = 0;
    std::uint32_t first_watch = kNoSlotIndex;
  };
  struct Forward {
    ForwardShape shape;
    std::uint64_t steps = 1;
    TimeNs submitted = 0;
    TimeNs started = 0;
    TimeNs total_ns = 0;
    PassGates gates;
    std::uint64_t ordinal = 0;
    TimeNs cancel_time = -1;
    std::uint32_t open_gates = 0;
    bool gated = false, gate_failed = false;
  };
  struct Storage {  // with Kind::transfer, the Transfer has the lane and the bytes
    StorageWork work;
    std::vector<StoreKey> keys;
    std::vector<StorageOperation::Need> needs;
    std::vector<StoreKey> needed;  // by need, then by page
    std::vector<NodeShare> nodes;  // of the pool, without the own host; empty if the pool has no nodes
    double own_share = 0.0;        // of the pages to move, on the own host
    double drive_share = 0.0;      // of their bytes, only on the drives of the store
    Pages leading = 0;             // get: number of leading pages that were present at the start
    bool started = false;
    std::uint32_t before = kNoSlotIndex, after = kNoSlotIndex;  // neighbours in the order of ends
  };
  struct HandOver {  // the Transfer has the lane and the bytes
    Notice handed;
    Pages first = 0;
    std::uint64_t number = 0;               // of the seat's hand-overs; the same on all ranks of an engine
    std::uint32_t peer = 0, receivers = 1;  // peer: the seat of this rank's number
    bool last = false, staged = false;
    OperationId pass = OperationId::none;  // computes the pages, and has not ended
    TimeNs pass_end = -1, pass_ns = 0;     // -1: not known yet
    std::uint32_t group = 0, groups = 1;   // the group that moves
    TimeNs flow_begin = 0, flowed_ns = 0;  // of this group; of the groups before
  };
  struct Record {  // one operation in flight
    OperationId id = OperationId::none;
    Kind kind = Kind::timer;
    Stage stage = Stage::ending;
    std::uint32_t ticket = 0;                                   // of the valid agenda entry
    std::uint32_t before = kNoSlotIndex, after = kNoSlotIndex;  // neighbours in the lane
    TimeNs due = 0;
    FlowPiece piece;
    Completion completion;
    Transfer transfer;
    Storage storage;
    Forward forward;
    HandOver hand_over;
    ReduceVector values{};
  };
  struct Queue {  // of one lane; the head holds the lane
    std::uint32_t head = kNoSlotIndex, tail = kNoSlotIndex;
  };
  struct Watch {  // one pass waits for one gate
    std::uint32_t pass = 0;
    OperationId pass_id = OperationId::none;
    std::uint32_t next = kNoSlotIndex;
    GateFold fold;
  };

  std::uint32_t new_record(Kind kind);
  void free_record(std::uint32_t slot);
  void schedule(std::uint32_t slot, TimeNs time);
  Queue& queue_of(const Record& record);
  void enqueue(std::uint32_t slot);
  void leave_queue(std::uint32_t slot);
  void report_lane_span(std::uint32_t slot);
  void start_head(Queue& queue);

  OperationId submit_transfer(const TransferOperation& operation);
  OperationId submit_forward(const ForwardOperation& operation);
  OperationId submit_storage(const StorageOperation& operation);
  OperationId submit_hand_over(const HandOverOperation& operation);
  void begin_group(std::uint32_t slot);
  void end_group(std::uint32_t slot);
  void leave_peer_lane(std::uint32_t slot);
  void end_hand_over(std::uint32_t slot);
  void cancel_hand_over(std::uint32_t slot, Status status);
  void pass_resolved(OperationId pass, TimeNs end, TimeNs duration);
  void pass_over(OperationId pass, bool counts);
  // Returns the tier's content now.
  StoreModel& store_of(const StorageWork& work) {
    StoreModel& store = *stores_[work.tier];
    store.advance_to(now_);
    return store;
  }
  Queue& end_order_of(const StorageWork& work);
  void leave_end_order(std::uint32_t slot);
  void plan_storage(std::uint32_t slot);
  void share_among_nodes(Storage& storage, std::span<const StoreKey> moved);
  bool draws_stall(OperationId id) const;
  double slow_factor(const Record& record) const;
  void start_flow(std::uint32_t slot);
  bool outlasts_lease(const StoreModel& store, const Record& record) const;
  void apply_to_store(Record& record);
  void end_storage(std::uint32_t slot);
  void end_look_up(std::uint32_t slot);
  void watch_gates(std::uint32_t slot, std::span<const OperationId> gates);
  void fold_watches(std::uint32_t slot, double left, bool landed);
  void close_watches(std::uint32_t slot, bool landed);
  void start_pass(std::uint32_t slot);
  void resolve_pass(std::uint32_t slot);
  void cancel_transfer(std::uint32_t slot);
  Bytes moved_bytes(const Record& record) const;
  void cancel_forward(std::uint32_t slot);

  void handle_entry(const AgendaEntry& entry);
  void end_transfer(std::uint32_t slot);
  void end_forward(std::uint32_t slot);
  void drop_stale();

  WorldConfig config_;
  FlowBackend& backend_;
  const std::uint32_t seat_, rank_, machine_;
  SharedState& shared_;
  const TimeNs& now_;  // shared_.now
  NextSteps& next_steps_;
  Collective* collective_;
  JointPasses* passes_;
  PeerPost* peers_;
  bool dead_ = false;
  InputHandler* handler_ = nullptr;
  LaneObserver* lanes_ = nullptr;
  std::uint64_t last_id_ = 0, pass_count_ = 0, handed_over_ = 0;
  std::uint64_t in_flight_ = 0;
  std::vector<Record> operations_;
  std::vector<std::uint32_t> free_operations_;
  std::vector<Watch> watches_;
  std::vector<std::uint32_t> free_watches_;
  OperationTable table_;
  Agenda agenda_;
  PerLane<Queue> queues_;
  Links links_;
  PerTier<StoreModel*> stores_;
  std::vector<Pages> usable_;                                        // of the look-up that ends
  std::vector<StoreKey> moved_;                                      // of plan_storage
  PerTier<std::array<Queue, 2>> end_orders_;                         // order of ends: [0] gets, [1] sets and removes
  std::map<std::pair<RequestId, std::uint32_t>, HandOverGap> gaps_;  // open ones, by request and attempt
  Bytes dram_bytes_ = 0;
  TimeNs copied_until_ = 0;  // the ranks copy what hand-overs have brought
};

}  // namespace kvtwin
