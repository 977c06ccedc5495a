#include "policy/decorators.hpp"

#include <algorithm>
#include <variant>

#include "policy/check.hpp"

namespace kvtwin {

// ---- Recording --------------------------------------------------------------------------------------------

void Recording::handle(const Input& input) {
  inner_.handle(input);
  journal_.append(input, {decisions_.count(), decisions_.digest()});
}

// ---- Checking ---------------------------------------------------------------------------------------------

namespace {
void keep(BrokenTerm broken) { KV_CHECK(broken == nullptr, broken); }
}  // namespace

// One call into the world.
class Checking::Call {
 public:
  explicit Call(Checking& checking) : checking_(checking) {
    KV_CHECK(checking.handling_, "the policy acts only on an input");
    KV_CHECK(!checking.calling_, "a call into the world doesn't lead to another");
    checking.now();
    checking.calling_ = true;
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  ~Call() { checking_.calling_ = false; }

 private:
  Checking& checking_;
};

TimeNs Checking::now() const {
  const TimeNs now = world_.now();
  KV_CHECK(!handling_ || now == now_, "the clock stands still while an input is handled");
  return now;
}

OperationId Checking::submit(const Operation& operation) {
  keep(contract_.judge(operation));
  const Call call(*this);
  const OperationId id = world_.submit(operation);
  keep(contract_.submitted(operation, id, now_));
  return id;
}

OperationId Checking::call_at(TimeNs time) {
  const Call call(*this);
  const OperationId id = world_.call_at(time);
  keep(contract_.timer_set(time, id));
  return id;
}

OperationId Checking::reduce_min(const ReduceVector& values) {
  const Call call(*this);
  const OperationId id = world_.reduce_min(values);
  keep(contract_.reduction_entered(values, id));
  return id;
}

void Checking::cancel(OperationId id) {
  keep(contract_.judge_cancel(id));
  const Call call(*this);
  contract_.cancelled(id);
  world_.cancel(id);
}

void Checking::handle(const Input& input) {
  KV_CHECK(handler_ != nullptr, "the handler is connected before the first input");
  KV_CHECK(!calling_, "no input comes during a call into the world");
  KV_CHECK(!handling_, "no input comes while another is handled");
  KV_CHECK(world_.now() == input.now, "an input carries the time that it comes at");
  keep(contract_.take(input));
  now_ = input.now;
  handling_ = true;
  handler_->handle(input);
  now();
  handling_ = false;
}

void Checking::finish() const { KV_CHECK(outstanding() == 0, "at the end everything has been answered"); }

// ---- Faulty -----------------------------------------------------------------------------------------------

// splitmix64: policy/ has no library-made chance, and equal seeds must mean equal faults everywhere.
std::uint64_t Faulty::draw() {
  std::uint64_t z = (random_ += 0x9E3779B97F4A7C15U);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9U;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBU;
  return z ^ (z >> 31);
}

// Fates are drawn here, not at the completion, so that a pass is known to lose its gate whichever comes first.
OperationId Faulty::submit(const Operation& operation) {
  const OperationId id = world_.submit(operation);
  if (std::holds_alternative<TransferOperation>(operation)) {
    if (drawn(shares_.failed_transfers)) doomed_transfers_.push_back(id);
    return id;
  }
  if (std::holds_alternative<StorageOperation>(operation)) return id;
  const auto& pass = std::get<ForwardOperation>(operation);
  const auto is_doomed = [this](OperationId gate) {
    return std::ranges::find(doomed_transfers_, gate) != doomed_transfers_.end();
  };
  if (std::ranges::any_of(pass.gates, is_doomed)) {
    doomed_passes_.push_back(id);
  } else if (pass.steps > 1 && drawn(shares_.cut_bursts)) {
    if (draw() % 2 == 0) {
      cut(id);
    } else {
      bursts_to_cut_.push_back(id);
    }
  }
  return id;
}

void Faulty::cut(OperationId burst) {
  ++counts_.cut_bursts;
  world_.cancel(burst);
}

void Faulty::handle(const Input& input) {
  KV_CHECK(handler_ != nullptr, "the handler is connected before the first input");
  const auto* completion = std::get_if<Completion>(&input.what);
  if (completion != nullptr) std::erase(bursts_to_cut_, completion->id);
  // A burst that is to be cut goes on until something happens beside it.
  for (const OperationId burst : bursts_to_cut_) cut(burst);
  bursts_to_cut_.clear();
  handler_->handle(completion == nullptr ? input : Input{input.now, distorted(*completion)});
}

Completion Faulty::distorted(const Completion& completion) {
  Completion told = completion;
  if (std::erase(doomed_transfers_, completion.id) > 0 && completion.status == Status::done) {
    told.status = Status::failed;
    told.bytes = 0;
    ++counts_.failed_transfers;
  }
  if (std::erase(doomed_passes_, completion.id) > 0 && completion.status != Status::gate_failed) {
    told.status = Status::gate_failed;
    told.steps = 0;
    ++counts_.failed_gates;
  }
  return told;
}

}  // namespace kvtwin
