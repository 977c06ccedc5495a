// A trace with every length divided: the same requests at the same times, sharing the same blocks in the same
// places, for a machine that couldn't serve the full lengths. Hit ratios in blocks stay nearly what they
// were: rounding up may fill a block that was partial.
#pragma once

#include <memory>

#include "policy/base/types.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class ShrunkTrace final : public TraceSource {
 public:
  // `factor` >= 1 divides the source's block_tokens() (KV_CHECK).
  ShrunkTrace(std::unique_ptr<TraceSource> source, Tokens factor);

  // Lengths are rounded up, so that each keeps its blocks and at least one token.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return source_->block_tokens() / factor_; }
  double fraction_read() const override { return source_->fraction_read(); }
  std::vector<std::string> notes() const override { return source_->notes(); }

 private:
  std::unique_ptr<TraceSource> source_;
  Tokens factor_;
};

}  // namespace kvtwin
