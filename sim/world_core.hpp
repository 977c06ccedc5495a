// One seat's affairs in a simulated world: operations and their ids, FIFO lanes, the compute lane, gates, cancel,
// and the ordered stream of its inputs. It knows nothing of how links are shared: a FlowBackend tells it each flow's
// rate; nor of other seats: `Seats` (seats.hpp) owns the clock, says whose turn it is, and hands out arrivals.
// Single-threaded. Per input: one heap push and pop, no allocation in steady state.
//
// The backend's loop:  while Seats::next_time() comes before every flow's end (see Seats::step), call Seats::step().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policy/seam/substrate.hpp"
#include "sim/agenda.hpp"
#include "sim/links.hpp"
#include "sim/operation_table.hpp"
#include "sim/pipeline.hpp"
#include "sim/store_model.hpp"
#include "sim/world.hpp"

namespace kvtwin {

// Shares links among flows. A flow is named by its seat and its slot in that seat's WorldCore; there is at most one a
// lane of a seat.
class FlowBackend {
 public:
  virtual ~FlowBackend() = default;
  // The flow starts at `now` (whole ns). Answers, at once or later, with WorldCore::flow_rate whenever the rate
  // changes and WorldCore::flow_ended.
  virtual void start_flow(std::uint32_t seat, std::uint32_t slot, const Flow& flow) = 0;
  // Cancelled; no answer any more.
  virtual void stop_flow(std::uint32_t seat, std::uint32_t slot) = 0;
};

// What the ranks of an engine do together, where each has a seat: told by each one's WorldCore. A pass's `ordinal`
// counts the passes that its seat submitted.
class Collective {
 public:
  virtual ~Collective() = default;
  // Answered with WorldCore::answer_reduction.
  virtual void reduction_entered(std::uint32_t seat, std::uint32_t slot) = 0;
  // It holds its compute lane; answered with WorldCore::end_pass_at, any number of times before its end.
  virtual void pass_started(std::uint32_t seat, std::uint64_t ordinal, std::uint32_t slot) = 0;
  virtual void pass_ready(std::uint32_t seat, std::uint64_t ordinal) = 0;  // its gates are through
  virtual void pass_failed(std::uint32_t seat, std::uint64_t ordinal) = 0;
  virtual void pass_cancelled(std::uint32_t seat, std::uint64_t ordinal) = 0;
  virtual void pass_ended(std::uint32_t seat, std::uint64_t ordinal) = 0;
};

// What the seats of a world share.
struct SharedTurn {
  TimeNs now = 0;
  std::uint64_t delivered = 0;  // inputs
  void (*tick)(void* context, TimeNs now) = nullptr;
  void* tick_context = nullptr;
};

// When a seat's next step is; stale = to be asked for again.
struct SeatTurn {
  TimeNs due = kNever;
  bool stale = false;
};

// A seat's place in its world. All referred to outlives it.
struct SeatPlace {
  std::uint32_t seat = 0;
  SharedTurn& shared;
  SeatTurn& turn;
  Collective* collective = nullptr;  // null: this seat speaks for all ranks
  PerTier<StoreModel*> stores{};
};

// How a pass ends.
struct PassEnd {
  Status status = Status::done;
  std::uint64_t steps = 0;
  TimeNs stalled_ns = 0;
  TimeNs time = 0;
};

// What a pass's gates ask of it: its first step, of that length, ends no earlier than `finish`.
struct PassGates {
  TimeNs first_step_ns = 0;
  TimeNs finish = 0;
};

class WorldCore final : public Substrate {
 public:
  WorldCore(const WorldConfig& config, FlowBackend& backend, const SeatPlace& place);

  TimeNs now() const override { return now_; }
  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override;
  OperationId reduce_min(const ReduceVector& values) override;
  void cancel(OperationId id) override;

  // `handler` outlives the run.
  void begin(InputHandler& handler) { handler_ = &handler; }
  // Time of the next step; kNever when nothing is left but flows.
  TimeNs next_time();
  // Handles what is next, at the shared time.
  void step();
  void deliver(const Input& input);

