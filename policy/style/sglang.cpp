// SGLang: prefill first. As long as a waiting request fits, the next pass is a prefill of at most chunk_tokens. Else
// the next pass decodes one token for every running request, burst_steps times in a row.
//
// With scheduler.mixed_chunks (--enable-mixed-chunk), the running requests decode one token in each prefill pass. Their
// tokens count against the chunk, and admission leaves room for their pages. Sources, SGLang 0.5.23:
// python/sglang/srt/managers/schedule_policy.py, PrefillAdder.__init__ (mixed_with_decode_tokens);
// python/sglang/srt/managers/scheduler.py, Scheduler.get_new_batch_prefill; schedule_batch.py,
// ScheduleBatch.mix_with_running. If L1 has no room for the decode step, kvtwin prefills alone in this pass.
//
// A load from L2 runs layer by layer beside the pass that needs it (HiCache).
#include <algorithm>
#include <limits>

#include "policy/config.hpp"
#include "policy/style.hpp"

namespace kvtwin {
namespace {

class SglangStyle final : public EngineStyle {
 public:
  explicit SglangStyle(const EngineConfig& config) : config_(config) {}

  bool compose(PassBuilder& pass) const override {
    constexpr Tokens kNoLimit = std::numeric_limits<Tokens>::max();
    for (;;) {
      pass.begin(config_.mixed_chunks ? 1 : 0);
      Tokens budget = config_.chunk_tokens;
      if (config_.mixed_chunks) budget -= std::min(budget, pass.decode_tokens_per_step());
      budget -= pass.continue_prefill(budget);
      pass.admit(budget);
      if (pass.has_prefill()) {
        if (config_.mixed_chunks && pass.has_decode_room(kNoLimit)) pass.decode(1);
        return true;
      }
      const std::size_t before = pass.running();
      const std::uint64_t steps = pass.make_decode_room(config_.burst_steps, kNoLimit);
      if (steps > 0) {
        pass.decode(steps);
        return true;
      }
      // A request that was retracted for a decode, which then had no request left, may have made room for a prefill.
      if (pass.running() == before) return false;
    }
  }

  // SGLang's PrefillAdder counts the whole sequence, and a share of the running requests' outstanding output.
  Pages pages_to_admit(const AdmissionPages& pages) const override { return pages.sequence + pages.reserve; }
  Victim victim() const override { return Victim::youngest; }
  bool loads_before_admission() const override { return false; }
  bool keeps_retracted_pages() const override { return false; }

 private:
  const EngineConfig& config_;
};

}  // namespace

std::unique_ptr<EngineStyle> make_sglang_style(const EngineConfig& config, const Parameters&) {
  return std::make_unique<SglangStyle>(config);
}

}  // namespace kvtwin
