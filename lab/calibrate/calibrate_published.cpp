#include "lab/calibrate/calibrate_published.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "lab/run/serve.hpp"
#include "lab/validate/validate_cell.hpp"
#include "models/json.hpp"
#include "traces/passed_over.hpp"

namespace kvtwin {
namespace {

struct PublishedRow {
  PublishedEntry entry;
  Experiment experiment;
  std::string engine;
  std::vector<FittedFigure> figures;
};

// Returns the mean of the repeats that have the figure; 0 if none has it.
double mean_of(const PublishedEntry& entry, std::string_view figure) {
  double sum = 0, count = 0;
  for (const RunFigures& run : entry.measured) {
    const auto at = run.figures.find(figure);
    if (at == run.figures.end()) continue;
    sum += at->second;
    count += 1;
  }
  return count > 0 ? sum / count : 0;
}

// Returns whether a figure is neither fitted nor the sum of fitted ones (e2e).
bool has_other_figures(const PublishedEntry& entry) {
  return std::ranges::any_of(entry.measured, [](const RunFigures& run) {
    return std::ranges::any_of(run.figures, [](const auto& figure) {
      return figure.first != "ttft_mean_s" && figure.first != "tpot_mean_s" && figure.first != "e2e_mean_s";
    });
  });
}

// `entries`: their number, also those that are left out.
std::vector<PublishedRow> read_rows(const PublishedFitTerms& terms, LeftOut& left_out, std::size_t& entries) {
  std::vector<PublishedRow> rows;
  for (PublishedEntry& entry : read_published(terms.table)) {
    ++entries;
    PublishedRow row{{}, Experiment::from_text("", terms.table), "", {}};
    try {
      for (const std::string& setting : entry.settings) row.experiment.set(setting, entry.name);
      for (const std::string& setting : terms.sets) row.experiment.set(setting);
    } catch (const std::runtime_error& error) {
      throw InputError(terms.table + ": " + entry.name + ": " + error.what());
    }
    row.engine = row.experiment.text("serving.engine");
    if (row.engine == "none") {
      throw InputError(terms.table + ": " + entry.name + ": has no serving.engine, whose times are fitted; give one");
    }
    for (const auto& [kind, figure] :
         {std::pair{FigureOfRequest::ttft, "ttft_mean_s"}, std::pair{FigureOfRequest::tpot, "tpot_mean_s"},
          std::pair{FigureOfRequest::e2e, "e2e_mean_s"}}) {
      const double measured = mean_of(entry, figure);
      const bool follows = kind == FigureOfRequest::e2e && !row.figures.empty();
      if (measured > 0 && !follows) row.figures.push_back({kind, measured, false});
    }
    const bool staged = std::ranges::any_of(entry.measured, [](const RunFigures& run) { return !run.stages.empty(); });
    if (staged) {
      left_out.add("not used: the figures are those of stages; give each stage an entry of its own", entry.name);
    } else if (row.figures.empty()) {
      left_out.add("not used: no ttft_mean_s, tpot_mean_s or e2e_mean_s above 0", entry.name);
    } else if (has_other_figures(entry)) {
      left_out.add("used in part: the fit takes ttft_mean_s and tpot_mean_s, or e2e_mean_s without these", entry.name);
    }
    row.entry = std::move(entry);
    if (!row.figures.empty()) rows.push_back(std::move(row));
  }
  return rows;
}

std::uint64_t hash_of(std::string_view text) {  // FNV-1a
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return hash;
}

// Takes up to `count` rows out of `rows` (0 = all). The choice depends on the names of the entries only.
std::vector<const PublishedRow*> take_sample(std::vector<const PublishedRow*>& rows, std::size_t count) {
  const auto order = [](const PublishedRow* row) { return std::pair(hash_of(row->entry.name), row->entry.name); };
  std::ranges::sort(rows, {}, order);
  const std::size_t taken = count == 0 ? rows.size() : std::min(count, rows.size());
  const auto end = rows.begin() + static_cast<std::ptrdiff_t>(taken);
  std::vector<const PublishedRow*> sample(rows.begin(), end);
  rows.erase(rows.begin(), end);
  return sample;
}

std::vector<double> simulate_means(const Experiment& experiment, const Setup& setup,
                                   const std::vector<FittedFigure>& figures) {
  const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
  const ServeTerms terms = simulated_terms(experiment, setup);
  const Json report = Json::parse(serve(experiment, setup, *world, {}, terms, {}).report);
  std::vector<double> predicted;
  for (const FittedFigure& figure : figures) {
    const char* const name = figure.kind == FigureOfRequest::ttft   ? "ttft_seconds"
                             : figure.kind == FigureOfRequest::tpot ? "tpot_seconds"
                                                                    : "e2e_seconds";
    const Json& mean = report.at(name).at("mean");
    predicted.push_back(mean.is_null() ? 0 : mean.get<double>());
  }
  return predicted;
}

// Checks the experiment of the row, so that a bad entry is refused before the first simulation. Errors: InputError.
FitCase case_of(const PublishedRow& row, const std::string& table, bool held_out) {
  try {
    make_setup(row.experiment);
  } catch (const std::runtime_error& error) {
    throw InputError(table + ": " + row.entry.name + ": " + error.what());
  }
  FitCase one{row.entry.name, row.experiment, row.figures, 0, {}};
  for (FittedFigure& figure : one.figures) figure.held_out = held_out;
  one.simulate = [figures = row.figures](const Experiment& experiment, const Setup& setup) {
    return simulate_means(experiment, setup, figures);
  };
  return one;
}

// The errors of one kind of figure in one group.
struct GroupErrors {
  std::string group;
  bool held_out = false;
  FigureOfRequest kind = FigureOfRequest::ttft;
  FitError before, after;
};

std::vector<GroupErrors> errors_of(const std::vector<FitCase>& cases, const std::vector<const PublishedRow*>& rows,
                                   const SimulatedFit& fit) {
  std::vector<std::string> groups;
  for (const PublishedRow* row : rows) {
    if (std::ranges::find(groups, row->entry.group) == groups.end()) groups.push_back(row->entry.group);
  }
  groups.emplace_back();  // all held-out groups
  std::vector<GroupErrors> list;
  for (const std::string& group : groups) {
    for (const bool held_out : {false, true}) {
      for (std::size_t k = 0; k < kFiguresOfRequest; ++k) {
        const auto kind = static_cast<FigureOfRequest>(k);
        const auto takes = [&](std::size_t number, const FittedFigure& figure) {
          return figure.kind == kind && figure.held_out == held_out &&
                 (group.empty() || rows[number]->entry.group == group);
        };
        GroupErrors one{group.empty() ? "all held out" : group, held_out, kind, fit_error(cases, fit.before, takes),
                        fit_error(cases, fit.after, takes)};
        if (one.before.figures != 0 && !(group.empty() && !held_out)) list.push_back(one);
      }
    }
  }
  return list;
}

void add_engine(const std::string& engine, const std::vector<FitCase>& cases,
                const std::vector<const PublishedRow*>& rows, const SimulatedFit& fit, PublishedFit& published,
                Json& json) {
  std::string& text = published.text;
  std::string toml = "# Fitted by kvtwin calibrate --published.\n[serving]\nengine = \"" + engine + "\"\n";
  text += engine + ": " + std::to_string(fit.simulations) + " simulations\n";
  text += formatted("  %-22s %11s %11s %11s %-4s %11s\n", "number", "value", "low", "high", "unit", "base");
  Json& numbers = json[engine]["numbers"];
  for (std::size_t i = 0; i < fit.keys.size(); ++i) {
    const FitKey& key = *fit.keys[i];
    const SearchResult::Number& number = fit.result.numbers[i];
    const std::string name(key.name), why = why_kept(number);
    if (!why.empty()) {
      text +=
          "  " + name + " keeps " + formatted("%.4g", number.value) + " " + std::string(key.unit) + ": " + why + "\n";
      numbers[name] = {{"value", number.value}, {"base", fit.base[i]}, {"kept", why}};
      continue;
    }
    text +=
        formatted("  %-22s %11.4g %11.4g %11.4g %-4s %11.4g%s\n", name.c_str(), number.value, number.low, number.high,
                  std::string(key.unit).c_str(), fit.base[i], number.at_bound ? "  at the end of its range" : "");
    numbers[name] = {{"value", number.value}, {"low", number.low}, {"high", number.high}, {"base", fit.base[i]}};
    toml += name.substr(name.find('.') + 1) + " = " + formatted("%.17g", number.value) + "\n";
  }
  for (std::size_t c = 0; c < cases.size(); ++c) {
    if (!cases[c].figures.front().held_out) json[engine]["fitted"].push_back(cases[c].name);
  }
  if (!fit.result.complete) text += "  the limit of simulations ended the search; raise --simulations\n";
  text += formatted("  %-22s %-10s %7s %23s %23s\n", "mean |error|, % (bias)", "", "figures", "before", "after");
  for (const GroupErrors& error : errors_of(cases, rows, fit)) {
    const std::string name(name_of(error.kind));
    text += formatted("  %-22s %-10s %7zu %13.1f (%+7.1f) %13.1f (%+7.1f)\n",
                      (error.group + (error.held_out || error.group == "all held out" ? "" : ", fitted")).c_str(),
                      name.c_str(), error.before.figures, 100 * error.before.mean, 100 * error.before.bias,
                      100 * error.after.mean, 100 * error.after.bias);
    json[engine]["errors"].push_back({{"group", error.group},
                                      {"held_out", error.held_out},
                                      {"figure", name},
                                      {"figures", error.before.figures},
                                      {"before", json_of(error.before)},
                                      {"after", json_of(error.after)}});
  }
  published.engines.push_back({engine, std::move(toml)});
}

}  // namespace

PublishedFit fit_published(const PublishedFitTerms& terms, const Listener& listener) {
  FitKeys keys;
  for (const std::string& name : terms.fit) {
    const FitKey& key = fit_key(name);
    if (key.time == nullptr) {
      throw InputError("--fit " + name +
                       ": is a figure of one machine; --published fits keys serving.* of all machines");
    }
    keys.push_back(&key);
  }
  if (keys.empty()) throw InputError("--published needs --fit, the keys serving.* to fit");
  LeftOut left_out;
  std::size_t entries = 0;
  const std::vector<PublishedRow> rows = read_rows(terms, left_out, entries);
  std::vector<std::string> engines;
  for (const PublishedRow& row : rows) {
    const bool fitted = row.entry.group.starts_with(terms.group);
    if (fitted && std::ranges::find(engines, row.engine) == engines.end()) engines.push_back(row.engine);
  }
  if (engines.empty()) {
    throw InputError("--fit-on " + terms.group + ": " + terms.table +
                     " has no group whose name begins so, with a mean "
                     "TTFT or TPOT");
  }
  std::ranges::sort(engines);
  for (const PublishedRow& row : rows) {
    if (std::ranges::find(engines, row.engine) != engines.end()) continue;
    left_out.add("not used: no group of --fit-on has their serving.engine", row.entry.name);
  }
  const std::string beyond =
      "not used: more than --rows " + std::to_string(terms.rows) + " per engine or held-out group; 0 takes all";
  PublishedFit published;
  Json json = Json::object();
  for (const std::string& engine : engines) {
    std::vector<const PublishedRow*> fitted;
    std::map<std::string, std::vector<const PublishedRow*>> held_out;
    for (const PublishedRow& row : rows) {
      if (row.engine != engine) continue;
      const bool in = row.entry.group.starts_with(terms.group);
      (in ? fitted : held_out[row.entry.group]).push_back(&row);
    }
    std::vector<const PublishedRow*> sampled = take_sample(fitted, terms.rows);
    for (const PublishedRow* row : fitted) held_out[row->entry.group].push_back(row);
    std::vector<FitCase> cases;
    for (const PublishedRow* row : sampled) cases.push_back(case_of(*row, terms.table, false));
    for (auto& [group, members] : held_out) {
      for (const PublishedRow* row : take_sample(members, terms.rows)) {
        cases.push_back(case_of(*row, terms.table, true));
        sampled.push_back(row);
      }
      for (const PublishedRow* row : members) left_out.add(beyond, row->entry.name);
    }
    listener.begin("fits " + engine + " to " + std::to_string(sampled.size()) + " entries");
    add_engine(engine, cases, sampled, fit_by_simulation(cases, {keys, terms.max_simulations, terms.jobs}, listener),
               published, json);
  }
  json["left_out"] = Json::array();
  for (const std::string& sentence : left_out.sentences(entries, "entries")) {
    published.text += "note       " + terms.table + ": " + sentence + "\n";
    json["left_out"].push_back(sentence);
  }
  published.json = json.dump(2) + "\n";
  return published;
}

}  // namespace kvtwin
