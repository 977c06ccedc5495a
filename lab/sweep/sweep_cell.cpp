#include "lab/sweep/sweep_cell.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <string_view>
#include <utility>

#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/formatted.hpp"
#include "lab/report/counting_terms.hpp"
#include "lab/report/figures.hpp"
#include "lab/run/serve.hpp"
#include "lab/sweep/row_file.hpp"
#include "models/error.hpp"
#include "models/json.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kRowVersion = "11";  // version of the columns of a row
double in_seconds(TimeNs ns) { return static_cast<double>(ns) / 1e9; }

// Collects TTFT and its parts of all completed requests that count.
class Times final : public Observer {
 public:
  // `hand_overs`: prefill engines hand requests over to decode engines.
  Times(CountingTerms terms, bool hand_overs)
      : counter_(std::move(terms), all_, nullptr, [this](const RequestRecord& r) { records_.push_back(r); }),
        hand_overs_(hand_overs) {}
  void on_event(const Event& event) override {
    switch (event.kind) {
      case EventKind::arrived: counter_.arrived(event); break;
      case EventKind::finished:
      case EventKind::rejected:
      case EventKind::aborted: counter_.ended(event); break;
      default: break;
    }
  }
  // Returns the figures without the first share `warm_up` of these requests, 0 to 1.
  Json figures(double warm_up) {
    counter_.finish();
    std::ranges::sort(records_, {}, &RequestRecord::request);
    const auto first = static_cast<std::size_t>(warm_up * static_cast<double>(records_.size()) + 0.5);
    std::vector<double> ttft, hand_over;
    std::array<double, 5> parts{};
    for (std::size_t i = std::min(first, records_.size()); i < records_.size(); ++i) {
      const RequestRecord& r = records_[i];
      ttft.push_back(in_seconds(r.first_token - r.arrival));
      hand_over.push_back(in_seconds(r.hand_over_ns));
      std::size_t part = 0;
      for (const TimeNs ns : {r.queue_ns, r.prefetch_wait_ns, r.load_wait_ns, r.compute_ns, r.hand_over_ns}) {
        parts[part++] += in_seconds(ns);
      }
    }
    std::ranges::sort(ttft);
    std::ranges::sort(hand_over);
    // null if no request completed
    const auto quantile = [](const std::vector<double>& of, std::size_t per_cent) -> Json {
      if (of.empty()) return nullptr;
      return of[(of.size() * per_cent + 99) / 100 - 1];
    };
    const auto mean = [&](double sum) -> Json {
      if (ttft.empty()) return nullptr;
      return sum / static_cast<double>(ttft.size());
    };
    const Json hand_over_mean = hand_overs_ ? mean(parts[4]) : Json();
    return {{"ttft_mean_s", mean(parts[0] + parts[1] + parts[2] + parts[3] + parts[4])},
            {"ttft_p50_s", quantile(ttft, 50)},
            {"ttft_p90_s", quantile(ttft, 90)},
            {"ttft_p95_s", quantile(ttft, 95)},
            {"ttft_p99_s", quantile(ttft, 99)},
            {"ttft_queue_s", mean(parts[0])},
            {"ttft_prefetch_wait_s", mean(parts[1])},
            {"ttft_load_wait_s", mean(parts[2])},
            {"ttft_compute_s", mean(parts[3])},
            {"ttft_hand_over_s", hand_over_mean},
            {"hand_over_mean_s", hand_over_mean},
            {"hand_over_p99_s", hand_overs_ ? quantile(hand_over, 99) : Json()}};
  }

 private:
  RequestFigures all_;
  RequestCounter counter_;
  bool hand_overs_ = false;
  std::vector<RequestRecord> records_;
};

constexpr char kSeparator = '\x1e';  // between report.json and the figures of Times

