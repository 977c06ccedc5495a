#include "lab/watch/watch_session.hpp"

#include <charconv>
#include <cmath>
#include <system_error>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "lab/out_files.hpp"
#include "lab/units.hpp"
#include "lab/watch/watch_text.hpp"

namespace kvtwin {
namespace {

constexpr std::chrono::milliseconds kBetweenScreens{500};
constexpr double kManyLost = 0.05;

std::string rounded_percent(double share) { return formatted("%.1f %%", 100 * share); }

}  // namespace

WatchSession::WatchSession(const WatchArguments& arguments, std::vector<std::string> names, const WatchedServer* server,
                           const WatchOutput& output, const Listener& listener)
    : arguments_(arguments), output_(output), server_(server), watch_(arguments.settings, std::move(names), server) {
  if (!arguments_.expect.empty()) expected_hits(arguments_.expect);
  if (server_ != nullptr) {
    for (const std::string& note : server_->experiment().notes()) listener.tell(note);
    for (const std::string& note : server_->setup().notes) listener.tell(note);
  }
  watch_.on_interval([this](const WatchInterval& interval) {
    if (!output_.interval) return;
    output_.interval(watch_line(interval, watch_.figures()));
  });
}

void WatchSession::refresh(const std::string& more) {
  if (!output_.screen) return;
  const Clock::time_point now = Clock::now();
  if (now - drawn_ < kBetweenScreens) return;
  drawn_ = now;
  const WatchFigures figures = watch_.figures();
  output_.screen(watch_screen(figures, recommend(figures, server_)) + more);
}

void WatchSession::publish(WatchPage& page) {
  const WatchFigures figures = watch_.figures();
  page.publish(watch_json(figures, recommend(figures, server_)), watch_prometheus(figures));
}

WatchResult WatchSession::end() {
  watch_.end();
  const WatchFigures figures = watch_.figures();
  const WatchAdvice advice = recommend(figures, server_);
  WatchResult result;
  result.text = watch_screen(figures, advice);
  result.json = watch_json(figures, advice);
  if (!arguments_.report.empty()) write_whole(arguments_.report, watch_report(result.json));
  if (!arguments_.expect.empty()) result.missed = why_below(figures, expected_hits(arguments_.expect));
  return result;
}

int parse_zone(const std::string& text) {
  if (text == "Z") return 0;
  int hours = 0, minutes = 0;
  const auto number = [&](std::size_t at, int& value) {
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + at + 2, value);
    return error == std::errc() && end == text.data() + at + 2 && value >= 0;
  };
  if (text.size() != 6 || (text[0] != '+' && text[0] != '-') || text[3] != ':' || !number(1, hours) ||
      !number(4, minutes) || hours > 23 || minutes > 59) {
    throw InputError("--log-zone " + text + ": must be the zone's distance from UTC, e.g. +02:00, -05:30 or Z");
  }
  return (hours * 3600 + minutes * 60) * (text[0] == '-' ? -1 : 1);
}

double expected_hits(const std::string& text) {
  const std::string kName = "hits=";
  if (!text.starts_with(kName)) throw InputError("--expect " + text + ": must be hits=SHARE, e.g. hits=0.55");
  const double share = number_in(unit_named("hit_ratio"), text.substr(kName.size()), "--expect");
  if (!(share > 0 && share <= 1)) throw InputError("--expect " + text + ": the share must be above 0 and at most 1");
  return share;
}

namespace {

// Without the size of the present cache, only measured hits are those of the server.
std::string why_without_size(const WatchFigures& figures, double share) {
  const std::string how =
      "the size of the device's pool is not known; give --device-blocks or a description of the server";
  if (!figures.measured || figures.measured->looked_up == 0) {
    return "the hits at the present size are not known, and should be " + rounded_percent(share) + ": " + how;
  }
  if (figures.measured->hits() >= share) return {};
  return "measured hits are " + rounded_percent(figures.measured->hits()) + " of the prompt tokens, and should be " +
         rounded_percent(share) + ": no twin tells why, as " + how;
}

}  // namespace

