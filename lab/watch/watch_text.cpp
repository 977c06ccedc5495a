#include "lab/watch/watch_text.hpp"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "lab/decision_text.hpp"
#include "lab/formatted.hpp"

namespace kvtwin {
namespace {

double seconds(TimeNs time) { return static_cast<double>(time) * 1e-9; }

std::string percent(double share) { return formatted("%.2f %%", 100 * share); }

// Numbers of blocks that come from a sample are rounded.
std::uint64_t whole(double number) { return static_cast<std::uint64_t>(std::llround(std::max(0.0, number))); }

std::string span_text(double s) {
  if (s < 120) return formatted("%.1f s", s);
  if (s < 7200) return formatted("%.1f min", s / 60);
  return formatted("%.1f h", s / 3600);
}

std::string mib(std::size_t bytes) { return formatted("%.1f MiB", static_cast<double>(bytes) / (1 << 20)); }

// Text of an engine, without control characters.
std::string plain(const std::string& text) {
  std::string out;
  for (const char c : text) out += c >= ' ' && c <= '~' ? c : '?';
  return out;
}

struct Columns {
  bool error = false, own = false, no_window = false, no_state = false, untold = false, windows = false;
};

// A figure that may be larger has a mark.
std::string marked(bool is_least, const std::string& text) { return (is_least ? ">=" : "") + text; }

std::string row_text(const WatchFigures::Row& row, const Columns& columns) {
  const auto lru = [&](const std::string& text) { return marked(row.is_least, text); };
  std::string line = formatted("  %-7s %13s", row.name.c_str(), grouped(row.blocks).c_str()) +
                     formatted(" %14s", lru(grouped(whole(row.lru.blocks))).c_str()) +
                     formatted(" %9s", lru(percent(row.lru.block_ratio)).c_str());
  if (columns.error) line += formatted(" +-%.2f", 100 * row.lru.error);
  if (columns.own) line += formatted(" %9s", lru(percent(row.lru.token_ratio)).c_str());
  if (columns.own) line += formatted(" %9s", row.own ? percent(*row.own).c_str() : "-");
  if (columns.no_window) line += formatted(" %9s", row.own ? percent(row.without_window).c_str() : "-");
  if (columns.no_state) line += formatted(" %9s", row.own ? percent(row.without_state).c_str() : "-");
  if (columns.untold) line += formatted(" %11s", row.with_untold ? lru(percent(*row.with_untold)).c_str() : "-");
  if (columns.windows && row.best) {
    line += formatted(" %11s", percent(*row.lru_in_windows).c_str()) + formatted(" %11s", percent(*row.best).c_str());
  }
  return line + "\n";
}

std::string counted_text(const WatchFigures& figures) {
  std::string text;
  if (figures.measured) {
    const WatchFigures::Measured& all = *figures.measured;
    const auto share = [&](Tokens hits) { return percent(Canary::ratio(hits, all.looked_up)); };
    const auto rate = [&](Tokens count) {
      const double per_second = static_cast<double>(count) / all.seconds;
      return per_second < 100 ? formatted("%.3g", per_second) : grouped(whole(per_second));
    };
    if (!figures.canary) {
      text += "measured  " + percent(all.hits()) + " of " + grouped(all.looked_up) +
              " prompt tokens hit: " + share(all.device_hits) + " on the device, " + share(all.host_hits) +
              " on the host, " + share(all.storage_hits) + " in storage\n";
    }
    text += "rates     " + rate(all.requests) + " requests, " + rate(all.looked_up) + " prompt tokens and " +
            rate(all.answer_tokens) + " tokens of answers per second\n";
  }
  return text;
}

std::string canary_text(const WatchFigures& figures) {
  if (figures.twin && !figures.canary) {
    return "twin      " + percent(figures.twin->twin()) + " of the prompt tokens hit by the engine's own rules\n";
  }
  if (!figures.canary) return {};
  const Canary& canary = *figures.canary;
  std::string text = "measured  " + percent(canary.measured()) + " of " + grouped(canary.measured_looked_up) +
                     " prompt tokens hit; the twin" +
                     (canary.by_engine_rules ? " by the engine's own rules" : " by LRU at the present size") +
                     " says " + (canary.is_least ? "at least " : "") + percent(canary.twin()) + "\n";
  if (canary.untold > 0) {
    text += "untold    events do not tell " +
            percent(Canary::ratio(canary.untold, canary.twin_looked_up + canary.untold)) +
            " of the prompt tokens; as hits they make the twin's " + percent(canary.twin_with_untold()) + ", " +
            formatted("%.2f points", 100 * std::abs(canary.measured() - canary.twin_with_untold())) +
            " from the measured\n";
  }
  if (!canary.parted.empty()) return text + "canary    PARTED: " + plain(canary.parted) + "\n";
  return text + (canary.is_least ? "canary    not known: the present size is above the tracked blocks (--max-blocks)\n"
                                 : "canary    they agree within 3 points\n");
}

// A line per pool; pools of equal figures, as those of layers that alternate, share one.
std::string pool_curves_text(const WatchFigures& figures) {
  constexpr std::size_t kMaxLines = 6, kMaxSizes = 4;
  std::vector<std::pair<std::string, std::string>> lines;  // what comes before and behind the numbers of the groups
  std::vector<std::string> groups;
  for (const WatchFigures::SourceCurves& source : figures.pool_curves) {
    for (const PoolCurves::Curve& curve : source.curves) {
      std::string kind = plain(curve.kind);
      if (curve.window > 0) kind += " of " + grouped(curve.window) + " tokens";
      std::string sizes;
      const std::size_t skipped = curve.sizes.size() > kMaxSizes ? 1 : 0;
      for (std::size_t i = skipped; i < std::min(curve.sizes.size(), skipped + kMaxSizes); ++i) {
        const PoolCurves::Size& size = curve.sizes[i];
        sizes += (sizes.empty() ? "" : ", ") + grouped(size.blocks) + ": " + marked(size.is_least, percent(size.hits));
      }
      const std::pair line(figures.sources > 1 ? plain(source.source) + " " : "", kind + "; blocks " + sizes);
      const auto found = std::ranges::find(lines, line);
      if (found != lines.end()) {
        groups[static_cast<std::size_t>(found - lines.begin())] += ", " + std::to_string(curve.group);
        continue;
      }
      if (lines.size() == kMaxLines) continue;
      lines.push_back(line);
      groups.push_back(std::to_string(curve.group));
    }
  }
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += "pool      " + lines[i].first + "group " + groups[i] + ", " + lines[i].second + "\n";
  }
  return text.empty() ? text : "pools     share of the prompts that each could use, by its blocks; LRU:\n" + text;
}

std::string pools_text(const WatchFigures& figures) {
  std::string text;
  std::size_t lines = 0;
  for (const WatchFigures::SourcePools& source : figures.pools) {
    for (const BlockCounts::Pool& pool : source.pools) {
      if (++lines > 6) return text;
      std::string name = pool.medium;
      if (!pool.kind.empty()) name += " " + pool.kind;
      if (pool.group > 0) name += " " + std::to_string(pool.group);
      text += "blocks    " + formatted("%-26s", plain(name).c_str()) + grouped(pool.held) + " held, " +
              grouped(pool.peak) + " at most" + (pool.is_full ? " (full)" : "") + "; " + grouped(pool.stored) +
              " stored, " + grouped(pool.removed) + " removed\n";
    }
  }
  return text;
}

std::string faults_text(const WatchFigures& figures) {
  std::string text;
  const auto add = [&](std::uint64_t count, const char* words) {
    if (count > 0) text += (text.empty() ? "" : ", ") + grouped(count) + words;
  };
  add(figures.lost_messages, " messages lost");
  add(figures.bad, " not read");
  add(figures.bad_lines,
      figures.bad_lines == 1 ? " line of a request log not read" : " lines of request logs not read");
  add(figures.unreachable, figures.unreachable == 1 ? " failed fetch of counters" : " failed fetches of counters");
  add(figures.restarts, " restarts");
  add(figures.forgotten, " times too many blocks: the engine's blocks were forgotten");
  add(figures.below_unknown, " requests continue a prefix from before the first event");
  if (text.empty()) return {};
  std::string error;
  if (figures.lost_messages > 0 && figures.events > 0) {
    error =
        formatted("; at most %.1f %% of the events are missing if messages have one event", 100 * figures.lost_share());
  }
  text = "faults    " + text + error + "\n";
  for (const std::string* of : {&figures.first_problem, &figures.first_bad_line, &figures.first_unreachable}) {
    if (!of->empty()) text += "          " + plain(*of) + "\n";
  }
  return text;
}

Json hits_json(const WatchFigures::Row& row) {
  Json json = {{"blocks", row.blocks},
               {"hit_blocks", whole(row.lru.blocks)},
               {"hit_tokens", whole(row.lru.tokens)},
               {"block_hit_ratio", row.lru.block_ratio},
               {"token_hit_ratio", row.lru.token_ratio},
               {"error", row.lru.error}};
  if (!row.name.empty()) json["name"] = row.name;
  if (row.is_least) json["at_least"] = true;
  if (row.lru.saved_seconds > 0) json["saved_prefill_seconds"] = row.lru.saved_seconds;
  if (row.with_untold) json["token_hit_ratio_with_untold"] = *row.with_untold;
  if (row.own) json["own_rules_token_hit_ratio"] = *row.own;
  if (row.without_window > 0) json["own_rules_without_window_ratio"] = row.without_window;
  if (row.without_state > 0) json["own_rules_without_state_ratio"] = row.without_state;
  if (row.best) {
    json["best_in_windows"] = *row.best;
    json["lru_in_windows"] = *row.lru_in_windows;
  }
  return json;
}

Json rows_json(const std::vector<WatchFigures::Row>& rows) {
  Json list = Json::array();
  for (const WatchFigures::Row& row : rows) list.push_back(hits_json(row));
  return list;
}

Json spread_json(const Spread& spread) {
  return {{"middle", spread.middle}, {"low", spread.low}, {"high", spread.high}};
}

Json advice_json(const WatchAdvice& advice) {
  Json json = {{"ready", advice.is_ready}, {"change", advice.is_change}, {"sentence", advice.sentence}};
  if (!advice.flags.empty()) json["flags"] = advice.flags;
  if (advice.blocks > 0) json["host_blocks"] = advice.blocks;
  if (advice.is_ready) json["gain"] = spread_json(advice.gain);
  if (advice.prefill_seconds_per_hour) {
    json["prefill_seconds_per_hour"] = spread_json(*advice.prefill_seconds_per_hour);
  }
  if (advice.money_per_month) {
    json["money_per_month"] = spread_json(*advice.money_per_month);
    json["currency"] = advice.currency;
  }
  return json;
}

Json pools_json(const WatchFigures& figures) {
  Json list = Json::array();
  for (const WatchFigures::SourcePools& source : figures.pools) {
    for (const BlockCounts::Pool& pool : source.pools) {
      list.push_back(Json{{"source", plain(source.source)},
                          {"medium", plain(pool.medium)},
                          {"group", pool.group},
                          {"kind", plain(pool.kind)},
                          {"held", pool.held},
                          {"peak", pool.peak},
                          {"full", pool.is_full},
                          {"stored", pool.stored},
                          {"removed", pool.removed}});
    }
  }
  return list;
}

Json pool_curves_json(const WatchFigures& figures) {
  Json list = Json::array();
  for (const WatchFigures::SourceCurves& source : figures.pool_curves) {
    for (const PoolCurves::Curve& curve : source.curves) {
      Json one = {{"source", plain(source.source)}, {"group", curve.group}, {"kind", plain(curve.kind)}};
      if (curve.window > 0) one["window_tokens"] = curve.window;
      one["sizes"] = Json::array();
      for (const PoolCurves::Size& size : curve.sizes) {
        one["sizes"].push_back(Json{{"blocks", size.blocks}, {"usable_ratio", size.hits}});
        if (size.is_least) one["sizes"].back()["at_least"] = true;
      }
      list.push_back(std::move(one));
    }
  }
  return list;
}

Json canary_json(const Canary& canary) {
  Json json = {{"twin_hit_ratio", canary.twin()},
               {"twin_lookup_tokens", canary.twin_looked_up},
               {"twin_hit_tokens", canary.twin_hits},
               {"rules", canary.by_engine_rules ? "engine" : "lru"}};
  if (canary.by_engine_rules) {
    json["twin_device_hit_tokens"] = canary.device_hits;
    json["twin_host_hit_tokens"] = canary.host_hits;
  }
  if (canary.measured_looked_up > 0) {
    json["measured_hit_ratio"] = canary.measured();
    json["measured_lookup_tokens"] = canary.measured_looked_up;
    json["measured_hit_tokens"] = canary.measured_hits;
    json["parted"] = plain(canary.parted);
    if (canary.is_least) json["twin_at_least"] = true;
    if (canary.untold > 0) {
      json["untold_tokens"] = canary.untold;
      json["twin_hit_ratio_with_untold"] = canary.twin_with_untold();
    }
  }
  return json;
}

}  // namespace

