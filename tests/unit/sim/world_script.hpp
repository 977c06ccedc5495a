// A small language for tests of worlds: a cost model that takes its costs from the plan, a handler that logs every
// input and calls a callback, and runs in child processes (SimGrid allows one simulation per process).
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "policy/seam/cost.hpp"
#include "policy/seam/substrate.hpp"
#include "sim/world.hpp"
#include "tests/listed_inputs.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

// The cost model. A transfer plan contains its cost: `descriptors` is the latency in ns, `descriptor_bytes` the maximum
// rate. The `objects` of a storage operation are its latency in ns. A pass takes prefill_tokens ns; each step adds
// decode_context_tokens ns, and decode_sequences ns for each step before it.
class ScriptedCost final : public CostModel {
 public:
  TimeNs forward_ns(const ForwardShape& shape, std::uint64_t steps) const override {
    return static_cast<TimeNs>(shape.prefill_tokens + steps * shape.decode_context_tokens +
                               shape.decode_sequences * (steps * (steps - 1) / 2));
  }
  TransferCost storage(const StorageWork& work) const override {
    const bool moves = work.verb == StorageVerb::get || work.verb == StorageVerb::set;
    return TransferCost{static_cast<TimeNs>(work.objects), moves ? work.pages * work.page_bytes * work.ranks : 0, 0};
  }
  TransferCost transfer(const Plan& plan) const override {
    return TransferCost{static_cast<TimeNs>(plan.descriptors), plan.bytes, plan.descriptor_bytes};
  }
};

inline Operation transfer(Lane lane, Bytes bytes, TimeNs latency, std::uint64_t most = 0, Pages pages = 1) {
  TransferOperation operation;
  operation.lane = lane;
  operation.plan.bytes = bytes;
  operation.plan.pages = pages;
  operation.plan.descriptors = static_cast<std::uint64_t>(latency);
  operation.plan.descriptor_bytes = most;
  return operation;
}

inline Operation layered(std::uint32_t groups, Operation load) {
  std::get<TransferOperation>(load).plan.layer_groups = groups;
  return load;
}

// A storage operation over pages [first, first + count). Requires: the object exists during submit().
struct StorageCall {
  StorageCall(StorageVerb verb, Tier tier, std::uint64_t first, Pages count, Tier memory = Tier::host) {
    work.verb = verb;
    work.tier = tier;
    work.memory = memory;
    work.pages = count;
    work.page_bytes = 100'000;
    for (std::uint64_t i = first; i < first + count; ++i) {
      pages.push_back({.key = PageKey{{mix(i), mix(i + 1), 0, 0}}, .slot = static_cast<SlotId>(i)});
    }
  }
  StorageCall& latency(TimeNs ns) {
    work.objects = static_cast<std::uint32_t>(ns);
    return *this;
  }
  StorageCall& of_ranks(std::uint32_t ranks) {
    work.ranks = ranks;
    return *this;
  }
  OperationId submit(Substrate& s) const { return s.submit(StorageOperation{work, PageKey{{1, 2, 3, 4}}, pages}); }

  StorageWork work;
  std::vector<StoragePage> pages;
};

inline Operation pass(TimeNs base, TimeNs step, std::uint64_t steps, std::span<const OperationId> gates = {}) {
  ForwardOperation operation;
  operation.shape.prefill_tokens = static_cast<Tokens>(base);
  operation.shape.decode_context_tokens = static_cast<Tokens>(step);
  operation.steps = steps;
  operation.gates = gates;
  return operation;
}

// An input as a flat record.
struct Seen {
  TimeNs now = 0;
  std::uint64_t kind = 0;  // index of the variant Input::what
  std::uint64_t id = 0;    // operation; for an arrival: request; for a hint: subject
  std::uint64_t status = 0;
  std::uint64_t bytes = 0;
  std::uint64_t steps = 0;
  TimeNs stalled = 0;
  std::uint64_t pages = 0;
  std::uint64_t cause = 0;
  friend bool operator==(const Seen&, const Seen&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Seen& s) {
    return out << "{now " << s.now << " kind " << s.kind << " id " << s.id << " status " << s.status << " bytes "
               << s.bytes << " steps " << s.steps << " stalled " << s.stalled << " pages " << s.pages << " cause "
               << s.cause << "}";
  }
};

constexpr std::uint64_t kArrivalKind = 0, kHintKind = 1, kCompletionKind = 2, kTimerKind = 3, kReductionKind = 4;

inline Seen flat(const Input& input) {
  Seen seen{.now = input.now, .kind = input.what.index()};
  if (const auto* a = std::get_if<Arrival>(&input.what)) seen.id = a->request;
  if (const auto* h = std::get_if<Hint>(&input.what)) seen.id = h->subject;
  if (const auto* c = std::get_if<Completion>(&input.what)) {
    seen.id = static_cast<std::uint64_t>(c->id);
    seen.status = static_cast<std::uint64_t>(c->status);
    seen.bytes = c->bytes;
    seen.steps = c->steps;
    seen.stalled = c->stalled_ns;
    seen.pages = c->pages;
    seen.cause = static_cast<std::uint64_t>(c->cause);
  }
  if (const auto* t = std::get_if<TimerFired>(&input.what)) seen.id = static_cast<std::uint64_t>(t->id);
  if (const auto* r = std::get_if<Reduction>(&input.what)) {
    seen.id = static_cast<std::uint64_t>(r->id);
    seen.bytes = static_cast<std::uint64_t>(r->values[0]);
  }
  return seen;
}

