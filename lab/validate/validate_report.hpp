// The output of `kvtwin validate`: text, JSON and CSV.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lab/validate/probe.hpp"
#include "lab/validate/validate_cell.hpp"
#include "lab/validate/validate_errors.hpp"
#include "lab/validate/validate_events.hpp"
#include "models/json.hpp"

namespace kvtwin {

// Compares the decisions of the prediction with those of the measured runs.
struct DecisionCheck {
  bool known = false;       // both sides have their decisions
  std::size_t alike = 0;    // measured runs with the decisions of the prediction
  std::size_t kinds = 0;    // different digests among the measured runs
  std::uint64_t equal = 0;  // decisions before the first difference, for the first measured run that differs
  std::string at;           // JSON: {"ordinal", "measured", "predicted"}; empty without a difference
  std::string sentence;     // reason why the decisions cannot be compared one by one
};

struct ValidatedCell {
  ValidationCell cell;
  CellErrors errors;
  DecisionCheck decisions;
  std::optional<EventErrors> events;  // of an engine's KV events, if there are any
};

struct Ranking {
  std::optional<double> tau;  // over all ranked cells
  std::size_t cells = 0;
  std::vector<Choice> choices;
};
// Ranks the cells that have a mean TTFT on both sides; `cells` is their number.
Ranking ranking_of(const std::vector<ValidatedCell>& cells);

// Returns one sentence for each lane with a large error, largest first. A lane appears once, for the cell with its
// largest error.
std::vector<std::string> lane_sentences(const std::vector<ValidatedCell>& cells);

// The output besides the cells: notes about the reliability (validate_notes.hpp), and the machine if `validate` itself
// measured the runs.
struct ValidationTerms {
  // The probes of this machine, repeated before the runs were compared, by hardware file.
  struct Probed {
    std::string hardware;
    ProbeCheck check;
  };
  std::vector<std::string> notes;
  std::vector<Probed> probed;
  std::optional<MeasuredMachine> here;
  std::map<std::string, double> knees;  // limits of ladders (ladders.hpp), by figure
};

Json validation_json(const std::vector<ValidatedCell>& cells, const Ranking& ranking, const ValidationTerms& terms);
std::string validation_text(const std::vector<ValidatedCell>& cells, const Ranking& ranking,
                            const ValidationTerms& terms);
// Returns one row per figure: cell, figure, runs, measured, spread, predicted, error.
std::string validation_csv(const std::vector<ValidatedCell>& cells);

}  // namespace kvtwin
