#include "models/stores.hpp"

#include <array>

#include "models/json.hpp"
#include "models/number_fields.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"

namespace kvtwin {

namespace {

using StoreField = FieldOf<StoreFigures>;
using F = StoreFigures;

constexpr std::array<StoreField, 14> kStoreFields{{
    {"look_up_call", Dimension::time, &F::look_up_call, 10, "10 s"},
    {"look_up_key", Dimension::time, &F::look_up_key, 1, "1 s", false},
    {"get_call", Dimension::time, &F::get_call, 10, "10 s"},
    {"set_call", Dimension::time, &F::set_call, 10, "10 s"},
    {"get_object", Dimension::time, &F::get_object, 1, "1 s", false},
    {"set_object", Dimension::time, &F::set_object, 1, "1 s", false},
    {"stream_read_bandwidth", Dimension::rate, &F::stream_read_bandwidth, 1e12, "1,000 GB/s", false},
    {"stream_write_bandwidth", Dimension::rate, &F::stream_write_bandwidth, 1e12, "1,000 GB/s", false},
    {"node_bandwidth", Dimension::rate, &F::node_bandwidth, 1e12, "1,000 GB/s", false},
    {"node_get_object", Dimension::time, &F::node_get_object, 1, "1 s", false},
    {"node_set_object", Dimension::time, &F::node_set_object, 1, "1 s", false},
    {"drive_read_bandwidth", Dimension::rate, &F::drive_read_bandwidth, 1e13, "10,000 GB/s", false},
    {"drive_write_bandwidth", Dimension::rate, &F::drive_write_bandwidth, 1e13, "10,000 GB/s", false},
    {"lease", Dimension::time, &F::lease, 86400, "one day", false},
}};

}  // namespace

StoreSpec parse_store(std::string_view json, const std::string& file) {
  const Json object = parse_object(json, file);
  const ConfigReader config(object, file);
  StoreSpec spec;
  spec.name = file;
  spec.description = config.text("description", "");
  spec.evicts = config.flag("evicts", true);
  const Json* numbers = config.find("numbers");
  if (numbers == nullptr || !numbers->is_object()) {
    config.fail("numbers", "an object of numbers, each with value, unit, source and date");
  }
  config.only({"description", "evicts", "numbers"});
  const ConfigReader given(*numbers, file);
  for (const auto& [key, value] : numbers->items()) {
    const StoreField& field = find_field(std::span<const StoreField>(kStoreFields), key, file);
    if (!value.is_object()) given.fail(key, "an object with value, unit, source and date");
    spec.numbers.push_back(read_number(spec.figures, field, value, file));
  }
  for (const StoreField& field : kStoreFields) {
    if (field.required && !(spec.figures.*field.member > 0)) given.fail(field.key, "given");
  }
  // The time of an object is that of one stream, which must have a rate.
  const F& f = spec.figures;
  if (f.get_object > 0 && !(f.stream_read_bandwidth > 0)) {
    given.fail("stream_read_bandwidth", "given, as get_object is");
  }
  if (f.set_object > 0 && !(f.stream_write_bandwidth > 0)) {
    given.fail("stream_write_bandwidth", "given, as set_object is");
  }
  return spec;
}

StoreSpec store_from_file(const std::string& path) {
  return parse_store(read_text_file(path, "give a description of a remote store (JSON)"), path);
}

StoreSpec store_preset(std::string_view name) { return parse_store(store_preset_text(name), std::string(name)); }

}  // namespace kvtwin
