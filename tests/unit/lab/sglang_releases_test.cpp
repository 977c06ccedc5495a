// Tests the rules of SGLang's releases: the table against the list that was read from SGLang's source, and the keys
// that a release sets.
#include "lab/experiment/sglang_releases.hpp"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "lab/engine_arguments.hpp"
#include "lab/error.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/sglang/sglang_table.hpp"
#include "tests/paths.hpp"
#include "tests/program.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

constexpr const char* kStored = "--page-size 16 --enable-hierarchical-cache --hicache-storage-backend file ";

Experiment of_release(const std::string& version, const std::string& flags = kStored, const std::string& file = "") {
  Experiment experiment = Experiment::from_text(file, "file.toml");
  EngineArguments arguments;
  arguments.sglang_flags = {flags};
  arguments.sglang_version = version;
  apply_engine_arguments(arguments, {}, experiment);
  return experiment;
}

std::string notes_of(const Experiment& experiment) {
  std::string text;
  for (const std::string& note : experiment.notes()) text += note + "\n";
  return text;
}

// One line of the list for each release, in the order of its columns; the class of the tree and the share of the host's
// memory are no rules of the table.
std::string line_of(const SglangRelease& r, const std::string& tree, const std::string& fraction) {
  std::string line(r.version);
  for (const std::string_view word :
       {std::string_view(tree), r.timeout_base_s, r.timeout_per_ki_token_s, r.timeout_most_s, r.timeout_from,
        r.prefetch_policy, r.mem_layout, r.retry_steps, r.retry_attempts}) {
    line += "\t" + std::string(word);
  }
  for (const bool rule : {r.prompt_priority, r.reclaims, r.counts_once, r.rechecks, r.beyond_device})
    line += rule ? "\ttrue" : "\tfalse";
  return line + "\t" + fraction;
}

TEST(SglangReleases, TheTableIsThatOfTheSources) {
  std::istringstream lines(text_of(in_source("tests/fixtures/sglang/release_rules.tsv")));
  std::string line;
  std::getline(lines, line);  // comment
  std::getline(lines, line);  // names of the columns
  for (const SglangRelease& release : sglang_releases()) {
    ASSERT_TRUE(std::getline(lines, line)) << release.version;
    const std::string tree = line.find("HiRadixCache") == std::string::npos ? "UnifiedRadixCache" : "HiRadixCache";
    const std::string fraction = line.substr(line.rfind('\t') + 1);
    EXPECT_EQ(line_of(release, tree, fraction), line);
    EXPECT_EQ(release.cuts_host, fraction != "0") << release.version;
  }
  EXPECT_FALSE(std::getline(lines, line)) << line;
}

TEST(SglangReleases, TheLatestIsThatOfTheTableOfFlags) {
  const SglangRelease& latest = sglang_releases().back();
  EXPECT_EQ(latest.version, kSglangVersion);
  for (const EngineFlag& flag : sglang_table().flags()) {
    const std::string_view preset = preset_in(latest, flag.field);
    EXPECT_TRUE(preset.empty() || preset == flag.preset) << flag.field << ": " << preset << ", " << flag.preset;
  }
}

