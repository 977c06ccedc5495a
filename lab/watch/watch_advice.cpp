#include "lab/watch/watch_advice.hpp"

#include <algorithm>
#include <cmath>

#include "lab/decision_text.hpp"
#include "lab/experiment/bill.hpp"
#include "lab/formatted.hpp"
#include "lab/units.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMinIntervals = 4;
constexpr std::uint64_t kMinRequests = 50;
constexpr double kMinGain = 0.005;  // of the blocks; a smaller one is no reason for a change
constexpr double kNearlyAll = 0.9;  // of the gain of the largest tier

// Student's t for 80 % in the middle, within 1 % from 3 degrees of freedom on.
double t_of(std::size_t degrees) {
  const auto d = static_cast<double>(degrees);
  return 1.2816 + 0.85 / d + 0.7 / (d * d);
}

std::string points(double share) { return formatted("%.1f", 100 * share); }

std::string range_text(const Spread& spread, double unit, const char* format) {
  return "(80 %: " + formatted(format, spread.low * unit) + " to " + formatted(format, spread.high * unit) + ")";
}

Spread scaled(const Spread& spread, double to) {
  if (spread.middle <= 0) return {to, 0, to};
  return {to, to * spread.low / spread.middle, to * spread.high / spread.middle};
}

struct Candidate {
  std::uint64_t blocks = 0;
  Spread gain;
  std::optional<Spread> seconds, money;
  WatchedServer::WithHost with;
};

// Returns the seconds of prefill that a cache of `to` blocks saves beside one of `from`.
double more_seconds(const WatchFigures& figures, std::uint64_t from, std::uint64_t to) {
  const auto saved = [&](std::uint64_t size) {
    double seconds = 0;
    for (const WatchFigures::Row& row : figures.rows) {
      if (row.blocks <= size) seconds = row.lru.saved_seconds;
    }
    return seconds;
  };
  return std::max(0.0, saved(to) - saved(from));
}

// The gain by the engine's own rules over LRU's, from `now` to a size; `before` where it is not known.
double own_share_of_gain(const WatchFigures& figures, std::uint64_t now, std::uint64_t to, double before) {
  constexpr double kLeastGain = 0.005, kMostShare = 1.5;
  const auto row_of = [&](std::uint64_t size) {
    return std::ranges::find(figures.rows, size, &WatchFigures::Row::blocks);
  };
  const auto present = row_of(now), larger = row_of(to);
  if (present == figures.rows.end() || larger == figures.rows.end() || !present->own || !larger->own) return before;
  const double lru = larger->lru.token_ratio - present->lru.token_ratio;
  return lru < kLeastGain ? before : std::clamp((*larger->own - *present->own) / lru, 0.0, kMostShare);
}

// Returns nothing if there are too few intervals for a spread.
std::vector<Candidate> candidates_of(const WatchFigures& figures, const WatchedServer* server, std::uint64_t now) {
  const double hours = static_cast<double>(figures.now - figures.begin) * 1e-9 / 3600;
  const std::optional<double> second_price = server == nullptr ? std::nullopt : server->engine_second_price();
  std::vector<Candidate> all;
  double own_share = 1;
  for (const std::uint64_t multiple : kLargerSizes) {
    Candidate one;
    one.blocks = multiple * now;
    if (!figures.knows(one.blocks)) break;
    const auto gain = gain_between(figures.intervals, now, one.blocks);
    if (!gain) return {};
    own_share = own_share_of_gain(figures, now, one.blocks, own_share);
    one.gain = {own_share * gain->middle, own_share * gain->low, own_share * gain->high};
    // Prompts that events do not tell hit now, and no larger tier adds to them.
    if (figures.canary && figures.canary->untold > 0) {
      const auto told = static_cast<double>(figures.lookup_tokens);
      const double share = told / (told + static_cast<double>(figures.canary->untold));
      one.gain = {share * one.gain.middle, share * one.gain.low, share * one.gain.high};
    }
    if (server != nullptr && hours > 0) {
      one.seconds = scaled(one.gain, own_share * more_seconds(figures, now, one.blocks) / hours);
      one.with = server->with_host(one.blocks);
      if (second_price && one.with.per_month) {
        const double price = *one.with.per_month * static_cast<double>(figures.sources);
        const auto money = [&](double seconds) { return seconds * *second_price * kHoursPerMonth - price; };
        one.money = Spread{money(one.seconds->middle), money(one.seconds->low), money(one.seconds->high)};
      }
    }
    all.push_back(std::move(one));
    const bool has_all = figures.known_blocks == WatchFigures::kEverySize;
    if (has_all && all.back().blocks >= figures.enough_blocks) break;
  }
  return all;
}

// Requires: at least one.
const Candidate& best_of(const std::vector<Candidate>& all) {
  if (std::ranges::all_of(all, [](const Candidate& one) { return one.money.has_value(); })) {
    return *std::ranges::max_element(all, {}, [](const Candidate& one) { return one.money->middle; });
  }
  const double most =
      std::ranges::max_element(all, {}, [](const Candidate& one) { return one.gain.middle; })->gain.middle;
  return *std::ranges::find_if(all, [&](const Candidate& one) { return one.gain.middle >= kNearlyAll * most; });
}

std::string flags_without_description(const WatchFigures& figures, std::uint64_t blocks) {
  const auto device = static_cast<double>(figures.device_blocks);
  return "SGLang: --enable-hierarchical-cache --hicache-ratio " +
         plain_number(std::round(static_cast<double>(blocks) / device)) +
         "; vLLM: --kv-offloading-size with the GiB of " + grouped(blocks) + " blocks (--from-vllm-flags tells them)";
}

