#include "lab/validate/validate_report.hpp"

#include "lab/csv_cell.hpp"
#include "lab/or_null.hpp"
#include "lab/validate/ladders.hpp"
#include "lab/validate/scoreboard.hpp"
#include "lab/validate/validate_requests.hpp"
#include "models/json.hpp"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <utility>

namespace kvtwin {
namespace {

std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));
std::string formatted(const char* format, ...) {
  char text[400];
  std::va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

double off_by(const LaneError& lane) { return std::max(lane.ratio, 1 / lane.ratio); }

std::string lane_sentence(const LaneError& lane, const std::string& cell) {
  return formatted("%s: predicted %.2f of the measured time a %s", lane.lane.c_str(), lane.ratio, lane.unit) + " (" +
         cell + ")";
}

// ---- text --------------------------------------------------------------------------------------------

std::string figure_line(const ComparedFigure& figure) {
  const double scale = figure.kind->share ? 100 : 1;
  const int decimals = figure.kind->share ? 2 : figure.measured < 10 ? 4 : 1;
  const char* unit = figure.kind->share ? "points" : "%";
  std::string line = formatted("  %-22s %12.*f", figure.kind->label.c_str(), decimals, figure.measured * scale);
  line += figure.spread ? formatted(" %8.2f %-6s", *figure.spread * 100, unit) : formatted(" %8s %-6s", "-", "");
  line += formatted(" %12.*f", decimals, figure.predicted * scale);
  line += figure.error ? formatted(" %+9.2f %s", *figure.error * 100, unit) : formatted(" %9s", "-");
  if (figure.interval) {
    line += formatted("  80 %%: %.3g to %.3g%s", figure.interval->first, figure.interval->second,
                      figure.inside() ? "" : ", missed");
  }
  return line + "\n";
}

std::string decision_words(const Json& decision) {
  if (decision.is_null()) return "has ended";
  std::string words = decision.at("kind").get<std::string>();
  if (!decision.at("request").is_null()) words += " request " + decision.at("request").dump() + ",";
  words += " " + decision.at("pages").dump() + " pages";
  const std::string reason = decision.at("reason");
  if (!reason.empty() && reason != "none") words += ", " + reason;
  return words + formatted(", at %.6f s", decision.at("at_s").get<double>());
}

std::string decisions_text(const ValidatedCell& validated) {
  const DecisionCheck& check = validated.decisions;
  if (!check.known) return "";
  const std::size_t runs = validated.cell.measured.size();
  std::string text = "  decisions              ";
  if (check.alike == runs) return text + "equal in all " + std::to_string(runs) + " runs\n";
  text += "equal in " + std::to_string(check.alike) + " of " + std::to_string(runs) + " runs, which decided in " +
          std::to_string(check.kinds) + (check.kinds == 1 ? " way\n" : " ways\n");
  if (!check.sentence.empty()) return text + "                         " + check.sentence + "\n";
  if (check.at.empty()) return text;
  const Json at = Json::parse(check.at);
  text +=
      "    first difference     after " + std::to_string(check.equal) + " equal ones, to the first run that differs\n";
  text += "    measured             " + decision_words(at.at("measured")) + "\n";
  return text + "    predicted            " + decision_words(at.at("predicted")) + "\n";
}

std::string requests_text(const RequestErrors& requests) {
  const Quantiles& q = requests.relative;
  std::string text = formatted("  TTFT, each request     of %llu", static_cast<unsigned long long>(requests.joined));
  if (requests.joined != 0) {
    text += formatted(": error p50 %.2f %%  p90 %.2f  p99 %.2f  max %.2f", q.p50 * 100, q.p90 * 100, q.p99 * 100,
                      q.max * 100);
  }
  if (requests.spreads) {
    text += formatted("; spread p50 %.2f %%  p90 %.2f  p99 %.2f", requests.spreads->p50 * 100,
                      requests.spreads->p90 * 100, requests.spreads->p99 * 100);
  }
  text += "\n";
  if (requests.one_side_only != 0) {
    text += formatted("                         %llu left out: completed on one side only\n",
                      static_cast<unsigned long long>(requests.one_side_only));
  }
  if (requests.other_prompts != 0) {
    text += formatted("                         %llu left out: their prompts are of another length on one side\n",
                      static_cast<unsigned long long>(requests.other_prompts));
  }
  return text;
}

std::string cell_text(const ValidatedCell& validated) {
  const ValidationCell& cell = validated.cell;
  const std::size_t runs = cell.measured.size();
  std::string text = cell.name + " (" + std::to_string(runs) + (runs == 1 ? " run" : " runs") + " measured" +
                     (cell.source.empty() ? "" : "; " + cell.source) + ")\n";
  text += formatted("  %-22s %12s %-15s %12s %s\n", "", "measured", "       spread", "predicted", "    error");
  for (const ComparedFigure& figure : validated.errors.figures) {
    if (figure.kind->of_prompt() && figure.measured == 0 && figure.predicted == 0) continue;  // an absent tier
    text += figure_line(figure);
  }
  if (!cell.predicted.intervals_of.empty() &&
      std::ranges::any_of(validated.errors.figures,
                          [](const ComparedFigure& one) { return one.interval.has_value(); })) {
    const Json of = Json::parse(cell.predicted.intervals_of);
    text += "  80 % by                " + of.at("runs").get<std::string>();
    for (const Json& sentence : of.at("widened")) text += "; " + sentence.get<std::string>();
    text += "\n";
  }
  if (validated.errors.requests) text += requests_text(*validated.errors.requests);
  if (const auto hits = hit_errors(cell)) text += hit_errors_text(*hits);
  if (validated.events) text += event_errors_text(*validated.events);
  text += decisions_text(validated);
  for (const LaneError& lane : validated.errors.lanes) {
    const bool bytes = std::string_view(lane.unit) == "byte";
    text += formatted(
        "  lane %-17s %12.6g %8s %-6s %12.6g %+9.2f %%%s\n", lane.lane.c_str(), lane.measured_s * (bytes ? 1e9 : 1e3),
        lane.spread ? formatted("%.2f", *lane.spread * 100).c_str() : "-", lane.spread ? "%" : "",
        lane.predicted_s * (bytes ? 1e9 : 1e3), (lane.ratio - 1) * 100, bytes ? "  (ns a byte)" : "  (ms a request)");
  }
  for (const std::string& words : validated.errors.one_side_only) text += "  lane " + words + "\n";
  return text;
}

std::string rejected_and_failed(const CellErrors& errors, double ComparedFigure::*side) {
  const ComparedFigure *rejected = errors.figure("rejected_share"), *failed = errors.figure("failed_share");
  if (rejected == nullptr || failed == nullptr) return "-";
  return formatted("%.2f", 100 * (rejected->*side + failed->*side));
}

// One line per configuration: mean TTFT, hits, and the share of the requests that these figures leave out.
std::string overview_text(const std::vector<ValidatedCell>& cells) {
  std::size_t width = 13;
  for (const ValidatedCell& it : cells) width = std::max(width, it.cell.name.size());
  std::string text = formatted("%-*s %10s %8s %10s %9s %13s %10s %10s\n", static_cast<int>(width), "configuration",
                               "mean TTFT", "spread", "predicted", "error", "hits, points", "unserved %", "predicted");
  for (const ValidatedCell& it : cells) {
    const ComparedFigure* const ttft = it.errors.figure("ttft_mean_s");
    const ComparedFigure* const hits = it.errors.figure("hit_ratio");
    text += it.cell.name + std::string(width - it.cell.name.size(), ' ');
    if (ttft != nullptr && ttft->error) {
      text += formatted(" %10.4f %8s %10.4f %+8.1f%%", ttft->measured,
                        ttft->spread ? formatted("%.1f%%", *ttft->spread * 100).c_str() : "-", ttft->predicted,
                        *ttft->error * 100);
    } else {
      text += formatted(" %10s %8s %10s %9s", "-", "-", "-", "-");
    }
    text += formatted(" %13s", hits != nullptr && hits->error ? formatted("%+.2f", *hits->error * 100).c_str() : "-");
    text += formatted(" %10s %10s\n", rejected_and_failed(it.errors, &ComparedFigure::measured).c_str(),
                      rejected_and_failed(it.errors, &ComparedFigure::predicted).c_str());
  }
  return text;
}

// Returns the value in %, e.g. "0.25", with more digits if it would look like 0.
std::string regret_text(double regret) {
  std::string text = formatted("%.2f", regret * 100);
  for (int decimals = 3; regret != 0 && std::strtod(text.c_str(), nullptr) == 0 && decimals < 20; ++decimals) {
    text = formatted("%.*f", decimals, regret * 100);
  }
  return text;
}

std::string choice_sentence(const std::vector<ValidatedCell>& cells, const Choice& choice) {
  std::string text = "choice     of " + std::to_string(choice.cells.size()) + " for the same work: ";
  if (!choice.chosen) {
    return text + (choice.has_repeats ? "none, the repeats don't tell their mean TTFTs apart"
                                      : "none, all have the same mean TTFT");
  }
  text += cells[*choice.chosen].cell.name;
  if (!choice.regret) {
    text += ", as good as the best: repeats don't tell " + std::to_string(choice.best.size()) + " apart";
  } else {
    text += ", " + regret_text(*choice.regret) + " % above the best";
    if (*choice.chosen != choice.best.front()) text += " (" + cells[choice.best.front()].cell.name + ")";
  }
  if (choice.tau) text += formatted("; Kendall's tau %.3f", *choice.tau);
  return text + (choice.has_repeats ? "" : "; a run each, so a difference may be noise");
}

// ---- JSON --------------------------------------------------------------------------------------------

Json quantiles_json(const Quantiles& q) { return {{"p50", q.p50}, {"p90", q.p90}, {"p99", q.p99}, {"max", q.max}}; }

Json decisions_json(const ValidatedCell& validated) {
  const DecisionCheck& check = validated.decisions;
  if (!check.known) return {};
  return {{"equal", check.alike == validated.cell.measured.size()},
          {"alike", check.alike},
          {"runs", validated.cell.measured.size()},
          {"different_among_runs", check.kinds},
          {"equal_decisions", check.at.empty() ? Json() : Json(check.equal)},
          {"first_difference", check.at.empty() ? Json() : Json::parse(check.at)},
          {"sentence", check.sentence}};
}

Json lane_json(const LaneError& lane) {
  return {{"lane", lane.lane},
          {"unit", lane.unit},
          {"measured_seconds_a_unit", lane.measured_s},
          {"predicted_seconds_a_unit", lane.predicted_s},
          {"ratio", lane.ratio},
          {"spread", or_null(lane.spread)},
          {"off", lane.off},
          {"measured_bytes_an_operation", lane.measured_bytes_an_operation},
          {"predicted_bytes_an_operation", lane.predicted_bytes_an_operation}};
}

Json cell_json(const ValidatedCell& validated) {
  const ValidationCell& cell = validated.cell;
  Json json{{"cell", cell.name}, {"source", cell.source}, {"runs", cell.measured.size()}};
  json["group"] = cell.group.empty() ? Json() : Json(cell.group);
  json["stage"] = cell.stage == 0 ? Json() : Json(cell.stage);
  json["load"] = cell.predicted.load.empty() ? Json() : Json(cell.predicted.load);
  json["figures"] = Json::array();
  for (const ComparedFigure& figure : validated.errors.figures) {
    json["figures"].push_back({{"figure", figure.kind->name},
                               {"measured", figure.measured},
                               {"spread", or_null(figure.spread)},
                               {"predicted", figure.predicted},
                               {"error", or_null(figure.error)}});
    if (figure.interval) json["figures"].back()["interval"] = {figure.interval->first, figure.interval->second};
  }
  const std::string& intervals_of = validated.cell.predicted.intervals_of;
  if (!intervals_of.empty()) json["intervals_of"] = Json::parse(intervals_of);
  json["not_compared"] = {{"figures", validated.errors.not_compared}, {"reason", validated.errors.why_not}};
  json["other_load"] = validated.errors.other_load;
  json["requests"] = nullptr;
  if (const auto& requests = validated.errors.requests) {
    json["requests"] = {{"joined", requests->joined},
                        {"other_prompts", requests->other_prompts},
                        {"one_side_only", requests->one_side_only},
                        {"error_seconds", requests->joined == 0 ? Json() : quantiles_json(requests->seconds)},
                        {"error", requests->joined == 0 ? Json() : quantiles_json(requests->relative)},
                        {"spread", requests->spreads ? quantiles_json(*requests->spreads) : Json()}};
  }
  const std::optional<HitErrors> hits = hit_errors(validated.cell);
  json["request_hits"] = hits ? hit_errors_json(*hits) : Json();
  json["events"] = validated.events ? event_errors_json(*validated.events) : Json();
  json["decisions"] = decisions_json(validated);
  json["lanes"] = Json::array();
  for (const LaneError& lane : validated.errors.lanes) json["lanes"].push_back(lane_json(lane));
  json["lanes_of_one_side"] = validated.errors.one_side_only;
  return json;
}

}  // namespace