TEST(SglangReleases, ARuleAppliesFromItsReleaseOn) {
  const Experiment of_11 = of_release("0.5.11"), of_12 = of_release("0.5.12"), of_18 = of_release("0.5.18"),
                   of_19 = of_release("0.5.19"), of_20 = of_release("0.5.20"), of_22 = of_release("0.5.22"),
                   of_23 = of_release("0.5.23");
  EXPECT_EQ(of_11.text("cache.prefetch_policy"), "best_effort");
  EXPECT_EQ(of_12.text("cache.layout"), "layer_first");
  EXPECT_EQ(of_18.text("cache.layout"), "page_first");
  EXPECT_EQ(of_12.text("cache.prefetch_policy"), "timeout(base=2s, per_ki_token=0.1s, most=30s)");
  EXPECT_EQ(of_18.text("cache.prefetch_policy"), "timeout(base=2s, per_ki_token=0.1s, most=30s)");
  EXPECT_EQ(of_19.text("cache.prefetch_policy"), "timeout");
  EXPECT_EQ(of_19.integer("cache.prefetch_retry_steps"), 0);
  EXPECT_EQ(of_20.integer("cache.prefetch_retry_steps"), 8);
  EXPECT_EQ(of_18.integer("cache.prefetch_attempts"), 1);
  EXPECT_EQ(of_20.integer("cache.prefetch_attempts"), 9);
  EXPECT_FALSE(of_19.flag("cache.rules.prefetch_recheck"));
  EXPECT_TRUE(of_20.flag("cache.rules.prefetch_recheck"));
  EXPECT_TRUE(of_11.flag("cache.rules.look_ups_refresh"));
  EXPECT_EQ(of_11.text("cache.rules.prefetch_style"), "sglang");
  EXPECT_FALSE(of_19.flag("cache.rules.raise_prompt_priority"));
  EXPECT_TRUE(of_20.flag("cache.rules.raise_prompt_priority"));
  const Experiment of_14 = of_release("0.5.14"), of_15 = of_release("0.5.15");
  EXPECT_EQ(of_14.text("cache.rules.prefetch_share_of"), "host_less_device");
  EXPECT_EQ(of_14.number("cache.rules.prefetch_host_share"), 0.8);
  EXPECT_EQ(of_15.text("cache.rules.prefetch_share_of"), "host");
  EXPECT_EQ(of_15.number("cache.rules.prefetch_host_share"), 0.5);
  EXPECT_EQ(of_22.text("cache.rules.prefetch_timeout_from"), "issue");
  EXPECT_EQ(of_23.text("cache.rules.prefetch_timeout_from"), "wait");
  const std::string back = std::string(kStored) + "--hicache-write-policy write_back";
  EXPECT_FALSE(of_release("0.5.18", back).flag("cache.rules.reclaim_shadowed"));
  EXPECT_TRUE(of_release("0.5.19", back).flag("cache.rules.reclaim_shadowed"));
  EXPECT_FALSE(of_release("0.5.18", back).flag("cache.rules.host_evicts_leaving"));
  EXPECT_TRUE(of_release("0.5.19", back).flag("cache.rules.host_evicts_leaving"));
}

// These releases refuse a host pool that is no larger than the device pool; later ones warn.
TEST(SglangReleases, AnEarlierReleaseNeedsALargerHost) {
  const auto setup_with = [](const std::string& release, const std::string& ratio) {
    return make_setup(of_release(release, kStored + ("--max-total-tokens 160000 --hicache-ratio " + ratio)));
  };
  EXPECT_EQ(setup_with("0.5.14", "1.2").engine.prefetch_share_of, PrefetchShareOf::host_less_device);
  EXPECT_NO_THROW(setup_with("0.5.15", "1"));
  try {
    setup_with("0.5.14", "1");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("the host tier of 10000 pages is no larger than the device tier of 10000"),
              std::string::npos)
        << error.what();
  }
}

TEST(SglangReleases, TheFileAndTheFlagsComeFirst) {
  const Experiment file = of_release("0.5.18", kStored, "[cache]\nprefetch_timeout_base_s = 7\n");
  EXPECT_EQ(file.text("cache.prefetch_policy"), "timeout(base=7s, per_ki_token=0.1s, most=30s)");
  const Experiment by_policy =
      of_release("0.5.18", kStored, "[cache]\nprefetch_policy = \"timeout(base=1s, most=0s)\"\n");
  EXPECT_EQ(by_policy.text("cache.prefetch_policy"), "timeout(per_ki_token=0.1s)");
  const Experiment given =
      of_release("0.5.18", std::string(kStored) +
                               "--hicache-storage-prefetch-policy timeout --hicache-storage-backend-extra-config "
                               "'{\"prefetch_timeout_base\": 3, \"prefetch_timeout_max\": 9}'");
  EXPECT_EQ(given.text("cache.prefetch_policy"), "timeout(base=3s, per_ki_token=0.1s, most=9s)");
  // A release without an upper bound does not read the field.
  const std::string bound = "--hicache-storage-backend-extra-config '{\"prefetch_timeout_max\": 9}'";
  const Experiment unbounded = of_release("0.5.23", kStored + bound);
  EXPECT_EQ(unbounded.text("cache.prefetch_policy"), "timeout");
  EXPECT_NE(notes_of(unbounded).find("not modelled: prefetch_timeout_max"), std::string::npos);
}