// Returns the figures of a row.
Json figures_of(const Json& report, const CellRun& cell) {
  Json row = report_figures(report);
  const Json warm = report.value("warm", Json());
  if (warm.is_null()) row.update(report.at("times"));
  for (const char* name : {"from_s", "to_s", "not_flat"}) {
    row[std::string("warm_") + name] = warm.is_null() ? Json() : warm.at(name);
  }
  row["overloaded"] = warm.is_null() ? Json() : warm.at("overloaded");
  row["objects_a_page"] = cell.objects_a_page;
  const double bytes = row.at("l3_read_bytes");
  const double pages = cell.page_bytes == 0 ? 0 : bytes / static_cast<double>(cell.page_bytes);
  row["objects_read"] = static_cast<std::uint64_t>(pages * static_cast<double>(cell.objects_a_page) + 0.5);
  return row;
}

Json placed_row(const SweepPlan& plan, const CellRun& cell, std::size_t number, const Json& figures) {
  Json row{{"cell", number}};
  if (!plan.cases.empty()) row["case"] = plan.cases[cell.place.of_case].name;
  for (std::size_t a = 0; a < plan.axes.size(); ++a) {
    const auto& index = cell.place.indices[a];
    if (!index) {
      row[plan.axes[a].name] = nullptr;  // the case sets it
      continue;
    }
    const SweepValue& value = plan.axes[a].values[*index];
    row[plan.axes[a].name] = value.number ? Json(*value.number) : Json(value.text);
  }
  row.update(figures);
  Json settings = Json::array();
  for (const auto& [key, value] : plan.settings(cell.place)) settings.push_back(key + "=" + value);
  row["settings"] = settings;
  row["identity"] = cell.identity;
  return row;
}

// Returns the report in the text of simulated_cell(), with the figures of Times as `times`.
Json report_of(const std::string& text) {
  const std::size_t between = text.find(kSeparator);
  Json report = Json::parse(text.substr(0, between));
  report["times"] = Json::parse(text.substr(between + 1));
  return report;
}

}  // namespace

std::vector<CellRun> cell_runs(const SweepPlan& plan, const Experiment& base) {
  std::vector<CellRun> cells;
  for (const SweepCell& place : plan.cells()) {
    CellRun cell{place, 0, 0, {}, {}, {}, {}};
    const Experiment experiment = plan.experiment(base, place);
    try {
      counting_terms(experiment);  // refuses what cannot be counted before the first cell runs
      const Setup setup = make_setup(experiment);
      cell.objects_a_page = std::uint64_t{setup.engine.storage_objects} * setup.engine.ranks;
      cell.page_bytes = setup.engine.shape.page_bytes() * setup.engine.ranks;
    } catch (const InputError& error) {
      throw InputError(plan.name_of(place) + ": " + error.what());
    } catch (const ModelError& error) {
      throw InputError(plan.name_of(place) + ": " + error.what());
    }
    cell.identity = identity_of(experiment, std::string(kRowVersion) + " " + Json(plan.warm_up).dump());
    cell.idle_keys = idle_keys(experiment);
    cell.engine = engine_line(experiment);
    cell.assumed = assumed_traffic(experiment);
    cells.push_back(std::move(cell));
  }
  return cells;
}

std::string engine_lines(const std::vector<CellRun>& cells) {
  std::vector<std::string> lines;
  std::string text;
  for (const CellRun& cell : cells) {
    if (cell.engine.empty() || std::ranges::find(lines, cell.engine) != lines.end()) continue;
    lines.push_back(cell.engine);
    text += "engine     " + cell.engine + "\n";
  }
  return text;
}

std::string intervals_line(const std::vector<Json>& rows) {
  std::string text, of;
  bool several = false;
  for (const char* figure : {"ttft", "tpot"}) {
    std::optional<double> low, high;
    for (const Json& row : rows) {
      const Json from = row.value(std::string(figure) + "_factor_low", Json()),
                 to = row.value(std::string(figure) + "_factor_high", Json());
      if (!from.is_number()) continue;
      low = std::min(low.value_or(from), from.get<double>());
      high = std::max(high.value_or(to), to.get<double>());
      const std::string runs = row.at("factors_of");
      several |= !of.empty() && of != runs;
      if (of.empty()) of = runs;
    }
    if (!low) continue;
    text += std::string(text.empty() ? "" : ", ") + (figure == std::string_view("ttft") ? "TTFT" : "TPOT") +
            formatted(" times %.2f to %.2f", *low, *high);
  }
  if (text.empty()) return "";
  return "80 %       " + text + ": " + of + (several ? "; and others, see factors_of" : "") + "\n";
}

