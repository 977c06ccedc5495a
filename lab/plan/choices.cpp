#include "lab/plan/choices.hpp"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <map>
#include <optional>

#include "lab/engine_flags/flag_text.hpp"
#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/plan/default_parts.hpp"
#include "models/error.hpp"
#include "policy/base/names.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kEngines = "cluster.engines", kDrives = "drives", kPrefillShare = "prefill_share";
constexpr std::string_view kGpu = "hardware.name", kWeights = "model.weights";
constexpr double kLeastMeasured = 0.8;  // share of a decode step; the roofline fills the rest, and is too fast
constexpr double kUsable = 0.9;         // share of a drive for the disk tier

bool is_amount(const std::string& given) {
  const std::string_view key = present_name(given);
  if (key == "hardware.set.nic_count" || key == "hardware.set.drive_count") return true;
  if (key.starts_with("hardware.")) return key.ends_with("_gbps") || key.ends_with("_bandwidth");
  return key.starts_with("tiers.") && (key.ends_with(".gib") || key.ends_with(".tokens") || key.ends_with(".ratio"));
}

// Refuses keys that belong to the question, and keys that another choice sets. Errors: InputError.
void check_key(const std::string& key, const std::string& axis, bool with_drives) {
  const auto refuse = [&](const std::string& why) { throw InputError("--vary " + axis + ": " + why); };
  for (const std::string_view part : {"workload.", "slo.", "prices.", "sim.", "report.", "real.", "faults"}) {
    if (key.starts_with(part)) refuse(key + " is part of the question; a plan chooses hardware and policies");
  }
  if (key == "seed" || key == "hardware.draw" || key == "hardware.end" || key == "hardware.spread_percent") {
    refuse(key + " is part of the question; --seeds and --draws repeat the simulation");
  }
  if (key == kEngines) refuse("give cluster.engines a list of its own");
  if (key == "cluster.prefill" || key == "cluster.decode") {
    refuse(
        "the number of engines varies; give the share of the engines that prefill, e.g. --vary "
        "prefill_share=0,0.25,0.5");
  }
  if (with_drives && (key.starts_with("tiers.disk.") || present_name(key) == "hardware.set.drive_count")) {
    refuse("drives=... sets " + key + " too; give one of the two");
  }
}

std::optional<std::int64_t> whole(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Reads "4,8,16" or "1..64". Errors: InputError.
std::vector<std::int64_t> counts(std::string_view text, const std::string& origin, std::int64_t most) {
  std::vector<std::int64_t> values;
  const auto refuse = [&] {
    throw InputError(origin + ": must be whole numbers from 0 to " + std::to_string(most) +
                     ", e.g. 4,8,16 or 1..64, in ascending order");
  };
  const auto add = [&](std::int64_t value) {
    if (value < 0 || value > most || (!values.empty() && value <= values.back())) refuse();
    values.push_back(value);
  };
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    const std::string_view one = text.substr(0, comma);
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (const std::size_t dots = one.find(".."); dots != std::string_view::npos) {
      const auto first = whole(one.substr(0, dots)), last = whole(one.substr(dots + 2));
      if (!first || !last || *last < *first || *last > most) refuse();
      for (std::int64_t value = *first; value <= *last; ++value) add(value);
    } else {
      const auto value = whole(one);
      if (!value) refuse();
      add(*value);
    }
  }
  if (values.empty()) refuse();
  return values;
}

// Reads "prefill_share=0,0.25". Errors: InputError.
SweepAxis share_axis(const std::string& list) {
  SweepPlan plan;
  plan.vary(list);
  SweepAxis axis = std::move(plan.axes.front());
  axis.keys.clear();
  for (const SweepValue& value : axis.values) {
    if (value.number && *value.number >= 0 && *value.number < 1) continue;
    throw InputError("--vary " + list +
                     ": must be shares of the engines from 0 to below 1, e.g. 0,0.25,0.5; 0 = no engine has a role");
  }
  return axis;
}

