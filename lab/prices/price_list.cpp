#include "lab/prices/price_list.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <sstream>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "lab/toml_text.hpp"
#include "lab/units.hpp"
#include "models/names.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxPriceBytes = std::size_t{1} << 20;

// A figure that a list may have. `group`: the name before the last point; "gpu." and "nic." have a name of their own
// after the point.
struct KnownFigure {
  std::string_view group, key;
  std::string_view unit;  // CUR stands for the currency
};
constexpr KnownFigure kKnown[] = {
    {"gpu.", "hour", "CUR/h"},   {"gpu.", "price", "CUR"},
    {"gpu.", "watts", "W"},      {"dram", "gib", "CUR/GiB"},
    {"dram", "watts", "W/GiB"},  {"drive", "price", "CUR"},
    {"drive", "tb", "TB"},       {"drive", "dwpd", "writes/day"},
    {"drive", "watts", "W"},     {"drive", "warranty_years", "years"},
    {"nic.", "price", "CUR"},    {"nic.", "watts", "W"},
    {"pool", "gib", "CUR/GiB"},  {"pool", "watts", "W/GiB"},
    {"power", "kwh", "CUR/kWh"}, {"power", "pue", "ratio"},
    {"life", "years", "years"},  {"shared_fs", "gib_month", "CUR/GiB/month"},
};

bool is_of(const KnownFigure& known, std::string_view group, std::string_view key) {
  const bool has_name = known.group.ends_with('.');
  return key == known.key &&
         (has_name ? group.starts_with(known.group) && group.size() > known.group.size() : group == known.group);
}

std::string place(const std::string& name, const toml::node& node) {
  return name + ":" + std::to_string(node.source().begin.line);
}

std::string unit_of(const KnownFigure& known, const std::string& currency) {
  std::string unit(known.unit);
  if (unit.starts_with("CUR")) unit.replace(0, 3, currency);
  return unit;
}

PriceFigure figure_of(const toml::table& table, const std::string& full, const KnownFigure& known,
                      const std::string& currency, const std::string& where) {
  PriceFigure figure{full, 0, unit_of(known, currency), {}, {}};
  const std::vector<std::string> keys{"value", "source", "date"};
  for (const auto& [key, node] : table) {
    if (std::ranges::find(keys, key.str()) == keys.end()) {
      throw InputError(where + ": " + full + ": " + unknown_name("key", std::string(key.str()), keys));
    }
  }
  std::optional<double> value = table["value"].value<double>();
  if (const auto* text = table["value"].as_string(); text != nullptr && has_unit(text->get())) {
    value = number_in(unit_of_price(known.unit), text->get(), where + ": " + full + ": value");
  }
  const bool above_0 = known.key == "tb" || known.key == "years" || known.key == "pue" || known.key == "warranty_years";
  if (!value || !std::isfinite(*value) || *value < 0 || (above_0 && *value == 0)) {
    throw InputError(where + ": " + full + ": value must be a number " + (above_0 ? "above 0" : "of at least 0") +
                     ", in " + figure.unit);
  }
  figure.value = *value;
  figure.source = table["source"].value_or(std::string());
  figure.date = table["date"].value_or(std::string());
  if (const auto* date = table["date"].as_date()) {
    std::ostringstream out;
    out << date->get();
    figure.date = out.str();
  }
  if (figure.source.empty() || figure.date.empty()) {
    throw InputError(where + ": " + full +
                     ": needs a source and a date, e.g. {value = 2.5, source = \"assumed\", date = \"2026-11-25\"}");
  }
  return figure;
}

}  // namespace

PriceList PriceList::built_in() {
  static const PriceList list = from_text(prices_preset_text(), "built-in");
  return list;
}

PriceList PriceList::from_file(const std::filesystem::path& path) {
  PriceList list =
      from_text(read_text_file(path, "give the path of a price list (TOML)", kMaxPriceBytes), path.string());
  const PriceList base = built_in();
  std::vector<PriceFigure> added;
  if (base.currency_ != list.currency_) return list;
  for (const PriceFigure& figure : base.figures_) {
    // A GPU is rented or bought, so a price replaces the built-in rent.
    const bool rent = figure.name.ends_with(".hour");
    const std::string price = rent ? figure.name.substr(0, figure.name.size() - 4) + "price" : figure.name;
    if (list.find(figure.name) == nullptr && list.find(price) == nullptr) added.push_back(figure);
  }
  list.figures_.insert(list.figures_.end(), added.begin(), added.end());
  std::ranges::sort(list.figures_, {}, &PriceFigure::name);
  return list;
}

