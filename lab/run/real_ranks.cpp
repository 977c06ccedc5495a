#include "lab/run/real_ranks.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <span>
#include <utility>

#include "impl/runtime/launcher.hpp"

namespace kvtwin {
RealRanks::RealRanks(RankGroup& group, std::function<void(const std::string&)> say)
    : group_(group), say_(std::move(say)), dead_(group.size()), expected_(group.size()) {
  group_.watch([this](std::size_t rank) { died(rank); });
}

RealRanks::~RealRanks() { group_.watch({}); }

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
  try {
    settle(ours);
  } catch (const AlreadySaid&) {
    enter(Phase::over);
    throw;
  }
  enter(Phase::over);
}

void RealRanks::serve(const std::function<void()>& work) {
  meet();
  try {
    work();
    enter(Phase::reports);
  } catch (const AlreadySaid&) {
    throw;
  } catch (...) {
    const Ending ours = ending_of(std::current_exception());
    say(name_of(rank()) + ": " + ours.sentence);
    // Others may go on without an engine, but not without the process that sends the requests.
    leads() || per_engine_ == 0 ? group_.end_run(ours.code) : group_.leave(ours.code);
    throw AlreadySaid(ours.code);
  }
}

void RealRanks::on_death(std::function<AfterDeath(std::size_t)> died) {
  const std::lock_guard lock(mutex_);
  on_death_ = std::move(died);
}

void RealRanks::go_on_without(const std::vector<bool>& dead) {
  {
    const std::lock_guard lock(mutex_);
    on_death_ = nullptr;
    expected_ = dead;
    for (std::size_t rank = 0; rank < dead.size(); ++rank) {
      if (dead_[rank] && !expected_[rank]) end_run_without(rank);
    }
  }
  group_.go_on_without(dead);
}

void RealRanks::enter(Phase phase) {
  const std::lock_guard lock(mutex_);
  phase_ = phase;
}

void RealRanks::died(std::size_t rank) {
  const std::lock_guard lock(mutex_);
  dead_[rank] = true;
  if (phase_ == Phase::over || expected_[rank]) return;
  switch (on_death_ ? on_death_(rank) : AfterDeath::ends_run) {
    case AfterDeath::goes_on: return;
    case AfterDeath::ends_itself:
      say(name_of(group_.rank()) + " ends, because " + name_of(rank) + " has died");
      return group_.end_self();
    case AfterDeath::ends_run: end_run_without(rank);
  }
}

void RealRanks::end_run_without(std::size_t rank) {
  wait_for_speakers(std::count(dead_.begin(), dead_.begin() + static_cast<std::ptrdiff_t>(group_.rank()), false));
  say(name_of(rank) + " has died" +
      (phase_ == Phase::reports ? " after its last request, before its part of the report"
                                : ", and the run cannot go on without it"));
  group_.end_run(1);
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