Ranking ranking_of(const std::vector<ValidatedCell>& cells) {
  std::vector<Ranked> ranked;
  std::vector<std::pair<double, double>> pairs;
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const CellErrors& errors = cells[i].errors;
    const ComparedFigure* const ttft = errors.figure("ttft_mean_s");
    if (ttft == nullptr) continue;
    Ranked one{cells[i].cell.work, {}, ttft->predicted};
    for (const RunFigures& run : cells[i].cell.measured) {
      const auto at = run.figures.find("ttft_mean_s");
      if (at != run.figures.end()) one.measured.push_back(at->second);
    }
    for (const char* share : {"rejected_share", "failed_share"}) {
      const ComparedFigure* const unserved = errors.figure(share);
      if (unserved == nullptr) continue;  // published figures may lack the share
      one.measured_served -= unserved->measured;
      one.predicted_served -= unserved->predicted;
    }
    ranked.push_back(std::move(one));
    pairs.emplace_back(ttft->measured, ttft->predicted);
    numbers.push_back(i);
  }
  Ranking ranking{kendall_tau(pairs), pairs.size(), choices_of(ranked)};
  for (Choice& choice : ranking.choices) {
    for (std::size_t& cell : choice.cells) cell = numbers[cell];
    for (std::size_t& cell : choice.best) cell = numbers[cell];
    if (choice.chosen) choice.chosen = numbers[*choice.chosen];
  }
  return ranking;
}

