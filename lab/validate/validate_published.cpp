// Reader of a JSON table of published figures.
#include <algorithm>
#include <initializer_list>
#include <set>

#include "lab/error.hpp"
#include "lab/validate/ladders.hpp"
#include "lab/validate/validate_cell.hpp"
#include "lab/validate/validate_errors.hpp"
#include "models/json.hpp"
#include "models/names.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

// ---- a table of published measurements ---------------------------------------------------------------

// Keys of the table, and the experiment keys that they set.
struct WorkloadKey {
  const char* name;
  const char* key;
};
constexpr WorkloadKey kWorkloadKeys[] = {{"recipe", "workload.recipe"},
                                         {"groups", "workload.generate.groups"},
                                         {"prompts_per_group", "workload.generate.prompts_per_group"},
                                         {"prefix_tokens", "workload.generate.prefix_tokens"},
                                         {"question_tokens", "workload.generate.question_tokens"},
                                         {"output_tokens", "workload.generate.output_tokens"},
                                         {"rate", "workload.generate.requests_per_second"},
                                         {"concurrency", "workload.generate.concurrency"},
                                         {"requests", "workload.generate.requests"},
                                         {"range_ratio", "workload.generate.range_ratio"},
                                         {"start_spread_s", "workload.generate.start_spread_s"},
                                         {"think_s", "workload.generate.think_s"},
                                         {"warmup_requests", "workload.warmup_requests"},
                                         {"count_drain", "workload.count_drain"},
                                         {"seed", "seed"},
                                         {"trace", "workload.trace"},
                                         {"time_scale", "workload.time_scale"},
                                         {"limit", "workload.limit"}};
constexpr const char* kSections[] = {"parallel", "cache", "tiers", "scheduler", "cluster", "serving"};

class EntryReader {
 public:
  EntryReader(const fs::path& file, const Json& entry, std::size_t number)
      : folder_(fs::absolute(file).parent_path()),
        table_(file.stem().string()),
        entry_(entry),
        where_(file.string() + ": entry " + std::to_string(number)) {
    if (!entry.is_object()) refuse("", "must be an object");
  }

  PublishedEntry read() {
    PublishedEntry result;
    result.name = text("name");
    if (result.name.empty()) refuse("name", "must not be empty");
    where_ += " (" + result.name + ")";
    result.source = text("source");
    result.group = entry_.contains("group") ? text("group") : table_;
    check_keys();
    if (entry_.contains("engine")) add("engine", text("engine"));
    settings_.push_back(machine("model", "model.config", "model.name"));
    settings_.push_back(machine("hardware", "hardware.file", "hardware.name"));
    for (const char* section : kSections) {
      if (entry_.contains(section)) flatten(section, entry_.at(section));
    }
    read_workload();
    if (entry_.contains("set")) {
      const Json& set = entry_.at("set");
      if (!set.is_object()) refuse("set", "must be an object of experiment keys, e.g. {\"model.kv_dtype\": \"fp8\"}");
      for (const auto& [key, value] : set.items()) add(key, value);
    }
    read_measured(result);
    read_knees(result);
    result.settings = std::move(settings_);
    return result;
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& sentence) const {
    throw InputError(where_ + (key.empty() ? "" : ": " + key) + ": " + sentence);
  }

  std::string text(const char* key) const {
    if (!entry_.contains(key) || !entry_.at(key).is_string()) refuse(key, "must be given, as a string");
    return entry_.at(key);
  }

  void check_names(const std::string& within, const Json& object, const std::vector<std::string>& known) const {
    for (const auto& [key, value] : object.items()) {
      if (std::ranges::find(known, key) == known.end()) {
        throw InputError(where_ + ": " + (within.empty() ? "" : within + ": ") + unknown_name("key", key, known));
      }
    }
  }

  void check_keys() const {
    std::vector<std::string> known{"name",     "source",   "group",    "engine", "model",
                                   "hardware", "workload", "measured", "set",    "knee"};
    known.insert(known.end(), std::begin(kSections), std::end(kSections));
    check_names("", entry_, known);
    if (!entry_.contains("workload") || !entry_.at("workload").is_object()) {
      refuse("workload", "must be given, as an object");
    }
    if (!entry_.contains("measured") || !(entry_.at("measured").is_object() || entry_.at("measured").is_array())) {
      refuse("measured", "must be given, as an object, or as a list with an object for each stage");
    }
  }

  void add(const std::string& key, const Json& value) {
    if (!value.is_primitive() || value.is_null()) refuse(key, "must be a number, a string, true or false");
    settings_.push_back(key + "=" + value.dump());  // a JSON value is a TOML value
  }

  // A preset, or a file next to the table.
  std::string machine(const char* key, const char* as_file, const char* as_name) const {
    const std::string name = text(key);
    std::error_code error;
    const fs::path file = folder_ / name;
    const bool is_file = fs::is_regular_file(file, error);
    return std::string(is_file ? as_file : as_name) + "=" + Json(is_file ? file.string() : name).dump();
  }

  // Joins nested keys: {"host": {"gib": 100}} in "tiers" becomes tiers.host.gib.
  void flatten(const std::string& prefix, const Json& value) {
    if (!value.is_object()) return add(prefix, value);
    for (const auto& [key, inner] : value.items()) flatten(prefix + "." + key, inner);
  }

