#include "traces/paging.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <string>

#include "policy/base/check.hpp"
#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

constexpr Tokens kMaxPageTokens = Tokens{1} << 31;

// Removes at most 9 digits from the front of `text`, appends them to the decimal number `value`, and returns how many.
std::size_t take_digits(std::string_view& text, std::uint64_t& value) {
  constexpr std::size_t kMaxDigits = 9;
  std::size_t n = 0;
  while (n < text.size() && n < kMaxDigits && text[n] >= '0' && text[n] <= '9') {
    value = value * 10 + static_cast<std::uint64_t>(text[n++] - '0');
  }
  text.remove_prefix(n);
  return n;
}

}  // namespace

Pager::Pager(Tokens block_tokens, Tokens page_tokens, LastPage last)
    : block_tokens_(block_tokens), page_tokens_(page_tokens), last_(last) {
  for (const Tokens tokens : {block_tokens, page_tokens}) {
    if (tokens < 1 || tokens > kMaxPageTokens) {
      throw TraceError("a page or block of " + std::to_string(tokens) + " tokens; it must be from 1 to 2147483648.");
    }
  }
}

std::span<const PageKey> Pager::keys(std::span<const std::uint64_t> blocks, Tokens input, const PageKey* seed) {
  KV_CHECK(input >= 1 && blocks.size() == (input - 1) / block_tokens_ + 1,
           "a request names every started block of its input");
  const Tokens pages = last_ == LastPage::partial ? (input - 1) / page_tokens_ + 1 : input / page_tokens_;
  keys_.resize(static_cast<std::size_t>(pages));
  block_tokens_ % page_tokens_ == 0 ? one_segment_per_page(blocks, seed) : many_segments_per_page(blocks, seed);
  return keys_;
}

// The usual case: P divides B, so every page is one segment of a block.
void Pager::one_segment_per_page(std::span<const std::uint64_t> blocks, const PageKey* prior) {
  const Tokens per_block = block_tokens_ / page_tokens_;
  std::size_t i = 0;
  for (const std::uint64_t block : blocks) {
    for (Tokens n = 0; n < per_block && i < keys_.size(); ++n, ++i) {
      const BlockSegment segment{block, static_cast<std::uint32_t>(n * page_tokens_),
                                 static_cast<std::uint32_t>(page_tokens_)};
      keys_[i] = block_page_key(prior, {&segment, 1});
      prior = &keys_[i];
    }
  }
}

// The general case: a page is the rest of a block, then whole blocks, then the head of a block.
void Pager::many_segments_per_page(std::span<const std::uint64_t> blocks, const PageKey* prior) {
  std::size_t block = 0;
  Tokens offset = 0;
  for (PageKey& key : keys_) {
    segments_.clear();
    Tokens wanted = page_tokens_;
    while (wanted > 0 && block < blocks.size()) {
      const Tokens length = std::min(wanted, block_tokens_ - offset);
      segments_.push_back({blocks[block], static_cast<std::uint32_t>(offset), static_cast<std::uint32_t>(length)});
      wanted -= length;
      offset += length;
      if (offset == block_tokens_) {
        ++block;
        offset = 0;
      }
    }
    key = block_page_key(prior, segments_);
    prior = &key;
  }
}

TimeScale parse_time_scale(std::string_view text) {
  std::string_view rest = text;
  TimeScale scale{0, 1};
  std::size_t digits = take_digits(rest, scale.numerator);
  if (digits > 0 && rest.starts_with('.')) {
    rest.remove_prefix(1);
    const std::size_t decimals = take_digits(rest, scale.numerator);
    for (std::size_t i = 0; i < decimals; ++i) scale.denominator *= 10;
    if (decimals == 0) digits = 0;
  }
  if (digits == 0 || !rest.empty() || scale.numerator == 0) {
    throw TraceError("time_scale \"" + std::string(text) +
                     "\" must be a decimal above 0 with at most 9 digits before and after the point, like 2 or 0.25.");
  }
  return scale;
}

TimeScale time_scale_of(double value) {
  std::array<char, 400> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed).ptr;
  return parse_time_scale({text.data(), static_cast<std::size_t>(end - text.data())});
}

TimeNs scaled(TimeNs time, TimeScale scale) {
  const UnsignedWide result = static_cast<UnsignedWide>(time) * scale.numerator / scale.denominator;
  if (result > static_cast<UnsignedWide>(std::numeric_limits<TimeNs>::max())) {
    throw TraceError("workload.time_scale puts an arrival after 292 years; a smaller one is right.");
  }
  return static_cast<TimeNs>(result);
}

std::optional<PageKey> tenant_seed(std::string_view salt, std::uint64_t tenant) {
  const std::string decimal = std::to_string(tenant);
  return namespace_seed(salt.empty() ? std::nullopt : std::optional(salt),
                        tenant == 0 ? std::nullopt : std::optional<std::string_view>(decimal));
}

ArrivalMaker::ArrivalMaker(Tokens block_tokens, const TraceInputOptions& options)
    : pager_(block_tokens, options.page_tokens, options.last_page),
      block_tokens_(block_tokens),
      page_tokens_(options.page_tokens),
      last_page_(options.last_page),
      knows_answers_(options.page_tokens % block_tokens == 0 && options.last_page == LastPage::full_only),
      salt_(options.salt),
      seed_(tenant_seed(options.salt, 0)) {}

void ArrivalMaker::make(const TraceRequest& request, RequestId ordinal, Input& input) {
  if (request.is_hint) {
    input.what = request.hint;
    return;
  }
  Arrival arrival;
  arrival.request = ordinal;
  arrival.prompt_tokens = request.input;
  arrival.output_tokens = std::max<Tokens>(request.output, 1);
  arrival.priority = request.priority;
  arrival.session = request.session;
  arrival.system_tokens = request.system;
  arrival.keys = keys_of(request);
  input.what = arrival;
}

std::span<const PageKey> ArrivalMaker::keys_of(const TraceRequest& request) {
  const PageKey* const seed = seed_of(request.tenant);
  if (!knows_answers_ || request.answer_blocks.empty()) {
    const std::span<const PageKey> keys = pager_.keys(request.blocks, request.input, seed);
    if (last_page_ == LastPage::full_only) return keys;
    return keys.first(static_cast<std::size_t>(request.held_blocks(page_tokens_)));
  }
  const auto whole = static_cast<std::ptrdiff_t>(request.input / block_tokens_);
  blocks_.assign(request.blocks.begin(), request.blocks.begin() + whole);
  blocks_.insert(blocks_.end(), request.answer_blocks.begin(), request.answer_blocks.end());
  return pager_.keys(blocks_, blocks_.size() * block_tokens_, seed);
}

const PageKey* ArrivalMaker::seed_of(std::uint64_t tenant) {
  if (tenant != seeded_tenant_) {
    seed_ = tenant_seed(salt_, tenant);
    seeded_tenant_ = tenant;
  }
  return seed_ ? &*seed_ : nullptr;
}

TraceInputSource::TraceInputSource(TraceSource& trace, const TraceInputOptions& options)
    : trace_(trace), options_(options), maker_(trace.block_tokens(), options) {}

bool TraceInputSource::next(Input& input) {
  if (options_.limit > 0 && requests_ == options_.limit) return false;
  if (!trace_.next(request_)) return false;
  input.now = scaled(request_.arrival, options_.time_scale);
  maker_.make(request_, requests_, input);
  requests_ += request_.is_hint ? 0 : 1;
  return true;
}

}  // namespace kvtwin
