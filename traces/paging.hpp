// From trace blocks to page keys, and from a trace to the inputs that a world feeds its engine.
//
// A trace names blocks of B tokens; kvtwin caches pages of P tokens, any P >= 1. Page i covers the tokens
// i * P .. i * P + P - 1, that is one or more stretches of blocks, and its key is the block chain of
// policy/index/page_key.hpp over those. So two requests share a page exactly when they name the same blocks, at the
// same places, up to its end. What the trace doesn't tell apart can't be shared: a partial last block has an id of
// its own, hence pages in it match only requests that name the same id.
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
  full_only,  // a partial last page has no key: it is never cached
  partial,    // it has one, as though its last block were full: for replays that count started blocks, where a
              // block is (its parent, its id) whatever its length
};

class Pager {
 public:
  // block_tokens and page_tokens: 1 .. 2^31 (TraceError).
  Pager(Tokens block_tokens, Tokens page_tokens, LastPage last);

  // Keys of a request's pages, living until the next call. `blocks` holds ceil(input / block_tokens) ids,
  // input >= 1. `seed`: the namespace's seed, null for the default one.
  std::span<const PageKey> keys(std::span<const std::uint64_t> blocks, Tokens input, const PageKey* seed);

 private:
  void slice(std::span<const std::uint64_t> blocks, const PageKey* prior);
  void stretch(std::span<const std::uint64_t> blocks, const PageKey* prior);

  Tokens block_tokens_, page_tokens_;
  LastPage last_;
  std::vector<PageKey> keys_;
  std::vector<BlockSegment> segments_;  // of the page at hand
};

// A positive decimal as an exact fraction.
struct TimeScale {
  std::uint64_t numerator = 1;
  std::uint64_t denominator = 1;
};
// "2", "0.25", "1.5": at most 9 digits before and after the point; TraceError otherwise.
TimeScale parse_time_scale(std::string_view text);
// The same from a number, by the shortest decimal that reads back as it.
TimeScale time_scale_of(double value);
// floor(time * scale); TraceError when it doesn't fit.
TimeNs scaled(TimeNs time, TimeScale scale);

struct TraceInputOptions {
  Tokens page_tokens = 64;
  TimeScale time_scale;     // 2: arrivals twice as far apart
  std::uint64_t limit = 0;  // requests; 0 = all. Hints after the last one are dropped
  LastPage last_page = LastPage::full_only;
  // A secret that goes into every page key, so that nobody without the secret can compute the keys of a prompt. Empty:
  // none.
  std::string salt;
};

// Requests as arrivals, hints as hints. Tenants other than 0 get a namespace each: its seed (namespace_seed) has the
// options' salt as extra_key and the tenant's decimal as salt, each absent where there is none.
class ArrivalMaker {
 public:
  ArrivalMaker(Tokens block_tokens, const TraceInputOptions& options);

  // Fills input.what, whose keys live until the next call; the time is the caller's.
  void make(const TraceRequest& request, RequestId ordinal, Input& input);

 private:
  const PageKey* seed_of(std::uint64_t tenant);
  std::optional<PageKey> make_seed(std::uint64_t tenant) const;

  Pager pager_;
  std::string salt_;
  std::uint64_t seeded_tenant_ = 0;  // whose seed is in seed_
  std::optional<PageKey> seed_;
};

// The trace as arrivals (ordinals from 0) and hints, at its times. Errors: the trace's.
class TraceInputSource final : public InputSource {
 public:
  // `trace` must outlive it.
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
