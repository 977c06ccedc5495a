#include "policy/replay.hpp"

#include "policy/seam/contract.hpp"

namespace kvtwin {
namespace {

// Assigns ids and has the time of the current input. No operation is carried out.
class RecordedWorld final : public Substrate {
 public:
  // Accepts what `Faulty` may have done to the recorded run.
  explicit RecordedWorld(const EngineConfig& config)
      : contract_({.page_tokens = config.shape.page_tokens,
                   .role = config.hand_over.role,
                   .bursts_end_early = true,
                   .ranks_decide = config.ranks > 1,
                   .cancels_unrequested = true,
                   .windows = config.windows(),
                   .duplicates = true}) {}

  BrokenTerm take(const Input& input) {
    now_ = input.now;
    return contract_.take(input);
  }

  TimeNs now() const override { return now_; }
  OperationId submit(const Operation& operation) override {
    const OperationId id{++last_};
    contract_.submitted(operation, id, now_);
    return id;
  }
  OperationId call_at(TimeNs time) override {
    const OperationId id{++last_};
    contract_.timer_set(time, id);
    return id;
  }
  OperationId reduce_min(const ReduceVector& values) override {
    const OperationId id{++last_};
    contract_.reduction_entered(values, id);
    return id;
  }
  void cancel(OperationId id) override { contract_.cancelled(id); }
  void notify(std::uint32_t, const Notice& notice) override { contract_.notified(notice); }

 private:
  SeamContract contract_;
  TimeNs now_ = 0;
  std::uint64_t last_ = 0;
};

}  // namespace

ReplayResult replay(JournalReader& journal, const EngineConfig& config, const ReplayAudience& audience) {
  DecisionLog decisions(audience.sink);
  RecordedWorld world(config);
  Engine engine(config, world, decisions, audience.observer);
  ReplayResult result;
  JournalRecord record;
  while ((result.journal = journal.next(record)) == JournalStatus::record) {
    result.kind = kind_of(record.input);
    result.place = journal.place();
    result.now = journal.last_now();
    result.expected = record.after;
    result.misfit = world.take(record.input);
    if (result.misfit != nullptr) {
      result.verdict = ReplayVerdict::misfit;
      return result;
    }
    if (audience.inputs != nullptr) audience.inputs->handle(record.input);
    engine.handle(record.input);
    result.got = {decisions.count(), decisions.digest()};
    if (result.got != result.expected) {
      result.verdict = ReplayVerdict::diverged;
      return result;
    }
    result.agreed = result.got;
    ++result.inputs;
  }
  result.place = journal.place();
  result.now = journal.last_now();
  return result;
}

}  // namespace kvtwin
