// Measures prompts of one model on the CUDA device, through the Device interface: computes KV, moves KV between tiers,
// and runs the pass that makes the first token. Thread: one. Every call waits until its operations are complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "impl/device/cuda/cuda_device.hpp"
#include "impl/storage/tier_queues.hpp"
#include "models/geometry.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {
class SegmentStore;
}

namespace kvtwin::test {

struct PromptConfig {
  ModelGeometry model;
  std::uint32_t page_tokens = 64;
  Tokens max_tokens = 0;       // longest prompt; a multiple of page_tokens
  std::filesystem::path disk;  // folder of the disk tier; empty: no disk tier
  std::string blas;            // file of cuBLAS; empty: the default
  // The library that reads pages from the disk into the device. Null: pages go through host memory, one at a time.
  std::shared_ptr<CuFile> cufile;
  bool arithmetic = true;  // true: passes compute the model's matrix products; false: they only move and check KV
};

class Prompts {
 public:
  // Computes the KV of the longest prompt, on the device and on the host. Errors: std::runtime_error, which names the
  // resource that is not available.
  explicit Prompts(const PromptConfig& config);
  ~Prompts();

  // The next four functions measure a prompt of `tokens`, a multiple of page_tokens. They return the nanoseconds from
  // the first submission to the end of the pass that computes the tokens that are not cached. Except for computed(),
  // all pages but the last one are cached.
  TimeNs computed(Tokens tokens);   // no page is cached
  TimeNs on_device(Tokens tokens);  // L1, directly after a prompt of the same length was computed
  // L2, over `path`, or over the path that the planner selects. overlap: the pass starts when the KV of the first layer
  // has arrived.
  TimeNs from_host(Tokens tokens, std::optional<TransferPath> path, bool overlap);
  // L3. `direct`: from the disk into the device. Otherwise into host memory (in batches, like a prefetch), and then
  // like from_host(). Pages that are not on the disk are stored first.
  TimeNs from_disk(Tokens tokens, bool direct, bool overlap);

  Bytes cached_bytes(Tokens tokens) const { return (tokens / config_.page_tokens - 1) * shape_.page_bytes(); }
  // Describes how the disk is read; empty without a disk tier.
  const std::string& disk_mode() const { return disk_mode_; }

  // Returns the number of pages that cuFile has read so far.
  std::uint64_t direct_pages() const;

  // The last call. Returns the number of pages in which a pass, or the check at the end, found a wrong byte.
  std::uint64_t finish();

 private:
  OperationId submit(const Operation& operation);
  void wait_for(OperationId id);
  OperationId pass(Tokens context, Tokens fresh, const std::vector<OperationId>& gates);
  OperationId transfer(Lane lane, Pages begin, Pages end, std::optional<TransferPath> path);
  OperationId storage(StorageVerb verb, Tier memory, Pages begin, Pages end);
  Pages cached_pages(Tokens tokens) const { return tokens / config_.page_tokens - 1; }
  void fill_tiers();
  void store(Pages pages);  // stores the first `pages` pages on the disk
  void move_slots();

  PromptConfig config_;
  KvShape shape_;
  Pages pages_;
  std::vector<PageKey> keys_;
  std::vector<SlotId> device_slots_, host_slots_;
  CompletionQueue queue_;
  RunClock clock_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<TierQueues> disk_;
  const SegmentStore* segments_ = nullptr;  // the back end of disk_
  std::string disk_mode_;
  Pages stored_ = 0;  // number of pages on the disk
  std::uint64_t submitted_ = 0;
  std::map<OperationId, Completion> done_;
};

}  // namespace kvtwin::test
