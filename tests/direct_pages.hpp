// Direct reads into L1 (impl/disk/direct_pages.hpp) without a GPU: the queues of any Files read into host buffers, and
// the CPU does the work of the GPU. Tests can inject faults. The class checks every page that has landed.
#pragma once

#include <cerrno>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "impl/disk/segment_store.hpp"
#include "impl/disk/slot_format.hpp"
#include "policy/base/check.hpp"
#include "tests/store_rig.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {

class HostDirectPages final : public DirectPages {
 public:
  HostDirectPages(const PageForm& form, Files& files, std::uint32_t buffers)
      : form_(form), files_(files), buffers_(buffers) {}

  // ---- for tests; set these members only while no operation is under way
  // If not 0: a read fails with this error instead of reading.
  std::function<int()> read_fault = [] { return 0; };
  std::function<bool()> headers_fail = [] { return false; };
  std::function<bool()> land_fails = [] { return false; };
  // Changes the bytes of a landing page after the copy into the slot and before the checksum.
  std::function<void(std::span<std::byte>)> damage = [](std::span<std::byte>) {};
  // Receives the bytes of every page, even if they are wrong.
  std::function<void(SlotId, std::span<const std::byte>)> put = [](SlotId, std::span<const std::byte>) {};
  // Returns true if the bytes are correct. landed() counts the other pages in wrong_pages.
  std::function<bool(const PageKey&, std::span<const std::byte>)> is_right = holds_bytes_of;
  std::uint64_t pages_landed = 0, wrong_pages = 0, queues = 0;

  // ---- DirectPages
  std::uint32_t buffers() const override { return buffers_; }
  std::unique_ptr<BlockQueue> queue() override {
    KV_CHECK(queues == 0, "one queue at a time");
    return std::make_unique<Queue>(*this);
  }
  bool read_headers(std::span<const std::uint32_t> buffers, std::span<std::byte> blocks) override {
    KV_CHECK(blocks.size() == buffers.size() * kBlockBytes, "a block for each buffer");
    if (headers_fail()) return false;
    for (const std::uint32_t buffer : buffers) {
      std::memcpy(blocks.data(), inner_->buffer(buffer).data(), kBlockBytes);
      blocks = blocks.subspan(kBlockBytes);
    }
    return true;
  }
  bool land(std::span<Landing> pages) override {
    if (land_fails()) return false;
    for (Landing& it : pages) {
      std::vector<std::byte>& slot = slots_[it.slot];
      const std::span<const std::byte> payload = inner_->buffer(it.buffer).subspan(kBlockBytes, form_.bytes());
      slot.assign(payload.begin(), payload.end());
      damage(slot);
      it.sum = page_sum(form_, slot);
      put(it.slot, slot);
    }
    return true;
  }
  void landed(SlotId slot, const PageKey& key) override {
    ++pages_landed;
    wrong_pages += is_right(key, slots_.at(slot)) ? 0 : 1;
  }

 private:
  class Queue final : public BlockQueue {
   public:
    explicit Queue(HostDirectPages& owner) : owner_(owner) {
      inner_ = owner.files_.queue(owner.buffers_, slot_bytes(owner.form_));
      owner.inner_ = inner_.get();
      ++owner.queues;
    }
    ~Queue() override { --owner_.queues; }
    std::span<std::byte> buffer(std::uint32_t) override {
      check_failed("buffer", "the CPU doesn't see them", __FILE__, __LINE__);
    }
    void submit(const BlockOperation& operation) override {
      KV_CHECK(operation.kind == BlockOperation::Kind::read, "it only reads");
      const int error = owner_.read_fault();
      if (error == 0) return inner_->submit(operation);
      failed_.push_back({operation.tag, error});
    }
    void flush() override { inner_->flush(); }
    void wait(std::vector<BlockEnd>& ends) override {
      if (failed_.empty()) return inner_->wait(ends);
      ends.insert(ends.end(), failed_.begin(), failed_.end());
      failed_.clear();
    }
    std::string description() const override { return "by a test"; }

   private:
    HostDirectPages& owner_;
    std::unique_ptr<BlockQueue> inner_;
    std::vector<BlockEnd> failed_;
  };

  const PageForm form_;
  Files& files_;
  const std::uint32_t buffers_;
  BlockQueue* inner_ = nullptr;
  std::map<SlotId, std::vector<std::byte>> slots_;
};

// A disk tier with direct reads into L1, for StoreRig.
class DirectStore final : public StorageBackend, public LandsPages {
 public:
  DirectStore(SegmentStoreConfig config, std::shared_ptr<Files> files, std::uint32_t buffers)
      : files_(std::move(files)), direct_(config.form, *files_, buffers) {
    config.files = files_;
    config.direct = &direct_;
    store_ = std::make_unique<SegmentStore>(config);
  }
  void land_in(SlotMemory& memory) override {
    direct_.put = [&memory](SlotId slot, std::span<const std::byte> page) {
      if (memory.before_write) memory.before_write();
      memory.at(Tier::device, slot).assign(page.begin(), page.end());
    };
    direct_.is_right = [](const PageKey&, std::span<const std::byte>) { return true; };  // StoreRig judges
  }
  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override {
    return store_->look_up(space, keys);
  }
  void read(PageWork& work) override { store_->read(work); }
  void write(PageWork& work) override { store_->write(work); }
  void finish() override { store_->finish(); }
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override { return store_->counters(); }

 private:
  std::shared_ptr<Files> files_;
  HostDirectPages direct_;
  std::unique_ptr<SegmentStore> store_;
};

}  // namespace kvtwin::test
