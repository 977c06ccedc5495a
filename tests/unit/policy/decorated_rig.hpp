// An engine behind all decorators of the seam, in a ManualWorld. drain() and serve_ten() complete operations
// themselves.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "manual_world.hpp"
#include "policy/replay.hpp"
#include "policy/seam/decorators.hpp"
#include "tests/journal_test_support.hpp"

namespace kvtwin::test {

class DecoratedRig {
 public:
  explicit DecoratedRig(const EngineConfig& config, const FaultShares& faults = {}, std::uint64_t seed = 1)
      : faulty(world, faults, seed),
        checking(faulty, {.page_tokens = config.shape.page_tokens, .bursts_end_early = true}),
        engine(config, checking, decisions, &events),
        writer(journal, "by hand"),
        recording(engine, decisions, writer) {
    faulty.connect(checking);
    checking.connect(recording);
  }

  void arrive(RequestId request, const std::vector<PageKey>& keys, Tokens prompt, Tokens output) {
    Arrival arrival;
    arrival.request = request;
    arrival.prompt_tokens = prompt;
    arrival.output_tokens = output;
    arrival.keys = std::span(keys).first(std::min<std::size_t>(keys.size(), prompt / 4));
    give(arrival);
  }
  void complete_transfer() {
    const OperationId id = world.transfers.at(0).id;
    world.transfers.pop_front();
    give(Completion{.id = id, .bytes = 64});
  }
  // Completes the gates of the pass first. A burst that the engine has cancelled ends after its second step.
  void complete_pass() {
    const auto pass = world.passes.at(0);
    while (!world.transfers.empty() && !pass.gates.empty()) complete_transfer();
    world.passes.pop_front();
    world.time += 1000;
    Completion completion{.id = pass.id, .steps = pass.steps};
    if (std::ranges::find(world.cancelled, pass.id) != world.cancelled.end() && pass.steps > 2) {
      completion.status = Status::cancelled;
      completion.steps = 2;
    }
    give(completion);
  }
  // Completes all operations, transfers before passes, until none is left.
  void drain() {
    for (int bound = 0; bound < 100000; ++bound) {
      if (!world.transfers.empty()) {
        complete_transfer();
      } else if (!world.passes.empty()) {
        complete_pass();
      } else {
        return;
      }
    }
    FAIL() << "the engine doesn't come to rest";
  }

  // Serves ten requests over three documents. With tiers of 6 and 16 pages, the engine evicts, backs up and loads back.
  void serve_ten() {
    for (RequestId id = 0; id < 10; ++id) {
      const std::uint64_t first = 10 * (id % 3);
      arrive(id, document({first + 1, first + 2, first + 3, first + 4}), 17, 1 + id % 5);
      if (id % 4 == 3) complete_pass();  // sometimes two requests run at the same time
      if (id % 4 != 2) drain();
    }
    finish();
  }
  void finish() {
    drain();
    checking.finish();
    writer.finish(world.time, {decisions.count(), decisions.digest()});
  }

  ManualWorld world;
  DecisionLog decisions;
  EventCounter events;
  Faulty faulty;
  Checking checking;
  Engine engine;
  ByteVector journal;
  JournalWriter writer;
  Recording recording;

 private:
  template <typename What>
  void give(const What& what) {
    faulty.handle({world.time, what});
    engine.check_invariants();
    while (!world.reductions.empty()) {
      const Reduction reduction = world.reductions.front();
      world.reductions.pop_front();
      faulty.handle({world.time, reduction});
      engine.check_invariants();
    }
  }
};

}  // namespace kvtwin::test