SweepAxis number_axis(std::string name, std::vector<std::string> keys, const std::vector<std::int64_t>& values) {
  SweepAxis axis{std::move(name), std::move(keys), {}, "default"};
  for (const std::int64_t value : values) axis.values.push_back({std::to_string(value), static_cast<double>(value)});
  return axis;
}

std::string values_text(const PlanChoice& choice) {
  std::string text;
  for (const SweepValue& value : choice.values) text += (text.empty() ? "" : ",") + value.text;
  return text;
}

}  // namespace

Choices::Choices(const std::vector<std::string>& lists, const Experiment& base, const PriceList& prices,
                 bool defaults) {
  SweepPlan varied;
  std::vector<SweepAxis> drives, shares;
  for (const std::string& list : lists) {
    const std::string name = list.substr(0, list.find('='));
    const std::string_view values = std::string_view(list).substr(std::min(list.size(), name.size() + 1));
    const bool again = (name == kEngines && !engines_.empty()) || (name == kDrives && !drives.empty()) ||
                       (name == kPrefillShare && !shares.empty());
    if (again) throw InputError("--vary " + list + ": " + name + " varies already; give all its values in one list");
    if (name == kEngines) {
      engines_ = counts(values, "--vary " + list, kMaxEngines);
      if (engines_.front() < 1) throw InputError("--vary " + list + ": there must be at least one engine");
    } else if (name == kDrives) {
      drives = {number_axis(name, {}, counts(values, "--vary " + list, 64))};
    } else if (name == kPrefillShare) {
      shares = {share_axis(list)};
    } else {
      varied.vary(list);
    }
  }
  for (const SweepAxis& axis : varied.axes) {
    for (const std::string& key : axis.keys) check_key(key, axis.name, !drives.empty());
  }
  for (SweepAxis& axis : varied.axes) add(std::move(axis));
  for (SweepAxis& axis : drives) add(std::move(axis));
  for (SweepAxis& axis : shares) add(std::move(axis));
  take_roles(base);
  if (defaults) add_defaults(base, prices);
  if (engines_.empty() && (!defaults || base.is_given(kEngines))) engines_ = {base.integer(kEngines)};
  if (std::ranges::find(list_, kDrives, &PlanChoice::name) != list_.end()) {
    drive_gib_ = kUsable * prices.get("drive.tb").value * 1e12 / 1073741824;
  }
  leave_out_unfit(base);
}

void Choices::add(SweepAxis axis) {
  PlanChoice choice{axis.name, axis.keys, std::move(axis.values), ChoiceKind::part, false, axis.origin == "default"};
  const bool numbers =
      std::ranges::all_of(choice.values, [](const SweepValue& value) { return value.number.has_value(); });
  if (choice.name == kPrefillShare) return list_.push_back(std::move(choice));
  const bool amounts = choice.name == kDrives || (numbers && std::ranges::all_of(choice.keys, is_amount));
  if (amounts) {
    choice.kind = ChoiceKind::amount;
    std::ranges::stable_sort(choice.values, {}, [](const SweepValue& value) { return *value.number; });
    const bool size = choice.name == kDrives || choice.name.starts_with("tiers.");
    choice.none_first = size && *choice.values.front().number == 0;
  } else if (std::ranges::all_of(choice.keys, is_policy_key)) {
    choice.kind = ChoiceKind::policy;
  }
  list_.push_back(std::move(choice));
}

// Roles of the experiment leave the number of engines no choice.
void Choices::take_roles(const Experiment& base) {
  const std::int64_t prefill = base.integer("cluster.prefill"), decode = base.integer("cluster.decode");
  if (prefill == 0 && decode == 0) return;
  const std::string where = base.where(prefill == 0 ? "cluster.decode" : "cluster.prefill");
  if (std::ranges::find(list_, kPrefillShare, &PlanChoice::name) != list_.end()) {
    throw InputError("--vary prefill_share: " + where + " gives engines their roles too; give one of the two");
  }
  if (!engines_.empty()) {
    throw InputError("--vary cluster.engines: " + where +
                     " fixes the number of engines; set it to 0, and give their share, e.g. --vary "
                     "prefill_share=0.25,0.5");
  }
  const std::int64_t engines = decode != 0 ? prefill + decode : base.integer(kEngines);
  roles_ = {prefill, engines - prefill};
  engines_ = {engines};
}

