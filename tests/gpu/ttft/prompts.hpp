// Prompts of one model on the CUDA device, by its Device interface: KV that is computed, moved between tiers, and read
// by the pass that makes a first token. One thread; each call waits until what it asks for is done.
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
  Tokens most_tokens = 0;      // of a prompt; a multiple of page_tokens
  std::filesystem::path disk;  // folder of a disk tier; empty: none
  std::string blas;            // cuBLAS's file, if not the usual one
  // What pages that go from the disk into the device come by; null: through host memory, a page at a time.
  std::shared_ptr<CuFile> cufile;
  bool arithmetic = true;  // the model's products; else passes move and check KV only
};

class Prompts {
 public:
  // Computes the KV of the longest prompt, and has it on the device and the host. std::runtime_error: what couldn't be
  // had.
  explicit Prompts(const PromptConfig& config);
  ~Prompts();

  // A prompt of `tokens`, a multiple of the page, all but its last page cached. Nanoseconds from the first submission
  // to the end of the pass that computes what isn't.
  TimeNs computed(Tokens tokens);   // nothing is cached
  TimeNs on_device(Tokens tokens);  // L1: right after a prompt as long was computed
  // L2, by `path`, or by what the planner picks. overlap: the pass begins with the first layer's KV.
  TimeNs from_host(Tokens tokens, std::optional<TransferPath> path, bool overlap);
  // L3, through host memory (in batches, as a prefetch does) and on as from_host, or `direct`ly into the device. What
  // of it wasn't on the disk is stored first.
  TimeNs from_disk(Tokens tokens, bool direct, bool overlap);

  Bytes cached_bytes(Tokens tokens) const { return (tokens / config_.page_tokens - 1) * shape_.page_bytes(); }
  // How the disk is read, for people; empty without one.
  const std::string& disk_mode() const { return disk_mode_; }

  // That have come by cuFile so far.
  std::uint64_t direct_pages() const;

  // Nothing after it. Pages in which a pass or the audit at the end found a wrong byte.
  std::uint64_t finish();

 private:
  OperationId submit(const Operation& operation);
  void wait_for(OperationId id);
  OperationId pass(Tokens context, Tokens fresh, const std::vector<OperationId>& gates);
  OperationId transfer(Lane lane, Pages begin, Pages end, std::optional<TransferPath> path);
  OperationId storage(StorageVerb verb, Tier memory, Pages begin, Pages end);
  Pages cached_pages(Tokens tokens) const { return tokens / config_.page_tokens - 1; }
  void fill_tiers();
  void store(Pages pages);  // the first ones, on the disk
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
  const SegmentStore* segments_ = nullptr;  // what disk_ has
  std::string disk_mode_;
  Pages stored_ = 0;  // on the disk
  std::uint64_t submitted_ = 0;
  std::map<OperationId, Completion> done_;
};

}  // namespace kvtwin::test
