#include "models/calibration_samples.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <optional>
#include <utility>

#include "models/config_reader.hpp"
#include "models/json.hpp"
#include "models/names.hpp"
#include "policy/base/names.hpp"

namespace kvtwin {
namespace {

template <typename T>
using Names = std::vector<std::pair<std::string, T>>;

const Names<Tier> kMemories{{"host", Tier::host}, {"device", Tier::device}};
const Names<Measured> kKinds = [] {
  Names<Measured> names{{"transfer", Measured::transfer}, {"both", Measured::both}, {"forward", Measured::forward}};
  for (const TierSpec& spec : kStorageSpecs) names.emplace_back(spec.name, Measured::storage);
  names.emplace_back("nic", Measured::nic);
  names.emplace_back("interference", Measured::interference);
  names.emplace_back("probe", Measured::probe);
  return names;
}();

template <typename T>
const std::string& name_in(const Names<T>& names, T value) {
  return std::ranges::find(names, value, &std::pair<std::string, T>::second)->first;
}

// The fields of one line. Errors name file, line and key.
class Line {
 public:
  Line(const Json& json, std::string where) : json_(json), where_(std::move(where)) {}

  [[noreturn]] void fail(std::string_view key, const std::string& right) const {
    throw ModelError(where_ + ": \"" + std::string(key) + "\" must be " + right);
  }
  // Returns the value of a key that the kind of line has; end() if the line does not have it.
  Json::const_iterator find(const char* key) const {
    if (std::ranges::find(read_, key) == read_.end()) read_.emplace_back(key);
    return json_.find(key);
  }
  // Refuses keys that no find() asked for: a misspelt key would leave its default in force.
  void check_keys() const {
    for (const auto& [key, value] : json_.items()) {
      if (std::ranges::find(read_, key) == read_.end())
        throw ModelError(where_ + ": " + unknown_name("key", key, read_));
    }
  }
  std::string text(const char* key) const {
    const auto found = find(key);
    if (found == json_.end() || !found->is_string()) fail(key, "a text");
    return found->get<std::string>();
  }
  bool flag(const char* key) const {
    const auto found = find(key);
    if (found == json_.end()) return false;
    if (!found->is_boolean()) fail(key, "true or false");
    return found->get<bool>();
  }
  std::uint64_t whole(const char* key) const {
    const auto found = find(key);
    if (found == json_.end()) return 0;
    constexpr std::uint64_t kMaxWhole = std::uint64_t{1} << 50;
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() > kMaxWhole) fail(key, "a whole number up to 2^50");
    return found->get<std::uint64_t>();
  }
  std::uint32_t small(const char* key) const {
    if (whole(key) > 0xffffffffU) fail(key, "a whole number below 2^32");
    return static_cast<std::uint32_t>(whole(key));
  }
  double seconds(const char* key) const {
    const auto found = find(key);
    const bool given = found != json_.end() && found->is_number();
    // This form also fails for NaN.
    if (!given || !(found->get<double>() > 0) || !(found->get<double>() < 1e6)) {
      fail(key, "a number of seconds above 0 and below 1,000,000");
    }
    return found->get<double>();
  }
  template <typename E>
  E one_of(const char* key) const {
    const std::string name = text(key);
    if (const std::optional<E> value = value_named<E>(name)) return *value;
    const std::vector<std::string> known(names_of<E>().begin(), names_of<E>().end());
    throw ModelError(where_ + ": " + unknown_name(key, name, known));
  }
  template <typename T>
  T one_of(const char* key, const Names<T>& names) const {
    const std::string name = text(key);
    std::vector<std::string> known;
    for (const auto& [candidate, value] : names) {
      if (candidate == name) return value;
      known.push_back(candidate);
    }
    throw ModelError(where_ + ": " + unknown_name(key, name, known));
  }
  const Json& json() const { return json_; }
  const std::string& where() const { return where_; }

