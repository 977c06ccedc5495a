// The pools of one kind of KV on the device and on the host, with the engine that moves and reads their bytes, and the
// record of what is in their slots. A PagedDevice has one for the pages of full attention, and one for each of: a draft
// model's pages, which lie in the same slots; windows; states.
//
// The bytes of a slot are generated from its key. Each kind has keys of its own, so bytes of another kind are wrong
// bytes. A window has the key of its page. A state has the key of its page and of the number of tokens behind which it
// lies; it is read and written as a page of one token.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "impl/device/ledger.hpp"
#include "impl/device/page_engine.hpp"
#include "impl/disk/direct_pages.hpp"
#include "impl/storage/page_memory.hpp"

namespace kvtwin {

// The engine's direct way, which also keeps the ledger.
class LedgerDirectPages final : public DirectPages {
 public:
  LedgerDirectPages(DirectPages& engine, Ledger& ledger) : engine_(engine), ledger_(ledger) {}
  std::uint32_t buffers() const override { return engine_.buffers(); }
  std::unique_ptr<BlockQueue> queue() override { return engine_.queue(); }
  bool read_headers(std::span<const std::uint32_t> buffers, std::span<std::byte> blocks) override {
    return engine_.read_headers(buffers, blocks);
  }
  bool land(std::span<Landing> pages) override;
  void landed(SlotId slot, const PageKey& key) override { ledger_.fetched(Tier::device, slot, key); }

 private:
  DirectPages& engine_;
  Ledger& ledger_;
};

// Thread: by member, as grouped below. Ownership: of the engine, and with it of both pools' memory.
class KvPools final : public PageMemory {
 public:
  KvPools(const DeviceConfig& config, std::unique_ptr<PageEngine> engine);
  const DeviceConfig& config() const { return config_; }
  PageEngine& engine() { return *engine_; }
  const PageEngine& engine() const { return *engine_; }
  Ledger& ledger() { return ledger_; }
  // The key of this kind's bytes, of the page with this key.
  PageKey own_key(PageKey key) const;
  PageKey marked(PageKey key) const {
    key.words[1] ^= config_.mark;
    return key;
  }

  // States: the key of the state behind the first `length` tokens of a sequence of the pass. `pages`: of the pages of
  // full attention.
  PageKey state_key_of(const PassJob& pass, std::size_t sequence, Tokens length, const DeviceConfig& pages) const;

  // ---- the event loop
  // A transfer writes the device slot.
  void arrives(SlotId slot) { landed_since_[slot] = true; }
  // Another engine may write the device slot.
  void expect(SlotId slot) {
    ledger_.expect_page(slot);
    arrives(slot);
  }
  // The pass, by its number, uses the slot. `gated`: it waits for loads. Returns whether a transfer has written the
  // slot since the last pass that used it.
  bool use(SlotId slot, bool writes, std::uint64_t pass, bool gated);
  // Returns the number of the pass that must end before this move.
  std::uint64_t pass_before(const PageMove& move, bool to_device) const {
    return to_device ? last_use_[move.target] : last_write_[move.source];
  }

  // ---- for the threads of storage tiers
  PageForm form() const override { return {config_.shape, config_.host_layout}; }
  void read_page(Tier memory, SlotId slot, std::span<std::byte> page) override;
  void write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) override;
  bool pieces(Tier memory, SlotId slot, Bytes first, Bytes bytes, Pieces& pieces) override;
  void begin_write(Tier memory, SlotId slot) override;
  void written(Tier memory, SlotId slot, const PageKey& key) override;
  DirectPages* direct() override { return direct_ ? &*direct_ : nullptr; }

  // ---- copy threads
  // Returns the number of moved pages, in order. A load moves all pages or none.
  Pages move(const TransferJob& job);

  // ---- the compute thread
  // Runs all layers of a step once. `awaits`: the layers wait for the gates. Returns false if a load of a gate is lost,
  // or if the device stops. `number`: see PageEngine. Adds to `stalled` and `checks`.
  bool run_layers(const PassJob& job, std::uint64_t number, bool awaits, TimeNs& stalled,
                  std::vector<Ledger::HostCheck>& checks);
  // The tokens of the step have been written.
  void record_step(const PassJob& job, std::uint64_t number);
  // The first `steps` steps of a pass have read their pages.
  void end_pass(const PassJob& job, std::uint64_t steps);

  // After the threads have ended. Audits the pools.
  Verification finish();

 private:
  void convert_layout(std::byte* layer_first, std::byte* page, bool to_device) const;
  void flip_host(const TransferJob& job);
  void flip_device(SlotId slot);
  void audit_device();
  void begin_pass(const PassJob& job);
  void copy(std::span<const std::pair<SlotId, SlotId>> slots);

  const DeviceConfig config_;
  const std::unique_ptr<PageEngine> engine_;
  Ledger ledger_;
  std::optional<LedgerDirectPages> direct_;
  bool flipped_device_ = false, flipped_host_ = false;  // compute thread; h2d thread
  Verification reads_;                                  // compute thread
  Bytes checked_ = 0;                                   // compute thread: in the last step

  // Event loop, by device slot: number of the last pass; written by a transfer after the last pass that uses it.
  std::vector<std::uint64_t> last_use_, last_write_;
  std::vector<bool> landed_since_;

  // Compute thread, by device slot: number of steps that have read the page since a transfer wrote to the slot, and the
  // pass that was counted last.
  std::vector<std::uint32_t> steps_read_, counted_in_;
  std::uint32_t passes_ = 0;
  std::vector<std::uint32_t> page_reads_;  // by page of the current pass
};

}  // namespace kvtwin