TEST(SglangReleases, NotesNameTheRelease) {
  const std::string notes = notes_of(of_release("0.5.18", kStored, "[cache]\nraise_prompt_priority = true\n"));
  EXPECT_NE(notes.find("SGLang's default (0.5.18)"), std::string::npos) << notes;
  EXPECT_NE(notes.find("cache.rules.raise_prompt_priority = false, not true (file.toml"), std::string::npos) << notes;
  EXPECT_EQ(notes.find("--hicache-host-memory-fraction"), std::string::npos) << notes;
  EXPECT_NE(notes_of(of_release("0.5.21")).find("--hicache-host-memory-fraction"), std::string::npos);
  const std::string selective = std::string(kStored) + "--hicache-write-policy write_through_selective";
  EXPECT_NE(notes_of(of_release("0.5.21", selective)).find("counts a use of a prefix at each insert"),
            std::string::npos);
  EXPECT_EQ(notes_of(of_release("0.5.22", selective)).find("counts a use of a prefix"), std::string::npos);
}

TEST(SglangReleases, AVersionIsFoundWithItsAdditions) {
  EXPECT_EQ(find_sglang_release("v0.5.20"), find_sglang_release("0.5.20"));
  EXPECT_EQ(find_sglang_release("0.5.13.post1"), find_sglang_release("0.5.13"));
  for (const char* unknown : {"", "v", "0.5", "0.5.2", "0.5.9", "0.5.24", "0.5.200", "0.5.20rc1", "1.0"}) {
    EXPECT_EQ(find_sglang_release(unknown), nullptr) << unknown;
  }
}

TEST(SglangReleases, AnUnknownVersionIsRefusedWithTheList) {
  try {
    of_release("0.4.9");
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "--sglang-version: the rules of SGLang 0.4.9 are not known; known are those of " + sglang_release_names());
  }
}

TEST(SglangReleases, TheServerReportsItsVersion) {
  const auto from_info = [](const std::string& version, const SglangRelease* release = nullptr) {
    Experiment experiment = Experiment::from_text("", "file.toml");
    apply_sglang_server_info_text(
        experiment,
        R"({"enable_hierarchical_cache": true, "hicache_storage_backend": "file", "version": )" + version + "}",
        "info.json", {}, release);
    return experiment;
  };
  const std::string earlier = "timeout(base=2s, per_ki_token=0.1s, most=30s)", key = "cache.prefetch_policy";
  EXPECT_EQ(from_info("\"0.5.12.post1\"").text(key), earlier);
  EXPECT_EQ(from_info("\"0.5.23\"").text(key), "timeout");
  EXPECT_EQ(from_info("\"0.5.23\"", find_sglang_release("0.5.12")).text(key), earlier);
  const Experiment unknown = from_info("\"0.6.0.dev1\"");
  EXPECT_EQ(unknown.text("cache.rules.prefetch_timeout_from"), "wait");
  EXPECT_NE(notes_of(unknown).find("version 0.6.0.dev1 is none of the known releases (0.5.10, "), std::string::npos);
  EXPECT_EQ(notes_of(from_info("null")).find("known releases"), std::string::npos);
}

}  // namespace
}  // namespace kvtwin::test