 private:
  const Json& json_;
  std::string where_;
  mutable std::vector<std::string> read_;
};

void write_plan(Json& line, const Plan& plan) {
  line["path"] = name_of(plan.path);
  line["direction"] = name_of(plan.direction);
  line["pages"] = plan.pages;
  line["bytes"] = plan.bytes;
  line["descriptors"] = plan.descriptors;
  line["descriptor_bytes"] = plan.descriptor_bytes;
  line["piece_bytes"] = plan.piece_bytes;
  line["layer_groups"] = plan.layer_groups;
  line["window"] = plan.window;
}

Plan read_plan(const Line& line) {
  Plan plan;
  plan.path = line.one_of<TransferPath>("path");
  plan.direction = line.one_of<Direction>("direction");
  plan.pages = line.small("pages");
  plan.bytes = line.whole("bytes");
  plan.descriptors = line.whole("descriptors");
  plan.descriptor_bytes = line.whole("descriptor_bytes");
  plan.piece_bytes = line.whole("piece_bytes");
  plan.layer_groups = std::max(1U, line.small("layer_groups"));
  plan.window = line.whole("window");
  if (plan.bytes == 0) line.fail("bytes", "above 0");
  return plan;
}

void write_shape(Json& line, const ForwardShape& shape) {
  line["prefill_tokens"] = shape.prefill_tokens;
  line["prefill_pairs"] = shape.prefill_pairs;
  line["prefill_context_tokens"] = shape.prefill_context_tokens;
  line["prefill_sequences"] = shape.prefill_sequences;
  line["decode_sequences"] = shape.decode_sequences;
  line["decode_context_tokens"] = shape.decode_context_tokens;
}

ForwardShape read_shape(const Line& line) {
  ForwardShape shape;
  shape.prefill_tokens = line.whole("prefill_tokens");
  shape.prefill_pairs = line.whole("prefill_pairs");
  shape.prefill_context_tokens = line.whole("prefill_context_tokens");
  shape.prefill_sequences = line.small("prefill_sequences");
  shape.decode_sequences = line.small("decode_sequences");
  shape.decode_context_tokens = line.whole("decode_context_tokens");
  return shape;
}

void write_work(Json& line, const StorageWork& work) {
  line["verb"] = name_of(work.verb);
  line["memory"] = name_in(kMemories, work.memory);
  line["pages"] = work.pages;
  line["page_bytes"] = work.page_bytes;
  line["objects"] = work.objects;
  line["ranks"] = work.ranks;
}

StorageWork read_work(const Line& line, Tier tier) {
  StorageWork work;
  work.tier = tier;
  work.verb = line.one_of<StorageVerb>("verb");
  work.memory = line.one_of("memory", kMemories);
  work.pages = line.small("pages");
  work.page_bytes = line.whole("page_bytes");
  work.objects = std::max(1U, line.small("objects"));
  work.ranks = std::max(1U, line.small("ranks"));
  if (work.pages == 0) line.fail("pages", "above 0");
  return work;
}

std::string kind_name(const Measurement& one) {
  if (one.what == Measured::storage) return std::string(spec_of(one.work.tier).name);
  return name_in(kKinds, one.what);
}

Json features(const Measurements& all, const Measurement& one) {
  Json line{{"what", kind_name(one)}};
  switch (one.what) {
    case Measured::transfer:
    case Measured::both: write_plan(line, one.plan); break;
    case Measured::forward:
      line["model"] = all.models[one.model].name;
      line["tp"] = one.tp;
      line["steps"] = one.steps;
      write_shape(line, one.shape);
      break;
    case Measured::storage: write_work(line, one.work); break;
    case Measured::nic:
      line["bytes"] = one.bytes;
      line["stream"] = one.stream;
      break;
    case Measured::interference:
      line["lane"] = one.lane;
      line["beside"] = one.beside;
      line["alone_seconds"] = one.alone_seconds;
      break;
    case Measured::probe: line["of"] = one.of; break;
  }
  if (one.recorded) line["recorded"] = true;
  return line;
}

Measurement read_one(const Line& line, const Measurements& all) {
  Measurement one;
  one.what = line.one_of("what", kKinds);
  one.recorded = line.flag("recorded");
  one.seconds = line.seconds("seconds");
  switch (one.what) {
    case Measured::transfer:
    case Measured::both: one.plan = read_plan(line); break;
    case Measured::forward: {
      const std::string name = line.text("model");
      const auto model = std::ranges::find(all.models, name, &MeasuredModel::name);
      if (model == all.models.end()) line.fail("model", "the name of a model line above it");
      one.model = static_cast<std::size_t>(model - all.models.begin());
      one.tp = std::max(1U, line.small("tp"));
      one.steps = std::max<std::uint64_t>(1, line.whole("steps"));
      one.shape = read_shape(line);
      static_cast<void>(model->geometry.shape(one.tp, 1));  // refuses a tp that does not divide the heads
      break;
    }
    case Measured::storage: one.work = read_work(line, tier_named(line.text("what"))->tier); break;
    case Measured::nic:
      one.bytes = line.whole("bytes");
      one.stream = line.flag("stream");
      if (one.bytes == 0) line.fail("bytes", "above 0");
      break;
    case Measured::interference:
      one.lane = line.text("lane");
      one.beside = line.text("beside");
      one.alone_seconds = line.seconds("alone_seconds");
      break;
    case Measured::probe: one.of = line.text("of"); break;
  }
  return one;
}

std::optional<MachineLoad> read_load(const Line& line) {
  const auto averages = line.find("load_average"), steal = line.find("steal_share");
  if (averages == line.json().end() && steal == line.json().end()) return std::nullopt;
  const auto is_number = [](const Json& number) { return number.is_number() && number.get<double>() >= 0; };
  const bool pair = averages != line.json().end() && averages->is_array() && averages->size() == 2 &&
                    is_number((*averages)[0]) && is_number((*averages)[1]);
  if (!pair) line.fail("load_average", "two numbers, before and after");
  if (steal == line.json().end() || !is_number(*steal) || steal->get<double>() > 1) {
    line.fail("steal_share", "a share from 0 to 1");
  }
  return MachineLoad{(*averages)[0], (*averages)[1], *steal};
}

void read_line(const Line& line, Measurements& all) {
  const std::string what = line.text("what");
  if (what == "machine") {
    MeasuredMachine machine{line.text("cpu"), line.text("kernel"), line.whole("cores"), line.text("device")};
    machine.load = read_load(line);
    if (all.machine && !all.machine->same_as(machine)) line.fail("what", "the same machine in all lines");
    all.machine = std::move(machine);
  } else if (what == "model") {
    const auto config = line.find("config");
    if (config == line.json().end() || !config->is_object()) line.fail("config", "an object, as config.json's");
    try {
      all.add_model(line.text("name"), config->dump());
    } catch (const ModelError& error) {
      throw ModelError(line.where() + ": " + error.what());
    }
  } else {
    all.list.push_back(read_one(line, all));
  }
  line.check_keys();
}

}  // namespace

