// Fits the times of serving engines (serving.*) to a table of published measurements: for each engine of the fitted
// groups, on a sample of their entries. The rest of these entries and the other groups are held out, and only their
// errors are reported.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "lab/calibrate/simulated_fit.hpp"
#include "lab/listener.hpp"

namespace kvtwin {

struct PublishedFitTerms {
  std::string table;              // the form of validate --published
  std::vector<std::string> fit;   // names of fit_keys() that begin with serving.
  std::string group;              // beginning of the names of the fitted groups
  std::size_t rows = 60;          // fitted entries per engine, and held-out entries per group; 0 = all
  std::vector<std::string> sets;  // key=value, for each entry
  std::size_t max_simulations = 20000;
  int jobs = 0;
};

struct PublishedFit {
  std::string text;
  std::string json;
  struct Engine {
    std::string name;
    std::string toml;  // a section [serving] with the engine and its fitted times
  };
  std::vector<Engine> engines;
};

// Errors: InputError for a bad table, a key that is not serving.*, entries without serving.engine, or no entry of
// `group` with a mean TTFT or TPOT.
PublishedFit fit_published(const PublishedFitTerms& terms, const Listener& listener);

}  // namespace kvtwin
