// Prefetches decided by SGLang's own controller (tests/sglang/scripted_storage.py), decided again: when the request is
// admitted, how many tokens it hits in L3, and how many stay on the host.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include "stored_rig.hpp"

#include "tests/paths.hpp"
#include "tests/timeout_text.hpp"

namespace kvtwin {
namespace {

constexpr TimeNs kMs = 1'000'000;

struct Script {
  std::string line, policy;
  Tokens threshold = 0;
  TimeNs base_us = 0, per_ki_us = 0, look_up_ms = 0, polled_ms = 0, end_ms = 0, admitted_ms = 0;
  Pages asked = 0, found = 0, host_pages = 0;
  Tokens hit = 0, kept = 0;
  std::vector<std::pair<TimeNs, Pages>> batches;  // end in ms, pages that came
  bool uneven = false;                            // a read was short on one rank only
};

// `text`: the millisecond and the pages of each answer, or "-".
std::vector<std::pair<TimeNs, Pages>> answers_of(const std::string& text) {
  std::vector<std::pair<TimeNs, Pages>> answers;
  std::istringstream list(text);
  for (std::string answer; text != "-" && std::getline(list, answer, ',');) {
    answers.emplace_back(std::stoll(answer), std::stoull(answer.substr(answer.find(':') + 1)));
  }
  return answers;
}

// Calls `read` with a stream of the words of each line.
template <typename Read>
std::vector<Script> read_lines(const std::string& file, Read read) {
  std::ifstream in(std::filesystem::path(kSourceFolder) / "tests/fixtures/sglang" / file);
  std::vector<Script> scripts;
  std::string line;
  std::getline(in, line);  // comment
  std::getline(in, line);  // names of the columns
  while (std::getline(in, line)) {
    Script s;
    s.line = line;
    std::istringstream words(line);
    read(words, s);
    EXPECT_FALSE(words.fail()) << line;
    scripts.push_back(std::move(s));
  }
  return scripts;
}

std::vector<Script> read_scripts(const std::string& file) {
  return read_lines(file, [](std::istringstream& words, Script& s) {
    std::string batches;
    words >> s.policy >> s.threshold >> s.base_us >> s.per_ki_us >> s.asked >> s.found >> s.look_up_ms >>
        s.host_pages >> s.polled_ms >> s.end_ms >> s.admitted_ms >> s.hit >> s.kept >> batches;
    s.batches = answers_of(batches);
  });
}

// An operation ends when it has ended on both ranks, with the pages that both have.
std::vector<Script> read_scripts_of_ranks(const std::string& file) {
  return read_lines(file, [](std::istringstream& words, Script& s) {
    std::string texts[2];
    words >> s.policy >> s.threshold >> s.base_us >> s.per_ki_us >> s.asked >> s.host_pages >> s.end_ms >>
        s.admitted_ms >> s.hit >> s.kept >> texts[0] >> texts[1];
    auto both = answers_of(texts[0]);
    const auto other = answers_of(texts[1]);
    ASSERT_EQ(both.size(), other.size());
    for (std::size_t i = 0; i < both.size(); ++i) {
      s.uneven = s.uneven || (i > 0 && both[i].second != other[i].second);
      both[i] = {std::max(both[i].first, other[i].first), std::min(both[i].second, other[i].second)};
    }
    std::tie(s.look_up_ms, s.found) = both.front();
    s.batches.assign(both.begin() + 1, both.end());
  });
}

EngineConfig config_of(const Script& script, TimeoutFrom from) {
  EngineConfig config = stored_config(256, script.host_pages, script.policy);
  config.prefetch_min_tokens = std::max(script.threshold, kPage);
  if (script.policy == "timeout") {
    config.prefetch_policy = test::timeout_text(script.base_us * 1000, script.per_ki_us * 1000);
  }
  config.prefetch_timeout_from = from;
  config.storage_batch_pages = 4;
  config.load_back_min_tokens = 1;
  config.chunk_tokens = 1024;
  if (script.polled_ms > 0) config.max_running = config.burst_steps = 1;
  config.cache_output = false;
  return config;
}

bool is_in_flight(const EngineRig& rig, StorageVerb verb) { return in_flight(rig, verb) > 0; }

// Ends the gets that the engine has cancelled. SGLang too keeps no page that comes after a stop.
void end_cancelled(EngineRig& rig) {
  const auto cancelled = [&](const ManualWorld::Stored& o) {
    return o.work.verb == kGet && std::ranges::find(rig.world.cancelled, o.id) != rig.world.cancelled.end();
  };
  while (std::ranges::any_of(rig.world.stored, cancelled)) rig.complete_stored(kGet, 0);
}

struct Outcome {
  TimeNs admitted_ms = -1;
  Tokens hit = 0, kept = 0;
};

Outcome play(const Script& script, TimeoutFrom from) {
  EngineRig rig(config_of(script, from));
  // Another request runs alone, a pass each millisecond, until the engine gets to the scripted one.
  bool busy = script.polled_ms > 0;
  if (busy) rig.arrive(1, {}, kPage - 1, static_cast<Tokens>(script.polled_ms + 1));
  rig.arrive(0, chain(1, script.asked), script.asked * kPage + 1, 1);
  Outcome outcome;
  auto batch = script.batches.begin();
  for (TimeNs now = 0; now <= script.end_ms; ++now) {
    rig.world.time = now * kMs;
    if (now == script.look_up_ms && is_in_flight(rig, kLookUp)) rig.complete_stored(kLookUp, script.found);
    for (; batch != script.batches.end() && batch->first == now; ++batch) {
      if (is_in_flight(rig, kGet)) rig.complete_stored(kGet, batch->second);
    }
    end_cancelled(rig);
    rig.fire(now * kMs);
    if (busy) rig.complete_pass();
    busy = busy && now < script.polled_ms;
    end_cancelled(rig);
    if (busy || rig.world.passes.empty()) continue;
    if (outcome.admitted_ms < 0) outcome.admitted_ms = now;
    rig.complete_pass();  // the engine decides nothing while a pass runs
  }
  outcome.kept =
      (rig.events.page_count(EventKind::prefetch_done) - rig.events.page_count(EventKind::prefetch_wasted)) * kPage;
  expect_rest(rig);
  outcome.hit = last(rig).hit[Tier::disk];
  return outcome;
}

// Returns the number of requests that are admitted earlier than by SGLang, after an uneven read.
std::size_t expect_as_by_sglang(const std::vector<Script>& scripts, TimeoutFrom from) {
  EXPECT_GT(scripts.size(), 100U);
  std::size_t earlier = 0;
  for (const Script& script : scripts) {
    const Outcome outcome = play(script, from);
    if (script.uneven && outcome.admitted_ms < script.admitted_ms) {
      ++earlier;
    } else {
      EXPECT_EQ(outcome.admitted_ms, script.admitted_ms) << script.line;
    }
    EXPECT_EQ(outcome.hit, script.hit) << script.line;
    EXPECT_EQ(outcome.kept, script.kept) << script.line;
  }
  return earlier;
}

TEST(Prefetch, is_decided_as_by_sglang) {
  EXPECT_EQ(expect_as_by_sglang(read_scripts("prefetch.tsv"), TimeoutFrom::wait), 0U);
}

TEST(Prefetch, is_decided_as_by_sglang_before_0_5_23) {
  EXPECT_EQ(expect_as_by_sglang(read_scripts("prefetch_0.5.22.tsv"), TimeoutFrom::issue), 0U);
}

// If a read is short on one rank only, the other rank of SGLang reads on, and the request waits for the end of these
// reads. Here both ranks stop, because they know the short read when it has been reduced.
TEST(Prefetch, is_decided_as_by_two_ranks_of_sglang) {
  EXPECT_EQ(expect_as_by_sglang(read_scripts_of_ranks("prefetch_two_ranks.tsv"), TimeoutFrom::wait), 6U);
}

}  // namespace
}  // namespace kvtwin
