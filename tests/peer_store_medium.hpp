// A pool of two processes for tests: both lend memory, and both are in this process.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "impl/remote/peer_store.hpp"
#include "tests/conformance.hpp"
#include "tests/thread_ranks.hpp"

namespace kvtwin::test {

class PeerStoreMedium final : public StorageMedium {
 public:
  static constexpr std::size_t kProcesses = 2;

  explicit PeerStoreMedium(PeerStoreConfig config) : config_(std::move(config)) {
    if (open_media_++ > 0) name_ = "second-" + name_;  // the names of a process are its own
  }
  ~PeerStoreMedium() override { --open_media_; }

  // Returns the back end of process 1. That of process 0 exists as long as the medium, or until the next open().
  // The places of a set may all be taken although the pool has room, so the pool is larger than the capacity.
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages capacity) override {
    form_ = form;
    lent_.clear();
    changed_.clear();
    other_ = nullptr;
    ThreadRanks group(kProcesses);
    std::array<std::unique_ptr<StagedBackend>, kProcesses> made;
    std::thread other([&] { made[0] = make(group.of(0), form, 8 * capacity); });
    made[1] = make(group.of(1), form, 8 * capacity);
    other.join();
    other_ = std::move(made[0]);
    return std::move(made[1]);
  }
  StagedBackend& other() { return *other_; }

  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    const std::span<std::byte> value = find(space, key);
    return {value.begin(), value.end()};
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    const std::span<std::byte> value = find(space, key);
    changed_[{space, key}] = value;
    std::ranges::fill(value, std::byte{0});
    std::copy_n(bytes.begin(), std::min(bytes.size(), value.size()), value.begin());
    if (bytes.size() != value.size()) value[0] ^= std::byte{1};  // all values have one length, so it is never a page
  }

 private:
  struct Lent {
    std::span<std::byte> tags, values;
  };

  std::unique_ptr<StagedBackend> make(RankGroup& group, const PageForm& form, Pages pages) {
    PeerStoreConfig config = config_;
    config.name = name_ + std::to_string(group.rank());
    // All memory of the pool is touched, so room without end is room for as many pages as no test stores.
    config.pages = std::min<Pages>(pages, 20'000) / kProcesses;
    config.exchange = [&group](const std::string& own) { return group.share(own); };
    config.lends = [this](std::span<std::byte> tags, std::span<std::byte> values) {
      const std::lock_guard lock(mutex_);
      lent_.push_back({tags, values});
    };
    return make_peer_store(config, kProcesses, form);
  }
  // Returns the value of a page, by its header or by an earlier overwrite(). Empty: the page is not there.
  std::span<std::byte> find(const PageKey& space, const PageKey& key) {
    constexpr std::size_t kTagBytes = 16;
    for (const Lent& lent : lent_) {
      const std::size_t places = lent.tags.size() / kTagBytes, bytes = lent.values.size() / places;
      for (std::size_t place = 0; place < places; ++place) {
        const auto tag = lent.tags.subspan(place * kTagBytes, kTagBytes);
        if (std::ranges::all_of(tag, [](std::byte byte) { return byte == std::byte{0}; })) continue;
        const auto value = lent.values.subspan(place * bytes, bytes);
        const auto claim = read_page_header(form_, value.first<kPageHeaderBytes>());
        if (claim && claim->space == space && claim->key == key) return value;
      }
    }
    const auto changed = changed_.find({space, key});
    return changed != changed_.end() ? changed->second : std::span<std::byte>();
  }

  const PeerStoreConfig config_;
  static inline std::atomic<int> open_media_ = 0;
  std::string name_ = "process";
  PageForm form_;
  std::mutex mutex_;
  std::vector<Lent> lent_;
  std::map<std::pair<PageKey, PageKey>, std::span<std::byte>> changed_;
  std::unique_ptr<StagedBackend> other_;
};

}  // namespace kvtwin::test
