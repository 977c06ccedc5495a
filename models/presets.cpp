#include "models/presets.hpp"

#include <algorithm>

#include "models/geometry.hpp"
#include "models/hardware.hpp"
#include "models/names.hpp"
#include "models/operator_table.hpp"
#include "models/preset_files.hpp"
#include "models/stores.hpp"

namespace kvtwin {

namespace {

std::vector<std::string> names_of(const std::vector<PresetFile>& files) {
  std::vector<std::string> names;
  for (const PresetFile& file : files) names.emplace_back(file.name);
  return names;
}

std::string_view text_of(const std::vector<PresetFile>& files, std::string_view kind, std::string_view name) {
  for (const PresetFile& file : files) {
    if (file.name == name) return file.text;
  }
  throw ModelError(unknown_name(kind, name, names_of(files)));
}

struct Alias {
  std::string_view alias, name;
};
// The names until 0.2, after the link to the host.
constexpr Alias kHardwareAliases[] = {
    {"a100-pcie4", "a100-sxm"}, {"b200-pcie5", "b200-sxm"}, {"b300-pcie5", "b300-sxm"},
    {"gb200-c2c", "gb200"},     {"gb300-c2c", "gb300"},     {"h100-pcie5", "h100-sxm"},
    {"h20-pcie5", "h20"},       {"h20-sxm", "h20"},         {"h200-pcie5", "h200-sxm"}};

// Returns up to three names of the same family: the longest common beginning first, then the fewest edits.
std::vector<std::string> nearest_presets(std::string_view name, std::vector<std::string> names) {
  constexpr std::size_t kMostNames = 3, kMinCommon = 3;
  std::string wanted(name.substr(name.rfind('/') + 1));  // npos + 1 = 0
  std::ranges::transform(wanted, wanted.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  const auto common = [&](const std::string& known) {
    return static_cast<std::size_t>(std::ranges::mismatch(wanted, known).in1 - wanted.begin());
  };
  std::erase_if(names, [&](const std::string& known) { return common(known) < kMinCommon; });
  std::ranges::stable_sort(names, [&](const std::string& a, const std::string& b) {
    const std::size_t of_a = common(a), of_b = common(b);
    return of_a != of_b ? of_a > of_b
                        : edit_distance(wanted.substr(0, 100), a) < edit_distance(wanted.substr(0, 100), b);
  });
  if (names.size() > kMostNames) names.resize(kMostNames);
  return names;
}

void add_operator_rows(const std::string& name, std::vector<PresetRow>& rows) {
  const OperatorTable& table = operators_preset(name);
  std::map<std::string, std::size_t> points;  // by family
  for (const auto& [label, lattice] : table.lattices) points[label.substr(0, label.find(' '))] += lattice.points();
  for (const auto& [family, count] : points) {
    rows.push_back({"operators", name, family, std::to_string(count), "points",
                    "measured on " + table.gpu + " with " + table.engine + ": " + table.source, table.date});
  }
}

void add_model_rows(const std::string& name, std::vector<PresetRow>& rows) {
  const ModelGeometry m = model_preset(name);
  const auto add = [&](const char* number, std::uint64_t value, const char* unit, const std::string& source) {
    rows.push_back({"model", name, number, std::to_string(value), unit, source, m.date});
  };
  const std::string computed = "computed from " + m.source;
  add("layers", m.layers.size(), "layers", m.source);
  add("parameters", m.parameters, "parameters", computed);
  add("active_parameters", m.active_parameters, "parameters", computed + ", without the input embedding");
  add("weight_bytes", m.weight_bytes, "bytes", computed);
  add("kv_bytes_per_token", m.kv_bytes_per_token, "bytes", m.kv_formula);
}

}  // namespace

std::vector<std::string> model_preset_names() { return names_of(models_preset_files()); }
std::vector<std::string> hardware_preset_names() { return names_of(hardware_preset_files()); }

std::vector<std::string> store_preset_names() { return names_of(stores_preset_files()); }

std::vector<std::string> operators_preset_names() { return names_of(operators_preset_files()); }

std::string_view hardware_preset_name(std::string_view name) {
  for (const Alias& one : kHardwareAliases) {
    if (one.alias == name) return one.name;
  }
  return name;
}

std::string gpu_name(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '_', '-');
  return std::string(hardware_preset_name(text));
}

std::string_view model_preset_text(std::string_view name) {
  for (const PresetFile& file : models_preset_files()) {
    if (file.name == name) return file.text;
  }
  const std::vector<std::string> names = model_preset_names(), near = nearest_presets(name, names);
  std::string sentence = unknown_name("model", name, names);
  if (!near.empty()) {
    sentence += " The nearest presets:";
    for (std::size_t i = 0; i < near.size(); ++i) sentence += (i == 0 ? " " : ", ") + near[i];
    sentence += ".";
  }
  throw ModelError(sentence + " A model without a preset: --set model.config=PATH/config.json, its own file.");
}
std::string_view hardware_preset_text(std::string_view name) {
  return text_of(hardware_preset_files(), "hardware", hardware_preset_name(name));
}
std::string_view store_preset_text(std::string_view name) { return text_of(stores_preset_files(), "store", name); }
std::string_view prices_preset_text() { return text_of(prices_preset_files(), "price list", "built-in"); }

std::string_view errors_preset_text() { return text_of(errors_preset_files(), "error table", "published"); }

std::string_view operators_preset_bytes(std::string_view name) {
  return text_of(operators_preset_files(), "operator table", name);
}

std::vector<PresetRow> preset_rows() {
  std::vector<PresetRow> rows;
  for (const std::string& name : model_preset_names()) add_model_rows(name, rows);
  for (const std::string& name : hardware_preset_names()) {
    for (const HardwareNumber& number : hardware_preset(name).numbers) {
      rows.push_back({"hardware", name, number.key, number.value, number.unit, number.source, number.date});
    }
  }
  for (const std::string& name : store_preset_names()) {
    for (const HardwareNumber& number : store_preset(name).numbers) {
      rows.push_back({"store", name, number.key, number.value, number.unit, number.source, number.date});
    }
  }
  for (const std::string& name : operators_preset_names()) add_operator_rows(name, rows);
  return rows;
}

}  // namespace kvtwin
