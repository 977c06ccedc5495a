#include "cli/rank_report.hpp"

#include <nlohmann/json.hpp>
#include <string>

namespace kvtwin {
namespace {

using Json = nlohmann::json;

Json lane_json(const LaneUse& lane) {
  return {lane.name, lane.bytes, lane.transfers, lane.busy_ns, lane.window_ns, lane.window_busy_ns, lane.window_bytes};
}

LaneUse lane_of(const Json& json) {
  LaneUse lane;
  json.at(0).get_to(lane.name);
  json.at(1).get_to(lane.bytes);
  json.at(2).get_to(lane.transfers);
  json.at(3).get_to(lane.busy_ns);
  json.at(4).get_to(lane.window_ns);
  json.at(5).get_to(lane.window_busy_ns);
  json.at(6).get_to(lane.window_bytes);
  return lane;
}

Json wrong_json(const WrongPage& page) {
  return {static_cast<int>(page.tier),
          page.key.words,
          page.slot,
          page.layer,
          page.plane,
          page.token,
          page.byte,
          page.expected,
          page.got,
          page.found};
}

WrongPage wrong_of(const Json& json, std::size_t rank) {
  WrongPage page;
  page.tier = static_cast<Tier>(json.at(0).get<int>());
  json.at(1).get_to(page.key.words);
  json.at(2).get_to(page.slot);
  json.at(3).get_to(page.layer);
  json.at(4).get_to(page.plane);
  json.at(5).get_to(page.token);
  json.at(6).get_to(page.byte);
  json.at(7).get_to(page.expected);
  json.at(8).get_to(page.got);
  page.found = "on rank " + std::to_string(rank) + ", " + json.at(9).get<std::string>();
  return page;
}

}  // namespace

std::vector<RankOutcome> gather_outcomes(RealRanks& ranks, const RankOutcome& ours) {
  Json lanes = Json::array();
  for (const LaneUse& lane : ours.lanes) lanes.push_back(lane_json(lane));
  const Json told{{"count", ours.decisions.count},
                  {"digest", ours.decisions.digest},
                  {"reductions", ours.reductions},
                  {"lanes", lanes}};
  std::vector<RankOutcome> all;
  for (const std::string& text : ranks.gather(told.dump())) {
    const Json json = Json::parse(text);
    RankOutcome& outcome = all.emplace_back();
    json.at("count").get_to(outcome.decisions.count);
    json.at("digest").get_to(outcome.decisions.digest);
    json.at("reductions").get_to(outcome.reductions);
    for (const Json& lane : json.at("lanes")) outcome.lanes.push_back(lane_of(lane));
  }
  return all;
}

Verification gather_verification(RealRanks& ranks, const Verification& ours) {
  Json wrong = Json::array();
  for (const WrongPage& page : ours.wrong) wrong.push_back(wrong_json(page));
  const Json told{{"counts",
                   {ours.pages_read, ours.bytes_read, ours.pages_audited, ours.bytes_audited, ours.wrong_reads,
                    ours.flipped ? 1 : 0}},
                  {"wrong", wrong}};
  const std::vector<std::string> texts = ranks.gather(told.dump());
  if (texts.empty()) return ours;
  Verification all;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const Json json = Json::parse(texts[rank]);
    const auto counts = json.at("counts").get<std::vector<std::uint64_t>>();
    all.pages_read += counts.at(0);
    all.bytes_read += counts.at(1);
    all.pages_audited += counts.at(2);
    all.bytes_audited += counts.at(3);
    all.wrong_reads += counts.at(4);
    all.flipped |= counts.at(5) != 0;
    for (const Json& page : json.at("wrong")) all.wrong.push_back(wrong_of(page, rank));
  }
  return all;
}

std::vector<StorageCounters> gather_counters(RealRanks& ranks, const std::vector<StorageCounters>& ours) {
  Json told = Json::array();
  for (const StorageCounters& tier : ours) told.push_back(tier.counters);
  std::vector<StorageCounters> sum = ours;
  const std::vector<std::string> texts = ranks.gather(told.dump());
  for (std::size_t rank = 1; rank < texts.size(); ++rank) {
    const Json json = Json::parse(texts[rank]);
    for (std::size_t tier = 0; tier < sum.size(); ++tier) {
      for (std::size_t i = 0; i < sum[tier].counters.size(); ++i) {
        sum[tier].counters[i].second += json.at(tier).at(i).at(1).get<std::uint64_t>();
      }
    }
  }
  return sum;
}

}  // namespace kvtwin
