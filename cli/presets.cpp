// kvtwin presets: lists the models, hardware, stores and policies that have a name, each number with its source. With
// --limits: prints a hardware file with measured limits of the transfer planner. With --paths: prints the planner's
// choices. With --operators: compares a table of operator times with measured rows.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "cli/commands.hpp"
#include "lab/error.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/experiment/keys.hpp"
#include "lab/experiment/named_workloads.hpp"
#include "lab/experiment/workload_recipe.hpp"
#include "lab/operator_errors.hpp"
#include "lab/report/figures.hpp"
#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/json.hpp"
#include "models/layer_table.hpp"
#include "models/names.hpp"
#include "models/operator_table.hpp"
#include "models/path_choices.hpp"
#include "models/path_matrix.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"
#include "policy/eviction.hpp"
#include "sim/bounds/hitrate.hpp"

namespace kvtwin {
namespace {

void print_json() {
  Json rows = Json::array();
  for (const PresetRow& row : preset_rows()) {
    rows.push_back({{"kind", row.kind},
                    {"preset", row.preset},
                    {"number", row.number},
                    {"value", row.value},
                    {"unit", row.unit},
                    {"source", row.source},
                    {"date", row.date}});
  }
  Json out;
  out["presets"] = rows;
  out["figures"] = figures_json();
  for (const std::string& name : model_preset_names()) out["kv_bytes_per_token"][name] = model_preset(name).kv_formula;
  for (const std::string_view name : eviction_names()) out["evictions"].push_back(name);
  for (const NamedWorkload& workload : named_workloads()) {
    for (const WorkloadFigure& figure : workload.figures) {
      out["workloads"][std::string(workload.name)][std::string(figure.key)] = {{"value", figure.value},
                                                                               {"source", figure.source}};
    }
  }
  for (const WorkloadRecipe& recipe : workload_recipes()) {
    out["recipes"][std::string(recipe.name)] = {{"help", recipe.help}, {"source", recipe.source}};
  }
  for (const ExperimentKey& key : experiment_keys()) {
    if (key.chooses_file) out["names"][std::string(key.name)] = key.choices;
    const bool is_faults = key.name == kFaultsKey;
    if (!key.policy && !is_faults) continue;
    for (const std::string_view name : is_faults ? fault_names() : policy_names(*key.policy)) {
      for (const Parameter& one : (is_faults ? facts_of_fault(name) : facts_of_policy(*key.policy, name)).parameters) {
        out["parameters"][std::string(key.name)][std::string(name)][one.name] = {
            {"default", one.fallback}, {"range", one.range}, {"help", one.help}};
      }
    }
  }
  std::printf("%s\n", out.dump(2).c_str());
}

void print_figures() {
  std::printf("figures of a run, for compare --goal and sweep.show:\n");
  for (const RunFigure& figure : figures()) {
    const char* const better = figure.better == RunFigure::Better::more   ? "; more is better"
                               : figure.better == RunFigure::Better::less ? "; less is better"
                                                                          : "; no goal";
    std::printf("  %-24s %s%s\n", std::string(figure.name).c_str(), std::string(figure.help).c_str(), better);
  }
  std::printf("further figures of a simulation, for sweep.show:\n");
  for (const RunFigure& figure : row_figures()) {
    std::printf("  %-24s %s\n", std::string(figure.name).c_str(), std::string(figure.help).c_str());
  }
}

void print_workloads() {
  std::printf("workloads, for --workload (figures of workload.generate.*):\n");
  for (const NamedWorkload& workload : named_workloads()) {
    std::printf("  %s: %s\n", std::string(workload.name).c_str(), std::string(workload.help).c_str());
    for (const WorkloadFigure& figure : workload.figures) {
      std::printf("    %-16s %8s  %s\n", std::string(figure.key).c_str(), std::string(figure.value).c_str(),
                  std::string(figure.source).c_str());
    }
  }
}

void print_recipes() {
  std::printf("recipes of benchmarks, for workload.recipe:\n");
  for (const WorkloadRecipe& recipe : workload_recipes()) {
    std::printf("  %s: %s\n    %s\n", std::string(recipe.name).c_str(), std::string(recipe.help).c_str(),
                std::string(recipe.source).c_str());
  }
}

// Returns the names of all policies, with their parameters: " lru slru(protected=2)".
std::string with_parameters(PolicyKind kind) {
  std::string names;
  for (const std::string_view name : policy_names(kind)) {
    names += " " + facts_of_policy(kind, name).text(ParameterTexts::all);
  }
  return names;
}

void print_text() {
  std::printf("KV bytes a token:\n");
  for (const std::string& name : model_preset_names()) {
    std::printf("  %-22s %s\n", name.c_str(), model_preset(name).kv_formula.c_str());
  }
  std::string last;
  for (const PresetRow& row : preset_rows()) {
    if (row.kind + row.preset != last) std::printf("\n%s %s\n", row.kind.c_str(), row.preset.c_str());
    last = row.kind + row.preset;
    std::printf("  %-26s %14s %-8s %s (%s)\n", row.number.c_str(), row.value.c_str(), row.unit.c_str(),
                row.source.c_str(), row.date.c_str());
  }
  std::printf("\nevictions:%s", with_parameters(PolicyKind::eviction).c_str());
  std::printf("; in hitrate also:");
  for (const std::string_view name : hit_rate_bounds()) std::printf(" %s", std::string(name).c_str());
  std::printf("\n");
  for (const ExperimentKey& key : experiment_keys()) {
    if (!key.chooses_file) continue;
    std::string names;
    for (const std::string_view name : key.choices) names += " " + std::string(name);
    std::printf("%s:%s\n", std::string(key.name).c_str(), (key.policy ? with_parameters(*key.policy) : names).c_str());
  }
  print_workloads();
  print_recipes();
  print_figures();
}

std::string weights_text(const ModelGeometry& m) {
  const auto part = [](const char* name, const WeightFormat& format) { return std::string(name) + " " + format.name; };
  std::string text = part("attention", m.attention_format) + ", " + part("feed-forward", m.linear_format);
  if (m.experts != 0) text += ", " + part("experts", m.expert_format);
  return text;
}

// The geometry of one model: a preset, or a config.json.
void print_model(const std::string& name, bool json) {
  const std::vector<std::string> names = model_preset_names();
  std::error_code error;
  const bool is_file = std::filesystem::is_regular_file(name, error);
  if (!is_file && std::ranges::find(names, name) == names.end()) {
    throw InputError("presets: " + unknown_name("model", name, names) + " A path of a config.json is read too.");
  }
  const ModelGeometry model = is_file ? model_from_file(name) : model_preset(name);
  const std::vector<LayerRow> table = layer_table(model);
  if (!json) {
    std::printf("%s: %zu layers, %s\nparameters %llu, active %llu, weights %llu bytes (%s)\n\n", model.name.c_str(),
                model.layers.size(), model.source.c_str(), static_cast<unsigned long long>(model.parameters),
                static_cast<unsigned long long>(model.active_parameters),
                static_cast<unsigned long long>(model.weight_bytes), weights_text(model).c_str());
    std::printf("%s\n%s: %s\n", layer_table_text(table, "").c_str(), model.kv_dtype.c_str(), model.kv_formula.c_str());
    for (const std::string& note : model.inexact) std::printf("note: %s\n", note.c_str());
    for (const std::string& note : model.notes) std::printf("note: %s\n", note.c_str());
    return;
  }
  Json out;
  out["model"] = model.name;
  out["source"] = model.source;
  out["parameters"] = model.parameters;
  out["active_parameters"] = model.active_parameters;
  out["weight_bytes"] = model.weight_bytes;
  out["kv_dtype"] = model.kv_dtype;
  out["kv_bytes_per_token"] = model.kv_bytes_per_token;
  out["state_bytes"] = model.state_bytes;
  out["model_layers"] = layer_table_json(table);
  std::printf("%s\n", out.dump(2).c_str());
}

std::string read_matrix(const std::string& path) {
  constexpr const char* kWanted = "give the path of a matrix.csv that gpu_bench wrote";
  std::string text = read_text_file(path, kWanted);
  if (text.empty()) throw InputError(path + ": is empty; " + kWanted);
  return text;
}

// Returns the value of the comment line "# KEY: value" of a table, e.g. its date; empty if there is none.
std::string remark(const std::string& csv, const std::string& key) {
  const std::string begin = "# " + key + ": ";
  const std::size_t at = csv.starts_with(begin) ? 0 : csv.find("\n" + begin);
  if (at == std::string::npos) return "";
  const std::size_t from = at + begin.size() + (at == 0 ? 0 : 1);
  return csv.substr(from, csv.find_first_of("\r\n", from) - from);
}

// Returns a hardware file with one number per line: the numbers of the preset, with the planner's limits of the matrix.
std::string hardware_text(const std::string& preset, const std::string& matrix_file) {
  const std::string csv = read_matrix(matrix_file);
  const MeasuredLimits limits = limits_from(parse_path_matrix(csv, matrix_file));
  if (!limits.any()) {
    throw ModelError(matrix_file + ": tells no limit; it must have rows of the paths batch, boxes or kernel");
  }
  Json file = Json::parse(hardware_preset_text(preset));
  file["description"] = file.at("description").get<std::string>() + "; limits from " + matrix_file;
  const std::string gpu = remark(csv, "gpu");
  const auto set = [&](const char* key, const auto& value, const char* unit) {
    if (!value) return;
    file["numbers"][key] = {{"value", *value},
                            {"unit", unit},
                            {"source", "measured: " + matrix_file + (gpu.empty() ? "" : " (" + gpu + ")")},
                            {"date", remark(csv, "date").substr(0, 10)}};
  };
  set("copy_engine_min_h2d", limits.copy_engine_min_h2d, "B");
  set("copy_engine_min_d2h", limits.copy_engine_min_d2h, "B");
  set("box_min", limits.box_min, "B");
  set("kernel_min_pieces", limits.kernel_min_pieces, "count");
  const auto line = [](const Json& json) {  // file names may have bytes that are not UTF-8
    return json.dump(-1, Json::BadBytes::replace);
  };
  std::string text = "{\n  \"description\": " + line(file["description"]) + ",\n  \"numbers\": {";
  const char* between = "\n";
  for (const auto& [key, number] : file["numbers"].items()) {
    text += between + ("    \"" + key + "\": ") + line(number);
    between = ",\n";
  }
  text += "\n  }\n}\n";
  parse_hardware(text, matrix_file);  // checks: a limit may be out of the range of a hardware file
  return text;
}

// Prints a Markdown table of the errors.
void print_operator_errors(const std::string& table_file, const std::string& rows_file) {
  const OperatorTable table = operators_from_file(table_file);
  std::printf("| %s, %s | rows | median %% | p90 %% | p99 %% |\n|---|---|---|---|---|\n", table.gpu.c_str(),
              table.engine.c_str());
  for (const OperatorErrors& e : operator_errors(table, rows_file)) {
    std::printf("| %s | %zu | %.1f | %.1f | %.1f |\n", e.family.c_str(), e.rows, e.median_percent, e.p90_percent,
                e.p99_percent);
  }
}

}  // namespace

void add_presets(CLI::App& program) {
  static bool json = false, paths = false;
  static std::string model, matrix, hardware = "h200-sxm", operators, rows;
  CLI::App* command = program.add_subcommand(
      "presets", "List the presets of models, hardware and remote stores, the policies and the figures");
  command->footer(
      "Example: kvtwin presets --json\n"
      "Example: kvtwin presets gpt-oss-120b\n"
      "Example: kvtwin presets --limits matrix.csv --hardware h200-sxm > machine.json; then\n"
      "         kvtwin simulate experiments/quickstart.toml --set hardware.file=machine.json");
  CLI::Option* as_json = command->add_flag("--json", json, "Print JSON");
  CLI::Option* of_model = command
                              ->add_option("model", model,
                                           "Print the layers of this model instead: a preset, or the path of a "
                                           "config.json")
                              ->type_name("MODEL");
  CLI::Option* as_paths = command
                              ->add_flag("--paths", paths,
                                         "Print the transfer path that cache.io = auto chooses, and the rate that "
                                         "simulations charge, for each GPU "
                                         "preset, three models and four layouts")
                              ->excludes(as_json)
                              ->excludes(of_model);
  CLI::Option* limits =
      command
          ->add_option(
              "--limits", matrix,
              "Print a hardware file instead: the preset of --hardware, with the planner's limits that this matrix.csv "
              "of gpu_bench shows (copy_engine_min_h2d, copy_engine_min_d2h, box_min, kernel_min_pieces)")
          ->type_name("MATRIX.csv")
          ->excludes(as_json)
          ->excludes(of_model)
          ->excludes(as_paths);
  command->add_option("--hardware", hardware, "Hardware preset for all other numbers of the printed file")
      ->type_name("NAME")
      ->capture_default_str()
      ->needs(limits);
  CLI::Option* of_table =
      command
          ->add_option("--operators", operators,
                       "Print the errors of a table of operator times at the rows of --rows instead")
          ->type_name("TABLE")
          ->excludes(as_json)
          ->excludes(of_model)
          ->excludes(limits)
          ->excludes(as_paths);
  CLI::Option* at_rows = command->add_option("--rows", rows, "Measured rows, of kvtwin import-ops --leave-out")
                             ->type_name("ROWS.csv")
                             ->needs(of_table);
  of_table->needs(at_rows);
  command->callback([limits, of_table] {
    if (paths) {
      std::fputs(path_choices_text().c_str(), stdout);
    } else if (of_table->count() > 0) {
      print_operator_errors(operators, rows);
    } else if (limits->count() > 0) {
      std::fputs(hardware_text(hardware, matrix).c_str(), stdout);
    } else if (!model.empty()) {
      print_model(model, json);
    } else {
      json ? print_json() : print_text();
    }
  });
}

}  // namespace kvtwin
