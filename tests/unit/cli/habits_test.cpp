// What users of other tools try first: the bare command, help, -V, a mistyped option, completion, check, colours.
#include <gtest/gtest.h>
#include <pty.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/key_schema.hpp"
#include "lab/experiment/keys.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

TEST(Habits, TheBareCommandPrintsHelp) {
  const Outcome bare = run({});
  EXPECT_EQ(bare.exit_code, 0);
  EXPECT_EQ(bare.out, run({"--help"}).out);
  EXPECT_EQ(run({"help"}).out, bare.out);
}

TEST(Habits, HelpOfACommand) {
  EXPECT_EQ(run({"help", "trace", "info"}).out, run({"trace", "info", "--help"}).out);
  EXPECT_NE(run({"help", "simulate"}).out.find("kvtwin simulate [OPTIONS] [experiment]"), std::string::npos);
  EXPECT_EQ(run({"help", "simulat"}).exit_code, 2);
}

TEST(Habits, ShortVersion) { EXPECT_EQ(run({"-V"}).out, run({"--version"}).out); }

TEST(Habits, AMistypedOptionIsSuggested) {
  const Outcome one = run({"simulate", "--outt", "x"});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_EQ(
      one.err,
      "kvtwin: unknown option \"--outt\" of kvtwin simulate: did you mean \"--out\"? See kvtwin simulate --help\n");
  EXPECT_EQ(run({"trace", "info", "--zzzzzz=3"}).err,
            "kvtwin: unknown option \"--zzzzzz\" of kvtwin trace info; see kvtwin trace info --help\n");
  EXPECT_EQ(run({"simulate", "a.toml", "b.toml"}).err,
            "kvtwin: \"b.toml\" is one word too many; see kvtwin simulate --help\n");
}

TEST(Habits, AMistypedWordOfAnOptionIsSuggested) {
  const Outcome one = run({"run", "a.toml", "--device", "hosst"});
  EXPECT_EQ(one.exit_code, 2);
  EXPECT_EQ(one.err,
            "kvtwin: --device: unknown value \"hosst\": did you mean \"host\"? Known: host, cuda, auto. See kvtwin run "
            "--help\n");
  const std::string trace = std::string(kSourceFolder) + "/traces/chat_small.jsonl.zst";
  for (const auto& [words, nearest] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"simulate", "a.toml", "--world", "event"}, "events"},
           {{"compare", "a.toml", "--world", "simgird"}, "simgrid"},
           {{"trace", "generate", "--out", "a", "--kind", "chatt"}, "chat"},
           {{"hitrate", "--trace", trace, "--capacity", "9", "--write-policy", "write_bck"}, "write_back"},
           {{"hitrate", "--trace", trace, "--capacity", "9", "--evict-unit", "pge"}, "page"},
           {{"hitrate", "--trace", trace, "--capacity", "9", "--engine", "sglnag"}, "sglang"},
           {{"hitrate", "--trace", trace, "--capacity", "9", "--eviction", "lur"}, "lru"},
           {{"hitrate", "--trace", trace, "--capacity", "9", "--format", "moncake"}, "mooncake"},
           {{"hitrate", "--trace", trace, "--capacity", "9", "--model", "lama-3.1-8b"}, "llama-3.1-8b"},
           {{"validate", "x", "--device", "cud"}, "cuda"},
           {{"calibrate", "--out", "x", "--device", "hst"}, "host"},
           {{"completion", "bsh"}, "bash"}}) {
    const Outcome refused = run(words);
    EXPECT_EQ(refused.exit_code, 2) << words.front();
    EXPECT_NE(refused.err.find("did you mean \"" + nearest + "\"?"), std::string::npos) << refused.err;
  }
}

