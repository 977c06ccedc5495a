// What lies in which slot, in device and host memory, and what was found to be wrong there. Every thread of a device
// writes down what it does: no two for one slot at once, as with the slots' bytes.
#pragma once

#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/device/page_engine.hpp"

namespace kvtwin {

class Ledger {
 public:
  // `host`: the host pool, which outlives this.
  Ledger(const DeviceConfig& config, std::byte* host);

  // Is the host copy of a page that was wrong on the device wrong too? For inspect(), by a thread that has time.
  struct Question {
    std::size_t entry = 0;  // among the wrong pages
    SlotId slot = kNoSlot;
    PageKey key;
  };

  void begin_load(const TransferJob& job);
  void end_load(const TransferJob& job);
  // While the lock is held, the host pool may be written; who looks at a page that may have another owner by now holds
  // all writers off.
  [[nodiscard]] std::shared_lock<std::shared_mutex> writing_host() { return std::shared_lock(host_writes_); }
  void begin_backup(const TransferJob& job);
  void end_backup(const TransferJob& job, Pages moved);
  void fetched(Tier memory, SlotId slot, const PageKey& key);
  // Something is about to be laid out in this slot of the device pool, right or wrong.
  void begin_fetch(SlotId slot) { device_notes_[slot] = {}; }
  // What the pass will overwrite holds nothing any more, whatever becomes of the pass.
  void begin_pass(const PassJob& job);
  // The step's tokens lie where they belong. Returns the first slot whose page is now whole, or kNoSlot.
  SlotId end_step(const PassJob& job, std::uint64_t number);

  // By a pass, in the compute thread.
  std::vector<Question> note_wrong(const PassJob& job, const PageEngine::StepEnd& end);
  // The device-to-host thread.
  void inspect(const Question& question);

  // ---- when the threads have ended
  // All that was written down of the device pool, as one pass that reads it.
  PassJob device_audit() const;
  void note_audit(const PassJob& job, const PageEngine::StepEnd& end);
  void audit_host(Verification& verification);
  // Adds what was wrong to the verification, all but once.
  void conclude(Verification& verification);
  // What the two pools' notes take.
  static Bytes bytes(const DeviceConfig& config);

 private:
  struct SlotNote {
    PageKey key;
    std::uint32_t tokens = 0;      // whose bytes are there, in every layer
    SlotId loaded_from = kNoSlot;  // in the host pool; kNoSlot = computed, or fetched
    bool fetched = false;          // from a storage tier
  };

  WrongPage wrong_page(const PassJob& job, const WrongRead& read) const;
  // Its entry among the wrong pages; none if it is known or there are enough.
  std::optional<std::size_t> keep(WrongPage wrong);
  // The first wrong byte of a host page; none if all are right.
  std::optional<WrongPage> check_host_page(SlotId slot, const PageKey& key);

  const KvShape shape_;
  const Layout host_layout_;
  const Pages host_pages_;
  std::byte* const host_;
  std::vector<SlotNote> device_notes_, host_notes_;
  std::shared_mutex host_writes_;
  std::vector<std::byte> inspected_;  // one page: inspect()'s and audit_host()'s
  std::mutex wrong_mutex_;
  std::vector<WrongPage> wrong_;
  std::uint64_t wrong_reads_ = 0;
};

}  // namespace kvtwin
