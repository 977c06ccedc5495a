// vLLM 0.33.0, mode "align" of prefix caching for states, and the retention of sliding windows: at the last block of
// the prompt, at a junction (a prefix that full attention has and windows or states lack), and every `retention` tokens
// (--prefix-cache-retention-interval). Sources: v1/core/single_type_kv_cache_manager.py (reachable_block_mask),
// v1/core/sched/scheduler.py (_mamba_block_aligned_split). BlockGroups has the rules.
#include "policy/config.hpp"
#include "policy/state_points.hpp"

namespace kvtwin {
namespace {

class Align final : public StatePoints {
 public:
  explicit Align(const Parameters& parameters)
      : retention_(parameters.whole(
            "retention",
            {.fallback = 0,
             .most = 1'000'000'000,
             .help = "Tokens between further windows and states that stay, in whole pages; less than a page "
                     "= everywhere, as vLLM did before August 2026; 0 = none"})) {}

  bool of_blocks() const override { return true; }
  Tokens retention() const override { return retention_; }

 private:
  const Tokens retention_;
};

}  // namespace

std::unique_ptr<StatePoints> make_align_state_points(const EngineConfig&, const Parameters& parameters) {
  return std::make_unique<Align>(parameters);
}

}  // namespace kvtwin
