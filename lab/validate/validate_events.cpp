#include "lab/validate/validate_events.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "lab/capture/kv_events.hpp"
#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/past_run/past_run.hpp"
#include "traces/event_pages.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr Tier kComparedTiers[] = {Tier::device, Tier::host};

using PageEvents = std::map<Tier, std::vector<PageEvent>>;

bool by_key(const PageEvent& a, const PageEvent& b) { return a.key < b.key; }

// ---- what the engine did -----------------------------------------------------------------------------

std::optional<Tier> tier_of(const std::string& medium) {
  if (medium.empty() || medium == "GPU") return Tier::device;
  if (medium == "CPU" || medium == "CPU_PINNED") return Tier::host;
  return std::nullopt;
}

class MeasuredEvents {
 public:
  MeasuredEvents(const fs::path& recording, Tokens page_tokens, std::string salt)
      : reader_(recording), page_tokens_(page_tokens), pages_(std::move(salt)) {}

  PageEvents read(std::vector<std::string>& notes) {
    for (KvEvent event; !is_over_ && reader_.next(event);) take(event);
    if (reader_.is_cut()) note("its last line is cut: the recording was killed");
    if (unknown_ > 0) {
      note(grouped(unknown_) +
           " pages are not the request log's: their tokens, or the pages above them, are not in the recording");
    }
    if (adapters_ > 0) note(grouped(adapters_) + " pages of LoRA adapters were left out");
    if (other_media_ > 0) note(grouped(other_media_) + " events of other media than GPU and CPU were left out");
    if (other_groups_ > 0) note(grouped(other_groups_) + " events of layers with windows or states were left out");
    if (other_ranks_ > 0) note(grouped(other_ranks_) + " events of other ranks than the first were left out");
    if (removed_unseen_ > 0)
      note(grouped(removed_unseen_) + " removals of pages that were stored before it began were left out");
    for (const std::string& sentence : notes_) notes.push_back(reader_.path().string() + ": " + sentence);
    return std::move(events_);
  }

 private:
  void note(std::string sentence) { notes_.push_back(std::move(sentence)); }

  void end(const KvEvent& event, const std::string& why) {
    is_over_ = true;
    note("compared up to line " + std::to_string(event.line) + ": " + why);
  }

  void take(const KvEvent& event) {
    switch (event.kind) {
      case KvEvent::Kind::missing: return end(event, grouped(event.count) + " messages are missing there");
      case KvEvent::Kind::restart: return end(event, "the engine was started again there");
      case KvEvent::Kind::bad: return end(event, "a message could not be read there");
      case KvEvent::Kind::cleared:
        if (!events_.empty()) end(event, "the engine dropped its whole cache there");
        return;
      case KvEvent::Kind::stored:
      case KvEvent::Kind::removed: break;
    }
    if (!rank_) rank_ = event.rank;
    const std::optional<Tier> tier = tier_of(event.medium);
    if (*rank_ != event.rank) {
      ++other_ranks_;
    } else if (!of_group(event)) {
      ++other_groups_;
    } else if (!tier) {
      ++other_media_;
    } else if (event.kind == KvEvent::Kind::stored) {
      store(event, events_[*tier]);
    } else {
      remove(event, events_[*tier]);
    }
  }

  // Groups of layers with windows or states store a part of the pages only. The first one with full attention counts.
  bool of_group(const KvEvent& event) {
    if (!event.group) return true;
    const bool full = event.kind == KvEvent::Kind::stored &&
                      (event.group_kind == "full_attention" || event.group_kind == "mla_attention");
    if (!group_ && full) group_ = event.group;
    return group_ == event.group;
  }

  void store(const KvEvent& event, std::vector<PageEvent>& events) {
    if (event.block_size != page_tokens_) {
      throw InputError(reader_.path().string() + ":" + std::to_string(event.line) + ": its blocks are of " +
                       std::to_string(event.block_size) + " tokens, and cache.page_tokens is " +
                       std::to_string(page_tokens_) + "; set that to the engine's page size");
    }
    if (!event.lora.empty()) {
      adapters_ += event.hashes.size();
      return;
    }
    const auto parent = event.parent ? known_.find(*event.parent) : known_.end();
    const bool has_tokens = event.tokens.size() == event.hashes.size() * page_tokens_;
    if (!has_tokens || (event.parent && parent == known_.end())) {
      unknown_ += event.hashes.size();
      return;
    }
    std::optional<EventPages::Page> above;
    if (event.parent) above = parent->second;
    for (std::size_t i = 0; i < event.hashes.size(); ++i) {
      const auto tokens = std::span(event.tokens).subspan(i * page_tokens_, page_tokens_);
      above = pages_.page(above ? &*above : nullptr, tokens, event.cache_salt);
      known_.insert_or_assign(event.hashes[i], *above);
      events.push_back({true, above->key, event.seq, event.line});
    }
  }

