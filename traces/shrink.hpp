// Divides every length of a trace, for a machine that cannot serve the full lengths. The requests, their times and the
// blocks that they share stay the same. Hit ratios in blocks stay nearly the same: rounding up may fill a block that
// was partial.
#pragma once

#include <memory>

#include "policy/base/types.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class ShrunkTrace final : public TraceSource, private UserTraffic {
 public:
  // Requires: `factor` >= 1 and divides source->block_tokens() (KV_CHECK).
  ShrunkTrace(std::unique_ptr<TraceSource> source, Tokens factor);

  // Rounds lengths up, so that a request keeps its number of blocks, and an input or output has at least one token.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return source_->block_tokens() / factor_; }
  double fraction_read() const override { return source_->fraction_read(); }
  std::vector<std::string> notes() const override { return source_->notes(); }
  std::optional<DrawnTraffic> drawn() const override { return source_->drawn(); }  // in full size
  UserTraffic* user_traffic() override { return source_->user_traffic() == nullptr ? nullptr : this; }

 private:
  std::uint64_t users() const override { return source_->user_traffic()->users(); }
  TimeNs first_of(std::uint64_t user) const override { return source_->user_traffic()->first_of(user); }
  TimeNs end() const override { return source_->user_traffic()->end(); }
  bool next_of(std::uint64_t user, TraceRequest& request) override;
  void reached(TimeNs time) override { source_->user_traffic()->reached(time); }
  void shrink(TraceRequest& request) const;

  std::unique_ptr<TraceSource> source_;
  Tokens factor_;
};

}  // namespace kvtwin
