#include "lab/run/rank_report.hpp"

#include <algorithm>
#include <concepts>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "models/json.hpp"

namespace kvtwin {

namespace {

// Calls `field` with name and member for each member that ranks send.
template <typename Field>
void each_field(auto& of, Field field) requires std::same_as<std::remove_cvref_t<decltype(of)>, Histogram> {
  field("counts", of.counts);
  field("sum", of.sum);
}
template <typename Field>
void each_field(auto& of, Field field) requires std::same_as<std::remove_cvref_t<decltype(of)>, LaneUse> {
  field("name", of.name);
  field("bytes", of.bytes);
  field("transfers", of.transfers);
  field("busy_ns", of.busy_ns);
  field("window_ns", of.window_ns);
  field("window_busy_ns", of.window_busy_ns);
  field("window_bytes", of.window_bytes);
  field("seconds", of.seconds);
  field("gigabytes_per_second", of.gigabytes_per_second);
  field("pages", of.pages);
}
template <typename Field>
void each_field(auto& of, Field field) requires std::same_as<std::remove_cvref_t<decltype(of)>, LoopReport> {
  field("inputs", of.inputs);
  field("run_ns", of.run_ns);
  field("policy_ns", of.policy_ns);
  field("loop_ns", of.loop_ns);
  field("loop_median_ns", of.loop_median_ns);
  field("loop_p99_ns", of.loop_p99_ns);
  field("calls", of.calls);
  field("calls_ns", of.calls_ns);
  field("arrivals", of.arrivals);
  field("arrival_late_sum_ns", of.arrival_late_sum_ns);
  field("arrival_late_max_ns", of.arrival_late_max_ns);
}
template <typename Field>
void each_field(auto& of, Field field) requires std::same_as<std::remove_cvref_t<decltype(of)>, WrongPage> {
  field("tier", of.tier);
  field("key", of.key.words);
  field("slot", of.slot);
  field("layer", of.layer);
  field("plane", of.plane);
  field("token", of.token);
  field("byte", of.byte);
  field("expected", of.expected);
  field("got", of.got);
  field("found", of.found);
}

template <typename Field>
void each_field(auto& of, Field field) requires std::same_as<std::remove_cvref_t<decltype(of)>, Verification::Part> {
  field("read", of.read);
  field("audited", of.audited);
  field("bytes_read", of.bytes_read);
  field("bytes_checked", of.bytes_checked);
  field("bytes_audited", of.bytes_audited);
}

template <typename T>
Json to_json(const T& value) {
  if constexpr (std::is_enum_v<T>) {
    return static_cast<std::underlying_type_t<T>>(value);
  } else if constexpr (std::convertible_to<const T&, Json>) {
    return value;
  } else {
    Json json = Json::object();
    each_field(value, [&json](const char* name, const auto& member) { json[name] = to_json(member); });
    return json;
  }
}

template <typename T>
void read_json(const Json& json, T& value) {
  if constexpr (std::is_enum_v<T>) {
    value = static_cast<T>(json.get<std::underlying_type_t<T>>());
  } else if constexpr (requires { std::tuple_size<T>::value; }) {
    for (std::size_t i = 0; i < value.size(); ++i) read_json(json.at(i), value[i]);
  } else if constexpr (requires { each_field(value, [](const char*, const auto&) {}); }) {
    each_field(value, [&json](const char* name, auto& member) { read_json(json.at(name), member); });
  } else {
    value = json.get<T>();
  }
}

template <typename T>
Json list_to_json(const std::vector<T>& values) {
  Json list = Json::array();
  for (const T& value : values) list.push_back(to_json(value));
  return list;
}

template <typename T>
std::vector<T> list_from_json(const Json& list) {
  std::vector<T> values;
  for (const Json& json : list) read_json(json, values.emplace_back());
  return values;
}

}  // namespace

std::vector<RankOutcome> gather_outcomes(RealRanks& ranks, const RankOutcome& ours) {
  const Json sent{{"count", ours.decisions.count},
                  {"digest", ours.decisions.digest},
                  {"reductions", ours.reductions},
                  {"lanes", list_to_json(ours.lanes)},
                  {"used_max", std::vector<Pages>(ours.used_max.begin(), ours.used_max.end())}};
  std::vector<RankOutcome> all;
  for (const std::string& text : ranks.gather(sent.dump())) {
    RankOutcome& outcome = all.emplace_back();
    if (text.empty()) continue;  // of an engine that has died
    const Json json = Json::parse(text);
    read_json(json.at("count"), outcome.decisions.count);
    read_json(json.at("digest"), outcome.decisions.digest);
    read_json(json.at("reductions"), outcome.reductions);
    outcome.lanes = list_from_json<LaneUse>(json.at("lanes"));
    std::ranges::copy(json.at("used_max").get<std::vector<Pages>>(), outcome.used_max.begin());
  }
  return all;
}

Verification gather_verification(RealRanks& ranks, const Verification& ours) {
  const Json sent{{"counts",
                   {ours.pages_read, ours.bytes_read, ours.pages_audited, ours.bytes_audited, ours.wrong_reads,
                    ours.flipped ? 1 : 0, ours.draft_pages_read, ours.draft_bytes_read, ours.draft_pages_audited,
                    ours.draft_bytes_audited, ours.draft_pages_left_out, ours.bytes_checked, ours.draft_bytes_checked,
                    ours.states_copied}},
                  {"windows", to_json(ours.windows)},
                  {"states", to_json(ours.states)},
                  {"wrong", list_to_json(ours.wrong)}};
  const std::vector<std::string> texts = ranks.gather(sent.dump());
  if (texts.empty()) return ours;
  Verification all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const Json json = Json::parse(texts[rank]);
    const auto counts = json.at("counts").get<std::vector<std::uint64_t>>();
    all.pages_read += counts.at(0);
    all.bytes_read += counts.at(1);
    all.pages_audited += counts.at(2);
    all.bytes_audited += counts.at(3);
    all.wrong_reads += counts.at(4);
    all.flipped |= counts.at(5) != 0;
    all.draft_pages_read += counts.at(6);
    all.draft_bytes_read += counts.at(7);
    all.draft_pages_audited += counts.at(8);
    all.draft_bytes_audited += counts.at(9);
    all.draft_pages_left_out += counts.at(10);
    all.bytes_checked += counts.at(11);
    all.draft_bytes_checked += counts.at(12);
    all.states_copied += counts.at(13);
    Verification::Part windows, states;
    read_json(json.at("windows"), windows);
    read_json(json.at("states"), states);
    all.windows += windows;
    all.states += states;
    for (WrongPage& page : list_from_json<WrongPage>(json.at("wrong"))) {
      page.found = "on " + ranks.name_of(rank) + ", " + page.found;
      all.wrong.push_back(std::move(page));
    }
  }
  return all;
}

std::vector<LoopReport> gather_loops(RealRanks& ranks, const LoopReport& ours) {
  std::vector<LoopReport> all;
  for (const std::string& text : ranks.gather(to_json(ours).dump())) {
    LoopReport& loop = all.emplace_back();
    if (!text.empty()) read_json(Json::parse(text), loop);
  }
  return all;
}

std::vector<StorageCounters> gather_counters(RealRanks& ranks, const std::vector<StorageCounters>& ours) {
  Json sent = Json::array();
  for (const StorageCounters& tier : ours) sent.push_back(tier.counters);
  std::vector<StorageCounters> sum = ours;
  const std::vector<std::string> texts = ranks.gather(sent.dump());
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const Json json = Json::parse(texts[rank]);
    for (std::size_t tier = 0; tier < sum.size(); ++tier) {
      for (std::size_t i = 0; i < sum[tier].counters.size(); ++i) {
        // A page has as many objects on every engine.
        if (rank >= ranks.ranks_per_engine() && sum[tier].counters[i].first.ends_with("objects_per_page")) continue;
        sum[tier].counters[i].second += json.at(tier).at(i).at(1).get<std::uint64_t>();
      }
    }
  }
  return sum;
}

}  // namespace kvtwin
