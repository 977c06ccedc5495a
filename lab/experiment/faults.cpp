#include "lab/experiment/faults.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/names.hpp"
#include "models/names.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kForever = "2000000000s";

Parameters::Decimal from_time() {
  return {.fallback = "0s", .least = "0s", .most = "1000000000s", .help = "start of the fault"};
}
Parameters::Decimal to_time() {
  return {.fallback = kForever, .least = "0s", .most = kForever, .help = "end of the fault; without it: no end"};
}
void read_span(const Parameters& parameters) {
  parameters.time("from", from_time());
  parameters.time("to", to_time());
}
Parameters::Decimal factor(std::string_view fallback, std::string_view help) {
  return {.fallback = fallback, .least = "1", .most = "1000000", .help = help};
}

constexpr std::array<std::string_view, 4> kLinks{"nic", "switches", "pool", "node"};
constexpr std::array<std::string_view, 2> kPlaces{"device", "host"};

// `read` reads all parameters. `required`: the parameters that must be given.
struct Kind {
  std::string_view name;
  void (*read)(const Parameters&);
  std::array<std::string_view, 2> required;
};

constexpr Kind kKinds[] = {
    {"engine",
     [](const Parameters& p) {
       p.whole("index", {.most = 1023, .help = "number of an engine that dies; prefill engines come first"});
       p.time("at", {.fallback = "0s", .most = "1000000000s", .help = "time of its death"});
       p.time("detect", {.fallback = "1s",
                         .most = "1000000s",
                         .help = "time from the death until the router and the other engines know"});
     },
     {"index"}},
    {"node",
     [](const Parameters& p) {
       p.whole("index",
               {.most = 1023,
                .help = "number of a node of the remote pool (hardware.set.pool_nodes) that is down, and has lost "
                        "its pages when it comes back"});
       read_span(p);
     },
     {"index"}},
    {"drives",
     [](const Parameters& p) {
       p.per_1024("factor", factor("1", "factor on the time of the disk tier's operations that start in this time"));
       read_span(p);
     },
     {"factor"}},
    {"link",
     [](const Parameters& p) {
       p.word("name", kLinks, "link that is slow: nic, switches, pool, or the port of one node; simulate only");
       p.whole("index", {.most = 1023, .help = "number of the node, for name=node"});
       p.per_1024("share", {.fallback = "1", .least = "0.001", .most = "1", .help = "share of its rate that is left"});
       read_span(p);
     },
     {"name", "share"}},
    {"rank",
     [](const Parameters& p) {
       p.whole("index",
               {.most = 63, .help = "number of a slow rank; in simulate with parallel.rank_model = instances"});
       p.per_1024("factor", factor("1", "factor on the time of the rank's transfers and storage operations"));
     },
     {"factor"}},
    {"stall",
     [](const Parameters& p) {
       p.per_1024("share", {.fallback = "0",
                            .most = "1",
                            .help = "share of the reads from storage tiers that stall, drawn from the seed; simulate "
                                    "only"});
       p.per_1024("factor", factor("20", "factor on the time of a read that stalls"));
     },
     {"share"}},
    {"flip",
     [](const Parameters& p) {
       p.word("place", kPlaces,
              "tier where one bit of a page flips; the run must find the wrong page; kvtwin run only");
     },
     {"place"}},
};

constexpr auto kNames = [] {
  std::array<std::string_view, std::size(kKinds)> names;
  for (std::size_t i = 0; i < names.size(); ++i) names[i] = kKinds[i].name;
  return names;
}();

bool same_part(const Fault& a, const Fault& b) {
  if (a.name() != b.name()) return false;
  if (a.name() == "node" || a.name() == "rank") return a.number("index") == b.number("index");
  if (a.name() != "link") return true;
  return a.word("name") == b.word("name") && (a.word("name") != "node" || a.number("index") == b.number("index"));
}

void refuse_two_of_one_part(const std::vector<Fault>& faults, const std::string& where) {
  for (std::size_t i = 0; i < faults.size(); ++i) {
    for (std::size_t j = i + 1; j < faults.size(); ++j) {
      const Fault &a = faults[i], &b = faults[j];
      if (!same_part(a, b)) continue;
      const std::string both = where + ": " + a.text() + " and " + b.text();
      if (a.facts.find("from") == nullptr) {
        throw InputError(both + ": there is one such fault in a run; leave one of them out");
      }
      if (a.span().end <= b.span().begin || b.span().end <= a.span().begin) continue;
      throw InputError(both +
                       " are of the same part at the same time; make one of them, or let one end before the other");
    }
  }
}

constexpr double kMaxSeconds = 1e9;

std::optional<double> figure_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::string plain(double value) {
  char text[400];  // every double without an exponent
  return {text, std::to_chars(text, text + sizeof text, value, std::chars_format::fixed).ptr};
}

