// Scripts for worlds with several seats: a log of the inputs of all seats, and runs in both simulated worlds.
#pragma once

#include <cstdio>
#include <functional>
#include <memory>
#include <vector>

#include "world_script.hpp"

namespace kvtwin::test {

// The action of a seat on each of its inputs.
using SeatAct = std::function<void(std::size_t seat, Substrate&, const Input&)>;

// One input of a seat. For an arrival, `bytes` is the seat's number + 1, to distinguish the logs.
struct SeatSeen {
  std::size_t seat = 0;
  Seen seen;
  friend bool operator==(const SeatSeen&, const SeatSeen&) = default;
  friend std::ostream& operator<<(std::ostream& out, const SeatSeen& s) { return out << s.seat << ": " << s.seen; }
};
using SeatLog = std::vector<SeatSeen>;

class SeatHandler final : public InputHandler {
 public:
  SeatHandler(World& world, std::size_t seat, const SeatAct& act, SeatLog& log)
      : substrate_(world.substrate_of(seat)), seat_(seat), act_(act), log_(log) {}
  void handle(const Input& input) override {
    log_.push_back({seat_, flat(input)});
    EXPECT_EQ(substrate_.now(), input.now);
    act_(seat_, substrate_, input);
  }

 private:
  Substrate& substrate_;
  std::size_t seat_;
  const SeatAct& act_;
  SeatLog& log_;
};

// Routes request n to engine n mod `engines`.
class InTurn final : public InputRoute {
 public:
  explicit InTurn(std::size_t engines) : engines_(engines) {}
  Way way_of(const Input& input) override {
    const auto* arrival = std::get_if<Arrival>(&input.what);
    return {.engine = arrival == nullptr ? kEveryEngine : arrival->request % engines_};
  }

 private:
  std::size_t engines_;
};

inline SeatLog run_seats(World& world, std::size_t engines, std::vector<Input> inputs, const SeatAct& act) {
  SeatLog log;
  std::vector<std::unique_ptr<SeatHandler>> seats;
  std::vector<InputHandler*> handlers;
  for (std::size_t seat = 0; seat < world.seats(); ++seat) {
    seats.push_back(std::make_unique<SeatHandler>(world, seat, act, log));
    handlers.push_back(seats.back().get());
  }
  ListedInputs source(std::move(inputs));
  InTurn route(engines);
  world.run_seats(source, handlers, &route);
  return log;
}

inline bool is_arrival(const Input& input) { return std::holds_alternative<Arrival>(input.what); }

class SeatsOf : public testing::TestWithParam<Which> {
 protected:
  // SimGrid allows one world per process. So a SimGrid test runs in a child process, which returns only whether it
  // passed.
  void on_world(const WorldConfig& config, const std::function<void(World&)>& body) {
    if (GetParam() == Which::event) return body(*make_event_world(config));
    std::fflush(nullptr);
    const pid_t child = fork();
    if (child == 0) {
      body(*make_simgrid_world(config));
      std::fflush(nullptr);
      _exit(HasFailure() ? 1 : 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(status, 0) << "in the SimGrid world";
  }
};

}  // namespace kvtwin::test
