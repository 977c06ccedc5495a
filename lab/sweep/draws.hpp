// How far a simulation's figures may be off because the machine's are not known exactly: the same work on machines
// drawn from what it may be (models/hardware_draws.hpp), and with one number at a time at an end of its interval.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/listener.hpp"

namespace kvtwin {

struct Draws {
  struct Figure {
    std::string name;                         // of a sweep's rows
    std::optional<double> value;              // as the machine is; nothing where no request completed
    std::optional<double> low, median, high;  // 95 % of the draws lie between; nothing if a draw has no figure
  };
  struct Cause {
    std::string number;
    double low = 1, high = 1;        // the ends of its interval, as multiples of its value
    double at_low = 0, at_high = 0;  // mean TTFT there, in s
  };
  std::size_t count = 0;
  double spread_percent = 0;
  std::size_t numbers = 0;  // that are uncertain
  std::vector<Figure> figures;
  std::vector<Cause> hangs_on;  // what the mean TTFT does, the most first; numbers that move nothing are left out
};

// InputError where nothing is uncertain. Each is a process, `jobs` at once (0 = as many as there are cores).
Draws simulate_draws(const Experiment& experiment, std::size_t draws, int jobs, const Listener& listener);

// Two lines for a person.
std::string draws_text(const Draws& draws);

}  // namespace kvtwin
