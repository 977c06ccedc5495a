// The units and identifiers that every module shares. Plain values, no behaviour.
//
// Times are integer nanoseconds, sizes integer bytes, lengths integer tokens or pages; a floating point
// number never enters a decision. Identifiers are distinct enum types, so they cannot be swapped.
#pragma once

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>

#include "policy/base/tiers.hpp"

namespace kvtwin {

using TimeNs = std::int64_t;  // since the start of the run, or a duration
using Bytes = std::uint64_t;
using Tokens = std::uint64_t;
using Pages = std::uint64_t;

constexpr TimeNs kNsPerSecond = 1'000'000'000;

// A page's place in one tier's pool: 0 .. capacity - 1.
using SlotId = std::uint32_t;
constexpr SlotId kNoSlot = ~SlotId{0};

// Requests are numbered 0, 1, 2 ... in order of arrival ("ordinal").
using RequestId = std::uint64_t;
constexpr RequestId kNoRequest = ~RequestId{0};
// Prefetches for hints have no request, and numbers of their own from here on.
constexpr RequestId kFirstHintRequest = RequestId{1} << 63;
constexpr bool is_of_hint(RequestId request) { return request >= kFirstHintRequest && request != kNoRequest; }

// The substrate assigns the ids 1, 2, 3 ... over all calls of submit, call_at and reduce_min. No id is used twice.
enum class OperationId : std::uint64_t { none = 0 };

// The identity of a page: a hash over everything that decides its KV: its own tokens, every token before it, and the
// namespace. Two equal keys mean two equal prefixes: a key names a *chain* of pages.
struct PageKey {
  std::array<std::uint64_t, 4> words{};
  friend auto operator<=>(const PageKey&, const PageKey&) = default;
  // The default comparison of arrays is a call of memcmp.
  friend bool operator==(const PageKey& a, const PageKey& b) {
    std::uint64_t differing = 0;
    for (std::size_t i = 0; i < a.words.size(); ++i) differing |= a.words[i] ^ b.words[i];
    return differing == 0;
  }
};

struct PageKeyHash {  // a key is already uniform
  std::size_t operator()(const PageKey& key) const noexcept { return static_cast<std::size_t>(key.words[0]); }
};

}  // namespace kvtwin