// Returns what a terminal of the program shows.
std::string on_terminal(std::vector<std::string> words, const char* name, const char* value) {
  int terminal = -1;
  std::fflush(nullptr);
  const pid_t id = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (id == 0) {
    unsetenv("KVTWIN_PROGRAM");  // not a variable of the program: it would be named
    setenv("TERM", "xterm", 1);
    setenv(name, value, 1);
    words.insert(words.begin(), program());
    std::vector<char*> pointers;
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    execv(pointers.front(), pointers.data());
    _exit(127);
  }
  std::string shown;
  char buffer[4096];
  for (ssize_t got = 0; (got = read(terminal, buffer, sizeof buffer)) > 0;) {
    shown.append(buffer, static_cast<std::size_t>(got));
  }
  close(terminal);
  int status = 0;
  waitpid(id, &status, 0);
  return shown;
}

TEST(Habits, ColourOnTerminalsOnly) {
  const std::string red = "\033[1;31mkvtwin:\033[0m";
  EXPECT_EQ(on_terminal({"nonsense"}, "LANG", "C").substr(0, red.size()), red);
  EXPECT_EQ(on_terminal({"nonsense"}, "NO_COLOR", "1").substr(0, 23), "kvtwin: unknown command");
  EXPECT_EQ(on_terminal({"nonsense"}, "TERM", "dumb").substr(0, 23), "kvtwin: unknown command");
  EXPECT_TRUE(run({"nonsense"}).err.starts_with("kvtwin: unknown command"));
}

TEST(Habits, HitrateShowsItsProgressOnTerminals) {
  const std::string trace = std::string(kSourceFolder) + "/traces/chat_small.jsonl.zst";
  const std::vector<std::string> words = {"hitrate", "--trace", trace, "--capacity", "1000", "--limit", "5"};
  const std::string shown = on_terminal(words, "LANG", "C");
  EXPECT_NE(shown.find(" requests done, "), std::string::npos) << shown;
  for (const auto& [name, value] : {std::pair{"TERM", "dumb"}, {"KVTWIN_PROGRESS", "off"}}) {
    EXPECT_EQ(on_terminal(words, name, value).find(" requests done, "), std::string::npos) << name;
  }
}

// Returns the words that bash offers after `line`.
std::string bash_offers(const Folder& folder, const std::string& line) {
  write_text(folder / "script", run({"completion", "bash"}).out + "COMP_LINE='" + line +
                                    "'\nCOMP_POINT=${#COMP_LINE}\n_kvtwin\necho \"${COMPREPLY[*]}\" > \"$1\"\n");
  const std::string script = folder / "script", out = folder / "out";
  EXPECT_EQ(std::system(("bash '" + script + "' '" + out + "'").c_str()), 0);
  std::string words = text_of(out);
  words.pop_back();
  return words;
}

TEST(Completion, OfBashOffersCommandsOptionsAndValues) {
  const Folder folder;
  EXPECT_EQ(bash_offers(folder, "kvtwin simu"), "simulate");
  EXPECT_EQ(bash_offers(folder, "kvtwin trace gen"), "generate");
  EXPECT_EQ(bash_offers(folder, "kvtwin simulate --wor"), "--world --workload");
  EXPECT_EQ(bash_offers(folder, "kvtwin simulate --world "), "simgrid events");
  EXPECT_EQ(bash_offers(folder, "kvtwin plan --hardware h2"), "h20 h200-sxm");
  EXPECT_EQ(bash_offers(folder, "kvtwin simulate --set cache.evictio"), "cache.eviction=");
  EXPECT_EQ(bash_offers(folder, "kvtwin simulate --set cache.eviction=sl"), "slru");
  EXPECT_EQ(bash_offers(folder, "kvtwin report " + std::string(folder / "scr")), folder / "script");
}

