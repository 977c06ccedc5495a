#include "policy/offload/tier_look_ups.hpp"

namespace kvtwin {

Found TierLookUps::look_up(const ChunkKey& key, RequestId request) {
  if (std::exchange(step_begins_, false)) apply_answers();
  const auto [at, is_new] = states_.try_emplace(key);
  State& state = at->second;
  if (is_new) {
    state.number = next_++;
    collected_.push_back({key, request, state.number});
  }
  if (state.requests.insert(request).second) keys_of_[request].push_back(key);
  if (state.phase != Phase::answered) return Found::retry;
  return state.found ? Found::hit : Found::miss;
}

std::vector<TierLookUps::Asked> TierLookUps::end_step() {
  apply_answers();
  step_begins_ = true;
  std::vector<Asked> asked;
  for (const Asked& collected : std::exchange(collected_, {})) {
    const auto at = states_.find(collected.key);
    if (at == states_.end() || at->second.number != collected.number) continue;
    at->second.phase = Phase::asked;
    asked.push_back(collected);
  }
  return asked;
}

void TierLookUps::apply_answers() {
  for (const Answer& answer : std::exchange(answers_, {})) {
    const auto at = states_.find(answer.asked.key);
    if (at == states_.end() || at->second.number != answer.asked.number) continue;
    if (at->second.requests.empty()) {
      states_.erase(at);
      continue;
    }
    at->second.phase = Phase::answered;
    at->second.found = answer.found;
  }
}

void TierLookUps::lose(std::span<const Chunk> chunks) {
  for (const Chunk& chunk : chunks) {
    const auto at = states_.find(chunk.key);
    if (at != states_.end() && at->second.phase == Phase::answered) at->second.found = false;
  }
}

void TierLookUps::finish(RequestId request) {
  const auto keys = keys_of_.find(request);
  if (keys == keys_of_.end()) return;
  for (const ChunkKey& key : keys->second) {
    const auto at = states_.find(key);
    at->second.requests.erase(request);
    if (at->second.requests.empty() && at->second.phase != Phase::asked) states_.erase(at);
  }
  keys_of_.erase(keys);
}

}  // namespace kvtwin
