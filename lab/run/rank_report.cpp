#include "lab/run/rank_report.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kvtwin {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Histogram, counts, sum)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LaneUse, name, bytes, transfers, busy_ns, window_ns, window_busy_ns, window_bytes,
                                   seconds, gigabytes_per_second, pages)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoopReport, inputs, run_ns, policy_ns, loop_ns, loop_median_ns, loop_p99_ns, calls,
                                   calls_ns, arrivals, arrival_late_sum_ns, arrival_late_max_ns)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(PageKey, words)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(WrongPage, tier, key, slot, layer, plane, token, byte, expected, got, found)

namespace {

using SortedJson = nlohmann::json;

}  // namespace

std::vector<RankOutcome> gather_outcomes(RealRanks& ranks, const RankOutcome& ours) {
  const SortedJson sent{{"count", ours.decisions.count},
                        {"digest", ours.decisions.digest},
                        {"reductions", ours.reductions},
                        {"lanes", ours.lanes},
                        {"used_max", std::vector<Pages>(ours.used_max.begin(), ours.used_max.end())}};
  std::vector<RankOutcome> all;
  for (const std::string& text : ranks.gather(sent.dump())) {
    RankOutcome& outcome = all.emplace_back();
    if (text.empty()) continue;  // of an engine that has died
    const SortedJson json = SortedJson::parse(text);
    json.at("count").get_to(outcome.decisions.count);
    json.at("digest").get_to(outcome.decisions.digest);
    json.at("reductions").get_to(outcome.reductions);
    json.at("lanes").get_to(outcome.lanes);
    std::ranges::copy(json.at("used_max").get<std::vector<Pages>>(), outcome.used_max.begin());
  }
  return all;
}

Verification gather_verification(RealRanks& ranks, const Verification& ours) {
  const SortedJson sent{
      {"counts",
       {ours.pages_read, ours.bytes_read, ours.pages_audited, ours.bytes_audited, ours.wrong_reads,
        ours.flipped ? 1 : 0, ours.draft_pages_read, ours.draft_bytes_read, ours.draft_pages_audited,
        ours.draft_bytes_audited, ours.draft_pages_left_out, ours.bytes_checked, ours.draft_bytes_checked}},
      {"wrong", ours.wrong}};
  const std::vector<std::string> texts = ranks.gather(sent.dump());
  if (texts.empty()) return ours;
  Verification all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const SortedJson json = SortedJson::parse(texts[rank]);
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
    for (auto& page : json.at("wrong").get<std::vector<WrongPage>>()) {
      page.found = "on " + ranks.name_of(rank) + ", " + page.found;
      all.wrong.push_back(std::move(page));
    }
  }
  return all;
}

std::vector<LoopReport> gather_loops(RealRanks& ranks, const LoopReport& ours) {
  std::vector<LoopReport> all;
  for (const std::string& text : ranks.gather(SortedJson(ours).dump())) {
    all.push_back(text.empty() ? LoopReport{} : SortedJson::parse(text).get<LoopReport>());
  }
  return all;
}

std::vector<StorageCounters> gather_counters(RealRanks& ranks, const std::vector<StorageCounters>& ours) {
  SortedJson sent = SortedJson::array();
  for (const StorageCounters& tier : ours) sent.push_back(tier.counters);
  std::vector<StorageCounters> sum = ours;
  const std::vector<std::string> texts = ranks.gather(sent.dump());
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    if (texts[rank].empty()) continue;
    const SortedJson json = SortedJson::parse(texts[rank]);
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
