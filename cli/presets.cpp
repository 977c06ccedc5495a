// kvtwin presets: models, machines and policies known by name, each number with its source.
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/commands.hpp"
#include "models/geometry.hpp"
#include "models/presets.hpp"
#include "policy/eviction.hpp"

namespace kvtwin {
namespace {

void print_json() {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PresetRow& row : preset_rows()) {
    rows.push_back({{"kind", row.kind},
                    {"preset", row.preset},
                    {"number", row.number},
                    {"value", row.value},
                    {"unit", row.unit},
                    {"source", row.source},
                    {"date", row.date}});
  }
  nlohmann::ordered_json out;
  out["presets"] = rows;
  for (const std::string& name : model_preset_names()) out["kv_bytes_per_token"][name] = model_preset(name).kv_formula;
  for (const std::string_view name : eviction_names()) out["evictions"].push_back(name);
  std::printf("%s\n", out.dump(2).c_str());
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
  std::printf("\nevictions:");
  for (const std::string_view name : eviction_names()) std::printf(" %s", std::string(name).c_str());
  std::printf("; in hitrate also: opt infinite\n");
}

}  // namespace

void add_presets(CLI::App& program) {
  static bool json = false;
  CLI::App* command = program.add_subcommand("presets", "List models, hardware and policies known by name");
  command->footer("Example: kvtwin presets --json");
  command->add_flag("--json", json, "Machine-readable");
  command->callback([] { json ? print_json() : print_text(); });
}

}  // namespace kvtwin
