#include "lab/experiment/planned_faults.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lab/error.hpp"

namespace kvtwin {
namespace {

constexpr double kMaxSeconds = 1e9;

std::optional<double> figure_in(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// One failure: the text before the @, and the time.
struct Planned {
  std::string what;
  FaultSpan span;
};

std::vector<Planned> planned_of(const Experiment& e, const char* key, const std::string& form) {
  std::vector<Planned> list;
  std::string_view rest = e.text(key);
  const auto wrong = [&](std::string_view part) {
    return InputError(e.where(key) + ": \"" + std::string(part) + "\" is not of the form " + form +
                      ", with a START of at least 0 and more than 0 SECONDS");
  };
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    if (rest.empty() && e.text(key).ends_with(',')) throw wrong("");
    const std::size_t at = part.find('@'), plus = at == std::string_view::npos ? at : part.find('+', at);
    if (plus == std::string_view::npos) throw wrong(part);
    const auto start = figure_in(part.substr(at + 1, plus - at - 1)), seconds = figure_in(part.substr(plus + 1));
    if (!start || !seconds || !(*start >= 0 && *start <= kMaxSeconds && *seconds > 0 && *seconds <= kMaxSeconds)) {
      throw wrong(part);
    }
    const auto begin = static_cast<TimeNs>(*start * 1e9 + 0.5);
    list.push_back({std::string(part.substr(0, at)), {begin, begin + static_cast<TimeNs>(*seconds * 1e9 + 0.5)}});
  }
  return list;
}

// Refuses two failures of one part at the same time: what happens then would be anybody's guess.
template <typename Fault, typename SamePart>
void refuse_overlaps(const Experiment& e, const char* key, const std::vector<Fault>& faults, const SamePart& same) {
  for (std::size_t i = 0; i < faults.size(); ++i) {
    for (std::size_t j = i + 1; j < faults.size(); ++j) {
      const FaultSpan &a = faults[i].span, &b = faults[j].span;
      if (!same(faults[i], faults[j]) || a.end <= b.begin || b.end <= a.begin) continue;
      throw InputError(e.where(key) + ": failures " + std::to_string(i + 1) + " and " + std::to_string(j + 1) +
                       " are of the same part at the same time; make one of them, or let one end before the other");
    }
  }
}

// Returns the node, which must be one of the pool's.
std::uint32_t node_of(const Experiment& e, const char* key, std::string_view text, const WorldConfig& world) {
  std::uint32_t node = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), node);
  const std::uint32_t nodes = world.network.nodes;
  if (nodes == 0) {
    throw InputError(e.where(key) + ": needs nodes of a remote tier; give tiers.remote and hardware.pool_nodes");
  }
  if (text.empty() || error != std::errc() || end != text.data() + text.size() || node >= nodes) {
    throw InputError(e.where(key) + ": \"" + std::string(text) + "\" is no node; the nodes are 0 to " +
                     std::to_string(nodes - 1));
  }
  return node;
}

void read_slow_drives(const Experiment& e, WorldConfig& world) {
  constexpr const char* kKey = "faults.slow_drives";
  for (const Planned& planned : planned_of(e, kKey, "FACTOR@START+SECONDS")) {
    const auto factor = figure_in(planned.what);
    if (!factor || !(*factor >= 1 && *factor <= 1e6)) {
      throw InputError(e.where(kKey) + ": \"" + planned.what + "\" is no factor; it must be from 1 to 1000000");
    }
    if (std::ranges::find(world.storage, Tier::disk, &StorageTier::tier) == world.storage.end()) {
      throw InputError(e.where(kKey) + ": there is no disk tier; give tiers.disk, or leave this out");
    }
    world.slow_drives.push_back({*factor, planned.span});
  }
}

void read_slow_links(const Experiment& e, WorldConfig& world) {
  constexpr const char* kKey = "faults.slow_link";
  for (const Planned& planned : planned_of(e, kKey, "LINK:SHARE@START+SECONDS")) {
    const std::size_t colon = planned.what.find(':');
    const std::string name = planned.what.substr(0, colon);
    const auto share =
        colon == std::string::npos ? std::nullopt : figure_in(std::string_view(planned.what).substr(colon + 1));
    if (!share || !(*share >= 0.001 && *share <= 1)) {
      throw InputError(e.where(kKey) + ": \"" + planned.what +
                       "\" is no link with a share of its rate; the share is from 0.001 to 1, e.g. nic:0.5");
    }
    SlowLink slow{NetworkPart::nic, 0, *share, planned.span};
    const auto refuse = [&](const std::string& why) { throw InputError(e.where(kKey) + ": " + name + ": " + why); };
    if (name == "switches") {
      slow.part = NetworkPart::switches;
      if (world.network.switch_bytes_per_second == 0) {
        refuse("they never limit; set hardware.switch_oversubscription above 1");
      }
    } else if (name == "pool") {
      slow.part = NetworkPart::pool;
    } else if (name.starts_with("node")) {
      slow.part = NetworkPart::node;
      slow.node = node_of(e, kKey, std::string_view(name).substr(4), world);
    } else if (name != "nic") {
      refuse("is no link; known are nic, switches, pool and nodeK, e.g. node0");
    }
    const bool has_pool = std::ranges::find(world.storage, Tier::remote, &StorageTier::tier) != world.storage.end();
    if (!has_pool) refuse("there is no remote tier; give tiers.remote, or leave this out");
    if (world.network.peers && (slow.part == NetworkPart::pool || slow.part == NetworkPart::node)) {
      refuse("with hardware.pool_peers the nodes' ports are the hosts' NICs; slow down nic");
    }
    world.slow_links.push_back(slow);
  }
}

}  // namespace

void read_planned_faults(const Experiment& e, WorldConfig& world) {
  for (const Planned& planned : planned_of(e, "faults.node_down", "NODE@START+SECONDS")) {
    world.node_downs.push_back({node_of(e, "faults.node_down", planned.what, world), planned.span});
  }
  read_slow_drives(e, world);
  read_slow_links(e, world);
  refuse_overlaps(e, "faults.node_down", world.node_downs,
                  [](const NodeDown& a, const NodeDown& b) { return a.node == b.node; });
  refuse_overlaps(e, "faults.slow_drives", world.slow_drives, [](const SlowSpan&, const SlowSpan&) { return true; });
  refuse_overlaps(e, "faults.slow_link", world.slow_links,
                  [](const SlowLink& a, const SlowLink& b) { return a.part == b.part && a.node == b.node; });
}

}  // namespace kvtwin