double Choices::prefill_share(const Setting& setting) const {
  const auto at = std::ranges::find(list_, kPrefillShare, &PlanChoice::name);
  if (at == list_.end()) return 0;
  return *at->values[setting.values[static_cast<std::size_t>(at - list_.begin())]].number;
}

RoleCounts Choices::roles(const Setting& setting) const {
  const double share = prefill_share(setting);
  if (share == 0) return roles_;
  const auto nearest = static_cast<std::int64_t>(share * static_cast<double>(setting.engines) + 0.5);
  const std::int64_t prefill = std::clamp<std::int64_t>(nearest, 1, setting.engines - 1);
  return {prefill, setting.engines - prefill};
}

bool Choices::is_open(std::initializer_list<std::string_view> keys, const Experiment& base) const {
  return std::ranges::all_of(keys, [&](std::string_view key) {
    const auto varies = [&](const PlanChoice& choice) {
      return choice.name == key || std::ranges::find(choice.keys, key, present_name) != choice.keys.end();
    };
    return std::ranges::none_of(list_, varies) && (key == kDrives || !base.is_given(key));
  });
}

void Choices::add_default_parts(const Experiment& base, const PriceList& prices) {
  const auto add_values = [&](std::string_view key, const DefaultValues& found) {
    if (!found.sentence.empty()) assumed_.push_back(found.sentence);
    if (found.values.empty()) return;
    SweepAxis axis{std::string(key), {std::string(key)}, {}, "default"};
    for (const std::string& value : found.values) axis.values.push_back({value, {}});
    add(std::move(axis));
  };
  const auto varies = [&](std::string_view key) {
    return std::ranges::any_of(
        list_, [&](const PlanChoice& choice) { return std::ranges::find(choice.keys, key) != choice.keys.end(); });
  };
  if (!varies(kGpu) && !varies("hardware.file")) add_values(kGpu, default_gpus(base, prices));
  if (varies(kWeights)) return;
  if (!varies("model.name") && !varies("model.config")) return add_values(kWeights, default_weights(base));
  assumed_.emplace_back("weights: as each model's config says, because the model varies");
}

void Choices::add_defaults(const Experiment& base, const PriceList& prices) {
  add_default_parts(base, prices);
  const std::size_t before = list_.size();
  if (is_open({"parallel.tp"}, base)) add(number_axis("parallel.tp", {"parallel.tp"}, {1, 2, 4, 8}));
  if (is_open({"tiers.host.gib", "tiers.host.tokens", "tiers.host.ratio"}, base)) {
    add(number_axis("tiers.host.gib", {"tiers.host.gib"}, {0, 128, 256, 512, 1024, 2048}));
  }
  if (is_open({kDrives, "tiers.disk.gib", "tiers.disk.tokens", "hardware.set.drive_count"}, base)) {
    add(number_axis(std::string(kDrives), {}, {0, 2, 4, 8}));
  }
  if (is_open({"cluster.route"}, base)) {
    add({"cluster.route",
         {"cluster.route"},
         {{"session_affinity", {}}, {"prefix_affinity", {}}, {"round_robin", {}}},
         "default"});
  }
  constexpr std::string_view kOfPools[] = {"model.name", "model.config", "engine", "scheduler.style"};
  if (std::ranges::none_of(list_, [&](const PlanChoice& choice) {
        return std::ranges::find_first_of(choice.keys, kOfPools) != choice.keys.end();
      })) {
    for (const DefaultPolicy& policy : default_pools(base)) {
      if (!is_open({policy.key, "tiers.device.states"}, base)) continue;
      SweepAxis axis{policy.key, {policy.key}, {}, "default"};
      for (const std::string& value : policy.values) axis.values.push_back({value, {}});
      add(std::move(axis));
      assumed_.push_back(policy.key + ": " + joined_words(policy.values) + ", by default; " + policy.values.front() +
                         " is the engine's own (" + policy.flag + ")");
    }
  }
  std::string others;
  for (std::size_t i = before; i < list_.size(); ++i) others += " " + list_[i].name + "=" + values_text(list_[i]);
  if (!others.empty()) assumed_.push_back("varied by default:" + others);
}