PriceList PriceList::from_text(std::string_view text, const std::string& name) {
  const toml::table document = parse_toml(text, name);
  PriceList list;
  list.origin_ = name;
  list.currency_ = document["currency"].value_or(std::string());
  if (list.currency_.empty()) throw InputError(name + ": has no currency; give e.g. currency = \"USD\"");
  std::vector<std::string> names;
  for (const KnownFigure& known : kKnown) {
    names.push_back(std::string(known.group) + (known.group.ends_with('.') ? "NAME." : ".") + std::string(known.key));
  }
  const auto add = [&](const std::string& group, const std::string& key, const toml::node& node) {
    const std::string full = group + "." + key;
    const auto* const known =
        std::ranges::find_if(kKnown, [&](const KnownFigure& one) { return is_of(one, group, key); });
    if (known == std::end(kKnown)) throw InputError(place(name, node) + ": " + unknown_name("figure", full, names));
    if (!node.is_table()) {
      throw InputError(place(name, node) + ": " + full + ": must be a table of value, source and date");
    }
    list.figures_.push_back(figure_of(*node.as_table(), full, *known, list.currency_, place(name, node)));
  };
  for (const auto& [top, node] : document) {
    const std::string group(top.str());
    if (group == "currency") continue;
    if (!node.is_table()) throw InputError(place(name, node) + ": " + unknown_name("figure", group, names));
    for (const auto& [second, child] : *node.as_table()) {
      const std::string key(second.str());
      if (group != "gpu" && group != "nic") {
        add(group, key, child);
        continue;
      }
      if (!child.is_table())
        throw InputError(place(name, child) + ": " + unknown_name("figure", group + "." + key, names));
      // A NIC with another name would never be chosen.
      if (group == "nic" && key.find_first_not_of("0123456789") != std::string::npos) {
        throw InputError(place(name, child) + ": nic." + key + ": must be named by its whole Gb/s, e.g. [nic.400]");
      }
      const bool is_alias = group == "gpu" && hardware_preset_name(key) != key;
      if (is_alias && node.as_table()->contains(hardware_preset_name(key))) {
        throw InputError(place(name, child) + ": gpu." + key + " is an alias of gpu." +
                         std::string(hardware_preset_name(key)) + ", which is given too; leave one out");
      }
      const std::string part = group == "gpu" ? std::string(hardware_preset_name(key)) : key;
      for (const auto& [third, leaf] : *child.as_table()) add(group + "." + part, std::string(third.str()), leaf);
    }
  }
  std::ranges::sort(list.figures_, {}, &PriceFigure::name);
  return list;
}

const PriceFigure* PriceList::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(figures_, name, {}, &PriceFigure::name);
  return at != figures_.end() && at->name == name ? &*at : nullptr;
}

const PriceFigure& PriceList::get(std::string_view name) const {
  if (const PriceFigure* figure = find(name)) return *figure;
  const std::size_t point = name.rfind('.');
  throw InputError("the price list " + origin_ + " has no " + std::string(name) + "; add " +
                   std::string(name.substr(point + 1)) + " to [" + std::string(name.substr(0, point)) + "]");
}

int PriceList::nic_for(double gbit_per_second) const {
  gbit_per_second -= 1e-6;  // rounding
  int best = 0;
  for (const PriceFigure& figure : figures_) {
    int speed = 0;
    if (std::sscanf(figure.name.c_str(), "nic.%d.price", &speed) != 1 || !figure.name.ends_with(".price")) continue;
    if (speed >= gbit_per_second && (best == 0 || speed < best)) best = speed;
  }
  if (best != 0) return best;
  throw InputError(
      formatted("the price list has no NIC of %.0f Gb/s or more; add [nic.%.0f], or set "
                "hardware.set.nic_count so that a NIC is slower",
                gbit_per_second, std::ceil(gbit_per_second)));
}

}  // namespace kvtwin