std::string watch_line(const WatchInterval& interval, const WatchFigures& figures) {
  const auto ratio = [](double part, double all) { return all > 0 ? percent(part / all) : std::string("-"); };
  const auto lookups = static_cast<double>(interval.lookup_blocks);
  std::string line = formatted("%9.0f s", seconds(std::max<TimeNs>(0, interval.begin - figures.begin)));
  if (figures.counters_alone) {
    return line + "  measured hits: " +
           ratio(static_cast<double>(interval.measured_hits), static_cast<double>(interval.measured_looked_up)) +
           " of " + grouped(interval.measured_looked_up) + " prompt tokens\n";
  }
  line += formatted("  %7s requests", grouped(interval.requests).c_str()) +
          formatted("  %9s blocks looked up", grouped(interval.lookup_blocks).c_str());
  if (const std::uint64_t device_blocks = figures.device_blocks; device_blocks > 0) {
    const auto hits_of = [&](std::uint64_t size) {
      return marked(!figures.knows(size), ratio(interval.hit_blocks(size), lookups));
    };
    line += "  hits: now " + hits_of(device_blocks);
    for (const std::uint64_t times : {std::uint64_t{2}, std::uint64_t{4}, std::uint64_t{8}}) {
      line += formatted(", x%llu ", static_cast<unsigned long long>(times)) + hits_of(times * device_blocks);
    }
  } else {
    line += "  hits of an infinite cache: " + ratio(interval.hit_blocks(~std::uint64_t{0} >> 4), lookups);
  }
  if (interval.measured_looked_up > 0) {
    line += "; measured " +
            ratio(static_cast<double>(interval.measured_hits), static_cast<double>(interval.measured_looked_up));
  }
  return line + "\n";
}