  // For the collective: of a reduction entered, of a pass that holds its lane.
  const ReduceVector& reduction(std::uint32_t slot) const { return operations_[slot].values; }
  void answer_reduction(std::uint32_t slot, const ReduceVector& values, TimeNs time);
  PassGates pass_gates(std::uint32_t slot) const { return operations_[slot].forward.gates; }
  TimeNs pass_ns(std::uint32_t slot) const { return operations_[slot].forward.total_ns; }
  // When it ends if it starts then, its gates ask that much, and it is cancelled at `cancel_time` (-1: it isn't).
  PassEnd plan_pass(std::uint32_t slot, TimeNs start, const PassGates& gates, TimeNs cancel_time) const;
  void end_pass_at(std::uint32_t slot, TimeNs start, const PassEnd& end);

  void flow_rate(std::uint32_t slot, const Instant& since, double bytes_per_ns);
  // By its current rate, the flow has landed; its completion comes at the nearest ns.
  void flow_ended(std::uint32_t slot);
  Instant flow_end(std::uint32_t slot) const { return operations_[slot].piece.end(); }

  void watch_lanes(LaneObserver* observer) { lanes_ = observer; }
  const Links& links() const { return links_; }
  // Bytes that crossed the host's memory, of all ranks together, by what has ended: see dram_crossings.
  Bytes dram_bytes() const { return dram_bytes_; }
  // Nothing submitted is unanswered.
  bool quiet() const { return in_flight_ == 0; }

 private:
  // transfer: also a get, a set and a remove of a storage tier.
  enum class Kind : std::uint8_t { transfer, look_up, forward, timer, reduction };
  // held: a storage operation that has ended, and waits for one submitted before it.
  enum class Stage : std::uint8_t { queued, latency, flowing, landed, waiting, ending, held };

  struct Transfer {
    Lane lane = Lane::h2d;
    TransferCost cost;
    bool storage = false;
    std::uint32_t ranks = 1;         // that move it
    std::uint32_t layer_groups = 1;  // a gated pass waits for each; a get's pages land whole
    Pages pages = 0;                 // that it moves
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
  struct Storage {  // beside its Transfer
    StorageWork work;
    std::vector<StoreKey> keys;
    Pages leading = 0;  // get: were there at its start
    bool started = false;
    std::uint32_t before = kNoSlotIndex, after = kNoSlotIndex;  // in the order of ends
  };
  struct Record {  // one operation in flight
    OperationId id = OperationId::none;
    Kind kind = Kind::timer;
    Stage stage = Stage::ending;
    std::uint32_t ticket = 0;                                   // of the agenda entry that counts
    std::uint32_t before = kNoSlotIndex, after = kNoSlotIndex;  // neighbours in the lane
    TimeNs due = 0;
    FlowPiece piece;
    Completion completion;
    Transfer transfer;
    Storage storage;
    Forward forward;
    ReduceVector values{};
  };
  struct Queue {  // of one lane; `head` holds the lane
    std::uint32_t head = kNoSlotIndex, tail = kNoSlotIndex;
  };
  struct Watch {  // of a gate by a pass
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
  void tell_lane(std::uint32_t slot);
  void start_head(Queue& queue);

  OperationId submit_transfer(const TransferOperation& operation);
  OperationId submit_forward(const ForwardOperation& operation);
  OperationId submit_storage(const StorageOperation& operation);
  StoreModel& store_of(const StorageWork& work) { return *stores_[work.tier]; }
  Queue& order_of(const StorageWork& work);
  void leave_order(std::uint32_t slot);
  void plan_storage(std::uint32_t slot);
  bool stalls(OperationId id) const;
  void start_flow(std::uint32_t slot);
  void count_stored(Record& record);
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
  const std::uint32_t seat_;
  SharedTurn& shared_;
  const TimeNs& now_;  // the shared one
  SeatTurn& turn_;
  Collective* collective_;
  InputHandler* handler_ = nullptr;
  LaneObserver* lanes_ = nullptr;
  std::uint64_t last_id_ = 0, passes_ = 0;
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
  PerTier<std::array<Queue, 2>> orders_;  // of ends: gets; sets and removes
  Bytes dram_bytes_ = 0;
};

}  // namespace kvtwin
