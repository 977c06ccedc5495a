#include "sim/bounds/instant_engine.hpp"

#include <cstdint>
#include <deque>
#include <variant>

#include "policy/base/check.hpp"
#include "policy/engine.hpp"

namespace kvtwin {
namespace {

// Answers each operation in full, in the order of submission, when the engine has handled the input before it.
class InstantSubstrate final : public Substrate {
 public:
  explicit InstantSubstrate(std::uint32_t ranks) : ranks_(ranks) {}

  TimeNs now() const override { return now_; }
  OperationId submit(const Operation& operation) override {
    Completion completion;
    completion.id = next_id();
    if (const auto* const transfer = std::get_if<TransferOperation>(&operation)) {
      completion.bytes = transfer->bytes() * ranks_;
    } else {
      const auto* const pass = std::get_if<ForwardOperation>(&operation);
      KV_CHECK(pass != nullptr, "an engine without storage tiers moves pages between two tiers, and computes");
      completion.steps = pass->steps;
    }
    answers_.push_back({now_, completion});
    return completion.id;
  }
  OperationId call_at(TimeNs) override {
    KV_CHECK(false, "an engine without storage tiers waits for no prefetch, and sets no timer");
    return OperationId::none;
  }
  OperationId reduce_min(const ReduceVector& values) override {
    const OperationId id = next_id();
    answers_.push_back({now_, Reduction{id, values}});
    return id;
  }
  void cancel(OperationId) override {}  // the operation has ended, and its answer is on the way

  void advance(TimeNs now) {
    KV_CHECK(now >= now_, "time does not go back");
    now_ = now;
  }
  // Delivers the answers until none is left.
  void deliver(InputHandler& handler) {
    while (!answers_.empty()) {
      const Input answer = answers_.front();
      answers_.pop_front();
      handler.handle(answer);
    }
  }

 private:
  OperationId next_id() { return OperationId{++last_id_}; }

  const std::uint32_t ranks_;
  TimeNs now_ = 0;
  std::uint64_t last_id_ = 0;
  std::deque<Input> answers_;
};

// Keeps the record of the last request that has ended.
class LastRecord final : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind == EventKind::finished || event.kind == EventKind::rejected) record_ = *event.record;
  }
  const RequestRecord& record() const { return record_; }

 private:
  RequestRecord record_;
};

}  // namespace

struct InstantEngine::State {
  explicit State(const EngineConfig& config) : substrate(config.ranks), engine(config, substrate, decisions, &last) {
    KV_CHECK(config.storage.empty(), "operations of storage tiers do not end at once");
  }

  void handle(const Input& input) {
    substrate.advance(input.now);
    engine.handle(input);
    substrate.deliver(engine);
    KV_CHECK(engine.idle(), "the engine is at rest after each request");
  }

  InstantSubstrate substrate;
  DecisionLog decisions;
  LastRecord last;
  Engine engine;
};

InstantEngine::InstantEngine(const EngineConfig& config) : state_(std::make_unique<State>(config)) {}

InstantEngine::~InstantEngine() = default;

const RequestRecord& InstantEngine::serve(const Arrival& arrival, TimeNs now) {
  state_->handle({now, arrival});
  const RequestRecord& record = state_->last.record();
  KV_CHECK(record.request == arrival.request, "the request has ended");
  return record;
}

void InstantEngine::hint(const Hint& hint, TimeNs now) { state_->handle({now, hint}); }

}  // namespace kvtwin