std::string watch_screen(const WatchFigures& figures, const WatchAdvice& advice) {
  std::string text = "kvtwin watch  " + grouped(figures.sources) + (figures.sources == 1 ? " engine, " : " engines, ") +
                     span_text(seconds(figures.now - figures.begin));
  if (figures.counters_alone) {
    return text + ", counters alone\n" + (figures.measured ? counted_text(figures) : "measured  nothing yet\n") +
           "not shown hits of other sizes, the twin's, the best possible ones, prefixes to pin, writes\n" +
           faults_text(figures) + "advice    " + advice.sentence + "\n";
  }
  text += ", " + grouped(figures.requests) + (figures.exact_requests ? " requests" : " inferred requests") + ", " +
          grouped(figures.lookup_blocks) + " blocks of " + grouped(figures.block_tokens) + " tokens looked up\n";
  Columns columns;
  columns.error = figures.one_in > 1;
  columns.own = std::ranges::any_of(figures.rows, [](const auto& row) { return row.own.has_value(); });
  columns.no_window = std::ranges::any_of(figures.rows, [](const auto& row) { return row.without_window > 0; });
  columns.no_state = std::ranges::any_of(figures.rows, [](const auto& row) { return row.without_state > 0; });
  columns.untold = figures.canary && figures.canary->untold > 0;
  columns.windows = std::ranges::any_of(figures.rows, [](const auto& row) { return row.best.has_value(); });
  if (!figures.rows.empty()) {
    text += formatted("  %-7s %13s %14s %9s", "cache", "blocks", "hits of LRU", "share") +
            (columns.error ? "  error" : "") +
            (columns.own ? formatted(" %9s %9s", "tokens", "own rules") : std::string()) +
            (columns.no_window ? formatted(" %9s", "no window") : std::string()) +
            (columns.no_state ? formatted(" %9s", "no state") : std::string()) +
            (columns.untold ? formatted(" %11s", "with untold") : std::string()) +
            (columns.windows ? formatted(" %11s %11s", "in windows", "best there") : std::string()) + "\n";
  }
  for (const WatchFigures::Row& row : figures.rows) text += row_text(row, columns);
  if (!figures.rows.empty() && figures.known_blocks == WatchFigures::kEverySize) {
    text += "  " + grouped(figures.enough_blocks) + " blocks are enough for all hits\n";
  } else if (!figures.rows.empty()) {
    text += "  >=: above the " + grouped(figures.known_blocks) +
            " blocks that are tracked (--max-blocks), hits may be more\n";
  }
  if (!figures.pool.empty()) {
    text += "  one pool for all engines:\n";
    Columns of_pool;
    of_pool.error = columns.error;
    for (const WatchFigures::Row& row : figures.pool) text += row_text(row, of_pool);
  }
  if (figures.device_blocks > 0) {
    text += "device    " + grouped(figures.device_blocks) + " blocks of an engine: " + figures.device_from + "\n";
  }
  if (!figures.log_zone.empty()) {
    text += "log zone  " + figures.log_zone + ", of dates in the request log that have none\n";
  }
  text += canary_text(figures) + counted_text(figures) + pools_text(figures) + pool_curves_text(figures);
  const double hours = seconds(figures.now - figures.begin) / 3600;
  if (figures.stored_blocks > 0 && hours > 0) {
    text += "written   " + grouped(figures.stored_blocks) + " blocks, " +
            grouped(whole(static_cast<double>(figures.stored_blocks) / hours)) + " per hour" +
            (figures.written_per_day ? formatted(": %.3g GB per day, on one drive for %.3g years",
                                                 *figures.written_per_day * 1e-9, *figures.drive_years)
                                     : std::string()) +
            "\n";
  }
  for (const WatchedPrefix& prefix : figures.prefixes) {
    text += "pin       a prefix of " + grouped(prefix.blocks) + " blocks (" +
            formatted("%016llx", static_cast<unsigned long long>(prefix.key)) + "): " + grouped(prefix.requests) +
            " requests, " + grouped(prefix.lost_blocks) + " of its blocks were computed again\n";
  }
  text += faults_text(figures);
  text += "memory    " + mib(figures.memory_bytes) + ", " + grouped(figures.tracked_blocks) + " blocks tracked\n";
  text += "advice    " + advice.sentence + "\n";
  if (!advice.flags.empty()) text += "          " + advice.flags + "\n";
  return text;
}