std::vector<std::size_t> Choices::parts_of(const Setting& setting) const {
  std::vector<std::size_t> parts;
  for (const std::size_t i : of_kind(ChoiceKind::part)) parts.push_back(setting.values[i]);
  return parts;
}

std::optional<std::size_t> Choices::default_format() const {
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (list_[i].name == kWeights && list_[i].by_default) return i;
  }
  return std::nullopt;
}

std::size_t Choices::format_place(const Setting& setting) const {
  const std::optional<std::size_t> format = default_format();
  return format ? setting.values[*format] : 0;
}

std::optional<Setting> Choices::stepped(Setting setting, std::size_t choice, int step) const {
  const auto count = static_cast<std::ptrdiff_t>(list_[choice].values.size());
  for (auto at = static_cast<std::ptrdiff_t>(setting.values[choice]) + step; at >= 0 && at < count; at += step) {
    setting.values[choice] = static_cast<std::size_t>(at);
    if (offers(setting)) return setting;
  }
  return std::nullopt;
}

std::vector<std::size_t> Choices::in_steps() const {
  std::vector<std::size_t> choices = of_kind(ChoiceKind::amount);
  if (const std::optional<std::size_t> format = default_format()) choices.push_back(*format);
  return choices;
}

bool Choices::offers(const Setting& setting) const { return offered_.empty() || offered_.contains(parts_of(setting)); }

// Keeps the combinations of parts that can be set up with the first value of all else. If there is none, another cause
// than the parts is likely, and all stay, so that the search names the cause.
void Choices::leave_out_unfit(const Experiment& base) {
  std::vector<std::size_t> ours;  // parts that vary by default
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (list_[i].by_default && (list_[i].name == kGpu || list_[i].name == kWeights)) ours.push_back(i);
  }
  if (ours.empty()) return;
  std::set<std::pair<std::size_t, std::size_t>> fits;       // choice and value
  std::map<std::string, std::set<std::string>> without;     // by format: the GPUs that have no units for it
  std::set<std::pair<std::string, std::string>> measured;   // format and GPU that are offered
  std::map<std::string, std::set<std::string>> unmeasured;  // by format: the GPUs whose table lacks most of a pass
  const std::vector<std::size_t> parts = of_kind(ChoiceKind::part);
  Setting setting{std::vector<std::size_t>(list_.size(), 0), 1};
  for (bool more = true; more;) {
    setting.engines = fewest_engines(setting);
    try {
      const Experiment one = experiment(base, setting);
      const Setup setup = make_setup(one);
      const std::string& weights = one.text(kWeights);
      if (default_format() && !computes(setup.hardware, *value_named<WeightChoice>(weights))) {
        without[weights].insert(setup.hardware.name);
      } else if (const auto share = measured_decode_share(setup);
                 default_format() && share && *share < kLeastMeasured) {
        unmeasured[weights].insert(setup.hardware.name);
      } else {
        offered_.insert(parts_of(setting));
        measured.emplace(weights, setup.hardware.name);
        for (const std::size_t i : ours) fits.emplace(i, setting.values[i]);
      }
    } catch (const InputError&) {  // for example no memory for the model
    } catch (const ModelError&) {
    }
    more = false;
    for (std::size_t k = parts.size(); k-- > 0 && !more;) {
      std::size_t& at = setting.values[parts[k]];
      more = ++at < list_[parts[k]].values.size();
      if (!more) at = 0;
    }
  }
  if (offered_.empty()) return;
  for (const auto& [weights, gpus] : without) {
    assumed_.push_back("weights " + weights + ": not on " + joined_words({gpus.begin(), gpus.end()}) +
                       ", without units for this format");
  }
  for (auto& [weights, gpus] : unmeasured) {
    std::erase_if(gpus, [&, &weights = weights](const std::string& gpu) { return measured.contains({weights, gpu}); });
    if (gpus.empty()) continue;
    assumed_.push_back("weights " + weights + ": not on " + joined_words({gpus.begin(), gpus.end()}) +
                       ", whose operator table has too little of a pass to compare: the roofline is too fast");
  }
  for (const std::size_t i : ours) {
    for (std::size_t value = 0; value < list_[i].values.size(); ++value) {
      const std::string& text = list_[i].values[value].text;
      if (fits.contains({i, value}) || without.contains(text) || unmeasured.contains(text)) continue;
      assumed_.push_back((list_[i].name == kGpu ? "GPU " : "weights ") + text +
                         ": left out, the model does not fit with any of the other values");
    }
  }
}