std::string why_below(const WatchFigures& figures, double share) {
  if (figures.counters_alone && figures.measured && figures.measured->looked_up > 0) {
    if (figures.measured->hits() >= share) return {};
    return "measured hits are " + rounded_percent(figures.measured->hits()) + " of the prompt tokens, and should be " +
           rounded_percent(share) + ": counters alone do not tell why; give tcp://HOST:PORT of KV events too";
  }
  if (figures.lookup_tokens == 0 && !(figures.canary && figures.canary->measured_looked_up > 0)) {
    if (figures.counters_alone && !figures.has_counters) {
      return "no counters came, so the hits are not known: " + (figures.first_unreachable.empty()
                                                                    ? "--metrics pages have no counter of prompt tokens"
                                                                    : figures.first_unreachable);
    }
    return std::string("no request came, so no hits either") +
           (figures.first_unreachable.empty() ? "" : "; " + figures.first_unreachable);
  }
  const WatchFigures::Row* present = nullptr;
  const WatchFigures::Row* reaches = nullptr;
  double most = 0;
  for (const WatchFigures::Row& row : figures.rows) {
    if (row.blocks == std::max(figures.device_blocks, figures.host_blocks)) present = &row;
    if (reaches == nullptr && row.lru.token_ratio >= share) reaches = &row;
    most = std::max(most, row.lru.token_ratio);
  }
  const bool is_measured = figures.canary.has_value();
  const bool is_known = figures.known_blocks == WatchFigures::kEverySize;
  if (!is_measured && !figures.twin && present == nullptr) {
    // Events that show no full pool: what was stored is there, and every cache above has these hits.
    const bool holds_all = figures.stored_blocks > 0 && !(figures.measured && figures.measured->looked_up > 0);
    if (!holds_all) return why_without_size(figures, share);
  }
  double twin = figures.twin ? figures.twin->twin() : present == nullptr ? most : present->lru.token_ratio;
  if (is_measured) twin = figures.canary->twin_with_untold();
  const double hits = is_measured ? figures.canary->measured() : twin;
  if (hits >= share) return {};
  std::string text = std::string(is_measured ? "measured hits" : "the twin's hits") + " are " + rounded_percent(hits) +
                     " of the prompt tokens, and should be " + rounded_percent(share) + ": ";
  const double lost = figures.lost_share();
  if (!is_measured && present != nullptr && present->is_least && !figures.twin) {
    return "the twin's hits are at least " + rounded_percent(hits) + " of the prompt tokens, and should be " +
           rounded_percent(share) + ": the present size of " + grouped(present->blocks) + " blocks is above the " +
           grouped(figures.known_blocks) + " that are tracked; give a larger --max-blocks";
  }
  if (is_measured && twin >= share) {
    return text + "a cache of this size has " + rounded_percent(twin) +
           " by the twin, so the server differs from its description: look at its prefix caching, cache salts, size "
           "and restarts (" +
           grouped(figures.restarts) + " seen)";
  }
  if (!is_measured && lost > kManyLost) {
    return text + grouped(figures.lost_messages) + " messages were lost, so the figure is too low";
  }
  if (reaches != nullptr && present != nullptr && reaches->blocks > present->blocks) {
    return text + "the cache is too small; " + grouped(reaches->blocks) + " blocks in place of " +
           grouped(present->blocks) + " have " + (reaches->is_least ? "at least " : "") +
           rounded_percent(reaches->lru.token_ratio);
  }
  if (!is_known) {
    return text + "no cache of up to " + grouped(figures.known_blocks) +
           " blocks has so many, and larger ones are not tracked; give a larger --max-blocks";
  }
  return text + "the traffic repeats too little; a cache of " + grouped(figures.enough_blocks) +
         (figures.enough_blocks == 1 ? " block has every hit, " : " blocks has every hit, ") + rounded_percent(most);
}

}  // namespace kvtwin
