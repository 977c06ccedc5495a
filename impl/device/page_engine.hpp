// The part in which devices differ: how bytes move and how layers are computed. paged_device.hpp calls this interface;
// it has the common part: places of pages, waits and answers.
//
// Errors: an exception ends the run with its text. After stop(), no result counts, and every wait ends soon.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/device/jobs.hpp"
#include "impl/runtime/ranks.hpp"

namespace kvtwin {

// What the slots of a pool hold. A draft model's pages have the slots of the target's.
enum class KvKind : std::uint8_t { pages, draft, windows, states };

struct DeviceConfig {
  KvShape shape;
  KvKind kind = KvKind::pages;
  std::size_t pool = 0;  // of windows and states: 1 + index in EngineConfig::pools
  Layout host_layout = Layout::page_first;
  Pages device_pages = 0;
  Pages host_pages = 0;
  // Of windows and states: a part of the keys that generate their bytes, so that those of another rank are wrong bytes.
  std::uint64_t mark = 0;
  std::uint64_t seed = 1;
  // Null = single rank; outlives the device. Is left before the device is destroyed during a run.
  RankGroup* ranks = nullptr;
  double slow_factor = 1;  // factor on the duration of copies
  bool stays = false;      // of a draft model's pool: its pages never leave the device, nor come back
  bool handed = false;     // of a draft model's pool: its pages go with the target's when they are handed over

  // For tests: flips one bit, drawn from the seed, of the first page that a pass completes in device memory, or of the
  // first host page before its load.
  enum class Flip : std::uint8_t { none, device, host } flip = Flip::none;
  // For tests: called before each acquired resource, with its name; may throw.
  std::function<void(const char* step)> before;

  // For tests: called before each portion of a backup, with the number of moved pages, and before each layer group of a
  // load, with the number of moved layers. Thread: the one that copies.
  std::function<void(OperationId transfer, std::uint64_t moved)> before_portion;

  void acquire(const char* step) const {
    if (before) before(step);
  }
  void begin_portion(OperationId transfer, std::uint64_t moved) const {
    if (before_portion) before_portion(transfer, moved);
  }
};

class DirectPages;

class PageEngine {
 public:
  virtual ~PageEngine() = default;

  // Returns the host pool: config.host_pages pages in config.host_layout. The CPU may read and write it.
  virtual std::byte* host_pool() const = 0;

  // Returns the device pool; without bytes if it is no memory of this process.
  virtual DevicePool device_pool() const { return {}; }

  // ---- thread: host-to-device
  // Moves all pages. Calls land() for layers as soon as they can be used, also for the last ones. All bytes are present
  // when the call returns. Returns false if the job was cancelled in between.
  virtual bool load(const TransferJob& job) = 0;

  // ---- thread: device-to-host
  // Returns the number of moved pages, in order: all, unless the job was cancelled in between.
  virtual Pages back_up(const TransferJob& job) = 0;

  // ---- thread: compute
  // A pass: begin_pass; for each step: for each layer await_layer (first step only) and layer, or whole_step, then
  // end_step. An audit: read_layer in place of await_layer and layer.
  // `reads`: by page, the number of steps that have read the page since a transfer wrote to its slot; empty = none has.
  virtual void begin_pass(const PassJob& job, std::span<const std::uint32_t> reads) = 0;
  // Waits until later work in the queue finds the layer of all gates. Returns false if a gate is lost.
  virtual bool await_layer(const PassJob& job, std::uint32_t layer) = 0;
  // Does arithmetic of the layer's size, reads and checks the step's context, and writes its tokens.
  virtual void layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) = 0;
  // All layers of a step that waits for no gate. Returns false, and does nothing, if layer() is as fast.
  virtual bool whole_step(const PassJob&, std::uint64_t) { return false; }
  // Only reads and checks.
  virtual void read_layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) = 0;
  struct StepEnd {
    std::uint64_t wrong_reads = 0;
    std::vector<WrongRead> wrong;  // the first ones, by layer, page and plane
    Bytes checked = 0;             // bytes of the context that were compared with their page keys
    TimeNs stalled = 0;            // time in await_layer
  };
  // Waits for all work of the step. Also called after an aborted step.
  virtual StepEnd end_step() = 0;

  // ---- threads of storage tiers; at most one per slot
  // Copies one page between the device pool and `page`: page_bytes bytes, in layer_first of a pool of one page.
  virtual void read_device_page(SlotId slot, std::byte* page) = 0;
  virtual void write_device_page(SlotId slot, const std::byte* page) = 0;
  // Copies a slot to another, within device memory, before later work of the compute thread. Thread: compute.
  virtual void copy_device_page(SlotId from, SlotId to) = 0;
  // Returns the way from files into the device pool without host memory, or null.
  virtual DirectPages* direct() { return nullptr; }

  // Flips the lowest bit of a byte. `offset`: in the device pool. Thread: compute, between steps.
  virtual void flip_device(std::uint64_t offset) = 0;

  // Returns problems that did not end the run, one sentence each. Requires: the threads have ended.
  virtual std::vector<std::string> notes() const { return {}; }

  virtual void stop() { stopping_.store(true, std::memory_order_relaxed); }
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  bool should_stop(const TransferJob& job) const {
    return job.flight->cancelled.load(std::memory_order_relaxed) || stopping();
  }

 protected:
  using Steady = std::chrono::steady_clock;
  // Delays a slow rank's copies in proportion to the time since `begin`. Sleeps in pieces, so that the device can stop.
  void slow_down(double factor, Steady::time_point begin) const;

 private:
  std::atomic<bool> stopping_{false};
};

}  // namespace kvtwin
