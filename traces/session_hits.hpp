// Estimates the hit ratio of an LRU cache on the traffic of SessionsGenerator, in closed form.
//
// Che's approximation: a cache of C tokens keeps a prompt for a time T after its last use. T is the time in which other
// requests use the rest of the cache.
//   rate = requests/s, x = mean prompt without the shared prefix S, p = share of follow-ups, G = gap to the follow-up.
//   Each request leaves x tokens. They stay until the follow-up uses them again, or for T. The tail of a prompt leaves
//   first, so a token at depth d of its prompt, after S, stays while d tokens of the prompt and those of others fit:
//       C - S - d = rate * x * E[min(G, T)],  E[min(G, T)] = (1 - p) T + p (service + E[min(think, T - service)])
//   A follow-up hits the tokens of the prompt before it with G <= T(d). Geometric turns have no memory, so that prompt
//   has mean x and the distribution of any prompt X:
//       hit tokens per request = S + p * E[sum over d < X of P(G <= T(d))]
//   X is taken to be log-normal, with the mean and the variance of a sum of geometrically many turns.
// If C is below S, only the first C tokens of the prefix hit. Whole pages are shared, so half a page of each hit is
// lost on average. With `answers_cached`, x and X also hold the answer.
//
// Source: Che, Tung, Wang, "Hierarchical Web caching systems", IEEE JSAC 20(7), 2002. Assumes the stationary state, and
// many prompts in the cache: the load of a moment differs from the mean, the less the more prompts there are.
#pragma once

#include "traces/sessions.hpp"

namespace kvtwin {

struct SessionHits {
  double hit_ratio = 0;    // hit tokens / prompt tokens, 0 .. 1
  double residence_s = 0;  // T(0); infinite for a cache that holds everything
};

// Requires: `config` passes check(); `capacity_tokens` >= 0, may be infinite; page_tokens >= 1.
// The result is monotone in `capacity_tokens`, and bit-identical on every machine. Cost: about a millisecond.
SessionHits estimate_session_hits(const SessionsConfig& config, double capacity_tokens, Tokens page_tokens,
                                  bool answers_cached);

}  // namespace kvtwin
