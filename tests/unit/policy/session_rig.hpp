// Helpers of the tests of hints and of references of sessions: requests of sessions that run to their end.
#pragma once

#include <cstdint>
#include <vector>

#include "manual_world.hpp"

namespace kvtwin {

constexpr std::int64_t kMsToNs = 1'000'000;
constexpr Tokens kWhole = 16;  // of a document of four pages

inline std::vector<PageKey> four_pages(std::uint64_t first) {
  return document({first, first + 1, first + 2, first + 3});
}

struct SessionRig : EngineRig {
  explicit SessionRig(const EngineConfig& config) : EngineRig(config) {}
  // A request of this session for the document runs to its end, and computes one token more, so the document has a page
  // without a key while it runs. Returns the prompt tokens that it found on any tier. Requests are a millisecond apart.
  Tokens ask(std::uint64_t of_session, const std::vector<PageKey>& keys) {
    session = of_session;
    arrive(next_++, keys, keys.size() * 4 + 1, 1);
    drain();
    world.time += kMsToNs;
    return events.records.back().hit.sum();
  }
  Tokens ask(std::uint64_t of_session, std::uint64_t first) { return ask(of_session, four_pages(first)); }

 private:
  RequestId next_ = 0;
};

}  // namespace kvtwin