  void remove(const KvEvent& event, std::vector<PageEvent>& events) {
    for (const std::string& hash : event.hashes) {
      const auto page = known_.find(hash);
      if (page == known_.end()) {
        ++removed_unseen_;
      } else {
        events.push_back({false, page->second.key, event.seq, event.line});
      }
    }
  }

  KvEventReader reader_;
  Tokens page_tokens_;
  EventPages pages_;
  std::unordered_map<std::string, EventPages::Page> known_;  // by the engine's hash; looked up only
  PageEvents events_;
  std::vector<std::string> notes_;
  std::optional<std::uint64_t> rank_, group_;
  std::uint64_t other_groups_ = 0;
  std::uint64_t unknown_ = 0, adapters_ = 0, other_media_ = 0, other_ranks_ = 0, removed_unseen_ = 0;
  bool is_over_ = false;
};

// ---- what the simulation did -------------------------------------------------------------------------

class PredictedEvents final : public RerunObserver {
 public:
  void on_event(const Event& event) override {
    if (event.kind != EventKind::pages_stored && event.kind != EventKind::pages_removed) return;
    for (const PageKey& key : event.keys) {
      events[event.tier].push_back({event.kind == EventKind::pages_stored, key, 0, 0, event.time});
    }
  }
  PageEvents events;
};

// "page 7 of request 12": by the first request that names it.
class PageNames {
 public:
  explicit PageNames(const Experiment& experiment) {
    const std::unique_ptr<TraceSource> workload = open_workload(experiment);
    TraceInputSource inputs(*workload, input_options(experiment));
    for (Input input; inputs.next(input);) {
      const auto* const arrival = std::get_if<Arrival>(&input.what);
      if (arrival == nullptr) continue;
      for (std::size_t page = 0; page < arrival->keys.size(); ++page) {
        names_.emplace(arrival->keys[page], std::pair(arrival->request, page));
      }
    }
  }
  std::string operator()(const PageKey& key) const {
    const auto at = names_.find(key);
    if (at == names_.end()) return "a page that no request names";
    return "page " + std::to_string(at->second.second) + " of request " + std::to_string(at->second.first);
  }

 private:
  std::map<PageKey, std::pair<RequestId, std::size_t>> names_;
};

// ---- holding them against each other -----------------------------------------------------------------

// The events from `at` on that are all stores or all removals, by key.
std::vector<PageEvent> group_at(const std::vector<PageEvent>& events, std::size_t at) {
  std::size_t end = at;
  while (end < events.size() && events[end].stored == events[at].stored) ++end;
  std::vector<PageEvent> group(events.begin() + static_cast<std::ptrdiff_t>(at),
                               events.begin() + static_cast<std::ptrdiff_t>(end));
  std::ranges::stable_sort(group, by_key);
  return group;
}

const char* verb_of(const PageEvent& event) { return event.stored ? "stores " : "removes "; }

// The first event, in the order of `events`, whose key `other` lacks; `other` is sorted by key. Null: there is none.
const PageEvent* first_lacking(const std::vector<PageEvent>& events, std::size_t at, std::size_t count,
                               const std::vector<PageEvent>& other) {
  for (std::size_t i = at; i < at + count; ++i) {
    if (!std::ranges::binary_search(other, events[i], by_key)) return &events[i];
  }
  return nullptr;
}

std::string sentence_of(const std::vector<PageEvent>& events, std::size_t at, const std::vector<PageEvent>& group,
                        const std::vector<PageEvent>& other,
                        const std::function<std::string(const PageKey&)>& name_page) {
  if (group.empty()) return "has no more events";
  const bool same_kind = !other.empty() && group.front().stored == other.front().stored;
  const PageEvent* const event = same_kind ? first_lacking(events, at, group.size(), other) : &events[at];
  if (event == nullptr) {
    return verb_of(group.front()) + grouped(group.size()) + (group.size() == 1 ? " page" : " pages") +
           ", which the other side " + verb_of(group.front()) + "too";
  }
  std::string text = verb_of(*event) + name_page(event->key);
  if (group.size() > 1) text += ", one of " + grouped(group.size()) + " pages";
  if (event->line != 0) {
    text += " (message " + std::to_string(event->seq) + ", line " + std::to_string(event->line) + ")";
  } else {
    text += ", at " + seconds_text(event->time) + " s";
  }
  return text;
}

