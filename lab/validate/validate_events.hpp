// The stores and removals of pages that an engine published (lab/capture/kv_events.hpp) against those of a simulation
// of its request log.
//
// Each tier is compared by itself, because the time that a copy takes moves the events of one tier between those of
// another. Consecutive stores form a group, and so do consecutive removals. The order inside a group is ignored,
// because an engine removes a node as a whole, and kvtwin may remove it page by page.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/json.hpp"
#include "policy/base/tiers.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

// A page that entered or left a tier.
struct PageEvent {
  bool stored = false;
  PageKey key;
  std::uint64_t seq = 0, line = 0;  // measured: number of the message, line of the file
  TimeNs time = 0;                  // predicted
};

struct TierEvents {
  Tier tier = Tier::device;
  std::uint64_t measured_stored = 0, measured_removed = 0, predicted_stored = 0, predicted_removed = 0;
  std::uint64_t common = 0;  // events that both sides have, wherever they are
  std::uint64_t equal = 0;   // measured events in the groups before the first one that differs
  struct Difference {
    std::string measured, predicted;  // sentences
  };
  std::optional<Difference> first;
};

struct EventErrors {
  std::vector<TierEvents> tiers;
  std::vector<std::string> notes;  // what was not compared, and why
};

// Compares the events of one tier. `name_page` names a page in sentences.
TierEvents compare_page_events(Tier tier, const std::vector<PageEvent>& measured,
                               const std::vector<PageEvent>& predicted,
                               const std::function<std::string(const PageKey&)>& name_page);

// Compares a recording with the simulation in `predicted_folder`, whose workload is the engine's request log.
// Errors: InputError.
EventErrors event_errors(const std::filesystem::path& recording, const std::filesystem::path& predicted_folder);

std::string event_errors_text(const EventErrors& errors);
Json event_errors_json(const EventErrors& errors);

}  // namespace kvtwin