std::string MeasuredMachine::text() const {
  return cpu + ", " + std::to_string(cores) + " cores" + (kernel.empty() ? "" : ", " + kernel) + ", device " + device;
}

std::string MeasuredMachine::load_sentence() const {
  if (!load) return "";
  const bool loaded = load->before >= 0.5 * static_cast<double>(cores), stolen = load->steal_share >= 0.01;
  if (!loaded && !stolen) return "";
  char text[200];
  std::string sentence = "Other work slowed what was measured: ";
  if (loaded) {
    std::snprintf(text, sizeof text, "the load average was %.1f on %llu cores before it began", load->before,
                  static_cast<unsigned long long>(cores));
    sentence += text;
  }
  if (stolen) {
    std::snprintf(text, sizeof text, "%s%.1f %% of the processors' time was stolen by other virtual machines",
                  loaded ? ", and " : "", 100 * load->steal_share);
    sentence += text;
  }
  return sentence + "; measure again on an idle machine";
}

std::size_t Measurements::add_model(const std::string& name, const std::string& config) {
  for (std::size_t i = 0; i < models.size(); ++i) {
    if (models[i].name != name) continue;
    if (models[i].config == config) return i;
    return add_model(name + "'", config);  // another model with the same name
  }
  models.push_back({name, config, parse_model(config, name)});
  return models.size() - 1;
}

void Measurements::add(Measurements more, const std::string& from) {
  if (machine && more.machine && !machine->same_as(*more.machine)) {
    throw ModelError(from + ": was measured on another machine (" + more.machine->text() + ") than the others (" +
                     machine->text() + "); calibrate one machine at a time");
  }
  if (!machine) machine = std::move(more.machine);
  std::vector<std::size_t> numbers;
  for (const MeasuredModel& model : more.models) numbers.push_back(add_model(model.name, model.config));
  for (Measurement& one : more.list) {
    if (one.what == Measured::forward) one.model = numbers[one.model];
    list.push_back(std::move(one));
  }
}

std::string to_jsonl(const Measurements& all) {
  const auto dump = [](const Json& line) { return line.dump(-1, Json::BadBytes::replace) + "\n"; };
  std::string text;
  if (all.machine) {
    Json line{{"what", "machine"},
              {"cpu", all.machine->cpu},
              {"cores", all.machine->cores},
              {"kernel", all.machine->kernel},
              {"device", all.machine->device}};
    if (const auto& load = all.machine->load) {
      line["load_average"] = {load->before, load->after};
      line["steal_share"] = load->steal_share;
    }
    text += dump(line);
  }
  for (const MeasuredModel& model : all.models) {
    text += dump({{"what", "model"}, {"name", model.name}, {"config", Json::parse(model.config)}});
  }
  for (const Measurement& one : all.list) {
    Json line = features(all, one);
    line["seconds"] = one.seconds;
    text += dump(line);
  }
  return text;
}

std::string features_of(const Measurements& all, const Measurement& one) { return features(all, one).dump(); }

Measurements parse_measurements(std::string_view text, const std::string& file) {
  Measurements all;
  std::size_t number = 0;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string where = file + ":" + std::to_string(++number);
    if (row.empty()) continue;
    std::string repeated;
    const Json json = parse_json(row, repeated);
    if (!repeated.empty()) throw ModelError(where + ": \"" + repeated + "\" is given twice; it must be given once");
    if (!json.is_object()) {
      throw ModelError(where + ": is no JSON object; kvtwin calibrate writes one measurement a line");
    }
    read_line(Line(json, where), all);
  }
  if (all.list.empty()) throw ModelError(file + ": holds no measurement; kvtwin calibrate writes one a line");
  return all;
}

}  // namespace kvtwin
