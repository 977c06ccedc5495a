// Generates prompts of one size over a fixed number of long contexts (documents, histories of agents) that return.
//
// Every prompt is a context and a new question. The first requests visit every context once; after that, the context is
// drawn uniformly. So a cache that holds a share of the contexts hits the same share of the returns, whatever the
// eviction policy. The share that a tier serves is the tier's capacity divided by the size of all contexts. Arrivals
// are a Poisson process of single requests, or of groups of `at_once` requests. The same configuration generates the
// same bytes on every machine.
//
// Memory: 8 bytes per context.
#pragma once

#include <cstdint>

#include "traces/random.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

struct ReturningConfig {
  std::uint64_t seed = 1;
  std::uint64_t contexts = 64;
  std::uint64_t requests = 256;      // number of requests, including the first visits; 0 = no limit
  Tokens prompt_tokens = 8192;       // per request, including the question
  Tokens question_tokens = 64;       // the unique end of every prompt; less than prompt_tokens
  Tokens output_tokens = 16;         // per request
  double requests_per_second = 1.0;  // 1e-6 .. 1e6
  std::uint64_t at_once = 1;         // requests that arrive together
};

class ReturningGenerator final : public TraceSource {
 public:
  // Only whole blocks of a context are shared.
  static constexpr Tokens kBlockTokens = 64;
  static constexpr std::uint64_t kMaxContexts = 10'000'000;

  // Errors: FigureError if a value of `config` is out of range.
  explicit ReturningGenerator(const ReturningConfig& config);

  // A request's session is the number of the context, and the turn is the number of the visit; both count from 1.
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
