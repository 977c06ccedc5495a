// How one kind of device moves bytes and computes layers: all in which devices differ. What lies where, who waits for
// whom and what is answered is the same for all: paged_device.hpp, which calls these.
//
// What throws ends the run, with its sentence. After stop() nothing counts any more, and what waits gives up soon.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "impl/device/jobs.hpp"
#include "impl/runtime/ranks.hpp"

namespace kvtwin {

struct DeviceConfig {
  KvShape shape;
  Layout host_layout = Layout::page_first;
  Pages device_pages = 0;
  Pages host_pages = 0;
  std::uint64_t seed = 1;
  RankGroup* ranks = nullptr;  // null = alone; outlives the device, and is left before the device goes in mid-run
  double slow_factor = 1;      // copies take so many times as long

  // For tests. Flips one bit, drawn from the seed: of the first page that a pass completes in device memory, or of
  // the first host page that is loaded, before it is.
  enum class Flip : std::uint8_t { none, device, host } flip = Flip::none;
  // Called before each thing that is acquired, by its name; may throw.
  std::function<void(const char* step)> before;

  void acquire(const char* step) const {
    if (before) before(step);
  }
};

class DirectPages;

class PageEngine {
 public:
  virtual ~PageEngine() = default;

  // The host pool: config.host_layout's shape, of config.host_pages pages. The CPU may read and write it.
  virtual std::byte* host_pool() const = 0;

  // ---- the host-to-device thread
  // Moves all pages and lands the job's layers as they can be used, the last ones too. All bytes are there when it
  // returns. False: unwanted in between.
  virtual bool load(const TransferJob& job) = 0;

  // ---- the device-to-host thread
  // Returns how many of the job's pages, in order, have been moved: all, but if it was unwanted in between.
  virtual Pages back_up(const TransferJob& job) = 0;

  // ---- the compute thread. A pass that comes to a step: begin_pass; for each step, for each layer, await_layer (first
  // step only) and layer; end_step. An audit's: read_layer in place of both.
  virtual void begin_pass(const PassJob& job) = 0;
  // Until the layer of all gates has landed, so that what is queued from now on finds it. False: one is lost.
  virtual bool await_layer(const PassJob& job, std::uint32_t layer) = 0;
  // Arithmetic of the layer's size; reads and checks the step's context; writes its tokens.
  virtual void layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) = 0;
  // Reads and checks only.
  virtual void read_layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) = 0;
  struct StepEnd {
    std::uint64_t wrong_reads = 0;
    std::vector<WrongRead> wrong;  // the first of them, by layer, page and plane
    TimeNs stalled = 0;            // in await_layer
  };
  // When all of the step is done; also after one that broke off.
  virtual StepEnd end_step() = 0;

  // ---- threads of storage tiers; no two at once for one slot
  // One page between the device pool and `page`: page_bytes in layer_first's shape, of a pool of one page.
  virtual void read_device_page(SlotId slot, std::byte* page) = 0;
  virtual void write_device_page(SlotId slot, const std::byte* page) = 0;
  // Its way from files into the device pool that doesn't lead through host memory; null = none.
  virtual DirectPages* direct() { return nullptr; }

  // Flips the lowest bit of the byte at this offset of the device pool: compute thread, between steps.
  virtual void flip_device(std::uint64_t offset) = 0;

  // Sentences for people about what wasn't as it should be, though the run went on. After the threads have ended.
  virtual std::vector<std::string> notes() const { return {}; }

  void stop() { stopping_.store(true, std::memory_order_relaxed); }
  bool stopping() const { return stopping_.load(std::memory_order_relaxed); }
  bool unwanted(const TransferJob& job) const {
    return job.flight->cancelled.load(std::memory_order_relaxed) || stopping();
  }

 protected:
  using Steady = std::chrono::steady_clock;
  // A slow rank's copies: idles in proportion to the time since `begin`; in pieces, so that the device can stop.
  void slow_down(double factor, Steady::time_point begin) const;

 private:
  std::atomic<bool> stopping_{false};
};

}  // namespace kvtwin
