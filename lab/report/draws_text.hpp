// The spread of a simulation's figures because of the uncertainty of the hardware's figures (lab/sweep/draws.hpp).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace kvtwin {

struct Draws {
  struct Figure {
    std::string name;             // a column of sweep.csv
    std::optional<double> value;  // with the figures as given; nothing if no request completed
    std::optional<double> low, median,
        high;  // 95 % of the variants are between low and high; nothing if one has no figure
  };
  struct Cause {
    std::string number;              // key of the hardware file
    double low = 1, high = 1;        // ends of the interval / value
    double at_low = 0, at_high = 0;  // mean TTFT at each end, in s
  };
  std::size_t count = 0;
  double spread_percent = 0;
  std::size_t numbers = 0;  // hardware figures with an interval
  std::vector<Figure> figures;
  std::vector<Cause> hangs_on;  // figures that change the mean TTFT, largest effect first
};

// Returns two lines for the summary.
std::string draws_text(const Draws& draws);

}  // namespace kvtwin