  void read_workload() {
    const Json& workload = entry_.at("workload");
    std::vector<std::string> known;
    for (const WorkloadKey& key : kWorkloadKeys) known.emplace_back(key.name);
    check_names("workload", workload, known);
    const bool groups = workload.contains("groups"), trace = workload.contains("trace");
    const bool recipe = workload.contains("recipe");
    if (int{groups} + int{trace} + int{recipe} != 1)
      refuse("workload", "must have groups, trace or recipe, one of them");
    if (groups && workload.contains("rate") == workload.contains("concurrency")) {
      refuse("workload", "must have either rate (requests a second) or concurrency (clients)");
    }
    if (groups) settings_.emplace_back("workload.generate.kind=\"groups\"");
    if (workload.contains("concurrency")) settings_.emplace_back("workload.loop=\"closed\"");
    for (const WorkloadKey& key : kWorkloadKeys) {
      if (!workload.contains(key.name)) continue;
      Json value = workload.at(key.name);
      const std::string_view name = key.name;
      if (name == "rate" && value == "inf") value = 1e6;
      if ((name == "rate" || name == "concurrency") && value.is_string()) {  // a ladder
        add("workload.generate.stages", value);
        continue;
      }
      if (name == "trace" && value.is_string()) {
        value = (folder_ / value.get<std::string>()).string();
      }
      add(key.key, value);
    }
  }

  // Reads an object of figures: a number, or a list of repeats. Calls `take` with the number of the repeat.
  template <typename Take>
  void read_figures(const Json& measured, const std::string& within, const Take& take) const {
    if (!measured.is_object() || measured.empty()) refuse(within, "must hold a figure or more, e.g. ttft_mean_s");
    std::vector<std::string> known;
    for (const FigureKind& kind : figure_kinds()) known.emplace_back(kind.name);
    check_names(within, measured, known);
    for (const auto& [key, value] : measured.items()) {
      const std::string place = within + ": " + key;
      const Json repeats = value.is_array() ? value : Json::array({value});
      if (repeats.empty()) refuse(place, "must be a number, or a list of those of repeats");
      for (std::size_t i = 0; i < repeats.size(); ++i) {
        if (!repeats[i].is_number()) refuse(place, "must be a number, or a list of those of repeats");
        const double figure = repeats[i];
        const bool share = figure_kind(key)->share;
        if (figure < 0 || (share && figure > 1)) {
          refuse(place, share ? "is a share, from 0 to 1" : "must not be negative");
        }
        take(i, key, figure);
      }
    }
  }

  void read_measured(PublishedEntry& result) const {
    const auto run = [&](std::size_t repeat) -> RunFigures& {
      if (result.measured.size() <= repeat) result.measured.resize(repeat + 1);
      return result.measured[repeat];
    };
    const Json& measured = entry_.at("measured");
    if (measured.is_object()) {
      read_figures(measured, "measured", [&](std::size_t repeat, const std::string& key, double figure) {
        run(repeat).figures[key] = figure;
      });
      return;
    }
    if (measured.empty()) refuse("measured", "must hold an object for each stage, or one object");
    for (std::size_t stage = 0; stage < measured.size(); ++stage) {
      read_figures(measured[stage], "measured, stage " + std::to_string(stage + 1),
                   [&](std::size_t repeat, const std::string& key, double figure) {
                     std::vector<RunFigures>& stages = run(repeat).stages;
                     if (stages.size() < measured.size()) stages.resize(measured.size());
                     stages[stage].figures[key] = figure;
                   });
    }
  }

  void read_knees(PublishedEntry& result) const {
    if (!entry_.contains("knee")) return;
    const Json& knees = entry_.at("knee");
    if (!knees.is_object() || knees.empty()) refuse("knee", "must hold a limit or more, e.g. {\"ttft_p90_s\": 2}");
    if (!entry_.at("measured").is_array()) refuse("knee", "is of a ladder; give measured as a list, or leave it out");
    for (const auto& [figure, limit] : knees.items()) {
      if (const std::string why = why_no_knee(figure); !why.empty()) refuse("knee", why);
      if (!limit.is_number() || limit.get<double>() < 0) refuse("knee: " + figure, "must be a number of at least 0");
      result.knees[figure] = limit;
    }
  }

  fs::path folder_;
  std::string table_;
  const Json& entry_;
  std::string where_;
  std::vector<std::string> settings_;
};

}  // namespace

std::vector<PublishedEntry> read_published(const fs::path& file) {
  std::string repeated;
  const Json table = parse_json(read_text_file(file, "give a JSON list of measurements"), repeated);
  if (!repeated.empty()) {
    throw InputError(file.string() + ": key " + repeated + " is given twice in one object; give it once");
  }
  if (!table.is_array() || table.empty()) {
    throw InputError(file.string() + ": must be a JSON list of measurements, one or more");
  }
  std::vector<PublishedEntry> entries;
  std::set<std::string> names;
  for (std::size_t i = 0; i < table.size(); ++i) {
    entries.push_back(EntryReader(file, table[i], i + 1).read());
    if (!names.insert(entries.back().name).second) {
      throw InputError(file.string() + ": entry " + std::to_string(i + 1) + ": name: " + entries.back().name +
                       " is another entry's; give each its own");
    }
  }
  return entries;
}

}  // namespace kvtwin
