// A real world with a script instead of an engine. A step of the script runs within the handling of an input. The next
// step runs when all submitted operations have completed.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "impl/world.hpp"
#include "policy/transfer/plan.hpp"
#include "tests/device_under_test.hpp"
#include "tests/listed_inputs.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {

inline constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct,
                                      Layout::page_head};

inline Input arrival_at(TimeNs time, RequestId request) {
  Arrival arrival;
  arrival.request = request;
  arrival.prompt_tokens = arrival.output_tokens = 1;
  return {time, arrival};
}

// One sequence of a forward pass: page keys[i] is in slots[i].
struct Sequence {
  std::vector<SlotId> slots;
  std::vector<PageKey> keys;
  Tokens context = 0, fresh = 0;
};

class ListedParts final : public SequenceParts {
 public:
  explicit ListedParts(std::vector<std::vector<SequencePart>> parts) : parts_(std::move(parts)) {}
  bool empty() const { return parts_.empty(); }
  void get(std::size_t sequence, std::vector<SequencePart>& parts) const override { parts = parts_.at(sequence); }

 private:
  const std::vector<std::vector<SequencePart>> parts_;
};

class RealRig final : public InputHandler {
 public:
  explicit RealRig(const HostDeviceConfig& config)
      : config_(config),
        world_(make_real_world(make_test_device(config), {}, config.ranks)),
        substrate_(world_->substrate()) {}

  void then(std::function<void()> step) { steps_.push_back(std::move(step)); }

  // One arrival at time 0 starts the script.
  const Verification& run() { return run({arrival_at(0, 0)}); }
  const Verification& run(std::vector<Input> list) {
    ListedInputs source(std::move(list));
    world_->run(source, *this);
    EXPECT_TRUE(steps_.empty()) << "the script wasn't played to its end";
    EXPECT_EQ(answers.size(), submitted_) << "each operation is answered once";
    return world_->verification();
  }

  // Moves page keys[i] from source[i] to target[i].
  OperationId transfer(Lane lane, const std::vector<PageKey>& keys, const std::vector<SlotId>& source,
                       const std::vector<SlotId>& target) {
    std::vector<PageMove> moves;
    for (std::size_t i = 0; i < keys.size(); ++i) moves.push_back({keys[i], source[i], target[i]});
    std::vector<PageRun> runs;
    join_runs(source, target, runs);
    const Direction direction = lane == Lane::h2d ? Direction::host_to_device : Direction::device_to_host;
    TransferOperation operation{
        lane,
        plan_transfer(runs, direction, {config_.shape, config_.host_layout, config_.device_pages, config_.host_pages},
                      io, limits),
        moves};
    for (const HostDeviceConfig& draft : config_.beside) {
      if (draft.kind != KvKind::draft || draft.stays) continue;
      operation.beside.push_back(plan_transfer(
          runs, direction, {draft.shape, config_.host_layout, config_.device_pages, config_.host_pages}, io, limits));
    }
    if (path) operation.plan.path = *path;
    if (window) operation.plan.window = *window;
    return submitted(substrate_.submit(operation));
  }
  OperationId back_up(const std::vector<PageKey>& keys, const std::vector<SlotId>& device,
                      const std::vector<SlotId>& host) {
    return transfer(Lane::d2h, keys, device, host);
  }
  OperationId load(const std::vector<PageKey>& keys, const std::vector<SlotId>& host,
                   const std::vector<SlotId>& device) {
    return transfer(Lane::h2d, keys, host, device);
  }

  OperationId prefill(const std::vector<Sequence>& sequences, const std::vector<OperationId>& gates = {}) {
    ForwardOperation pass;
    for (const Sequence& sequence : sequences) {
      pass.shape.prefill_tokens += sequence.fresh;
      pass.shape.prefill_pairs += sequence.fresh * sequence.context + sequence.fresh * (sequence.fresh + 1) / 2;
      pass.shape.prefill_context_tokens += sequence.context;
      ++pass.shape.prefill_sequences;
    }
    return submit_pass(pass, sequences, gates);
  }
  // Each sequence's `fresh` is the number of steps; with a draft model, `steps` is.
  OperationId decode(const std::vector<Sequence>& sequences, const std::vector<OperationId>& gates = {},
                     std::uint64_t steps = 0, std::uint32_t draft_tokens = 0) {
    ForwardOperation pass;
    pass.steps = steps == 0 ? sequences.front().fresh : steps;
    pass.shape.draft_tokens = draft_tokens;
    for (const Sequence& sequence : sequences) {
      pass.shape.decode_context_tokens += sequence.context;
      ++pass.shape.decode_sequences;
    }
    return submit_pass(pass, sequences, gates);
  }
  // Computes whole pages without a context, into `slots`.
  OperationId compute(const std::vector<PageKey>& keys, const std::vector<SlotId>& slots) {
    return prefill({{slots, keys, 0, keys.size() * config_.shape.page_tokens}});
  }
  // Computes one token, into the slot `scratch`, with the pages in `slots` as the context, so that a pass reads them.
  OperationId read(const std::vector<PageKey>& keys, const std::vector<SlotId>& slots, SlotId scratch,
                   const std::vector<OperationId>& gates = {}) {
    Sequence sequence{slots, keys, keys.size() * config_.shape.page_tokens, 1};
    sequence.slots.push_back(scratch);
    sequence.keys.push_back(chain_key(keys.back(), 999));
    return prefill({sequence}, gates);
  }
  OperationId call_at(TimeNs time) { return submitted(substrate_.call_at(time)); }
  OperationId reduce_min(const ReduceVector& values) { return submitted(substrate_.reduce_min(values)); }
  void cancel(OperationId id) { substrate_.cancel(id); }
  TimeNs now() const { return substrate_.now(); }

