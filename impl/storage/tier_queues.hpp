// The queues of one storage tier in the real world. Takes the engine's storage operations, calls a back end page by
// page, and answers each operation with one Finished.
//
// Three threads: look-ups; gets; sets and removes. Each thread works in the order of submission. An operation counts
// the leading pages that succeeded.
//
//   event loop --submit--> look-ups --> look_up()
//                          gets     --> read()   -- right pages --> PageMemory --+
//                          writes   --> write()  <-- pages ------- PageMemory    +--> Finished, in order
//
// A cancel stops pages that have not begun. Pages of a get are checked against their headers before they reach a slot.
// Pages of a set are not checked.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "impl/runtime/completion_queue.hpp"
#include "impl/storage/backend.hpp"
#include "impl/storage/page_memory.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class TierQueues {
 public:
  // `memory` outlives this object. `stores`: false on a rank whose pages another rank writes; its sets complete at
  // once. `slow_factor`: factor on the time of gets, sets, removes and look-ups, as on a slow rank; 1 = no delay.
  TierQueues(Tier tier, std::unique_ptr<StorageBackend> backend, PageMemory& memory, bool stores = true,
             double slow_factor = 1);
  // Allowed in the middle of a run: pages that have not begun never begin, and are not answered.
  ~TierQueues();

  Tier tier() const;
  // Starts the threads. `queue` and `clock` outlive this object. `landed`: called in the thread of the gets, after a
  // get into L1 has been answered.
  // Errors: std::system_error if the system has no thread.
  void start(CompletionQueue& queue, const RunClock& clock, std::function<void(OperationId, bool done)> landed);
  // Copies the operation as needed.
  void submit(OperationId id, const StorageOperation& operation);
  void cancel(OperationId id);
  // Ends the threads and finishes the back end. Requires: all operations have been answered.
  void finish();
  std::vector<std::pair<std::string, std::uint64_t>> counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
