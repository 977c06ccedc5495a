// What `kvtwin validate` found, for people, for machines and as a table.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lab/validate/validate_cell.hpp"
#include "lab/validate/validate_errors.hpp"

namespace kvtwin {

// Whether the prediction decided as the measured runs did.
struct DecisionCheck {
  bool known = false;         // both sides tell their decisions
  std::size_t alike = 0;      // measured runs that decided as the prediction did
  std::size_t kinds = 0;      // different digests among the measured
  std::uint64_t equal = 0;    // up to the first difference to the first measured run, where there is one
  nlohmann::ordered_json at;  // {"ordinal", "measured", "predicted"}; null if none differs
  std::string sentence;       // where they couldn't be compared one by one, why
};

struct ValidatedCell {
  ValidationCell cell;
  CellErrors errors;
  DecisionCheck decisions;
};

struct Ranking {
  std::optional<double> tau;  // over all cells
  std::vector<Choice> choices;
};
// Of cells that tell a mean TTFT on both sides.
Ranking ranking_of(const std::vector<ValidatedCell>& cells);

// The lanes that are off, one sentence each, the furthest first; over all cells, each lane once, of the cell in which
// it is furthest off.
std::vector<std::string> lane_sentences(const std::vector<ValidatedCell>& cells);

// What is said besides the cells: how far they can be trusted (validate_notes.hpp), and by which machine they were
// measured just now.
struct ValidationTerms {
  std::vector<std::string> notes;
  std::optional<MeasuredMachine> here;
};

nlohmann::ordered_json validation_json(const std::vector<ValidatedCell>& cells, const Ranking& ranking,
                                       const ValidationTerms& terms);
std::string validation_text(const std::vector<ValidatedCell>& cells, const Ranking& ranking,
                            const ValidationTerms& terms);
// A row a figure: cell, figure, runs, measured, spread, predicted, error.
std::string validation_csv(const std::vector<ValidatedCell>& cells);

}  // namespace kvtwin
