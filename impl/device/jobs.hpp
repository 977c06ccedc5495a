// The jobs of a device's threads: operations, copied from the data that the policy lends for the call.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "policy/seam/substrate.hpp"

namespace kvtwin {

// An operation in progress, shared by the event loop and the thread that executes it.
class Flight {
 public:
  static constexpr std::uint32_t kLost = ~std::uint32_t{0};
  // Data that a device attaches to the operation.
  struct Marks {
    virtual ~Marks() = default;
  };

  std::atomic<bool> cancelled{false};
  // Of what moves in each further KvPools of the device, by its number less one; null where nothing ever moves. Set
  // before any use.
  std::vector<std::shared_ptr<Flight>> beside;
  std::shared_ptr<const Marks> marks;  // set before the first land(), then constant

  // Loads: the thread of passes may use the first `count` layers. kLost = the other layers will never arrive; later
  // calls have no effect.
  void land(std::uint32_t count) {
    layers_.store(count, std::memory_order_release);
    layers_.notify_all();
  }
  // Waits until the layer has landed. Returns false if the layer is lost.
  bool wait_for(std::uint32_t layer) const {
    for (;;) {
      const std::uint32_t landed = layers_.load(std::memory_order_acquire);
      if (landed > layer) return landed != kLost;
      layers_.wait(landed, std::memory_order_acquire);
    }
  }
  bool landed(std::uint32_t layer) const { return layers_.load(std::memory_order_acquire) > layer; }
  bool lost() const { return layers_.load(std::memory_order_acquire) == kLost; }

  // The completion is in the queue. A pass that this operation gates is answered only after this call.
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
  Plan plan;  // without its runs, which are below
  std::vector<PageRun> runs;
  std::vector<PageMove> pages;
  std::uint64_t after_pass = 0;     // number of passes that must end first
  std::size_t store = 0;            // the KvPools of the device, by number
  std::vector<TransferJob> beside;  // what moves in further ones, one after the other

  bool to_device() const { return lane == Lane::h2d; }
};

// The states of a pass, in a KvPools of the device.
struct StatePass {
  struct Sequence {
    SlotId from = kNoSlot, running = kNoSlot;  // as in SequencePart
    std::vector<SequencePart::Point> points;
  };
  std::size_t store = 0;
  std::vector<Sequence> sequences;  // those of the pass, in its order
};

struct PassJob {
  struct Sequence {
    RequestId request = kNoRequest;
    Tokens context = 0, fresh = 0;
    std::size_t first_page = 0;  // index in slots and keys
    std::size_t pages = 0;
    StepYield yield = {};
    Tokens left_out = 0;  // of the new tokens: the first ones, which this part of the pass does not write
  };
  OperationId id = OperationId::none;
  FlightPtr flight;
  ForwardShape shape;
  std::uint64_t steps = 1;
  std::vector<Sequence> sequences;
  std::vector<SlotId> slots;
  std::vector<PageKey> keys;
  std::vector<std::uint8_t> landed;  // by page: 1 = the first pass that reads the slot since a transfer wrote to it
  std::uint64_t steps_before = 0;    // steps of the same pass that came before this job's (at_step)
  std::vector<FlightPtr> gates;
  bool gated = false;
  std::size_t store = 0;  // the KvPools of the device, by number
  // Slots that are copied to others first, when all layers of the gates have landed. Of states.
  std::vector<std::pair<SlotId, SlotId>> copies;
  std::vector<PassJob> beside;  // the parts of a draft model, whose shape names no proposed tokens, and of windows
  std::vector<StatePass> states;

  bool prefill() const { return shape.prefill_tokens > 0; }
  // Returns the number of context tokens that step `number` reads of a sequence. The step writes behind them.
  // Requires: without a draft model, or steps == 1.
  Tokens context(const Sequence& sequence, std::uint64_t number) const {
    return sequence.context + (prefill() ? 0 : number);
  }
  Tokens fresh(const Sequence& sequence) const { return prefill() || steps == 1 ? sequence.fresh : 1; }

  // Returns a step of a decode burst as a job of one step, if steps write several tokens.
  PassJob at_step(std::uint64_t number) const {
    PassJob one = *this;
    one.steps = 1;
    one.steps_before = number;
    for (PassJob& part : one.beside) part = part.at_step(number);
    if (steps == 1) return one;
    for (Sequence& sequence : one.sequences) {
      const auto written = [&](std::uint64_t steps_done) {
        const Tokens all = std::max(sequence.yield.after(steps_done), sequence.left_out) - sequence.left_out;
        return steps_done == steps ? sequence.fresh : std::min(sequence.fresh, all);
      };
      const Tokens begin = written(number), end = written(number + 1);
      sequence.context += begin;
      sequence.fresh = end - begin;
      one.shape.decode_context_tokens += begin;
    }
    return one;
  }
};

// A wrong byte in a block (one page, layer and plane) that a pass read.
struct WrongRead {
  std::size_t page = 0;  // index in the job's slots and keys
  std::uint32_t layer = 0, plane = 0;
  std::uint64_t offset = 0;  // of the first wrong byte, in the block
  std::uint8_t got = 0;
};

}  // namespace kvtwin
