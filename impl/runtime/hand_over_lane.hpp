// The lane `peer` of the real world: hands pages of a prefill engine's device pool over to decode engines, and sends
// the notices of both roles (policy/hand_over.hpp).
//
//   submit() --> queue --its pass has ended--> thread: PeerPools::write() --> CompletionQueue
//                                                       \-- after the last page --> `handed`, to the decode engine
//
// Operations are written one after another, in the order of submission. A write with several groups of layers starts
// after the whole pass. If an operation of a request is not done, the operations of this request that were submitted
// before its completion are not done either.
//
// Thread: the event loop calls; the writes have a thread of their own.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "impl/runtime/completion_queue.hpp"
#include "impl/runtime/worker.hpp"
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
  // Writes the page in each own slot `source` to the slot `target` of engine `peer`.
  virtual Answer write(std::uint32_t peer, std::span<const PageMove> pages, const std::atomic<bool>& stop) = 0;
};

class HandOverLane {
 public:
  // Sends a notice to the engine `peer`. Thread: any. Never waits.
  using Send = std::function<void(std::uint32_t peer, const Notice& notice)>;

  // `pools`: of decode engines, too: it keeps their memory registered. They write nothing.
  HandOverLane(std::unique_ptr<PeerPools> pools, Send send);
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
  void notify(std::uint32_t peer, const Notice& notice) { send_(peer, notice); }
  // Ends the thread. Requires: all operations are answered.
  void finish() { worker_.finish(); }

 private:
  using PartId = std::pair<RequestId, std::uint32_t>;  // with the attempt
  // The operations of a request that fail together.
  struct Part {
    bool failed = false;          // thread
    std::uint32_t in_flight = 0;  // event loop
  };
  struct Job {
    OperationId id = OperationId::none;
    PartId part;
    std::shared_ptr<Part> fate;
    std::uint32_t peer = 0;
    bool last = false;
    Bytes bytes = 0;  // of all ranks
    OperationId pass = OperationId::none;
    bool gate_failed = false;
    std::vector<PageMove> pages;
    std::atomic<bool> cancelled{false};
  };
  using JobPtr = std::shared_ptr<Job>;

  void start_ready();
  void execute(Job& job);
  Status write(Job& job, Finished& finished);

  const std::unique_ptr<PeerPools> pools_;
  const Send send_;
  CompletionQueue* queue_ = nullptr;
  const RunClock* clock_ = nullptr;
  std::deque<JobPtr> waiting_;  // for passes, or behind an operation that does
  std::unordered_map<OperationId, JobPtr> flights_;
  std::map<PartId, std::shared_ptr<Part>> parts_;
  Worker<JobPtr> worker_;  // last member: its thread ends first
};

}  // namespace kvtwin
