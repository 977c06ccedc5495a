// The queues of one storage tier in the real world: takes the engine's storage operations, has a back end work them off
// page by page, and answers each with one Finished. A thread for look-ups, one for gets, one for sets and removes, each
// in the order of submission; an operation counts the leading pages that came out right.
//
//   event loop --submit--> look-ups --> look_up()
//                          gets     --> read()   -- right pages --> PageMemory --+
//                          writes   --> write()  <-- pages ------- PageMemory    +--> Finished, in order
//
// A cancel ends what hasn't begun. A set's pages are checked against nothing; a get's against their headers, before
// they reach a slot.
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
  // `memory` outlives it. `stores`: false on ranks whose pages another rank writes; their sets are done at once.
  // `slow_factor`: gets, sets, removes and look-ups take so many times as long, as on a slower rank; 1 = none.
  TierQueues(Tier tier, std::unique_ptr<StorageBackend> backend, PageMemory& memory, bool stores = true,
             double slow_factor = 1);
  // Also in the middle of a run: what hasn't begun never will, and isn't answered.
  ~TierQueues();

  Tier tier() const;
  // Threads begin. queue and clock outlive it. std::system_error if there are no threads to be had.
  // `landed`: called after a get into L1 has been answered, in the gets' thread.
  void start(CompletionQueue& queue, const RunClock& clock, std::function<void(OperationId, bool done)> landed);
  // Copies what it needs of the operation.
  void submit(OperationId id, const StorageOperation& operation);
  void cancel(OperationId id);
  // All has been answered: threads end, the back end finishes.
  void finish();
  std::vector<std::pair<std::string, std::uint64_t>> counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