using Log = std::vector<Seen>;
using Act = std::function<void(Substrate&, const Input&)>;

inline Input arrival(TimeNs now, RequestId request) {
  return Input{now, Arrival{.request = request, .prompt_tokens = 1, .output_tokens = 1, .keys = {}}};
}

class LoggingHandler final : public InputHandler {
 public:
  LoggingHandler(Substrate& substrate, Act act) : substrate_(substrate), act_(std::move(act)) {}
  void handle(const Input& input) override {
    log.push_back(flat(input));
    EXPECT_EQ(substrate_.now(), input.now);
    act_(substrate_, input);
    EXPECT_EQ(substrate_.now(), input.now);
  }
  Log log;

 private:
  Substrate& substrate_;
  Act act_;
};

inline const ScriptedCost& scripted_cost() {
  static const ScriptedCost cost;
  return cost;
}

inline WorldConfig plain_config() {
  WorldConfig config;
  config.h2d_bytes_per_second = 50'000'000'000;
  config.d2h_bytes_per_second = 50'000'000'000;
  config.cost = &scripted_cost();
  return config;
}

inline Log run_world(World& world, std::vector<Input> inputs, const Act& act) {
  ListedInputs source(std::move(inputs));
  LoggingHandler handler(world.substrate(), act);
  world.run(source, handler);
  return std::move(handler.log);
}

inline Log run_event(const WorldConfig& config, std::vector<Input> inputs, const Act& act) {
  return run_world(*make_event_world(config), std::move(inputs), act);
}

// Runs the SimGrid world in a child process. Only the log comes back; other effects of `act` are lost.
inline Log run_simgrid(const WorldConfig& config, const std::vector<Input>& inputs, const Act& act) {
  int ends[2];
  if (pipe(ends) != 0) return {};
  const bool failed_before = testing::Test::HasFailure();
  const pid_t child = fork();
  if (child == 0) {
    const Log log = run_world(*make_simgrid_world(config), inputs, act);
    const char* data = reinterpret_cast<const char*>(log.data());
    std::size_t left = log.size() * sizeof(Seen);
    while (left > 0) {
      const ssize_t done = write(ends[1], data, left);
      if (done <= 0) _exit(2);
      data += done;
      left -= static_cast<std::size_t>(done);
    }
    _exit(testing::Test::HasFailure() && !failed_before ? 1 : 0);
  }
  close(ends[1]);
  std::vector<char> raw;
  char buffer[65536];
  for (ssize_t got = 0; (got = read(ends[0], buffer, sizeof buffer)) > 0;) raw.insert(raw.end(), buffer, buffer + got);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << "the SimGrid world's process failed";
  Log log(raw.size() / sizeof(Seen));
  if (!log.empty()) std::memcpy(log.data(), raw.data(), log.size() * sizeof(Seen));
  return log;
}

inline bool have_simgrid() { return KVTWIN_TEST_SIMGRID != 0; }

// The same script on each world.
enum class Which : std::uint8_t { event, simgrid };
// The worlds of this build.
inline std::vector<Which> worlds_here() {
  if (have_simgrid()) return {Which::event, Which::simgrid};
  return {Which::event};
}
inline std::string name_of_world(const testing::TestParamInfo<Which>& world) {
  return world.param == Which::event ? "event" : "simgrid";
}
inline Log run_on(Which which, const WorldConfig& config, const std::vector<Input>& inputs, const Act& act) {
  return which == Which::event ? run_event(config, inputs, act) : run_simgrid(config, inputs, act);
}

// Calls `once` at the arrival of request 0, and does nothing at other inputs.
inline Act at_first(std::function<void(Substrate&)> once) {
  return [once = std::move(once)](Substrate& substrate, const Input& input) {
    if (const auto* a = std::get_if<Arrival>(&input.what); a != nullptr && a->request == 0) once(substrate);
  };
}

inline Seen completion(TimeNs now, std::uint64_t id, Bytes bytes, Status status = Status::done) {
  return Seen{
      .now = now, .kind = kCompletionKind, .id = id, .status = static_cast<std::uint64_t>(status), .bytes = bytes};
}

inline Seen stored(TimeNs now, std::uint64_t id, Pages pages, Bytes bytes, Status status = Status::done,
                   Cause cause = Cause::none) {
  Seen seen = completion(now, id, bytes, status);
  seen.pages = pages;
  seen.cause = static_cast<std::uint64_t>(cause);
  return seen;
}

inline Seen pass_end(TimeNs now, std::uint64_t id, std::uint64_t steps, TimeNs stalled = 0,
                     Status status = Status::done) {
  return Seen{.now = now,
              .kind = kCompletionKind,
              .id = id,
              .status = static_cast<std::uint64_t>(status),
              .steps = steps,
              .stalled = stalled};
}

}  // namespace kvtwin::test