// Nanoseconds as exact seconds.
std::string seconds_of(TimeNs ns) {
  std::string fraction = std::to_string(1'000'000'000 + ns % 1'000'000'000).substr(1);
  while (fraction.ends_with('0')) fraction.pop_back();
  return std::to_string(ns / 1'000'000'000) + (fraction.empty() ? "" : "." + fraction) + "s";
}

// The part of a span before the @, as parameters; nothing for another form.
std::optional<std::string> parameters_of(std::string_view fault, std::string_view what) {
  if (fault == "node") {
    const bool whole = !what.empty() && what.find_first_not_of("0123456789") == std::string_view::npos;
    return whole ? std::optional("index=" + std::string(what)) : std::nullopt;
  }
  const std::size_t colon = fault == "link" ? what.find(':') : 0;
  if (colon == std::string_view::npos) return std::nullopt;
  const auto figure = figure_in(fault == "link" ? what.substr(colon + 1) : what);
  if (!figure || !(*figure >= 0 && *figure <= 1e6)) return std::nullopt;
  if (fault == "drives") return "factor=" + plain(*figure);
  std::string_view name = what.substr(0, colon);
  const std::string_view node = name.starts_with("node") ? name.substr(4) : std::string_view();
  if (!node.empty()) name = "node";
  return "name=" + std::string(name) + (node.empty() ? "" : ", index=" + std::string(node)) +
         ", share=" + plain(*figure);
}

}  // namespace

std::span<const std::string_view> fault_names() { return kNames; }

PolicyFacts facts_of_fault(std::string_view text) {
  const PolicyText parts = policy_text(text);
  PolicyFacts facts;
  facts.name = parts.name;
  const auto* const kind = std::ranges::find(kKinds, parts.name, &Kind::name);
  if (!parts.closed || kind == std::end(kKinds)) {
    facts.error = parts.closed
                      ? unknown_name("fault", facts.name, std::vector<std::string>(kNames.begin(), kNames.end()))
                      : "\"" + std::string(text) + "\" is no fault; write name(parameter=value, ...)";
    return facts;
  }
  const Parameters parameters(parts.parameters);
  kind->read(parameters);
  facts.parameters = parameters.read();
  facts.error = parameters.error();
  for (const std::string_view one : kind->required) {
    if (!facts.error.empty() || one.empty() || facts.find(one)->given) continue;
    facts.error = "give " + std::string(one) + ", " + facts.find(one)->help;
  }
  const Parameter* const to = facts.find("to");
  if (facts.error.empty() && to != nullptr && to->number <= facts.find("from")->number) {
    facts.error = "to is " + to->value + "; it must be later than from, " + facts.find("from")->value;
  }
  if (!facts.error.empty()) facts.error = facts.name + ": " + facts.error;
  return facts;
}

double Fault::decimal(std::string_view parameter) const { return *figure_in(word(parameter)); }

std::vector<Fault> faults_in(std::string_view list, const std::string& where) {
  std::vector<Fault> faults;
  if (list == "none") return faults;
  for (const std::string_view item : split_list(list)) {
    const Fault& fault = faults.emplace_back(Fault{facts_of_fault(item)});
    if (!fault.facts.error.empty()) throw InputError(where + ": " + fault.facts.error);
  }
  refuse_two_of_one_part(faults, where);
  return faults;
}

std::string text_of_faults(const std::vector<Fault>& faults) {
  std::string text;
  for (const Fault& fault : faults) text += (text.empty() ? "" : ", ") + fault.text();
  return text;
}

std::vector<Fault> faults_of(const Experiment& e, std::string_view name) {
  std::vector<Fault> faults = faults_in(e.text(kFaultsKey), e.where(kFaultsKey));
  std::erase_if(faults, [&](const Fault& fault) { return fault.name() != name; });
  return faults;
}

std::string where_of(const Experiment& e, const Fault& fault) { return e.where(kFaultsKey) + ": " + fault.text(); }