std::string change_sentence(const Candidate& best, const WatchFigures& figures, const WatchedServer* server,
                            const std::string& currency) {
  std::string text = figures.host_blocks > 0 ? "enlarge the host tier to " : "add a host tier of ";
  if (server != nullptr) {
    const double gib = static_cast<double>(best.blocks) * server->block_bytes() / kGib;
    text += (gib < 100 ? formatted("%.3g", gib) : grouped(static_cast<std::uint64_t>(std::llround(gib)))) + " GiB, ";
  }
  text += grouped(best.blocks) + " blocks";
  if (figures.sources > 1) text += " for each engine";
  text += ": hits rise by " + points(best.gain.middle) + " points " + range_text(best.gain, 100, "%.1f");
  if (best.seconds) {
    text += ", which saves " + plain_number(std::round(best.seconds->middle)) + " s of prefill per hour " +
            range_text(*best.seconds, 1, "%.0f");
  }
  if (best.money) {
    text += " and " + currency + formatted(" %.0f per month ", best.money->middle) +
            range_text(*best.money, 1, "%.0f") + " after the price of the memory";
  }
  return text;
}

}  // namespace

std::optional<Spread> gain_between(const std::vector<WatchInterval>& intervals, std::uint64_t from, std::uint64_t to) {
  std::vector<std::pair<double, double>> parts;  // blocks that hit more; look-ups
  double gains = 0, lookups = 0;
  for (const WatchInterval& one : intervals) {
    if (one.sampled == 0) continue;
    parts.emplace_back(one.hit_blocks(to) - one.hit_blocks(from), static_cast<double>(one.lookup_blocks));
    gains += parts.back().first;
    lookups += parts.back().second;
  }
  if (parts.size() < kMinIntervals || lookups <= 0) return std::nullopt;
  const double mean = gains / lookups;
  double squares = 0;
  for (const auto& [gain, of] : parts) squares += (gain - mean * of) * (gain - mean * of);
  const auto count = static_cast<double>(parts.size());
  const double error = std::sqrt(squares * count / (count - 1)) / lookups;
  const double half = t_of(parts.size() - 1) * error;
  return Spread{mean, std::max(0.0, mean - half), std::min(1.0, mean + half)};
}

WatchAdvice recommend(const WatchFigures& figures, const WatchedServer* server) {
  WatchAdvice result;
  if (server != nullptr && server->setup().bill) result.currency = server->setup().bill->currency;
  if (figures.counters_alone) {
    result.sentence =
        "no advice: counters do not tell which prompts repeat; give tcp://HOST:PORT of KV events, or --request-log";
    return result;
  }
  if (figures.device_blocks == 0) {
    result.sentence =
        "no advice yet: the size of the device's pool is not known; give --device-blocks, --metrics or a description "
        "of the server";
    return result;
  }
  const std::uint64_t now = std::max(figures.device_blocks, figures.host_blocks);
  if (!figures.knows(kLargerSizes.front() * now)) {
    result.sentence = "no advice: twice the present size, " + grouped(kLargerSizes.front() * now) +
                      " blocks, is above the " + grouped(figures.known_blocks) +
                      " that are tracked; give a larger --max-blocks";
    return result;
  }
  const std::vector<Candidate> all = candidates_of(figures, server, now);
  if (figures.requests < kMinRequests || all.empty()) {
    const auto intervals =
        std::ranges::count_if(figures.intervals, [](const WatchInterval& one) { return one.sampled > 0; });
    result.sentence = "no advice yet: " + grouped(figures.requests) + " requests in " +
                      grouped(static_cast<std::uint64_t>(intervals)) +
                      (intervals == 1 ? " interval; it needs " : " intervals; it needs ") + grouped(kMinRequests) +
                      " in " + grouped(kMinIntervals);
    return result;
  }
  const Candidate& best = best_of(all);
  result.is_ready = true;
  result.is_change = best.gain.low > kMinGain && (!best.money || best.money->low > 0);
  result.gain = best.gain;
  result.prefill_seconds_per_hour = best.seconds;
  result.money_per_month = best.money;
  const std::uint64_t largest = kLargerSizes.back() * now;
  const std::string unknown =
      figures.knows(largest) ? ""
                             : "; more than " + grouped(all.back().blocks) + " blocks are not tracked (--max-blocks)";
  if (result.is_change) {
    result.blocks = best.blocks;
    result.sentence = change_sentence(best, figures, server, result.currency) + unknown;
    result.flags = best.with.command.empty() ? flags_without_description(figures, best.blocks) : best.with.command;
    return result;
  }
  result.sentence = "change nothing: ";
  if (best.gain.middle <= 0) {
    const bool is_every_size = unknown.empty() && all.back().blocks >= figures.enough_blocks;
    result.sentence += "no larger tier" + (is_every_size ? "" : " of up to " + grouped(all.back().blocks) + " blocks") +
                       " has more hits";
    if (!is_every_size && unknown.empty()) {
      result.sentence += "; " + grouped(figures.enough_blocks) + " blocks have every hit";
    }
  } else if (best.gain.low <= kMinGain) {
    result.sentence += "a host tier of " + grouped(best.blocks) + " blocks would hit " + points(best.gain.middle) +
                       " points more " + range_text(best.gain, 100, "%.1f");
  } else {
    result.sentence += "a host tier of " + grouped(best.blocks) + " blocks would hit " + points(best.gain.middle) +
                       " points more, and that is worth " + result.currency +
                       formatted(" %.0f per month ", best.money->middle) + range_text(*best.money, 1, "%.0f") +
                       " after the price of the memory";
  }
  result.sentence += unknown;
  return result;
}

}  // namespace kvtwin
