// What the simulated worlds share: operations and their ids, FIFO lanes, the compute lane, gates, cancel, stores,
// and the one ordered stream of inputs. It knows nothing of how links are shared: a FlowBackend
// tells it each flow's rate. Single-threaded. Per input: one heap push and pop, no allocation in steady state.
//
// The backend's loop:  while next_time() comes before every flow's end (see `step`), call step().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "policy/substrate.hpp"
#include "sim/agenda.hpp"
#include "sim/links.hpp"
#include "sim/operation_table.hpp"
#include "sim/pipeline.hpp"
#include "sim/store_model.hpp"
#include "sim/world.hpp"

namespace kvtwin {

// Shares links among flows. A flow is named by its slot in WorldCore; there is at most one a lane.
class FlowBackend {
 public:
  virtual ~FlowBackend() = default;
  // The flow starts at `now` (whole ns). Answers, at once or later, with WorldCore::flow_rate whenever the rate
  // changes and WorldCore::flow_ended.
  virtual void start_flow(std::uint32_t slot, const Flow& flow) = 0;
  // Cancelled; no answer any more.
  virtual void stop_flow(std::uint32_t slot) = 0;
};

class WorldCore final : public Substrate {
 public:
  WorldCore(const WorldConfig& config, FlowBackend& backend);

  TimeNs now() const override { return now_; }
  OperationId submit(const Operation& operation) override;
  OperationId call_at(TimeNs time) override;
  OperationId reduce_min(const ReduceVector& values) override;
  void cancel(OperationId id) override;

  // Both outlive the run.
  void begin(InputSource& source, InputHandler& handler);
  // Time of the next step; kNever when nothing is left but flows.
  TimeNs next_time();
  // Handles what is next: an inner event, or one input. Only legal if no flow ends, rounded to the nearest
  // ns, at or before next_time() without flow_ended() having said so.
  void step();

  void flow_rate(std::uint32_t slot, const Instant& since, double bytes_per_ns);
  // By its current rate, the flow has landed; its completion comes at the nearest ns.
  void flow_ended(std::uint32_t slot);
  Instant flow_end(std::uint32_t slot) const { return operations_[slot].piece.end(); }

  void watch_lanes(LaneObserver* observer) { lanes_ = observer; }
  void set_progress(void (*tick)(void* context, TimeNs now), void* context);
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
    std::uint32_t ranks = 1;  // that move it
    Pages pages = 0;          // that it moves
    Bytes page_bytes = 0;     // of one rank
    Bytes plan_bytes = 0;     // of one rank, all pages
    double flow_bytes = 0.0;  // of one rank
    TimeNs lane_since = 0;
    TimeNs flow_since = 0;
    std::uint32_t first_watch = kNoSlotIndex;
  };
  struct Forward {
    ForwardShape shape;
    std::uint64_t steps = 1;
    TimeNs submitted = 0;
    TimeNs started = 0;
    TimeNs first_step_ns = 0;
    TimeNs total_ns = 0;
    TimeNs gates_finish = 0;  // the first step ends no earlier
    TimeNs cancel_time = -1;
    std::uint32_t open_gates = 0;
    bool gate_failed = false;
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
  StoreModel& store_of(const StorageWork& work) { return *stores_[static_cast<std::size_t>(work.tier)]; }
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
  void cut_burst(std::uint32_t slot);

  void handle_entry(const AgendaEntry& entry);
  void end_transfer(std::uint32_t slot);
  void end_forward(std::uint32_t slot);
  void deliver(const Input& input);
  void deliver_arrival();
  void drop_stale();

  WorldConfig config_;
  FlowBackend& backend_;
  InputSource* source_ = nullptr;
  InputHandler* handler_ = nullptr;
  LaneObserver* lanes_ = nullptr;
  TimeNs now_ = 0;
  std::uint64_t last_id_ = 0;
  std::uint64_t in_flight_ = 0;
  std::vector<Record> operations_;
  std::vector<std::uint32_t> free_operations_;
  std::vector<Watch> watches_;
  std::vector<std::uint32_t> free_watches_;
  OperationTable table_;
  Agenda agenda_;
  std::array<Queue, kLanes> queues_;
  Links links_;
  std::array<std::optional<StoreModel>, kTiers> stores_;
  std::array<Queue, 2 * kTiers> orders_;  // of ends: by tier, gets before sets and removes
  Bytes dram_bytes_ = 0;
  Input arrival_;  // pulled one ahead
  bool has_arrival_ = false;
  std::uint64_t delivered_ = 0;
  void (*tick_)(void*, TimeNs) = nullptr;
  void* tick_context_ = nullptr;
};

}  // namespace kvtwin
