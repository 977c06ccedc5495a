// The queues of one storage tier in the real world. Takes the engine's storage operations, calls a back end object by
// object, and answers each operation with one Finished.
//
// A page is stored as one or several objects (StorePart::objects), each with a key and a header of its own. A page is
// there if all its objects are there. A get delivers a page when all its objects are right, and a set counts a page
// when all its objects are stored. Back ends know only objects.
//
// Pages have one part, or two: the target's KV and that of its draft model. Each pool of windows or states
// (StorageOperation::pool) is a part too. Each part has a back end and queues of its own. An operation concerns the
// parts of its pool, has its answer when all of them have one, and counts the leading pages that succeeded in all.
//
// Three threads, the last two per part: look-ups; gets; sets and removes. Each thread works in the order of submission.
// The answers to gets are in this order in all parts together, and so are those to sets and removes.
//
//   event loop --submit--> look-ups --> look_up()
//                          gets     --> read()   -- right objects --> PageMemory --+
//                          writes   --> write()  <-- objects ------- PageMemory    +--> Finished, in order
//
// A cancel stops pages that have not begun. If memory and back end permit, an object moves between medium and slot
// without a copy. A slot of a failed get may then hold any bytes. Pages of a set are not checked.
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
#include "models/planned_faults.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// A part of the pages, or a pool beside them: the memory that has it, and the back end that stores it.
struct StorePart {
  std::unique_ptr<StorageBackend> backend;  // of object_form(memory->form(), objects)
  PageMemory* memory = nullptr;             // outlives the queues
  std::uint32_t objects = 1;
  // Number of the first object. An object has the page's key if the part has one object and this is 0; otherwise a key
  // of its own (storage_object_key).
  std::uint32_t first_object = 0;
  std::size_t pool = 0;  // StorageOperation::pool; other than 0: the keys are those of pool_page_key()
  bool of_rank = false;  // each rank stores its own, also where one rank writes the pages of all (states beside MLA)
};

class TierQueues {
 public:
  // `stores`: false on a rank whose pages another rank writes; its sets complete at once. `slow_factor`: factor on the
  // time of gets, sets, removes and look-ups, as on a slow rank; 1 = no delay. `slow_spans`: further factors, for
  // operations that begin in a time. Requires: one or two parts of pool 0, and then one of each other pool.
  TierQueues(Tier tier, std::vector<StorePart> parts, bool stores = true, double slow_factor = 1,
             std::vector<SlowSpan> slow_spans = {});
  // The same for pages that are one object. `memory` outlives this object.
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
  // Returns the counters of the back ends, which count objects, and of these queues. Those of the draft's part begin
  // with "draft_", and those of a further pool with its name, "pool1_".
  std::vector<std::pair<std::string, std::uint64_t>> counters() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
