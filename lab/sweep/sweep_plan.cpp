#include "lab/sweep/sweep_plan.hpp"

#include <toml++/toml.h>

#include <algorithm>
#include <charconv>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/toml_text.hpp"
#include "lab/units.hpp"
#include "models/names.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxCells = 100'000;

std::string place(const std::string& name, const toml::node& node) {
  return name + ":" + std::to_string(node.source().begin.line);
}

SweepValue value_of(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) return {text->get(), std::nullopt};
  if (const auto* list = node.as_array(); list != nullptr && list->is_homogeneous<std::string>())
    return {text_of_list(*list, where), std::nullopt};
  if (const auto* flag = node.as_boolean()) return {flag->get() ? "true" : "false", std::nullopt};
  if (const auto* integer = node.as_integer()) {
    return {std::to_string(integer->get()), static_cast<double>(integer->get())};
  }
  if (const auto* number = node.as_floating_point()) {
    char text[40];  // the shortest text of the same number
    const std::to_chars_result end = std::to_chars(text, text + sizeof text, number->get());
    return {std::string(text, end.ptr), number->get()};
  }
  throw InputError(where + ": must be a string, a number or true/false");
}

// Returns a value with a unit ("64GiB") as the number that the key takes. Any other value stays as it is, and so do the
// values of an unknown key, which Experiment::set() refuses.
SweepValue without_unit(const std::string& key, SweepValue value, const std::string& where) {
  const ExperimentKey* const known = find_key_of_experiment(key);
  if (value.number || known == nullptr || known->fallback.index() == KeyValue(std::string()).index() ||
      !has_unit(value.text)) {
    return value;
  }
  const double number = number_in(unit_of(*known), value.text, where + ": " + key);
  return {plain_number(number), number};
}

// Returns the values of a table in the order of the file, because toml++ sorts keys. Nested tables become dotted keys.
struct Leaf {
  std::string key;
  const toml::node* node;
};
std::vector<Leaf> leaves(const toml::table& table) {
  std::vector<std::pair<std::string, const toml::table*>> open{{"", &table}};
  std::vector<Leaf> found;
  for (std::size_t i = 0; i < open.size(); ++i) {
    const auto [prefix, inner] = open[i];
    for (const auto& [key, node] : *inner) {
      const std::string full = prefix + std::string(key.str());
      if (const auto* child = node.as_table()) {
        open.emplace_back(full + ".", child);
      } else {
        found.push_back({full, &node});
      }
    }
  }
  std::ranges::stable_sort(found, [](const Leaf& a, const Leaf& b) {
    const toml::source_position &x = a.node->source().begin, &y = b.node->source().begin;
    return x.line != y.line ? x.line < y.line : x.column < y.column;
  });
  return found;
}

SweepAxis axis_of(const std::string& name, std::vector<SweepValue> values, const std::string& origin) {
  SweepAxis axis{name, {}, std::move(values), origin};
  std::string_view rest = name;
  while (!rest.empty()) {
    const std::size_t plus = std::min(rest.find('+'), rest.size());
    axis.keys.emplace_back(rest.substr(0, plus));
    rest.remove_prefix(std::min(plus + 1, rest.size()));
  }
  if (axis.keys.empty() || name.back() == '+' || std::ranges::find(axis.keys, "") != axis.keys.end()) {
    throw InputError(origin + ": \"" + name + "\" names no key; it must be a key, or keys joined by +");
  }
  if (axis.values.empty()) throw InputError(origin + ": " + name + " has no values; give it a list of some");
  for (SweepValue& value : axis.values) {
    const SweepValue given = value;
    value = without_unit(axis.keys.front(), given, origin);
    for (const std::string& key : axis.keys) {
      if (without_unit(key, given, origin) == value) continue;
      throw InputError(origin + ": " + name + " has the value " + given.text + ", and " + axis.keys.front() + " and " +
                       key + " are not in the same unit; give numbers without a unit, or a list for each key");
    }
  }
  for (std::size_t i = 0; i < axis.values.size(); ++i) {
    if (std::find(axis.values.begin(), axis.values.begin() + static_cast<std::ptrdiff_t>(i), axis.values[i]) !=
        axis.values.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw InputError(origin + ": " + name + " lists " + axis.values[i].text + " twice");
    }
  }
  return axis;
}