TEST(Completion, OfEachShellHasEveryCommandAndKey) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    SCOPED_TRACE(shell);
    const std::string script = run({"completion", shell}).out;
    for (const char* word : {"simulate", "generate", "from-vllm-flags", "h100-sxm"}) {
      EXPECT_NE(script.find(word), std::string::npos) << word;
    }
    for (const ExperimentKey& key : experiment_keys()) {
      EXPECT_NE(script.find(std::string(key.name) + "="), std::string::npos) << key.name;
    }
    // A shell that is not installed cannot tell.
    const Folder folder;
    write_text(folder / "script", script);
    const std::string known = "command -v " + std::string(shell) + " > /dev/null";
    if (std::system(known.c_str()) != 0) continue;
    EXPECT_EQ(std::system((std::string(shell) + " -n '" + std::string(folder / "script") + "'").c_str()), 0);
  }
  EXPECT_EQ(run({"completion", "csh"}).exit_code, 2);
}

TEST(Check, SaysWhatAFileIs) {
  const std::string source = kSourceFolder;
  const auto out = [&](const std::string& file) { return run({"check", source + "/" + file}).out; };
  EXPECT_NE(out("experiments/roles.toml").find(": experiment: llama-3.1-8b on h100-sxm, 8 engines, 8 GPUs; 4000 "),
            std::string::npos);
  EXPECT_NE(out("traces/chat_small.jsonl.zst").find(": trace: mooncake: 11849 requests"), std::string::npos);
  EXPECT_NE(out("experiments/wide_kv.json").find(": model: "), std::string::npos);
  EXPECT_NE(out("models/presets/prices/built-in.toml").find(": price list: "), std::string::npos);
  EXPECT_NE(out("models/presets/hardware/h20.json").find(": hardware: "), std::string::npos);
}

TEST(Check, NamesTheFaultOfEachFile) {
  const Folder folder;
  write_text(folder / "bad.toml", "[tiers.host]\ngib = -1\n");
  write_text(folder / "bad.jsonl", "{\"nothing\": 1}\n");
  write_text(folder / "odd.json", "{\"a\": 1}\n");
  const std::string fine = std::string(kSourceFolder) + "/experiments/wide_kv.json";
  const Outcome all = run({"check", folder / "bad.toml", folder / "bad.jsonl", folder / "odd.json", fine});
  EXPECT_EQ(all.exit_code, 2);
  EXPECT_NE(all.err.find(std::string(folder / "bad.toml") + ":2: tiers.host.gib is -1"), std::string::npos) << all.err;
  EXPECT_NE(all.err.find("bad.jsonl\", line 1: "), std::string::npos) << all.err;
  EXPECT_NE(all.err.find("odd.json: is JSON of no kind that kvtwin knows"), std::string::npos) << all.err;
  EXPECT_NE(all.out.find("wide_kv.json: model: "), std::string::npos);
  EXPECT_EQ(run({"check"}).exit_code, 2);
}

TEST(Check, TellsKeysWithoutEffect) {
  const Outcome outcome = run({"check", std::string(kSourceFolder) + "/experiments/roles.toml", "--set",
                               "tiers.host.gib=0", "--set", "cache.prefetch_policy=timeout"});
  EXPECT_NE(outcome.err.find("cache.prefetch_policy (--set): has no effect"), std::string::npos) << outcome.err;
}

// Returns the entry of a key; null if there is none.
const Json* entry_of(const Json& schema, std::string_view key) {
  std::string path = "/properties/";
  for (const char c : key) path += c == '.' ? "/properties/" : std::string(1, c);
  return schema.find_path(path);
}

TEST(KeySchema, HasEveryKeyWithItsRange) {
  const Json schema = experiment_schema();
  for (const ExperimentKey& key : experiment_keys()) {
    const Json* const entry = entry_of(schema, key.name);
    ASSERT_NE(entry, nullptr) << key.name;
    EXPECT_TRUE(entry->contains("description") || entry->contains("anyOf")) << key.name;
  }
  EXPECT_EQ(entry_of(schema, "no.such.key"), nullptr);
  EXPECT_EQ(entry_of(schema, "sim.world")->at("enum").dump(), R"(["simgrid","events"])");
  EXPECT_EQ(entry_of(schema, "workload.count_drain")->at("type"), "boolean");
  EXPECT_EQ(run({"check", "--schema"}).json(), schema);
}

}  // namespace
}  // namespace kvtwin::test
