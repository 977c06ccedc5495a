// The interface of a storage back end: files or a server that hold the pages of one storage tier.
//
// A back end stores bytes under names. TierQueues (tier_queues.hpp) drives the back end, and does the rest: queues,
// order, cancels, copies to and from memory, and the check of pages that were read.
//
// Thread: three threads call a back end at the same time: one calls look_up, one read, one write.
// Errors: look_up, read and write do not throw, and return in bounded time whatever happens to the medium. A dead
// medium gives `unreachable`, a full one `full`. A page may disappear at any time; a missing page is a miss. A page
// that differs from the stored one is never delivered. The constructor throws (std::runtime_error, std::system_error)
// if the medium cannot be used, and then leaves nothing behind.
//
// To add one, see docs/contributing/add-a-back-end.md. tests/conformance/ checks these promises.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "impl/storage/page_header.hpp"
#include "impl/storage/pieces.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// One page to get, set or remove. Space and key together name a page (storage_page_key).
struct PageTask {
  StorageVerb verb = StorageVerb::get;
  PageKey space, key;
  std::uint64_t ticket = 0;  // for the caller of the back end; the back end returns the ticket unchanged
  // Gets and sets, for back ends with a way of their own into L1 (PageMemory::direct).
  Tier memory = Tier::host;
  SlotId slot = kNoSlot;
};

// The work for one call of a back end. The back end pulls pages one by one, and may have any number of pages in
// progress. A back end moves a page in one of two ways:
//
//   copies     set: take(header, payload) -> store both             get: load both -> give(header, payload)
//   in place   pieces(); set: take(header, pieces) -> store both    get: load both, the payload into the pieces ->
//                                                                        give(header, pieces)
//
// A subclass overrides next, pieces and end. If some pages have no pieces, it also overrides take_bare and give_bare.
// Thread: next and end are for the thread of the call; the others for any thread, one at a time.
class PageWork {
 public:
  // `seal`: stored pages carry a keyed check, and only such pages are accepted; null: pages carry the check without a
  // key. Outlives this object.
  explicit PageWork(const PageForm& form, const PageSeal* seal = nullptr) : form_(form), seal_(seal) {}
  virtual ~PageWork() = default;
  const PageForm& form() const { return form_; }
  const PageSeal* seal() const { return seal_; }
  // Returns the next page in `task`. False: no page now. While pages are in progress, the end of one may make another
  // available. A set and a remove are never in progress at the same time.
  virtual bool next(PageTask& task) = 0;
  // Ends a task. Requires: once per task. `none`: the page was read, or is stored, or is removed.
  virtual void end(const PageTask& task, Cause cause) = 0;

  // Appends the memory of the page to `pieces`: form().bytes() bytes in the order of the payload. False: the page has
  // no such memory, and can only be copied. The memory is valid until end(). From this call to end(), a set leaves the
  // bytes unchanged; a get may write any bytes, also if it fails.
  virtual bool pieces(const PageTask&, Pieces&) { return false; }

  // Set: copies the page into `payload` and fills its header. The back end stores both together.
  // Requires: `payload` has form().bytes() bytes.
  void take(const PageTask& task, PageHeader& header, std::span<std::byte> payload);
  // Set in place: fills the header. Requires: `pieces` are those of pieces(task).
  void take(const PageTask& task, PageHeader& header, const Pieces& pieces);
  // Get: delivers a stored page. Returns `none` if the page matches its header and is now in its slot. Returns
  // `corrupt` if the page differs from its header, or is another page.
  Cause give(const PageTask& task, std::span<const std::byte, kPageHeaderBytes> header,
             std::span<const std::byte> payload);
  // Get in place: the same for a payload that is in the pieces of the task already.
  Cause give(const PageTask& task, std::span<const std::byte, kPageHeaderBytes> header, const Pieces& pieces);

  // The same for formats without a header. Only the length of the bytes is checked. The default copies from and to the
  // pieces.
  virtual void take_bare(const PageTask& task, std::span<std::byte> payload);
  virtual Cause give_bare(const PageTask& task, std::span<const std::byte> payload);
  // Get in place: the pieces now hold the page. give() calls this after its check; a back end whose format has no
  // header calls it itself.
  virtual void landed(const PageTask&) {}

 private:
  const PageForm form_;
  const PageSeal* const seal_;
};

struct LookedUp {
  Pages pages = 0;            // number of leading pages that are present
  Cause cause = Cause::none;  // reason why pages are missing; `missing` is not a failure
};

class StorageBackend {
 public:
  virtual ~StorageBackend() = default;
  // Called once before all other calls, for back ends that need the time of the run. `now` outlives the object.
  virtual void start(std::function<TimeNs()> /*now*/) {}
  virtual LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) = 0;
  // Sets there[i] to whether the page of keys[i] is there, for every key. Returns why this is not known of some pages,
  // which then count as absent; else none. For the thread of look_up. This one asks look_up again behind every page
  // that is missing; a server's back end overrides it, so that a question of many keys stays one message.
  virtual Cause find(const PageKey& space, std::span<const PageKey> keys, std::vector<bool>& there);
  // Executes gets. Returns when `work` has no page and all begun pages have ended.
  virtual void read(PageWork& work) = 0;
  // Executes sets and removes; otherwise as read().
  virtual void write(PageWork& work) = 0;
  // Makes stored pages durable against power loss, if the medium can. Requires: no other call follows.
  virtual void finish() = 0;
  // Returns counters by name. Requires: finish() has returned.
  virtual std::vector<std::pair<std::string, std::uint64_t>> counters() const = 0;
  // Returns the seal for the PageWork of this back end; null = no seal.
  virtual const PageSeal* seal() const { return nullptr; }
  // Returns a text for the user: how pages are stored, which pages were found, and which were removed at the start.
  // Empty: nothing to report.
  virtual std::string description() const { return ""; }
};

}  // namespace kvtwin