void set_roles(const RoleCounts& roles, Experiment& experiment) {
  for (const auto& [key, count] : {std::pair{kEngines, roles.prefill + roles.decode},
                                   {std::string_view("cluster.prefill"), roles.prefill},
                                   {std::string_view("cluster.decode"), roles.decode}}) {
    experiment.set(std::string(key) + "=" + std::to_string(count), "plan");
  }
}

std::vector<std::size_t> Choices::of_kind(ChoiceKind kind) const {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    if (list_[i].kind == kind) found.push_back(i);
  }
  return found;
}

Setting Choices::largest() const {
  Setting setting{{}, 2};
  for (const PlanChoice& choice : list_) setting.values.push_back(choice.values.size() - 1);
  if (offered_.empty() || offers(setting)) return setting;
  const std::vector<std::size_t> parts = of_kind(ChoiceKind::part);
  for (std::size_t i = 0; i < parts.size(); ++i) setting.values[parts[i]] = (*offered_.rbegin())[i];
  return setting;
}

Experiment Choices::experiment(const Experiment& base, const Setting& setting) const {
  Experiment experiment = base;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const PlanChoice& choice = list_[i];
    const SweepValue& value = choice.values[setting.values[i]];
    for (const std::string& key : choice.keys) experiment.set(key + "=" + value.text, "plan");
    if (choice.name != kDrives) continue;
    if (*value.number != 0) experiment.set("hardware.set.drive_count=" + value.text, "plan");
    const auto gib = static_cast<std::int64_t>(*value.number * drive_gib_);
    experiment.set("tiers.disk.gib=" + std::to_string(gib), "plan");
  }
  experiment.set(std::string(kEngines) + "=" + std::to_string(setting.engines), "plan");
  if (has_roles(setting)) set_roles(roles(setting), experiment);
  const bool stores =
      std::ranges::any_of(kStorageSpecs, [&](const TierSpec& spec) { return has_tier(experiment, spec.tier); });
  if (!experiment.is_given("cache.path") && stores && !has_tier(experiment, Tier::host)) {
    experiment.set("cache.path=direct", "plan");
  }
  return experiment;
}

std::vector<std::pair<std::string, std::string>> Choices::texts(const Setting& setting) const {
  std::vector<std::pair<std::string, std::string>> texts;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    texts.emplace_back(list_[i].name, list_[i].values[setting.values[i]].text);
  }
  texts.emplace_back(kEngines, std::to_string(setting.engines));
  if (prefill_share(setting) > 0) {
    const auto [prefill, decode] = roles(setting);
    texts.emplace_back("cluster.prefill", std::to_string(prefill));
    texts.emplace_back("cluster.decode", std::to_string(decode));
  }
  return texts;
}

std::string Choices::text(const Setting& setting) const {
  std::string text;
  for (const auto& [name, value] : texts(setting)) text += (text.empty() ? "" : " ") + name + "=" + value;
  return text;
}

std::string Choices::difference(const Setting& setting, const Setting& from) const {
  const auto before = texts(from);
  std::string text;
  for (const auto& pair : texts(setting)) {
    if (std::ranges::find(before, pair) == before.end())
      text += (text.empty() ? "" : " ") + pair.first + "=" + pair.second;
  }
  return text.empty() ? "the same" : text;
}

}  // namespace kvtwin
