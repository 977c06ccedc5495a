// Prompts of one size whose prefixes come back: a fixed number of long contexts (documents, agents' histories), each
// asked about again and again, every time with a question of its own at the end. Which context a request is about is
// drawn evenly, after each has been asked about once; so a cache that holds a share of the contexts finds that share of
// the returns, whatever its policy, and the share that a tier serves is what its capacity is to all contexts. Arrivals
// are a Poisson process, of single requests or of so many at once. Same configuration, same bytes, on every machine.
//
// Memory: the number of a first block for each context.
#pragma once

#include <cstdint>

#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct ReturningConfig {
  std::uint64_t seed = 1;
  std::uint64_t contexts = 64;
  std::uint64_t requests = 256;      // the first visits among them
  Tokens prompt_tokens = 8192;       // of every request, its question among them
  Tokens question_tokens = 64;       // never seen again; less than prompt_tokens
  Tokens output_tokens = 16;         // of every request
  double requests_per_second = 1.0;  // 1e-6 .. 1e6
  std::uint64_t at_once = 1;         // requests that arrive together
};

class ReturningGenerator final : public TraceSource {
 public:
  // Of blocks: what of a context is less than a whole one isn't shared.
  static constexpr Tokens kBlockTokens = 64;
  static constexpr std::uint64_t kMaxContexts = 10'000'000;

  // FigureError on a figure out of range.
  explicit ReturningGenerator(const ReturningConfig& config);

  // Requests whose session is their context, and turn their visit to it; both from 1.
  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return kBlockTokens; }
  double fraction_read() const override;

 private:
  ReturningConfig config_;
  Random random_;
  std::vector<std::uint64_t> visits_;  // by context
  std::uint64_t shared_blocks_ = 0, emitted_ = 0, next_block_ = 0;
  TimeNs time_ = 0;
};

}  // namespace kvtwin