Json watch_json(const WatchFigures& figures, const WatchAdvice& advice) {
  Json json = {{"seconds", seconds(figures.now - figures.begin)},
               {"engines", figures.sources},
               {"exact_requests", figures.exact_requests},
               {"requests", figures.requests},
               {"lookup_blocks", figures.lookup_blocks},
               {"lookup_tokens", figures.lookup_tokens},
               {"block_tokens", figures.block_tokens},
               {"sample_one_in", figures.one_in},
               {"device_blocks", figures.device_blocks},
               {"device_from", figures.device_from},
               {"host_blocks", figures.host_blocks},
               {"enough_blocks", figures.enough_blocks}};
  if (figures.known_blocks != WatchFigures::kEverySize) json["known_blocks"] = figures.known_blocks;
  if (!figures.log_zone.empty()) json["log_zone"] = figures.log_zone;
  json["sizes"] = rows_json(figures.rows);
  json["curve"] = rows_json(figures.curve);
  if (!figures.pool.empty()) json["shared_pool"] = rows_json(figures.pool);
  json["windows"] = figures.windows;
  if (figures.written_per_day) {
    json["written"] = {{"bytes_per_day", *figures.written_per_day}, {"drive_years", *figures.drive_years}};
  }
  if (figures.prefill_seconds > 0) json["prefill_seconds"] = figures.prefill_seconds;
  if (figures.canary) {
    json["canary"] = canary_json(*figures.canary);
  } else if (figures.twin) {
    json["canary"] = canary_json(*figures.twin);
  }
  if (figures.measured) {
    const WatchFigures::Measured& all = *figures.measured;
    json["measured"] = {{"hit_ratio", all.hits()},
                        {"lookup_tokens", all.looked_up},
                        {"device_hit_tokens", all.device_hits},
                        {"host_hit_tokens", all.host_hits},
                        {"storage_hit_tokens", all.storage_hits},
                        {"answer_tokens", all.answer_tokens},
                        {"requests", all.requests},
                        {"seconds", all.seconds}};
  }
  json["counters_alone"] = figures.counters_alone;
  json["pools"] = pools_json(figures);
  if (!figures.pool_curves.empty()) json["pool_curves"] = pool_curves_json(figures);
  json["prefixes"] = Json::array();
  for (const WatchedPrefix& prefix : figures.prefixes) {
    json["prefixes"].push_back(Json{{"first_block", digest_text(prefix.key)},
                                    {"requests", prefix.requests},
                                    {"blocks", prefix.blocks},
                                    {"lost_blocks", prefix.lost_blocks}});
  }
  json["events"] = {{"taken", figures.events},
                    {"stored_blocks", figures.stored_blocks},
                    {"lost_messages", figures.lost_messages},
                    {"not_read", figures.bad},
                    {"bad_lines", figures.bad_lines},
                    {"no_counters", figures.unreachable},
                    {"restarts", figures.restarts},
                    {"forgotten", figures.forgotten},
                    {"below_unknown", figures.below_unknown},
                    {"reports", figures.reports}};
  if (!figures.first_problem.empty()) json["events"]["first_problem"] = plain(figures.first_problem);
  if (!figures.first_bad_line.empty()) json["events"]["first_bad_line"] = plain(figures.first_bad_line);
  if (!figures.first_unreachable.empty()) json["events"]["first_no_counters"] = plain(figures.first_unreachable);
  json["memory"] = {{"tracked_blocks", figures.tracked_blocks}, {"bytes", figures.memory_bytes}};
  json["advice"] = advice_json(advice);
  return json;
}

