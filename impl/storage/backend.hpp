// What holds one storage tier's pages for real: files, a server. A back end keeps bytes under names and nothing else;
// queues, order, cancels, the way into memory and the check of what was read are TierQueues' (tier_queues.hpp), which
// drives it.
//
// Three threads call it, one each look_up, read and write; they do so at the same time. None of the three throws, and
// each ends in bounded time whatever becomes of the medium: a dead one is answered `unreachable`, a full one `full`.
// A page may go missing at any time, that is a miss; a page that isn't what was stored is never handed on. The
// constructor throws (std::runtime_error, std::system_error) if the medium can't be used at all, and leaves nothing
// behind then.
//
// To add one: docs/contributing/add-a-back-end.md; tests/conformance/ holds it to this.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "impl/storage/page_header.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

// One page to get, set or remove. Pages are named by space and key together (storage_page_key).
struct PageTask {
  StorageVerb verb = StorageVerb::get;
  PageKey space, key;
  std::uint64_t ticket = 0;  // the giver's own
  // Of gets and sets: for back ends that have a way into L1 of their own (PageMemory::direct).
  Tier memory = Tier::host;
  SlotId slot = kNoSlot;
};

// What there is to do, pulled by the back end page by page, as many at a time as it likes to have under way. next and
// end are for the thread in which the back end was called; the others for any.
class PageWork {
 public:
  // `seal`: stored pages carry the keyed check, and only such are taken; null: the one that needs no key. Outlives it.
  explicit PageWork(const PageForm& form, const PageSeal* seal = nullptr) : form_(form), seal_(seal) {}
  virtual ~PageWork() = default;
  const PageForm& form() const { return form_; }
  const PageSeal* seal() const { return seal_; }
  // The next page to begin with. False: none for now; while pages are under way, there may be one once another has
  // ended. (A set is never under way beside a remove.)
  virtual bool next(PageTask& task) = 0;
  // A set's page, and the header that vouches for it; to be stored together. `payload`: the form's bytes.
  void take(const PageTask& task, PageHeader& header, std::span<std::byte> payload);
  // A get's page, as stored. `none`: it was right, and is in its slot now; `corrupt`: it isn't what its header vouches
  // for, or another page.
  Cause give(const PageTask& task, std::span<const std::byte, kPageHeaderBytes> header,
             std::span<const std::byte> payload);
  // The same of formats that keep no header. Nothing vouches for these bytes but their length.
  virtual void take_bare(const PageTask& task, std::span<std::byte> payload) = 0;
  virtual Cause give_bare(const PageTask& task, std::span<const std::byte> payload) = 0;
  // Each task once. `none`: it is done: got, stored (or there already), gone.
  virtual void end(const PageTask& task, Cause cause) = 0;

 private:
  const PageForm form_;
  const PageSeal* const seal_;
};

struct LookedUp {
  Pages pages = 0;            // leading ones that are there
  Cause cause = Cause::none;  // why not all of them; `missing` is no failure
};

class StorageBackend {
 public:
  virtual ~StorageBackend() = default;
  virtual LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) = 0;
  // Gets; return when there is none for now and all that were begun have ended.
  virtual void read(PageWork& work) = 0;
  // Sets and removes; likewise.
  virtual void write(PageWork& work) = 0;
  // After the last call of the others: what was stored survives the machine's power, if it can.
  virtual void finish() = 0;
  // What it counted, by name; after finish().
  virtual std::vector<std::pair<std::string, std::uint64_t>> counters() const = 0;
  // The seal of the PageWork that drives it; null: none.
  virtual const PageSeal* seal() const { return nullptr; }
  // For the user: how it stores, what it found, and what it has removed to begin with. Empty: nothing to say.
  virtual std::string description() const { return ""; }
};

}  // namespace kvtwin