std::uint64_t common_events(std::vector<PageEvent> a, std::vector<PageEvent> b) {
  const auto order = [](const PageEvent& left, const PageEvent& right) {
    return std::tie(left.stored, left.key) < std::tie(right.stored, right.key);
  };
  std::ranges::sort(a, order);
  std::ranges::sort(b, order);
  std::vector<PageEvent> both;
  std::ranges::set_intersection(a, b, std::back_inserter(both), order);
  return both.size();
}

void count_kinds(const std::vector<PageEvent>& events, std::uint64_t& stored, std::uint64_t& removed) {
  for (const PageEvent& event : events) ++(event.stored ? stored : removed);
}

}  // namespace

TierEvents compare_page_events(Tier tier, const std::vector<PageEvent>& measured,
                               const std::vector<PageEvent>& predicted,
                               const std::function<std::string(const PageKey&)>& name_page) {
  TierEvents result;
  result.tier = tier;
  count_kinds(measured, result.measured_stored, result.measured_removed);
  count_kinds(predicted, result.predicted_stored, result.predicted_removed);
  result.common = common_events(measured, predicted);
  std::size_t at_measured = 0, at_predicted = 0;
  while (at_measured < measured.size() || at_predicted < predicted.size()) {
    const std::vector<PageEvent> a = group_at(measured, at_measured), b = group_at(predicted, at_predicted);
    const auto same = [](const PageEvent& left, const PageEvent& right) {
      return left.stored == right.stored && left.key == right.key;
    };
    if (!std::ranges::equal(a, b, same)) {
      result.first = TierEvents::Difference{sentence_of(measured, at_measured, a, b, name_page),
                                            sentence_of(predicted, at_predicted, b, a, name_page)};
      return result;
    }
    at_measured += a.size();
    at_predicted += b.size();
    result.equal = at_measured;
  }
  return result;
}

EventErrors event_errors(const fs::path& recording, const fs::path& predicted_folder) {
  const PastRun run(predicted_folder);
  const Experiment& experiment = run.experiment();
  const TraceInputOptions options = input_options(experiment);
  EventErrors errors;
  MeasuredEvents measured(recording, options.page_tokens, options.salt);
  PageEvents of_engine = measured.read(errors.notes);
  if (of_engine.empty()) {
    throw InputError(recording.string() +
                     ": holds no store and no removal that can be compared; record a server that "
                     "publishes KV events while it serves the requests of the log (without --without-token-ids)");
  }
  PredictedEvents predicted;
  const Rerun rerun(run, experiment, &predicted);
  if (rerun.exit_code() != 0) errors.notes.push_back(rerun.sentence());
  const PageNames names(experiment);
  for (const Tier tier : kComparedTiers) {
    if (of_engine[tier].empty() && predicted.events[tier].empty()) continue;
    errors.tiers.push_back(compare_page_events(tier, of_engine[tier], predicted.events[tier], names));
  }
  return errors;
}

std::string event_errors_text(const EventErrors& errors) {
  std::string text;
  for (const TierEvents& tier : errors.tiers) {
    const std::uint64_t measured = tier.measured_stored + tier.measured_removed;
    std::string head = "  events, " + std::string(spec_of(tier.tier).where);
    head.resize(std::max<std::size_t>(25, head.size()), ' ');
    text += head + "stored " + grouped(tier.measured_stored) + " pages measured, " + grouped(tier.predicted_stored) +
            " predicted; removed " + grouped(tier.measured_removed) + " and " + grouped(tier.predicted_removed) + "; " +
            grouped(tier.common) + " in common\n";
    if (!tier.first) {
      text += "    all equal            " + grouped(measured) + "\n";
      continue;
    }
    const bool same = tier.common == measured && tier.common == tier.predicted_stored + tier.predicted_removed;
    if (same) text += "                         the same events, in another order\n";
    text += "    first difference     after " + grouped(tier.equal) + " equal ones of " + grouped(measured) + "\n";
    text += "    measured             " + tier.first->measured + "\n";
    text += "    predicted            " + tier.first->predicted + "\n";
  }
  for (const std::string& note : errors.notes) text += "  note                   " + note + "\n";
  return text;
}

Json event_errors_json(const EventErrors& errors) {
  Json json{{"tiers", Json::array()}, {"notes", errors.notes}};
  for (const TierEvents& tier : errors.tiers) {
    json["tiers"].push_back(
        {{"tier", spec_of(tier.tier).name},
         {"stored", {{"measured", tier.measured_stored}, {"predicted", tier.predicted_stored}}},
         {"removed", {{"measured", tier.measured_removed}, {"predicted", tier.predicted_removed}}},
         {"common", tier.common},
         {"equal", tier.equal},
         {"all_equal", !tier.first},
         {"first_difference",
          tier.first ? Json{{"measured", tier.first->measured}, {"predicted", tier.first->predicted}} : Json()}});
  }
  return json;
}

}  // namespace kvtwin