std::string text_of(const toml::node& node, const std::string& where) {
  if (const auto* text = node.as_string()) return text->get();
  throw InputError(where + ": must be a string");
}

std::vector<std::pair<std::string, std::string>> pairs_of(const toml::node& node, const std::string& where) {
  const std::string wanted = where + ": pairs must be a list of pairs of cases, e.g. [[\"waits\", \"recompute\"]]";
  const auto* list = node.as_array();
  if (list == nullptr) throw InputError(wanted);
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const toml::node& item : *list) {
    const auto* pair = item.as_array();
    if (pair == nullptr || pair->size() != 2) throw InputError(wanted);
    pairs.emplace_back(text_of(*pair->get(0), where), text_of(*pair->get(1), where));
  }
  return pairs;
}

}  // namespace

SweepPlan SweepPlan::from_file(const std::filesystem::path& path) {
  return from_text(read_text_file(path, kWantedExperiment, kMaxExperimentBytes), path.string());
}

SweepPlan SweepPlan::from_text(std::string_view text, const std::string& name) {
  SweepPlan plan;
  const toml::table document = parse_toml(text, name);
  const auto* sweep = document["sweep"].as_table();
  if (sweep == nullptr) return plan;
  for (const auto& [key, node] : *sweep) {
    const std::string where = place(name, node) + ": sweep." + std::string(key.str());
    const auto* table = node.as_table();
    if (key.str() == "title") {
      plan.title = text_of(node, where);
    } else if (key.str() == "along") {
      plan.along = text_of(node, where);
      plan.along_origin_ = where;
    } else if (key.str() == "show") {
      plan.show.clear();
      plan.show_origin_ = where;
      if (const auto* list = node.as_array()) {
        for (const toml::node& item : *list) plan.show.push_back(text_of(item, where));
      }
      if (plan.show.empty()) throw InputError(where + ": must be a list of figures, e.g. [\"ttft_mean_s\"]");
    } else if (key.str() == "warm_up") {
      plan.warm_up = node.value<double>().value_or(-1);
      if (!(plan.warm_up >= 0 && plan.warm_up < 1)) throw InputError(where + ": must be a number from 0 to below 1");
    } else if (key.str() == "pairs") {
      plan.pairs = pairs_of(node, where);
      plan.pairs_origin_ = where;
    } else if (key.str() == "vary" && table != nullptr) {
      for (const Leaf& leaf : leaves(*table)) {
        const std::string at = place(name, *leaf.node);
        const auto* list = leaf.node->as_array();
        if (list == nullptr) throw InputError(at + ": " + leaf.key + " must be a list of values, e.g. [1, 10, 100]");
        std::vector<SweepValue> values;
        for (const toml::node& value : *list) values.push_back(value_of(value, at + ": " + leaf.key));
        plan.axes.push_back(axis_of(leaf.key, std::move(values), at));
      }
    } else if (key.str() == "case" && table != nullptr) {
      for (const auto& [case_name, settings] : *table) {
        const auto* of_case = settings.as_table();
        const std::string at = place(name, settings);
        if (of_case == nullptr) {
          throw InputError(at + ": sweep.case." + std::string(case_name.str()) + " must be a table of settings");
        }
        SweepCase one{std::string(case_name.str()), {}, at};
        for (const Leaf& leaf : leaves(*of_case)) {
          const std::string at_leaf = place(name, *leaf.node);
          one.settings.emplace_back(leaf.key,
                                    without_unit(leaf.key, value_of(*leaf.node, at_leaf + ": " + leaf.key), at_leaf));
        }
        plan.cases.push_back(std::move(one));
      }
    } else {
      throw InputError(
          where + ": " +
          unknown_name("part of a sweep", key.str(),
                       std::vector<std::string>{"title", "along", "pairs", "show", "warm_up", "vary", "case"}));
    }
  }
  // In the order of the file.
  const auto line = [&](const SweepCase& c) { return document["sweep"]["case"][c.name].node()->source().begin.line; };
  std::ranges::stable_sort(plan.cases, [&](const SweepCase& a, const SweepCase& b) { return line(a) < line(b); });
  return plan;
}