std::string faults_of_spans(std::string_view fault, std::string_view spans, const std::string& where) {
  std::string list;
  for (const std::string_view part : split_list(spans)) {
    const std::size_t at = part.find('@'), plus = at == std::string_view::npos ? at : part.find('+', at);
    std::optional<double> start, seconds;
    if (plus != std::string_view::npos) {
      start = figure_in(part.substr(at + 1, plus - at - 1));
      seconds = figure_in(part.substr(plus + 1));
    }
    const auto what = parameters_of(fault, part.substr(0, at));
    if (!what || !start || !seconds || !(*start >= 0 && *start <= kMaxSeconds && *seconds > 0) ||
        *seconds > kMaxSeconds) {
      const char* const form = fault == "node"     ? "NODE@START+SECONDS"
                               : fault == "drives" ? "FACTOR@START+SECONDS"
                                                   : "LINK:SHARE@START+SECONDS";
      throw InputError(where + ": \"" + std::string(part) + "\" is not of the form " + form +
                       ", with a START of at least 0 and more than 0 SECONDS");
    }
    const auto from = static_cast<TimeNs>(*start * 1e9 + 0.5);
    list += (list.empty() ? "" : ", ") + std::string(fault) + "(" + *what + ", from=" + seconds_of(from) +
            ", to=" + seconds_of(from + static_cast<TimeNs>(*seconds * 1e9 + 0.5)) + ")";
  }
  faults_in(list, where);
  return list;
}

// ---- the parts of a world ----

namespace {

std::uint32_t node_of(const Experiment& e, const Fault& fault, const WorldConfig& world) {
  const std::uint32_t nodes = world.network.nodes;
  if (nodes == 0) {
    throw InputError(where_of(e, fault) +
                     ": needs nodes of a remote tier; give tiers.remote and hardware.set.pool_nodes");
  }
  const auto node = static_cast<std::uint32_t>(fault.number("index"));
  if (node >= nodes) {
    throw InputError(where_of(e, fault) + ": the nodes are 0 to " + std::to_string(nodes - 1) + "; give one of them");
  }
  return node;
}

SlowLink slow_link(const Experiment& e, const Fault& fault, const WorldConfig& world) {
  static constexpr NetworkPart kParts[] = {NetworkPart::nic, NetworkPart::switches, NetworkPart::pool,
                                           NetworkPart::node};
  static_assert(std::size(kParts) == kLinks.size());
  const auto refuse = [&](const char* why) { throw InputError(where_of(e, fault) + ": " + why); };
  SlowLink slow{kParts[fault.number("name")], 0, fault.decimal("share"), fault.span()};
  if (slow.part == NetworkPart::switches && world.network.switch_bytes_per_second == 0) {
    refuse("the switches never limit; set hardware.set.switch_oversubscription above 1");
  }
  if (slow.part == NetworkPart::node) slow.node = node_of(e, fault, world);
  if (slow.part != NetworkPart::node && fault.facts.find("index")->given) refuse("only name=node has an index");
  if (std::ranges::find(world.storage, Tier::remote, &StorageTier::tier) == world.storage.end()) {
    refuse("there is no remote tier; give tiers.remote, or leave this out");
  }
  if (world.network.peers && (slow.part == NetworkPart::pool || slow.part == NetworkPart::node)) {
    refuse("with hardware.set.pool_peers the nodes' ports are the hosts' NICs; slow down nic");
  }
  return slow;
}

}  // namespace

void read_faults(const Experiment& e, WorldConfig& world) {
  for (const Fault& fault : faults_of(e, "node")) {
    world.node_downs.push_back({node_of(e, fault, world), fault.span()});
  }
  for (const Fault& fault : faults_of(e, "drives")) {
    if (std::ranges::find(world.storage, Tier::disk, &StorageTier::tier) == world.storage.end()) {
      throw InputError(where_of(e, fault) + ": there is no disk tier; give tiers.disk, or leave this out");
    }
    world.slow_drives.push_back({fault.decimal("factor"), fault.span()});
  }
  for (const Fault& fault : faults_of(e, "link")) world.slow_links.push_back(slow_link(e, fault, world));
  for (const Fault& fault : faults_of(e, "stall")) {
    if (world.storage.empty()) {
      throw InputError(
          where_of(e, fault) +
          ": there is no storage tier; give tiers.disk, tiers.shared_fs or tiers.remote, or leave this out");
    }
    world.storage_stall_share = fault.decimal("share");
    world.storage_stall_factor = fault.decimal("factor");
  }
}

void refuse_faults_of_runs(const Experiment& e) {
  for (const Fault& fault : faults_of(e, "flip")) {
    throw InputError(where_of(e, fault) + ": a simulation has no bytes; leave it out, or take kvtwin run");
  }
}

void refuse_faults_of_simulations(const Experiment& e) {
  static constexpr std::pair<std::string_view, std::string_view> kSimulated[] = {
      {"engine",
       "the engines of a real run are processes of their own: end one with kill, and the others serve its "
       "requests"},
      {"link", "slows a link of a simulation"},
      {"stall", "stalls are drawn in a simulation; drives(factor=...) slows the real disk tier"}};
  for (const auto& [name, why] : kSimulated) {
    for (const Fault& fault : faults_of(e, name)) {
      throw InputError(where_of(e, fault) + ": " + std::string(why) + "; leave it out, or take kvtwin simulate");
    }
  }
}

}  // namespace kvtwin