std::string measured_line(const std::vector<Json>& rows) {
  std::size_t warm = 0, overloaded = 0, others = 0, cold = 0;
  double from_least = 0, from_most = 0, to_least = 0, to_most = 0;
  for (const Json& row : rows) {
    if (has_failed(row)) continue;
    if (!row.contains("warm_from_s") || row.at("warm_from_s").is_null()) {
      ++cold;
      continue;
    }
    const double from = row.at("warm_from_s"), to = row.at("warm_to_s");
    const bool first = warm++ == 0;
    from_least = first ? from : std::min(from_least, from);
    from_most = first ? from : std::max(from_most, from);
    to_least = first ? to : std::min(to_least, to);
    to_most = first ? to : std::max(to_most, to);
    if (row.at("warm_not_flat").is_null()) continue;
    ++(row.at("overloaded").get<bool>() ? overloaded : others);
  }
  if (warm == 0) return cold == 0 ? "" : "measured   all requests, from empty caches on\n";
  const auto range = [](double least, double most) {
    return least == most ? formatted("%.0f", least) : formatted("%.0f to %.0f", least, most);
  };
  std::string line = "measured   the warm part of each run: it begins at " + range(from_least, from_most) +
                     " s and ends at " + range(to_least, to_most) + " s";
  if (overloaded != 0) line += formatted("; overloaded: %zu of %zu runs", overloaded, rows.size());
  if (others != 0) line += formatted("; not yet steady: %zu of %zu runs", others, rows.size());
  if (cold != 0) line += formatted("; all requests, from empty caches on: %zu of %zu runs", cold, rows.size());
  return line + "\n";
}

std::vector<IdleKey> idle_in_all(const std::vector<CellRun>& cells) {
  std::vector<IdleKey> idle = cells.empty() ? std::vector<IdleKey>() : cells.front().idle_keys;
  std::erase_if(idle, [&](const IdleKey& key) {
    return !std::ranges::all_of(cells, [&](const CellRun& cell) {
      return std::ranges::find(cell.idle_keys, key.key, &IdleKey::key) != cell.idle_keys.end();
    });
  });
  return idle;
}

std::string simulated_cell(const Experiment& experiment, double warm_up) {
  const Setup setup = make_setup(experiment);
  const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
  ServeTerms terms = simulated_terms(experiment, setup);
  Times times(counting_terms(experiment), setup.decode != nullptr);
  terms.rows = &times;
  const RunResult result = serve(experiment, setup, *world, {}, terms, {});
  return result.report + kSeparator + times.figures(warm_up).dump();
}

Json row_of(const SweepPlan& plan, const CellRun& cell, std::size_t number, const ChildEnd& end) {
  if (end.failure.code == 0) return placed_row(plan, cell, number, figures_of(report_of(end.text), cell));
  // A sentence may quote bytes of a file that are not UTF-8, and rows are JSON.
  const std::string quoted = Json(end.failure.sentence).dump(-1, Json::BadBytes::replace);
  return placed_row(plan, cell, number, {{"failure", Json::parse(quoted)}, {"exit", end.failure.code}});
}

bool has_failed(const Json& row) { return row.contains("failure"); }

Json row_again(const SweepPlan& plan, const CellRun& cell, std::size_t number, const Json& earlier) {
  Json figures;
  for (const auto& [name, value] : earlier.items()) {
    const bool of_place = name == "case" || name == "cell" || name == "seed" || name.find('.') != std::string::npos;
    if (!of_place) figures[name] = value;
  }
  return placed_row(plan, cell, number, figures);
}

}  // namespace kvtwin
