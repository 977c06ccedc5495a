// The record of the pages in each slot of device and host memory, and of wrong pages.
// Thread: every thread of a device records its own work; no two threads use one slot at the same time.
#pragma once

#include <atomic>
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
  // `host`: the host pool; outlives this object.
  Ledger(const DeviceConfig& config, std::byte* host);

  // A page was wrong on the device. Is its host copy wrong too? run_host_check() answers this later, in another thread.
  struct HostCheck {
    std::size_t entry = 0;  // among the wrong pages
    SlotId slot = kNoSlot;
    PageKey key;
  };

  void begin_load(const TransferJob& job);
  void end_load(const TransferJob& job);
  // Returns a lock that permits writes to the host pool. A reader of a page that may have changed its owner excludes
  // all writers.
  [[nodiscard]] std::shared_lock<std::shared_mutex> lock_host_for_writing() { return std::shared_lock(host_writes_); }
  void begin_backup(const TransferJob& job);
  void end_backup(const TransferJob& job, Pages moved);
  // Bytes of a storage tier are about to be written to this slot; they may be wrong. Readers of the host pool leave the
  // slot out until fetched(). For the host pool, the caller of both holds lock_host_for_writing().
  void begin_fetch(Tier memory, SlotId slot) {
    if (memory == Tier::device) expected_[slot] = false;
    (memory == Tier::device ? device_notes_ : host_notes_)[slot] = {};
  }
  void fetched(Tier memory, SlotId slot, const PageKey& key);
  // The device slot has been copied to another.
  void copied(SlotId from, SlotId to) {
    device_notes_[to] = device_notes_[from];
    expected_[to] = false;
  }
  // Another engine may write a page into this device slot. The first pass that reads the page names its key.
  void expect_page(SlotId slot) {
    device_notes_[slot] = SlotNote{};
    expected_[slot] = true;
  }
  // A pass reads the whole page. Notes it if it is expected.
  void reads(SlotId slot, const PageKey& key) {
    if (!expected_[slot]) return;
    expected_[slot] = false;
    device_notes_[slot] = SlotNote{.key = key, .tokens = shape_.page_tokens, .handed_over = true};
  }
  // Marks the pages that the pass will overwrite as empty, even if the pass fails.
  void begin_pass(const PassJob& job);
  // The tokens of the step have been written. Returns the first slot whose page is now complete, or kNoSlot.
  SlotId end_step(const PassJob& job, std::uint64_t number);

  // Records wrong reads of a pass. Thread: compute.
  std::vector<HostCheck> record_wrong_reads(const PassJob& job, const PageEngine::StepEnd& end);
  // Thread: device-to-host.
  void run_host_check(const HostCheck& check);

  // ---- after the threads have ended
  // Returns one pass that reads all recorded pages of the device pool.
  PassJob device_audit() const;
  void record_audit(const PassJob& job, const PageEngine::StepEnd& end);
  void audit_host(Verification& verification);
  // Moves the wrong pages into the verification. Requires: called once.
  void conclude(Verification& verification);
  // Returns the bytes of the records of both pools.
  static Bytes bytes(const DeviceConfig& config);

 private:
  struct SlotNote {
    PageKey key;
    std::uint32_t tokens = 0;      // number of tokens whose bytes are present in every layer
    SlotId loaded_from = kNoSlot;  // host slot; kNoSlot = computed, or fetched
    bool fetched = false;          // from a storage tier
    bool handed_over = false;      // by another engine
  };

  WrongPage wrong_page(const PassJob& job, const WrongRead& read) const;
  // Returns the entry among the wrong pages, or none if the page is known or the list is full.
  std::optional<std::size_t> add_wrong_page(WrongPage wrong);
  // Returns the first wrong byte of a host page, or none if all bytes are right.
  std::optional<WrongPage> check_host_page(SlotId slot, const PageKey& key);

  const KvShape shape_;
  const Layout host_layout_;
  const Pages host_pages_;
  std::byte* const host_;
  std::vector<SlotNote> device_notes_, host_notes_;
  // By device slot: another engine writes it, and no pass has read it. A pass looks at the slots of pages that a load
  // is still moving, so these flags are apart from the notes.
  std::vector<std::atomic<bool>> expected_;
  std::shared_mutex host_writes_;
  std::vector<std::byte> page_buffer_;  // one page, for run_host_check() and audit_host()
  std::mutex wrong_mutex_;
  std::vector<WrongPage> wrong_;
  std::uint64_t wrong_reads_ = 0;
};

}  // namespace kvtwin
