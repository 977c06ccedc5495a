// vLLM, engine V1: one token budget per step (max_num_batched_tokens, here chunk_tokens). Sources, vLLM of 2026:
// vllm/v1/core/sched/scheduler.py and the OffloadingConnector.
//
// 1. Scheduler.schedule, "First, schedule the RUNNING requests": in the order of their admission, each running request
//    takes its next token, or the next chunk of its prompt, from the budget.
// 2. If a running request gets no block, running.pop() preempts the request that was admitted last, until the block is
//    there (_preempt_request). A preempted request loses its blocks, returns to the queue and computes again. Its full
//    blocks stay in the prefix cache until they are evicted.
// 3. "Next, schedule the WAITING requests", only in a step without a preemption: the rest of the budget admits waiting
//    requests. scheduler_reserve_full_isl (scheduler.admit_whole_prompt): the whole prompt must fit, else the first
//    chunk. No room is kept for answers.
// 4. A prefix in the offload tier is loaded before admission: get_num_new_matched_tokens
//    (vllm/distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py) returns load_kv_async = true, and the
//    request waits in WAITING_FOR_REMOTE_KVS until the load has ended. It holds the blocks meanwhile. Requests that
//    share these blocks wait too. Other requests go on.
//
// Different from vLLM: the queue stays in order of arrival, where vLLM puts preempted requests at its head; and if
// loaded prefixes of waiting requests fill L1, the youngest gives its pages back, so that no deadlock remains.
#include "policy/config.hpp"
#include "policy/style.hpp"

namespace kvtwin {
namespace {

class VllmStyle final : public EngineStyle {
 public:
  explicit VllmStyle(const EngineConfig& config) : config_(config) {}

  bool compose(PassBuilder& pass) const override {
    do {
      pass.begin(0);
      Tokens budget = config_.chunk_tokens;
      if (pass.make_decode_room(1, budget) > 0) budget -= pass.decode(1);
      if (pass.has_decode() && !pass.chunk_fits(budget)) pass.retract();
      budget -= pass.continue_prefill(budget);
      if (!pass.retracted()) pass.admit(budget);
      if (pass.has_prefill()) return true;
      if (pass.has_decode()) {
        // A step after a preemption tries to admit again. Else nothing changes before a request ends or arrives.
        if (!pass.retracted()) pass.lengthen(config_.burst_steps);
        return true;
      }
    } while (pass.retracted() || pass.release_loaded_prefix());
    return false;
  }

  Pages pages_to_admit(const AdmissionPages& pages) const override {
    return config_.admit_whole_prompt ? pages.prompt : pages.first_chunk;
  }
  Victim victim() const override { return Victim::last_admitted; }
  bool loads_before_admission() const override { return true; }
  bool keeps_retracted_pages() const override { return true; }

 private:
  const EngineConfig& config_;
};

}  // namespace

std::unique_ptr<EngineStyle> make_vllm_style(const EngineConfig& config, const Parameters&) {
  return std::make_unique<VllmStyle>(config);
}

}  // namespace kvtwin
