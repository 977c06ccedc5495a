#include "models/hardware.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "models/json.hpp"
#include "models/presets.hpp"

namespace kvtwin {
namespace {

Json h200() { return Json::parse(hardware_preset_text("h200-sxm")); }

std::string error_of(const Json& object) {
  try {
    parse_hardware(object.dump(), "machine.json");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_with(const char* key, double value, const char* unit) {
  Json object = h200();
  object["numbers"][key]["value"] = value;
  object["numbers"][key]["unit"] = unit;
  return error_of(object);
}

TEST(Hardware, PresetsLoadAndCarryUnitSourceAndDate) {
  const std::set<std::string> expected{"a100-sxm", "h100-sxm", "h200-sxm", "h20",    "b200-sxm", "b300-sxm",
                                       "gb200",    "gb300",    "mi300x",   "mi325x", "mi355x",   "cpu-host"};
  const std::vector<std::string> names = hardware_preset_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected);
  for (const std::string& name : names) {
    const HardwareSpec spec = hardware_preset(name);
    EXPECT_EQ(spec.name, name);
    EXPECT_FALSE(spec.description.empty());
    EXPECT_EQ(spec.gpu, name);
    for (const HardwareNumber& number : spec.numbers) {
      EXPECT_FALSE(number.unit.empty()) << name << " " << number.key;
      EXPECT_GT(number.source.size(), 8U) << name << " " << number.key;
      EXPECT_GE(number.date.size(), 4U) << name << " " << number.key;
    }
  }
}

TEST(Hardware, NamesTheGpuOfItsOperatorTables) {
  Json object = h200();
  for (const auto& [written, name] :
       {std::pair("h100_sxm", "h100-sxm"), {"h100-pcie5", "h100-sxm"}, {"l40s", "l40s"}}) {
    object["gpu"] = written;
    EXPECT_EQ(parse_hardware(object.dump(), "machine.json").gpu, name);
  }
  object.erase("gpu");
  EXPECT_EQ(parse_hardware(object.dump(), "machine.json").gpu, "");
  for (const Json& wrong : {Json("H100 SXM"), Json("h100\x1b[2J"), Json(100), Json(std::string(41, 'a'))}) {
    object["gpu"] = wrong;
    EXPECT_NE(error_of(object).find("gpu"), std::string::npos) << wrong;
  }
}

TEST(Hardware, FormerNamesAreAliases) {
  const std::pair<const char*, const char*> aliases[] = {
      {"a100-pcie4", "a100-sxm"}, {"h100-pcie5", "h100-sxm"}, {"h200-pcie5", "h200-sxm"},
      {"h20-pcie5", "h20"},       {"h20-sxm", "h20"},         {"b200-pcie5", "b200-sxm"},
      {"b300-pcie5", "b300-sxm"}, {"gb200-c2c", "gb200"},     {"gb300-c2c", "gb300"}};
  for (const auto& [alias, name] : aliases) {
    EXPECT_EQ(hardware_preset(alias).name, name);
    EXPECT_EQ(hardware_preset_text(alias), hardware_preset_text(name));
  }
  EXPECT_EQ(hardware_preset_name("h100-sxm"), "h100-sxm");
  EXPECT_EQ(hardware_preset_name("h100"), "h100");
  EXPECT_THROW(hardware_preset("h100"), ModelError);
}

// AMD's presets have figures of data sheets for what a roofline needs, and say that nothing else is known.
TEST(Hardware, AmdPresetsAreARoofline) {
  for (const char* name : {"mi300x", "mi325x", "mi355x"}) {
    const HardwareSpec spec = hardware_preset(name);
    EXPECT_NE(spec.description.find("Roofline only"), std::string::npos) << name;
    for (const std::string& table : operators_preset_names()) EXPECT_FALSE(table.starts_with(name)) << table;
    for (const HardwareNumber& number : spec.numbers) {
      if (number.key == "memory_bytes") {
        EXPECT_TRUE(number.source.starts_with("total that the driver gives") &&
                    number.source.find("AMD Instinct MI3") != std::string::npos)
            << name << " " << number.source;
        continue;
      }
      const bool of_the_data_sheet =
          number.key == "memory_bandwidth" || number.key.starts_with("peak_") || number.key == "peer_bandwidth";
      EXPECT_EQ(number.source.starts_with("AMD Instinct MI3"), of_the_data_sheet) << name << " " << number.key;
    }
  }
  EXPECT_DOUBLE_EQ(hardware_preset("mi300x").peak_fp4, 0);
  EXPECT_DOUBLE_EQ(hardware_preset("mi355x").peak_fp4, 10066.3e12);
}

TEST(Hardware, NumbersAreInBaseUnits) {
  const HardwareSpec spec = hardware_preset("h200-sxm");
  EXPECT_DOUBLE_EQ(spec.memory_bytes, 139.8 * 1073741824.0);
  EXPECT_DOUBLE_EQ(spec.memory_bandwidth, 4.8e12);
  EXPECT_DOUBLE_EQ(spec.peak_bf16, 989.4e12);
  EXPECT_DOUBLE_EQ(spec.host_to_device, 55e9);
  EXPECT_DOUBLE_EQ(spec.inline_limit, 28 * 1024);
  EXPECT_DOUBLE_EQ(spec.copy_call, 3e-6);
  EXPECT_DOUBLE_EQ(hardware_preset("a100-sxm").peak_fp8, 0);
}

TEST(Hardware, LintRefusesWhatNoMachineReaches) {
  EXPECT_EQ(
      error_with("host_to_device", 12500, "GB/s"),
      "machine.json: host_to_device: key \"value\" is 12500.0; it must be at most 1,000 GB/s, which no machine of "
      "today exceeds.");
  EXPECT_NE(error_with("device_to_host", 1001, "GB/s").find("1,000 GB/s"), std::string::npos);
  EXPECT_NE(error_with("memory_bandwidth", 20.1, "TB/s").find("20 TB/s"), std::string::npos);
  EXPECT_NE(error_with("peak_bf16", 11, "PFLOP/s").find("10 PFLOP/s"), std::string::npos);
  EXPECT_NE(error_with("memory_fraction", 1.01, "fraction").find("at most 1"), std::string::npos);
  EXPECT_NE(error_with("memory_bytes", 0, "GB").find("at least 1 B; leave the key out"), std::string::npos);
  EXPECT_NE(error_with("host_to_device", 1e-10, "GB/s").find("at least 1000 B/s"), std::string::npos);
  EXPECT_NE(error_with("copy_call", -3, "us").find("at least 0.000001 ns"), std::string::npos);
  EXPECT_EQ(error_with("host_to_device", 1000, "GB/s"), "no error");
}

// A misspelt key would leave its default in force.
TEST(Hardware, RefusesKeysThatItDoesNotRead) {
  Json object = h200();
  object["numbers"]["copy_call"]["hihg"] = 4;
  EXPECT_NE(error_of(object).find("copy_call: unknown key \"hihg\": did you mean \"high\""), std::string::npos)
      << error_of(object);
  object = h200();
  object["number"] = Json::object();
  EXPECT_NE(error_of(object).find("did you mean \"numbers\""), std::string::npos) << error_of(object);
  object = h200();
  object["calibration"] = {{"anything", {{"at", "all"}}}};
  EXPECT_EQ(error_of(object), "no error");
}

TEST(Hardware, RefusesAKeyThatIsGivenTwice) {
  std::string text = h200().dump();
  const std::string unit = "\"unit\":\"us\"";
  text.replace(text.find(unit), unit.size(), unit + ",\"unit\":\"ms\"");
  try {
    static_cast<void>(parse_hardware(text, "machine.json"));
    ADD_FAILURE() << "accepted";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("machine.json: key \"unit\" is given twice"), std::string::npos)
        << error.what();
  }
  try {  // the same reader
    static_cast<void>(parse_model(R"({"model_type": "llama", "head_dim": 64, "head_dim": 128})", "config.json"));
    ADD_FAILURE() << "accepted";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("key \"head_dim\" is given twice"), std::string::npos) << error.what();
  }
}

// A config that names the format of each expert has 3 MB; a reader that is quadratic in it takes minutes.
TEST(Hardware, ReadsAConfigOfManyLayers) {
  std::string formats;
  for (int expert = 0; expert < 200'000; ++expert) {
    formats += (expert == 0 ? "\"" : ",\"") + std::to_string(expert) + "\":{\"bits\":4}";
  }
  const std::string text =
      R"({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "head_dim": 128,
          "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 32, "intermediate_size": 14336,
          "vocab_size": 128256, "torch_dtype": "bfloat16", "unsloth_fixed": {)" +
      formats + "}}";
  EXPECT_EQ(parse_model(text, "config.json").kv_bytes_per_token, 2U * 32 * 8 * 128 * 2);
}

TEST(Hardware, IntervalsHoldTheirValue) {
  Json object = h200();
  Json& number = object["numbers"]["host_to_device"];
  const double value = number["value"];
  number["low"] = value * 0.9;
  EXPECT_NE(error_of(object).find("\"high\""), std::string::npos);
  number["high"] = value * 1.2;
  EXPECT_EQ(error_of(object), "no error");
  const HardwareSpec spec = parse_hardware(object.dump(), "machine.json");
  const auto fitted = std::ranges::find(spec.numbers, "host_to_device", &HardwareNumber::key);
  EXPECT_DOUBLE_EQ(fitted->low, value * 0.9);
  EXPECT_DOUBLE_EQ(fitted->high, value * 1.2);
  number["low"] = value * 1.1;
  EXPECT_NE(error_of(object).find("\"low\""), std::string::npos);
  number["low"] = value * 0.9;
  number["high"] = value * 0.95;
  EXPECT_NE(error_of(object).find("\"high\""), std::string::npos);
}

TEST(Hardware, StorageIsThereOrNot) {
  for (const std::string& name : hardware_preset_names()) {
    const HardwareSpec spec = hardware_preset(name);
    EXPECT_TRUE(spec.has_drives() && spec.has_pool() && spec.has_gpudirect()) << name;
    EXPECT_GE(spec.drive_read_bandwidth, spec.drive_write_bandwidth) << name;
    // Requests of 64 KiB and more are limited by the bandwidth, as measurements by Solidigm show.
    EXPECT_GE(spec.drive_read_iops * 65536, spec.drive_read_bandwidth) << name;
  }
  EXPECT_DOUBLE_EQ(hardware_preset("h200-sxm").drive_read_iops, 2.5e6);
  EXPECT_DOUBLE_EQ(hardware_preset("gb200").pcie_root_bandwidth, 0);
  Json object = h200();
  const Json whole = h200()["numbers"];  // items() borrows it
  for (const auto& [key, value] : whole.items()) {
    const bool storage = key.starts_with("drive_") || key.starts_with("disk_") || key.starts_with("nic_") ||
                         key.starts_with("pool_") || key.starts_with("gpudirect_") || key.starts_with("pcie_") ||
                         key.starts_with("file_");
    if (storage) object["numbers"].erase(key);
  }
  EXPECT_EQ(error_of(object), "no error");
  object = h200();
  object["numbers"].erase("drive_queue_depth");
  EXPECT_EQ(error_of(object),
            "machine.json: key \"drive_queue_depth\" is missing; it must be given, as drive_count is.");
  EXPECT_NE(error_with("drive_read_bandwidth", 33, "GB/s").find("at most 32 GB/s"), std::string::npos);
  EXPECT_NE(error_with("drive_read_iops", 21, "MIOPS").find("20 MIOPS"), std::string::npos);
  EXPECT_NE(error_with("nic_bandwidth", 400, "GB/s").find("at most 200 GB/s"), std::string::npos);
  EXPECT_NE(error_with("drive_read_iops", 1, "GB/s").find("one of IOPS, MIOPS"), std::string::npos);
  EXPECT_NE(error_with("drive_read_latency", 75, "s").find("100 ms"), std::string::npos);
}

TEST(Hardware, PlannersLimitsAreItsOwnOrTheDefaults) {
  const PlannerLimits defaults;
  const PlannerLimits a100 = planner_limits(hardware_preset("a100-sxm"));
  EXPECT_EQ(a100.copy_engine_min_h2d, defaults.copy_engine_min_h2d);
  EXPECT_EQ(a100.kernel_min_pieces, defaults.kernel_min_pieces);
  EXPECT_FALSE(a100.bulk_copies);
  Json measured = h200();
  const auto set = [&](const char* key, double value, const char* unit) {
    measured["numbers"][key] = {{"value", value}, {"unit", unit}, {"source", "a test"}, {"date", "2026"}};
  };
  set("copy_engine_min_h2d", 24, "KiB");
  set("copy_engine_min_d2h", 12, "KiB");
  set("box_min", 4, "KiB");
  set("box_min_busy", 1, "KiB");
  set("kernel_min_pieces", 16, "count");
  set("window_h2d", 4, "MiB");
  const PlannerLimits limits = planner_limits(parse_hardware(measured.dump(), "machine.json"));
  EXPECT_EQ(limits.copy_engine_min_h2d, 24u * 1024);
  EXPECT_EQ(limits.copy_engine_min_d2h, 12u * 1024);
  EXPECT_EQ(limits.box_min, 4096u);
  EXPECT_EQ(limits.box_min_busy, 1024u);
  EXPECT_EQ(limits.kernel_min_pieces, 16u);
  EXPECT_EQ(limits.window_h2d, 4u << 20);
  EXPECT_TRUE(limits.bulk_copies);
}

TEST(Hardware, ErrorsNameKeyAndUnit) {
  EXPECT_NE(error_with("memory_bandwidth", 4.8, "GB").find("one of B/s, MB/s, GB/s, GiB/s, TB/s"), std::string::npos);
  Json object = h200();
  object["numbers"]["memory_bandwith"] = object["numbers"]["memory_bandwidth"];
  EXPECT_NE(error_of(object).find("did you mean \"memory_bandwidth\"?"), std::string::npos);
  object = h200();
  object["numbers"].erase("host_to_device");
  EXPECT_EQ(error_of(object), "machine.json: key \"host_to_device\" is missing; it must be given.");
  object = h200();
  object["numbers"].erase("inline_rate");
  EXPECT_NE(error_of(object).find("inline_limit"), std::string::npos);
  object = h200();
  object["numbers"]["copy_call"] = 3;
  EXPECT_NE(error_of(object).find("an object with value, unit"), std::string::npos);
  EXPECT_NE(error_of(Json{{"name", "x"}}).find("\"numbers\" is missing"), std::string::npos);
  EXPECT_THROW(hardware_from_file("/nonexistent.json"), ModelError);
  try {
    hardware_preset("h200");
    FAIL();
  } catch (const ModelError& error) {
    const std::string sentence = error.what();
    EXPECT_NE(sentence.find("Known: a100-sxm, b200-sxm"), std::string::npos) << sentence;
  }
}

TEST(Presets, RowsListEveryNumber) {
  std::size_t models = 0, hardware = 0;
  for (const PresetRow& row : preset_rows()) {
    (row.kind == "model" ? models : hardware) += 1;
    EXPECT_FALSE(row.value.empty() || row.unit.empty() || row.source.empty() || row.date.empty())
        << row.preset << " " << row.number;
    if (row.preset == "deepseek-v3" && row.number == "kv_bytes_per_token") {
      EXPECT_EQ(row.value, "70272");
    }
  }
  EXPECT_EQ(models, 5 * model_preset_names().size());
  EXPECT_GT(hardware, 25 * hardware_preset_names().size());
}

TEST(Presets, UnknownModelNamesTheNearest) {
  try {
    model_preset("lama-3.1-8b");
    FAIL();
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("did you mean \"llama-3.1-8b\"?"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kvtwin