std::string watch_prometheus(const WatchFigures& figures) {
  std::string text;
  const auto number = [](double value) { return Json(value).dump(); };
  const auto family = [&](const char* name, const char* type, const char* help) {
    text += std::string("# HELP ") + name + " " + help + "\n# TYPE " + name + " " + type + "\n";
  };
  const auto plain_metric = [&](const char* name, const char* type, const char* help, double value) {
    family(name, type, help);
    text += std::string(name) + " " + number(value) + "\n";
  };
  family("kvtwin_watch_hit_ratio", "gauge", "Share of the prompt's blocks that a cache of this size hits with LRU.");
  for (const WatchFigures::Row& row : figures.rows) {
    text += "kvtwin_watch_hit_ratio{blocks=\"" + std::to_string(row.blocks) + "\"" +
            (row.is_least ? ",bound=\"lower\"" : "") + "} " + number(row.lru.block_ratio) + "\n";
  }
  std::optional<double> measured;
  if (figures.measured && figures.measured->looked_up > 0) measured = figures.measured->hits();
  if (figures.canary || figures.twin) {
    const Canary& canary = figures.canary ? *figures.canary : *figures.twin;
    plain_metric("kvtwin_watch_twin_hit_ratio", "gauge", "Hit ratio of tokens that the twin has at the present size.",
                 canary.twin());
    if (canary.measured_looked_up > 0) {
      measured = canary.measured();
      plain_metric("kvtwin_watch_parted", "gauge", "1 if the twin and the servers part.",
                   canary.parted.empty() ? 0 : 1);
    }
  }
  if (measured) {
    plain_metric("kvtwin_watch_measured_hit_ratio", "gauge", "Hit ratio of tokens that the servers counted.",
                 *measured);
  }
  plain_metric("kvtwin_watch_requests_total", "counter", "Requests that were seen or inferred.",
               static_cast<double>(figures.requests));
  plain_metric("kvtwin_watch_lookup_blocks_total", "counter", "Blocks that they looked up.",
               static_cast<double>(figures.lookup_blocks));
  plain_metric("kvtwin_watch_events_total", "counter", "Events that were read.", static_cast<double>(figures.events));
  plain_metric("kvtwin_watch_lost_messages_total", "counter", "Messages that were lost.",
               static_cast<double>(figures.lost_messages));
  plain_metric("kvtwin_watch_bad_total", "counter", "Messages and events that could not be read.",
               static_cast<double>(figures.bad));
  plain_metric("kvtwin_watch_bad_lines_total", "counter", "Lines of request logs that could not be read.",
               static_cast<double>(figures.bad_lines));
  plain_metric("kvtwin_watch_tracked_blocks", "gauge", "Blocks in LRU's order.",
               static_cast<double>(figures.tracked_blocks));
  plain_metric("kvtwin_watch_memory_bytes", "gauge", "Memory of the figures.",
               static_cast<double>(figures.memory_bytes));
  return text;
}

}  // namespace kvtwin
