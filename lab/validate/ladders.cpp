#include "lab/validate/ladders.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "lab/units.hpp"
#include "models/names.hpp"

namespace kvtwin {
namespace {

// The columns of a table: of each row, the first figure that a stage has.
constexpr std::string_view kTableColumns[][5] = {
    {"ttft_mean_s", "ttft_p50_s", "ttft_p90_s", "ttft_p95_s", "ttft_p99_s"},
    {"tpot_mean_s", "tpot_p50_s", "tpot_p90_s", "tpot_p99_s"},
    {"output_tokens_per_second", "requests_per_second", "prompt_tokens_per_second"}};

std::optional<double> figure_of(const ValidatedCell& stage, std::string_view name, double ComparedFigure::*side) {
  const ComparedFigure* const figure = stage.errors.figure(name);
  return figure == nullptr ? std::nullopt : std::optional(figure->*side);
}

// Returns nothing if a stage lacks the figure.
std::optional<Knee> knee_of(const std::vector<const ValidatedCell*>& stages, const std::string& name, double limit) {
  Knee knee{figure_kind(name), limit, {}, {}, stages.size()};
  for (std::size_t i = 0; i < stages.size(); ++i) {
    const auto measured = figure_of(*stages[i], name, &ComparedFigure::measured);
    const auto predicted = figure_of(*stages[i], name, &ComparedFigure::predicted);
    if (!measured || !predicted) return std::nullopt;
    if (!knee.measured && *measured > limit) knee.measured = i + 1;
    if (!knee.predicted && *predicted > limit) knee.predicted = i + 1;
  }
  return knee;
}

void add_knees(const std::map<std::string, double>& limits, Ladder& ladder) {
  std::map<std::string, double> all = ladder.stages.front()->cell.knees;
  all.insert(limits.begin(), limits.end());
  for (const auto& [name, limit] : all) {
    if (std::optional<Knee> knee = knee_of(ladder.stages, name, limit)) {
      ladder.knees.push_back(*knee);
    } else {
      ladder.without.push_back(name);
    }
  }
}

std::string knee_place(const Ladder& ladder, const std::optional<std::size_t>& stage) {
  if (!stage) return "in no stage";
  const std::string& load = ladder.stages[*stage - 1]->cell.predicted.load;
  return "first in stage " + std::to_string(*stage) + (load.empty() ? "" : " (" + load + ")");
}

std::string knee_text(const Ladder& ladder, const Knee& knee) {
  std::string text = "  knee   " + knee.kind->name + " over " + plain_number(knee.limit) + ": measured " +
                     knee_place(ladder, knee.measured) + ", predicted " + knee_place(ladder, knee.predicted);
  const double error = knee.error();
  if (error == 0) return text + ": equal\n";
  return text + formatted(": %+.0f %s\n", error, std::abs(error) == 1 ? "stage" : "stages");
}

std::string ladder_table(const Ladder& ladder) {
  std::vector<const FigureKind*> columns;
  for (const auto& names : kTableColumns) {
    const auto* const at = std::ranges::find_if(names, [&](std::string_view name) {
      return !name.empty() &&
             std::ranges::any_of(ladder.stages, [&](const auto* stage) { return stage->errors.figure(name); });
    });
    if (at != std::end(names)) columns.push_back(figure_kind(*at));
  }
  std::string text = "ladder     " + ladder.name + ": measured, predicted and error of each stage\n";
  text += formatted("  %-5s %-14s", "stage", "load");
  for (const FigureKind* const kind : columns) text += formatted(" %30s", kind->label.c_str());
  text += "\n";
  for (const ValidatedCell* const stage : ladder.stages) {
    text += formatted("  %-5zu %-14s", stage->cell.stage, stage->cell.predicted.load.c_str());
    for (const FigureKind* const kind : columns) {
      const ComparedFigure* const figure = stage->errors.figure(kind->name);
      if (figure == nullptr) {
        text += formatted(" %30s", "-");
        continue;
      }
      const int decimals = figure->measured < 10 ? 4 : 1;
      text += formatted(" %10.*f %10.*f", decimals, figure->measured, decimals, figure->predicted);
      text += figure->error ? formatted(" %+7.1f%%", *figure->error * 100) : formatted(" %8s", "-");
    }
    text += "\n";
  }
  for (const Knee& knee : ladder.knees) text += knee_text(ladder, knee);
  for (const std::string& name : ladder.without) {
    text += "  knee   " + name + ": a stage lacks this figure on one side\n";
  }
  return text;
}

Json stage_or_null(const std::optional<std::size_t>& stage) { return stage ? Json(*stage) : Json(); }

}  // namespace

std::string why_no_knee(std::string_view name) {
  const FigureKind* const kind = figure_kind(name);
  std::vector<std::string> names;
  for (const FigureKind& one : figure_kinds()) {
    if (!one.more_is_better()) names.emplace_back(one.name);
  }
  if (kind == nullptr) return unknown_name("figure", name, names);
  if (!kind->more_is_better()) return "";
  return std::string(name) + " has no knee, because more of it is better; give a figure like ttft_p90_s";
}

std::pair<std::string, double> knee_limit_from(const std::string& text) {
  const std::size_t equals = text.find('=');
  if (equals == std::string::npos) throw InputError("--knee " + text + ": must be FIGURE=LIMIT, e.g. ttft_p90_s=2");
  std::string name = text.substr(0, equals);
  const std::string value = text.substr(equals + 1), where = "--knee " + text;
  if (const std::string why = why_no_knee(name); !why.empty()) throw InputError("--knee: " + why);
  if (!begins_as_number(value)) throw InputError(where + ": the limit must be a number, e.g. ttft_p90_s=2");
  const double limit = number_in(unit_named(name), value, where);
  if (!(limit >= 0)) throw InputError(where + ": the limit must be at least 0");
  return {std::move(name), limit};
}

double Knee::error() const {
  return static_cast<double>(predicted.value_or(stages + 1)) - static_cast<double>(measured.value_or(stages + 1));
}

std::vector<Ladder> ladders_of(const std::vector<ValidatedCell>& cells, const std::map<std::string, double>& limits) {
  std::vector<Ladder> ladders;
  for (const ValidatedCell& cell : cells) {
    if (cell.cell.stage == 0) continue;
    if (cell.cell.stage == 1) ladders.push_back({cell.cell.ladder, {}, {}, {}});
    ladders.back().stages.push_back(&cell);
  }
  std::erase_if(ladders, [](const Ladder& ladder) { return ladder.stages.size() < 2; });
  for (Ladder& ladder : ladders) add_knees(limits, ladder);
  return ladders;
}

std::vector<KneeScore> knee_scores(const std::vector<Ladder>& ladders) {
  std::map<std::pair<std::string, double>, KneeScore> scores;
  for (const Ladder& ladder : ladders) {
    for (const Knee& knee : ladder.knees) {
      KneeScore& score = scores[{knee.kind->name, knee.limit}];
      score.kind = knee.kind;
      score.limit = knee.limit;
      ++score.ladders;
      score.equal += knee.error() == 0 ? 1 : 0;
      score.mean_abs += std::abs(knee.error());
      score.bias += knee.error();
    }
  }
  std::vector<KneeScore> list;
  for (auto& [key, score] : scores) {
    score.mean_abs /= static_cast<double>(score.ladders);
    score.bias /= static_cast<double>(score.ladders);
    for (const Ladder& ladder : ladders) score.left_out += std::ranges::count(ladder.without, key.first) != 0 ? 1 : 0;
    list.push_back(score);
  }
  return list;
}

std::string ladders_text(const std::vector<Ladder>& ladders) {
  std::string text;
  for (const Ladder& ladder : ladders) text += ladder_table(ladder) + "\n";
  return text;
}

std::string knee_scores_text(const std::vector<KneeScore>& scores) {
  std::string text;
  for (const KneeScore& score : scores) {
    text += "knee       " + score.kind->name + " over " + plain_number(score.limit) +
            formatted(": %zu of %zu equal, mean error %.2f stages, bias %+.2f", score.equal, score.ladders,
                      score.mean_abs, score.bias);
    if (score.left_out != 0) text += formatted("; %zu left out, because a stage lacks the figure", score.left_out);
    text += "\n";
  }
  return text;
}

Json ladders_json(const std::vector<Ladder>& ladders) {
  Json list = Json::array();
  for (const Ladder& ladder : ladders) {
    Json json{{"ladder", ladder.name}, {"stages", Json::array()}, {"knees", Json::array()}};
    for (const ValidatedCell* const stage : ladder.stages) {
      json["stages"].push_back({{"cell", stage->cell.name}, {"load", stage->cell.predicted.load}});
    }
    for (const Knee& knee : ladder.knees) {
      json["knees"].push_back({{"figure", knee.kind->name},
                               {"limit", knee.limit},
                               {"measured_stage", stage_or_null(knee.measured)},
                               {"predicted_stage", stage_or_null(knee.predicted)},
                               {"error_stages", knee.error()}});
    }
    json["knees_without_figure"] = ladder.without;
    list.push_back(std::move(json));
  }
  return list;
}

Json knee_scores_json(const std::vector<KneeScore>& scores) {
  Json list = Json::array();
  for (const KneeScore& score : scores) {
    list.push_back({{"figure", score.kind->name},
                    {"limit", score.limit},
                    {"ladders", score.ladders},
                    {"equal", score.equal},
                    {"left_out", score.left_out},
                    {"mean_abs_error_stages", score.mean_abs},
                    {"bias_stages", score.bias}});
  }
  return list;
}

}  // namespace kvtwin
