#include "lab/plan/choices.hpp"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <optional>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kEngines = "cluster.engines", kDrives = "drives", kPrefillShare = "prefill_share";
constexpr double kUsable = 0.9;  // share of a drive for the disk tier

bool is_amount(const std::string& key) {
  if (key == "hardware.remote_nics" || key == "hardware.disk_drives") return true;
  if (key.starts_with("hardware.")) return key.ends_with("_gbps");
  return key.starts_with("tiers.") && (key.ends_with(".gib") || key.ends_with(".tokens") || key.ends_with(".ratio"));
}

// Refuses keys that belong to the question, and keys that another choice sets. Errors: InputError.
void check_key(const std::string& key, const std::string& axis, bool with_drives) {
  const auto refuse = [&](const std::string& why) { throw InputError("--vary " + axis + ": " + why); };
  for (const std::string_view part : {"workload.", "slo.", "prices.", "sim.", "report.", "real."}) {
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
  if (with_drives && (key.starts_with("tiers.disk.") || key == "hardware.disk_drives")) {
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

}  // namespace

Choices::Choices(const std::vector<std::string>& lists, const Experiment& base, const PriceList& prices) {
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
  add_defaults(base);
  if (engines_.empty() && base.is_given(kEngines)) engines_ = {base.integer(kEngines)};
  if (std::ranges::find(list_, kDrives, &PlanChoice::name) != list_.end()) {
    drive_gib_ = kUsable * prices.get("drive.tb").value * 1e12 / 1073741824;
  }
}

void Choices::add(SweepAxis axis) {
  PlanChoice choice{axis.name, axis.keys, std::move(axis.values), ChoiceKind::part, false};
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

void Choices::add_defaults(const Experiment& base) {
  const auto open = [&](std::initializer_list<std::string_view> keys) {
    return std::ranges::all_of(keys, [&](std::string_view key) {
      const auto varies = [&](const PlanChoice& choice) {
        return choice.name == key || std::ranges::find(choice.keys, key) != choice.keys.end();
      };
      return std::ranges::none_of(list_, varies) && (key == kDrives || !base.is_given(key));
    });
  };
  if (open({"parallel.tp"})) add(number_axis("parallel.tp", {"parallel.tp"}, {1, 2, 4, 8}));
  if (open({"tiers.host.gib", "tiers.host.tokens", "tiers.host.ratio"})) {
    add(number_axis("tiers.host.gib", {"tiers.host.gib"}, {0, 128, 256, 512, 1024, 2048}));
  }
  if (open({kDrives, "tiers.disk.gib", "tiers.disk.tokens", "hardware.disk_drives"})) {
    add(number_axis(std::string(kDrives), {}, {0, 2, 4, 8}));
  }
  if (open({"cluster.route"})) {
    add({"cluster.route", {"cluster.route"}, {{"prefix_affinity", {}}, {"round_robin", {}}}, "default"});
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
  return setting;
}

Experiment Choices::experiment(const Experiment& base, const Setting& setting) const {
  Experiment experiment = base;
  for (std::size_t i = 0; i < list_.size(); ++i) {
    const PlanChoice& choice = list_[i];
    const SweepValue& value = choice.values[setting.values[i]];
    for (const std::string& key : choice.keys) experiment.set(key + "=" + value.text, "plan");
    if (choice.name != kDrives) continue;
    if (*value.number != 0) experiment.set("hardware.disk_drives=" + value.text, "plan");
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

}  // namespace kvtwin
