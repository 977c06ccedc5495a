// What the threads of a device are given to do: operations, copied out of what the policy lends for the call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "policy/seam/substrate.hpp"

namespace kvtwin {

// An operation under way, shared by the event loop and the thread that does it.
class Flight {
 public:
  static constexpr std::uint32_t kLost = ~std::uint32_t{0};
  // What a device keeps beside it.
  struct Marks {
    virtual ~Marks() = default;
  };

  std::atomic<bool> cancelled{false};
  std::shared_ptr<const Marks> marks;  // set before the first land(), then settled

  // Loads: the first `count` layers may be worked on, as far as the device's thread of passes is concerned;
  // kLost = the rest never will. After kLost nothing counts any more.
  void land(std::uint32_t count) {
    layers_.store(count, std::memory_order_release);
    layers_.notify_all();
  }
  // False: lost.
  bool wait_for(std::uint32_t layer) const {
    for (;;) {
      const std::uint32_t landed = layers_.load(std::memory_order_acquire);
      if (landed > layer) return landed != kLost;
      layers_.wait(landed, std::memory_order_acquire);
    }
  }
  bool landed(std::uint32_t layer) const { return layers_.load(std::memory_order_acquire) > layer; }
  bool lost() const { return layers_.load(std::memory_order_acquire) == kLost; }

  // Its completion is in the queue. Before that, no pass that it gates is answered.
  void answer() {
    answered_.store(true, std::memory_order_release);
    answered_.notify_all();
  }
  void wait_for_answer() const { answered_.wait(false, std::memory_order_acquire); }
  bool answered() const { return answered_.load(std::memory_order_acquire); }

 private:
  std::atomic<std::uint32_t> layers_{0};
  std::atomic<bool> answered_{false};
};
using FlightPtr = std::shared_ptr<Flight>;

struct TransferJob {
  OperationId id = OperationId::none;
  FlightPtr flight;
  Lane lane = Lane::h2d;
  Plan plan;  // but for its runs
  std::vector<PageRun> runs;
  std::vector<PageMove> pages;
  std::uint64_t after_pass = 0;  // so many passes have to end first

  bool to_device() const { return lane == Lane::h2d; }
};

struct PassJob {
  struct Sequence {
    RequestId request = kNoRequest;
    Tokens context = 0, fresh = 0;
    std::size_t first_page = 0;  // in slots and keys
    std::size_t pages = 0;
  };
  OperationId id = OperationId::none;
  FlightPtr flight;
  ForwardShape shape;
  std::uint64_t steps = 1;
  std::vector<Sequence> sequences;
  std::vector<SlotId> slots;
  std::vector<PageKey> keys;
  std::vector<FlightPtr> gates;
  bool gated = false;

  bool prefill() const { return shape.prefill_tokens > 0; }
  // What step `number` reads of a sequence, and writes behind that.
  Tokens context(const Sequence& sequence, std::uint64_t number) const {
    return sequence.context + (prefill() ? 0 : number);
  }
  Tokens fresh(const Sequence& sequence) const { return prefill() ? sequence.fresh : 1; }
};

// A block of one page, layer and plane in which a pass read what the page's key doesn't make.
struct WrongRead {
  std::size_t page = 0;  // in the job's slots and keys
  std::uint32_t layer = 0, plane = 0;
  std::uint64_t offset = 0;  // in the block, of the first wrong byte
  std::uint8_t got = 0;
};

}  // namespace kvtwin