void SweepPlan::vary(std::string_view assignment) {
  const std::size_t equals = assignment.find('=');
  const std::string origin = "--vary " + std::string(assignment);
  if (equals == std::string_view::npos || equals == 0) {
    throw InputError(origin + ": must be key=a,b,c, e.g. cache.eviction=lru,fifo");
  }
  const std::string name(assignment.substr(0, equals));
  std::vector<SweepValue> values;
  for (const std::string_view item : split_list(assignment.substr(equals + 1))) {
    const std::string text(item);
    if (text.empty()) throw InputError(origin + ": has an empty value in its list");
    SweepValue value{text, std::nullopt};
    try {
      const toml::table parsed = toml::parse("value = " + text);
      const toml::node* node = parsed.get("value");
      if (parsed.size() == 1 && node != nullptr && !node->is_string() && node->is_value())
        value = value_of(*node, origin);
    } catch (const toml::parse_error&) {  // a string
    }
    values.push_back(std::move(value));
  }
  SweepAxis axis = axis_of(name, std::move(values), "--vary");
  const auto known = std::ranges::find(axes, name, &SweepAxis::name);
  if (known != axes.end()) {
    if (known->origin == axis.origin)
      throw InputError(origin + ": " + name + " varies already; give all its values in one list");
    *known = std::move(axis);
  } else {
    axes.push_back(std::move(axis));
  }
}

void SweepPlan::repeat(const std::string& key, std::int64_t first, std::size_t times, const std::string& origin) {
  for (const SweepAxis& axis : axes) {
    if (std::ranges::find(axis.keys, key) != axis.keys.end()) {
      throw InputError(origin + ": " + axis.name + " varies already (" + axis.origin + "); give one of the two");
    }
  }
  std::vector<SweepValue> values;
  for (std::size_t i = 0; i < times; ++i) {
    const std::int64_t value = first + static_cast<std::int64_t>(i);
    values.push_back({std::to_string(value), static_cast<double>(value)});
  }
  axes.push_back(axis_of(key, std::move(values), origin));
}

void SweepPlan::only_cases(const std::vector<std::string>& names) {
  std::vector<SweepCase> kept;
  for (const SweepCase& one : cases) {
    if (std::ranges::find(names, one.name) != names.end()) kept.push_back(one);
  }
  for (const std::string& name : names) {
    if (case_named(name) != cases.size()) continue;
    std::vector<std::string> known;
    for (const SweepCase& one : cases) known.push_back(one.name);
    throw InputError("--case " + name + ": " + unknown_name("case", name, known));
  }
  cases = std::move(kept);
  std::erase_if(pairs, [&](const auto& pair) {
    return case_named(pair.first) == cases.size() || case_named(pair.second) == cases.size();
  });
}

void SweepPlan::check() const {
  if (axes.empty() && cases.empty()) {
    throw InputError("nothing varies; give --vary key=a,b,c, or write a [sweep] into the experiment file");
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    for (const std::string& key : axes[i].keys) {
      const bool again = std::ranges::count(axes[i].keys, key) > 1;
      const bool before = std::any_of(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i),
                                      [&](const auto& a) { return std::ranges::find(a.keys, key) != a.keys.end(); });
      if (again || before) throw InputError(axes[i].origin + ": " + key + " varies twice; list it once");
    }
  }
  for (const SweepCase& one : cases) {
    for (const SweepAxis& axis : axes) pinned(one, axis);
  }
  if (!along.empty() && !along_axis()) {
    std::vector<std::string> names;
    for (const SweepAxis& axis : axes) names.push_back(axis.name);
    throw InputError(along_origin_ + ": " + unknown_name("varying key", along, names));
  }
  if (const auto axis = along_axis()) {
    for (std::size_t i = 0; i < axes[*axis].values.size(); ++i) {
      const std::vector<SweepValue>& values = axes[*axis].values;
      if (!values[i].number || (i > 0 && *values[i].number <= *values[i - 1].number)) {
        throw InputError(axes[*axis].origin + ": " + along +
                         " is the figure's x axis; list numbers in ascending order");
      }
    }
  }
  for (const auto& [a, b] : pairs) {
    for (const std::string& name : {a, b}) {
      std::vector<std::string> names;
      for (const SweepCase& one : cases) names.push_back(one.name);
      if (case_named(name) == cases.size()) throw InputError(pairs_origin_ + ": " + unknown_name("case", name, names));
    }
    if (along.empty()) throw InputError(pairs_origin_ + ": pairs are compared along a key; give sweep.along too");
  }
  std::size_t cells = std::max<std::size_t>(1, cases.size());
  for (const SweepAxis& axis : axes) {
    cells *= axis.values.size();
    if (cells > kMaxCells) throw InputError("more than 100000 cells; shorten a list");
  }
}