namespace {

// Published cells only.
std::vector<FigureScore> scores_of(const std::vector<ValidatedCell>& cells) {
  return !cells.empty() && !cells.front().cell.source.empty() ? scoreboard(cells) : std::vector<FigureScore>{};
}

}  // namespace

std::vector<std::string> lane_sentences(const std::vector<ValidatedCell>& cells) {
  std::vector<std::pair<const LaneError*, const std::string*>> off;
  for (const ValidatedCell& cell : cells) {
    for (const LaneError& lane : cell.errors.lanes) {
      if (lane.off) off.emplace_back(&lane, &cell.cell.name);
    }
  }
  std::ranges::stable_sort(off, std::greater<>{}, [](const auto& entry) { return off_by(*entry.first); });
  std::vector<std::string> sentences;
  std::set<std::string> named;
  for (const auto& [lane, cell] : off) {
    if (named.insert(lane->lane).second) sentences.push_back(lane_sentence(*lane, *cell));
  }
  return sentences;
}

Json validation_json(const std::vector<ValidatedCell>& cells, const Ranking& ranking, const ValidationTerms& terms) {
  Json json{{"schema_version", 1}};
  json["notes"] = terms.notes;
  for (const ValidationTerms::Probed& probed : terms.probed) json["probes"][probed.hardware] = json_of(probed.check);
  if (terms.here) {
    const MeasuredMachine& here = *terms.here;
    json["machine"] = {{"cpu", here.cpu}, {"cores", here.cores}, {"kernel", here.kernel}, {"device", here.device}};
    if (here.load) {
      json["machine"]["load_average"] = {here.load->before, here.load->after};
      json["machine"]["steal_share"] = here.load->steal_share;
    }
  }
  json["cells"] = json["lanes_off"] = Json::array();
  for (const ValidatedCell& cell : cells) json["cells"].push_back(cell_json(cell));
  for (const std::string& sentence : lane_sentences(cells)) json["lanes_off"].push_back(sentence);
  json["scores"] = scoreboard_json(scores_of(cells));
  const std::vector<Ladder> ladders = ladders_of(cells, terms.knees);
  json["ladders"] = ladders_json(ladders);
  json["knees"] = knee_scores_json(knee_scores(ladders));
  json["kendall_tau"] = or_null(ranking.tau);
  json["ranked"] = ranking.cells;
  json["choices"] = Json::array();
  for (const Choice& choice : ranking.choices) {
    const auto name = [&](std::size_t cell) { return cells[cell].cell.name; };
    Json names = Json::array(), best = Json::array();
    for (const std::size_t cell : choice.cells) names.push_back(name(cell));
    for (const std::size_t cell : choice.best) best.push_back(name(cell));
    json["choices"].push_back({{"cells", names},
                               {"chosen", choice.chosen ? Json(name(*choice.chosen)) : Json()},
                               {"best", choice.best.size() == 1 ? best.front() : Json()},
                               {"not_told_apart_from_best", best},
                               {"regret", or_null(choice.regret)},
                               {"kendall_tau", or_null(choice.tau)},
                               {"has_repeats", choice.has_repeats}});
  }
  return json;
}

