// Look-ups in one further tier of vLLM's offloading: a step collects the chunks that its requests ask for, and the tier
// answers later. An answer stays for as long as a running request has asked for the chunk, so a chunk that comes or
// goes meanwhile changes nothing for it. Rules: vLLM 0.33.0, v1/kv_offload/tiering/async_lookup.py.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policy/offload/chunk.hpp"

namespace kvtwin {

class TierLookUps {
 public:
  struct Asked {
    ChunkKey key;
    RequestId request = kNoRequest;  // that asked first
    std::uint64_t number = 0;
  };
  struct Answer {
    Asked asked;
    bool found = false;
  };

  // Returns hit, miss, or retry: the answer is not there yet.
  Found look_up(const ChunkKey& key, RequestId request);
  // Ends a step. Returns what the tier is to look up.
  std::vector<Asked> end_step();
  // Takes effect at the first look-up of the next step, or at its end.
  void answer(std::span<const Answer> answers) { answers_.insert(answers_.end(), answers.begin(), answers.end()); }
  // The chunks could not be read: those that were found are missing from now on.
  void lose(std::span<const Chunk> chunks);
  // The request has finished.
  void finish(RequestId request);

 private:
  enum class Phase : std::uint8_t { collected, asked, answered };
  struct State {
    std::uint64_t number = 0;
    Phase phase = Phase::collected;
    bool found = false;
    std::set<RequestId> requests;
  };
  void apply_answers();

  std::unordered_map<ChunkKey, State, ChunkKeyHash> states_;  // looked up only, never iterated
  std::map<RequestId, std::vector<ChunkKey>> keys_of_;
  std::vector<Asked> collected_;
  std::vector<Answer> answers_;
  std::uint64_t next_ = 0;
  bool step_begins_ = false;
};

}  // namespace kvtwin