// Returns whether the case sets the keys of the axis. Errors: InputError if the case sets only some of them.
bool SweepPlan::pinned(const SweepCase& of_case, const SweepAxis& axis) const {
  std::size_t set = 0;
  for (const auto& [key, value] : of_case.settings) set += std::ranges::count(axis.keys, key) > 0;
  if (set != 0 && set != axis.keys.size()) {
    throw InputError(of_case.origin + ": case " + of_case.name + " sets some of " + axis.name +
                     ", which vary together; let it set all of them, or none");
  }
  return set != 0;
}

std::vector<SweepCell> SweepPlan::cells() const {
  std::vector<SweepCell> list;
  for (std::size_t c = 0; c < std::max<std::size_t>(1, cases.size()); ++c) {
    SweepCell cell{c, {}};
    for (const SweepAxis& axis : axes) {
      const bool fixed = !cases.empty() && pinned(cases[c], axis);
      cell.indices.push_back(fixed ? std::nullopt : std::optional<std::size_t>(0));
    }
    // Counts up; the last axis is the fastest.
    for (bool more = true; more;) {
      list.push_back(cell);
      more = false;
      for (std::size_t a = axes.size(); a-- > 0 && !more;) {
        if (!cell.indices[a]) continue;
        more = ++*cell.indices[a] < axes[a].values.size();
        if (!more) cell.indices[a] = 0;
      }
    }
  }
  return list;
}

std::vector<std::pair<std::string, std::string>> SweepPlan::settings(const SweepCell& cell) const {
  std::vector<std::pair<std::string, std::string>> list;
  if (!cases.empty()) {
    for (const auto& [key, value] : cases[cell.of_case].settings) list.emplace_back(key, value.text);
  }
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (!cell.indices[a]) continue;
    for (const std::string& key : axes[a].keys) list.emplace_back(key, axes[a].values[*cell.indices[a]].text);
  }
  return list;
}

Experiment SweepPlan::experiment(const Experiment& base, const SweepCell& cell) const {
  Experiment experiment = base;
  if (!cases.empty()) {
    const SweepCase& one = cases[cell.of_case];
    for (const auto& [key, value] : one.settings) experiment.set(key + "=" + value.text, one.origin);
  }
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (!cell.indices[a]) continue;
    for (const std::string& key : axes[a].keys) {
      experiment.set(key + "=" + axes[a].values[*cell.indices[a]].text, axes[a].origin);
    }
  }
  if (warm_up == 0) measure_warm(experiment);
  return experiment;
}

std::string SweepPlan::name_of(const SweepCell& cell) const {
  std::string name = cases.empty() ? "" : "case " + cases[cell.of_case].name;
  for (std::size_t a = 0; a < axes.size(); ++a) {
    if (!cell.indices[a]) continue;
    name += (name.empty() ? "" : ", ") + axes[a].name + "=" + axes[a].values[*cell.indices[a]].text;
  }
  return name;
}

std::optional<std::size_t> SweepPlan::along_axis() const {
  const auto axis = std::ranges::find(axes, along, &SweepAxis::name);
  if (along.empty() || axis == axes.end()) return std::nullopt;
  return static_cast<std::size_t>(axis - axes.begin());
}

std::size_t SweepPlan::case_named(std::string_view name) const {
  return static_cast<std::size_t>(std::ranges::find(cases, name, &SweepCase::name) - cases.begin());
}

}  // namespace kvtwin