  const Completion& completion(OperationId id) const { return std::get<Completion>(inputs.at(answers.at(id)).what); }
  // Returns the index of the completion in `inputs`.
  std::size_t place(OperationId id) const { return answers.at(id); }
  RealWorld& world() { return *world_; }

  IoBackend io = IoBackend::kernel;
  PlannerLimits limits{.box_min = 1, .kernel_min_pieces = 0, .layer_group_min = 1};  // layer groups for small pages too
  std::optional<TransferPath> path;              // if set: replaces the path of every plan
  std::optional<Bytes> window;                   // if set: replaces the window of every plan
  std::vector<std::vector<SequencePart>> parts;  // of the next pass, by sequence and pool
  std::function<void(OperationId)> on_answer;    // called for every answer, before the script; may be empty
  std::vector<Input> inputs;                     // all inputs, in order
  std::map<OperationId, std::size_t> answers;    // operation -> index of its answer in `inputs`

 private:
  void handle(const Input& input) override {
    EXPECT_EQ(input.now, substrate_.now()) << "an input carries the time at which it comes";
    if (!inputs.empty()) {
      EXPECT_GT(input.now, inputs.back().now) << "time goes on with every input";
    }
    std::visit([&](const auto& what) { note(what); }, input.what);
    inputs.push_back(input);
    if (on_answer && last_answered_ != OperationId::none) on_answer(std::exchange(last_answered_, OperationId::none));
    if (answers.size() == submitted_ && !steps_.empty()) {
      const std::function<void()> step = std::move(steps_.front());
      steps_.pop_front();
      step();
    }
  }
  void note(const Arrival&) {}
  void note(const Hint&) {}
  void note(const Notice&) {}
  template <typename Answer>
  void note(const Answer& answer) {
    EXPECT_LE(static_cast<std::uint64_t>(answer.id), submitted_) << "an answer without a call";
    EXPECT_TRUE(answers.emplace(answer.id, inputs.size()).second) << "answered twice";
    last_answered_ = answer.id;
  }

  OperationId submitted(OperationId id) {
    EXPECT_EQ(static_cast<std::uint64_t>(id), ++submitted_) << "ids are 1, 2, 3 ...";
    EXPECT_FALSE(answers.contains(id)) << "nothing completes within a call";
    return id;
  }
  // Passes copies that are destroyed after the call, because the world may use borrowed memory only during the call.
  OperationId submit_pass(ForwardOperation& pass, const std::vector<Sequence>& sequences,
                          const std::vector<OperationId>& gates) {
    std::vector<Sequence> copies = sequences;
    std::vector<SequenceWork> works;
    for (const Sequence& sequence : copies) {
      const std::uint64_t each = (1024 * sequence.fresh + pass.steps - 1) / pass.steps;
      works.push_back({works.size(), sequence.context, sequence.fresh, sequence.slots, sequence.keys, {each, 0}});
    }
    std::vector<OperationId> gate_copies = gates;
    pass.sequences = works;
    pass.gates = gate_copies;
    const ListedParts listed(std::exchange(parts, {}));
    if (!listed.empty()) pass.parts = &listed;
    return submitted(substrate_.submit(pass));
  }

  HostDeviceConfig config_;
  std::unique_ptr<RealWorld> world_;
  Substrate& substrate_;
  std::deque<std::function<void()>> steps_;
  std::uint64_t submitted_ = 0;
  OperationId last_answered_ = OperationId::none;
};

// Four-token pages with rows of 10 bytes, two layers; no arithmetic.
inline HostDeviceConfig small_device(Pages device_pages = 16, Pages host_pages = 16) {
  HostDeviceConfig config;
  config.shape = {2, 2, 2, 5, 4};
  config.device_pages = device_pages;
  config.host_pages = host_pages;
  return config;
}

inline std::vector<PageKey> some_keys(std::size_t count, std::uint64_t document = 0) {
  std::vector<std::uint64_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), 1000 * document);
  return chain(tokens);
}

}  // namespace kvtwin::test
