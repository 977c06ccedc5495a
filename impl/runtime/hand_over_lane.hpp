// The lane `peer` of the real world: hands pages, windows and states of a prefill engine's device pools over to decode
// engines, and sends the notices of both roles (policy/hand_over.hpp). Each rank of an engine has a lane, and writes to
// the rank of its number.
//
//   submit() --> queue --its pass has ended--> thread: PeerPools::write() --> CompletionQueue
//                                                       \-- after the last page --> EnginePost::landed
//
// Operations are written one after another, in the order of submission. A write with several groups of layers starts
// after the whole pass. An operation behind a gap of its request fails (policy/seam/hand_over_gap.hpp).
//
// Thread: the event loop calls; the writes have a thread of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "impl/runtime/completion_queue.hpp"
#include "impl/runtime/worker.hpp"
#include "policy/seam/hand_over_gap.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// The device pools of the other engines, which this process writes one-sided.
class PeerPools {
 public:
  enum class Answer : std::uint8_t {
    done,     // all bytes have landed
    stopped,  // `stop` was set; nothing is in progress
    failed,   // the peer, or the way to it, is gone
    late      // no end in time: bytes may still land
  };
  virtual ~PeerPools() = default;
  // What a write moves between the slots of one kind, which several pools may have (DevicePool::slots).
  struct Moves {
    std::size_t slots = 0;
    std::vector<PageMove> moves;
  };
  // Writes what is in each own slot `source` to the slot `target` of engine `peer`.
  virtual Answer write(std::uint32_t peer, std::span<const Moves> all, const std::atomic<bool>& stop) = 0;
};

// The last pages of a request, of this rank, are in the decode engine's pool. `write`: number of the operation that
// wrote them, among all of this engine. It is the same on all ranks, because all ranks submit the same operations.
struct LandedPages {
  RequestId request = kNoRequest;
  std::uint32_t attempt = 0;
  std::uint64_t write = 0;
};

// The way to the other engines. Thread: any. Never waits.
class EnginePost {
 public:
  virtual ~EnginePost() = default;
  virtual void notify(std::uint32_t peer, const Notice& notice) = 0;
  // The decode engine gets the notice `handed` when the pages of all ranks have landed by the same write.
  virtual void landed(std::uint32_t peer, const LandedPages& pages) = 0;
};

class HandOverLane {
 public:
  // `pools`: of decode engines, too: it keeps their memory registered. They write nothing. Requires: `post` outlives
  // the lane.
  HandOverLane(std::unique_ptr<PeerPools> pools, EnginePost& post);
  // Allowed in the middle of a run: waits for the write in progress.
  ~HandOverLane();

  // `queue` and `clock` outlive the lane.
  void start(CompletionQueue& queue, const RunClock& clock);
  void submit(OperationId id, const HandOverOperation& operation);
  void cancel(OperationId id);
  // The completion of a pass is about to be delivered. `counts`: its tokens have been computed.
  void pass_ended(OperationId pass, bool counts);
  // The completion of an operation of this lane is about to be delivered.
  void retire(const Completion& completion);
  void notify(std::uint32_t peer, const Notice& notice);
  // Ends the thread. Requires: all operations are answered.
  void finish() { worker_.finish(); }

 private:
  using PartId = std::pair<RequestId, std::uint32_t>;  // with the attempt
  struct Part {
    HandOverGap gap;              // thread
    std::uint32_t in_flight = 0;  // event loop
  };
  struct Job {
    OperationId id = OperationId::none;
    PartId part;
    std::shared_ptr<Part> fate;
    std::uint64_t number = 0;  // of all operations
    std::uint32_t peer = 0;
    Pages first = 0;
    bool last = false;
    Bytes bytes = 0;  // of all ranks
    OperationId pass = OperationId::none;
    bool gate_failed = false;
    std::vector<PeerPools::Moves> moves;
    std::atomic<bool> cancelled{false};
  };
  using JobPtr = std::shared_ptr<Job>;

  void start_ready();
  void execute(Job& job);
  Status write(Job& job, Finished& finished);

  const std::unique_ptr<PeerPools> pools_;
  EnginePost& post_;
  CompletionQueue* queue_ = nullptr;
  const RunClock* clock_ = nullptr;
  std::deque<JobPtr> waiting_;  // for passes, or behind an operation that does
  std::unordered_map<OperationId, JobPtr> flights_;
  std::map<PartId, std::shared_ptr<Part>> parts_;  // with operations in flight, or that lack pages
  std::uint64_t submitted_ = 0;
  Worker<JobPtr> worker_;  // last member: its thread ends first
};

}  // namespace kvtwin
