// Converts trace blocks to page keys, and a trace to the inputs of an engine.
//
// A trace names blocks of B tokens; kvtwin caches pages of P tokens, for any P >= 1. Page i has the tokens i * P .. i *
// P + P - 1, which are one or more segments of blocks. The page key is the block chain of policy/index/page_key.hpp
// over these segments. So two requests share a page exactly if they name the same blocks at the same places up to the
// end of the page. A partial last block has an id too: pages in a partial block match only requests that name the same
// id.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/index/page_key.hpp"
#include "policy/seam/substrate.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

enum class LastPage : std::uint8_t {
  full_only,  // a partial last page has no key, and is never cached
  partial,    // a partial last page has a key, as if its last block were full: for replays that count started blocks,
              // where the length of a block does not matter. Pages in a request's uncached_end have no key
};

class Pager {
 public:
  // Errors: TraceError if block_tokens or page_tokens is not in 1 .. 2^31.
  Pager(Tokens block_tokens, Tokens page_tokens, LastPage last);

  // Returns the keys of a request's pages, valid until the next call. `seed`: the seed of the namespace; null for the
  // default namespace. Requires: input >= 1, and `blocks` has ceil(input / block_tokens) ids (KV_CHECK).
  std::span<const PageKey> keys(std::span<const std::uint64_t> blocks, Tokens input, const PageKey* seed);

 private:
  void one_segment_per_page(std::span<const std::uint64_t> blocks, const PageKey* prior);
  void many_segments_per_page(std::span<const std::uint64_t> blocks, const PageKey* prior);

  Tokens block_tokens_, page_tokens_;
  LastPage last_;
  std::vector<PageKey> keys_;
  std::vector<BlockSegment> segments_;  // of the current page
};

// A positive decimal as an exact fraction.
struct TimeScale {
  std::uint64_t numerator = 1;
  std::uint64_t denominator = 1;
};
// Parses a decimal such as "2", "0.25" or "1.5", with at most 9 digits before and after the point. Errors: TraceError.
TimeScale parse_time_scale(std::string_view text);
// Returns the scale for the shortest decimal that parses to exactly `value`. Errors: as parse_time_scale().
TimeScale time_scale_of(double value);
// Returns floor(time * scale). Errors: TraceError if the result does not fit.
TimeNs scaled(TimeNs time, TimeScale scale);

struct TraceInputOptions {
  Tokens page_tokens = 64;
  TimeScale time_scale;     // 2: arrivals twice as far apart
  std::uint64_t limit = 0;  // number of requests; 0 = all. Hints after the last request are dropped
  LastPage last_page = LastPage::full_only;
  // A secret that is part of every page key: without the secret, the keys of a prompt cannot be computed. Empty: none.
  std::string salt;
};

// Returns the seed of a tenant's page keys; nothing for tenant 0 without a salt.
std::optional<PageKey> tenant_seed(std::string_view salt, std::uint64_t tenant);

// Converts requests to arrivals. If the trace knows the blocks of an answer and a page is one or more whole blocks, the
// arrival has the keys of the answer's pages too, so that a later prompt that contains the answer finds them. Every
// tenant except 0 has its own namespace. The seed of the namespace is namespace_seed(options.salt, tenant as a decimal
// number), without the parts that are empty or 0.
class ArrivalMaker {
 public:
  ArrivalMaker(Tokens block_tokens, const TraceInputOptions& options);

  // Fills input.what. The page keys are valid until the next call. The caller sets the time.
  void make(const TraceRequest& request, RequestId ordinal, Input& input);

 private:
  std::span<const PageKey> keys_of(const TraceRequest& request);
  const PageKey* seed_of(std::uint64_t tenant);

  Pager pager_;
  Tokens block_tokens_, page_tokens_;
  LastPage last_page_;
  bool knows_answers_;
  std::vector<std::uint64_t> blocks_;  // of a prompt and its answer; a member to reuse the memory
  std::string salt_;
  std::uint64_t seeded_tenant_ = 0;  // seed_ is the seed of this tenant
  std::optional<PageKey> seed_;
};

// Returns the requests of a trace as arrivals (ordinals from 0), and the hints, at the scaled times of the trace.
// Errors: those of the trace.
class TraceInputSource final : public InputSource {
 public:
  // Requires: `trace` outlives this object.
  TraceInputSource(TraceSource& trace, const TraceInputOptions& options);

  bool next(Input& input) override;

 private:
  TraceSource& trace_;
  TraceInputOptions options_;
  ArrivalMaker maker_;
  TraceRequest request_;
  std::uint64_t requests_ = 0;
};

}  // namespace kvtwin