std::string validation_text(const std::vector<ValidatedCell>& cells, const Ranking& ranking,
                            const ValidationTerms& terms) {
  std::string text;
  std::size_t few = 0;
  constexpr std::size_t kMostInFull = 24;
  for (const ValidatedCell& cell : cells) {
    if (cells.size() <= kMostInFull) text += cell_text(cell) + "\n";
    few += cell.cell.measured.size() < 5 ? 1 : 0;
  }
  const std::vector<Ladder> ladders = ladders_of(cells, terms.knees);
  if (ladders.size() <= kMostInFull) text += ladders_text(ladders);
  if (cells.size() > 1) text += overview_text(cells);
  if (const std::vector<FigureScore> scores = scores_of(cells); !scores.empty()) {
    text += "\n" + scoreboard_text(scores) + "\n";
  }
  text += knee_scores_text(knee_scores(ladders));
  for (const std::string& sentence : lane_sentences(cells)) text += "off        " + sentence + "\n";
  if (ranking.tau) {
    text +=
        formatted("ranking    Kendall's tau %.3f over %zu configurations, by mean TTFT\n", *ranking.tau, ranking.cells);
  }
  if (ranking.choices.size() <= kMostInFull) {
    for (const Choice& choice : ranking.choices) text += choice_sentence(cells, choice) + "\n";
  }
  if (few != 0) {
    text += "note       " + std::to_string(few) + " of " + std::to_string(cells.size()) +
            " configurations have fewer than 5 runs: their spread says little\n";
  }
  if (terms.here) {
    text += "machine    " + terms.here->text();
    if (const auto& load = terms.here->load) {
      text += formatted("; load average %.2f before and %.2f after, %.1f %% of the time stolen", load->before,
                        load->after, 100 * load->steal_share);
    }
    text += "\n";
  }
  for (const ValidationTerms::Probed& probed : terms.probed) text += text_of(probed.check);
  for (const std::string& note : terms.notes) text += "note       " + note + "\n";
  return text;
}

std::string validation_csv(const std::vector<ValidatedCell>& cells) {
  std::string text = "cell,figure,runs,measured,spread,predicted,error\n";
  for (const ValidatedCell& cell : cells) {
    const std::string name = csv_cell(cell.cell.name);
    for (const ComparedFigure& figure : cell.errors.figures) {
      const auto number = [](const std::optional<double>& value) { return value ? formatted("%.9g", *value) : ""; };
      text += name + "," + figure.kind->name + "," + std::to_string(cell.cell.measured.size()) + "," +
              number(figure.measured) + "," + number(figure.spread) + "," + number(figure.predicted) + "," +
              number(figure.error) + "\n";
    }
  }
  return text;
}

}  // namespace kvtwin
