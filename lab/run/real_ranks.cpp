#include "lab/run/real_ranks.hpp"

#include <algorithm>
#include <cstdint>

namespace kvtwin {

std::string RealRanks::name_of(std::size_t process) const {
  if (per_engine_ == 0) return "rank " + std::to_string(process);
  const std::string engine = "engine " + std::to_string(process / per_engine_);
  return per_engine_ == 1 ? engine : engine + ", rank " + std::to_string(process % per_engine_);
}

void RealRanks::run(const std::function<void()>& work) {
  Ending ours;
  try {
    work();
  } catch (const AlreadySaid&) {
    throw;
  } catch (...) {
    ours = ending_of(std::current_exception());
  }
  settle(ours);
}

void RealRanks::serve(const std::function<void()>& work) {
  meet();
  try {
    work();
  } catch (const AlreadySaid&) {
    throw;
  } catch (...) {
    const Ending ours = ending_of(std::current_exception());
    say(name_of(rank()) + ": " + ours.sentence);
    group_.leave(ours.code);
    throw AlreadySaid(ours.code);
  }
}

// Rank 0 prints before any rank ends, because mpirun ends all processes as soon as one has failed.
void RealRanks::settle(const Ending& ours) {
  std::int64_t worst = -ours.code;
  if (!group_.minimum(RankChannel::run, std::span(&worst, 1))) throw AlreadySaid(1);
  if (worst == 0) return;
  const std::vector<std::string> said = group_.gather(ours.sentence);
  const bool alike = std::ranges::all_of(said, [&](const std::string& one) { return one == said.front(); });
  for (std::size_t i = 0; i < said.size() && !(alike && i > 0); ++i) {
    if (!said[i].empty()) say(alike || i == 0 ? said[i] : name_of(i) + ": " + said[i]);
  }
  group_.barrier();
  throw AlreadySaid(static_cast<int>(-worst));
}

}  // namespace kvtwin
