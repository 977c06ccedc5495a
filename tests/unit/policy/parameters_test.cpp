// The texts of policies, and what a policy reads of its parameters.
#include "policy/base/parameters.hpp"

#include <gtest/gtest.h>

#include "policy/choices.hpp"
#include "policy/eviction.hpp"
#include "policy/route.hpp"
#include "policy/termination.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kWords[] = {"events", "prompts"};

std::string error_of(PolicyKind kind, std::string_view text) { return facts_of_policy(kind, text).error; }

std::uint64_t whole_of(std::string_view text) {
  const Parameters parameters("n=" + std::string(text));
  const std::uint64_t value = parameters.whole("n", {.fallback = 7, .least = 1, .most = 5'000'000, .help = "a count"});
  EXPECT_EQ(parameters.error(), "") << text;
  return value;
}
std::uint32_t share_of(std::string_view text) {
  const Parameters parameters("n=" + std::string(text));
  const std::uint32_t value = parameters.per_1024("n", {.fallback = "0.5", .most = "1000", .help = "a share"});
  EXPECT_EQ(parameters.error(), "") << text;
  return value;
}
TimeNs time_of(std::string_view text) {
  const Parameters parameters("n=" + std::string(text));
  const TimeNs value = parameters.time("n", {.fallback = "1s", .most = "1000000s", .help = "a time"});
  EXPECT_EQ(parameters.error(), "") << text;
  return value;
}

TEST(PolicyText, HasANameAndParameters) {
  EXPECT_EQ(policy_text("slru").name, "slru");
  EXPECT_EQ(policy_text(" slru ( protected = 3 ) ").name, "slru");
  EXPECT_EQ(policy_text(" slru ( protected = 3 ) ").parameters, "protected = 3");
  EXPECT_TRUE(policy_text("slru()").closed);
  for (const char* open : {"slru(", "slru)", "slru(a=1", "slru(a=1))", "slru((a=1)", "slru(a=1)b", "slru(a)(b)"}) {
    EXPECT_FALSE(policy_text(open).closed) << open;
  }
}

TEST(PolicyText, ACommaInBracketsDoesNotSeparate) {
  using Items = std::vector<std::string_view>;
  EXPECT_EQ(split_list("lru,slru(protected=3),score(queue=2, kv=1)"),
            (Items{"lru", "slru(protected=3)", "score(queue=2, kv=1)"}));
  EXPECT_EQ(split_list(""), Items{});
  EXPECT_EQ(split_list("a,"), (Items{"a", ""}));
  EXPECT_EQ(split_list(",a"), (Items{"", "a"}));
  EXPECT_EQ(split_list("a),b"), (Items{"a)", "b"}));
}

TEST(Parameters, ReadNumbersWithUnits) {
  EXPECT_EQ(whole_of("3"), 3U);
  EXPECT_EQ(whole_of("4Ki"), 4096U);
  EXPECT_EQ(whole_of("1.5k"), 1500U);
  EXPECT_EQ(whole_of("2e3"), 2000U);
  EXPECT_EQ(share_of("0.8"), 819U);
  EXPECT_EQ(share_of("80%"), 819U);
  EXPECT_EQ(share_of("2.0"), 2048U);
  EXPECT_EQ(share_of("0.10000000000000001"), 102U);
  EXPECT_EQ(share_of("1e-1"), 102U);
  EXPECT_EQ(time_of("0.25s"), 250'000'000);
  EXPECT_EQ(time_of("250ms"), 250'000'000);
  EXPECT_EQ(time_of("1.5"), 1'500'000'000);
  EXPECT_EQ(time_of("2min"), 120'000'000'000);
  EXPECT_EQ(time_of("20ns"), 20);
  EXPECT_EQ(time_of("0.0000000004s"), 0);
  EXPECT_EQ(time_of("0.0000000005s"), 1);  // rounded to the nearest
}

// As the keys of earlier versions: value * 1024 and value * 1e9, rounded.
TEST(Parameters, ReadDecimalNumbersAsBinaryOnesAreRead) {
  for (int i = 0; i <= 10'000; ++i) {
    char text[16];
    std::snprintf(text, sizeof text, "%d.%03d", i / 1000, i % 1000);
    const double value = std::strtod(text, nullptr);
    EXPECT_EQ(share_of(text), static_cast<std::uint32_t>(value * 1024 + 0.5)) << text;
    EXPECT_EQ(time_of(text), static_cast<TimeNs>(value * 1e9 + 0.5)) << text;
  }
}

TEST(Parameters, KeepARecordOfWhatWasRead) {
  const Parameters parameters("n=0.50, word=prompts,on=true");
  EXPECT_EQ(parameters.per_1024("n", {.fallback = "0.5", .most = "1", .help = "a share"}), 512U);
  EXPECT_EQ(parameters.word("word", kWords, "a word"), 1U);
  EXPECT_TRUE(parameters.flag("on", false, "a switch"));
  EXPECT_EQ(parameters.time("limit", {.fallback = "250ms", .most = "2min", .help = "a time"}), 250'000'000);
  EXPECT_EQ(parameters.error(), "");
  ASSERT_EQ(parameters.read().size(), 4U);
  const Parameter& n = parameters.read()[0];
  EXPECT_EQ(n.value, "0.5");
  EXPECT_TRUE(n.given);
  EXPECT_EQ(n.range, "at least 0 and at most 1");
  const Parameter& limit = parameters.read()[3];
  EXPECT_EQ(limit.fallback, "0.25s");
  EXPECT_EQ(limit.range, "at least 0s and at most 120s");
  EXPECT_FALSE(limit.given);
  EXPECT_EQ(text_of_policy("x", parameters.read(), ParameterTexts::given), "x(n=0.5, word=prompts, on=true)");
  EXPECT_EQ(text_of_policy("x", parameters.read(), ParameterTexts::different), "x(word=prompts, on=true)");
  EXPECT_EQ(text_of_policy("x", parameters.read(), ParameterTexts::all),
            "x(n=0.5, word=prompts, on=true, limit=0.25s)");
  EXPECT_EQ(text_of_policy("x", {}, ParameterTexts::all), "x");
}

TEST(Parameters, RefuseInOneSentence) {
  const auto whole = [](std::string_view text) {
    const Parameters parameters(text);
    EXPECT_EQ(parameters.whole("protected", {.fallback = 2, .least = 1, .most = 9, .help = "touches"}), 2U) << text;
    return parameters.error();
  };
  const std::string right = "; it must be at least 1 and at most 9 (touches)";
  EXPECT_EQ(whole("protected=0"), "protected is 0" + right);
  EXPECT_EQ(whole("protected=10"), "protected is 10" + right);
  EXPECT_EQ(whole("protected=-1"), "protected is -1" + right);
  EXPECT_EQ(whole("protected=1.5"), "protected is 1.5" + right);
  EXPECT_EQ(whole("protected=2x"), "protected is 2x" + right);
  EXPECT_EQ(whole("protected="), "protected is empty" + right);
  EXPECT_EQ(whole("protected=99999999999999999999999"), "protected is 99999999999999999999999" + right);
  EXPECT_EQ(whole("protected=1e30"), "protected is 1e30" + right);
  EXPECT_EQ(whole("protect=2"), "unknown parameter \"protect\": did you mean \"protected\"? Known: protected.");
  EXPECT_EQ(whole("protected=2, protected=3"), "protected is given twice; give one value");
  EXPECT_EQ(whole("2"), "\"2\" is no parameter; write name=value");
  EXPECT_EQ(whole("protected=2,"), "\"\" is no parameter; write name=value");
  EXPECT_EQ(Parameters("a=1").error(), "has no parameters; leave out a");
}

TEST(PolicyFacts, ListTheParametersOfEveryPolicy) {
  for (const PolicyKind kind :
       {PolicyKind::eviction, PolicyKind::termination, PolicyKind::write, PolicyKind::prefetch_admission,
        PolicyKind::load_back_admission, PolicyKind::route, PolicyKind::order, PolicyKind::style,
        PolicyKind::state_points, PolicyKind::pool_eviction}) {
    ASSERT_FALSE(policy_names(kind).empty());
    for (const std::string_view name : policy_names(kind)) {
      const PolicyFacts facts = facts_of_policy(kind, name);
      EXPECT_EQ(facts.error, "") << name;
      EXPECT_EQ(facts.name, name);
      for (const Parameter& one : facts.parameters) {
        EXPECT_EQ(one.value, one.fallback) << name;
        EXPECT_FALSE(one.help.empty() || one.help.ends_with('.')) << name << " " << one.name;
      }
      const std::string all = facts.text(ParameterTexts::all);
      const PolicyFacts again = facts_of_policy(kind, all);
      EXPECT_EQ(again.error, "") << all;
      EXPECT_EQ(again.text(ParameterTexts::all), all);
      EXPECT_EQ(again.text(ParameterTexts::different), name);
    }
  }
  EXPECT_EQ(facts_of_policy(PolicyKind::eviction, "slru( protected = 3 )").find("protected")->number, 3);
  EXPECT_EQ(facts_of_policy(PolicyKind::termination, "timeout").find("per_ki_token")->number, kNsPerSecond / 4);
}

TEST(PolicyFacts, SayWhatIsWrong) {
  EXPECT_EQ(
      error_of(PolicyKind::eviction, "slru(protected=0)"),
      "slru: protected is 0; it must be at least 1 and at most 1000000000 (touches from which a page is protected; "
      "the insertion counts as a touch)");
  EXPECT_EQ(error_of(PolicyKind::eviction, "lru(protected=3)"), "lru: has no parameters; leave out protected");
  EXPECT_EQ(error_of(PolicyKind::eviction, "slru(protected=3"), "write name(parameter=value, ...)");
  EXPECT_EQ(error_of(PolicyKind::eviction, "nothing"), "no policy has this name");
  EXPECT_EQ(error_of(PolicyKind::route, "score(prefix_from=guess)").substr(0, 69),
            "score: prefix_from is guess; it must be one of events, prompts (how t");
}

TEST(PolicyFacts, HaveTheNotesOfThePolicy) {
  EXPECT_EQ(facts_of_policy(PolicyKind::eviction, "tlru").notes.size(), 1U);
  EXPECT_TRUE(facts_of_policy(PolicyKind::eviction, "tlru(threshold=4096)").notes.empty());
}

TEST(PolicyTexts, AreMadeOrRefused) {
  EXPECT_NE(make_eviction("slru(protected=3)"), nullptr);
  EXPECT_EQ(make_eviction("slru(protected=0)"), nullptr);
  EXPECT_EQ(make_eviction("slru(protected=3"), nullptr);
  EXPECT_EQ(make_eviction("lru(x=1)"), nullptr);
  EXPECT_NE(make_router("score(queue=2, prefix=3)", {.engines = 2}), nullptr);
  EXPECT_EQ(make_router("score(queue=-2)", {.engines = 2}), nullptr);
  EXPECT_EQ(make_router("score(queue=2)", {.engines = 4, .groups = 2, .group_policy = "score(kv=1001)"}), nullptr);
  EngineConfig config;
  config.prefetch_policy = "timeout(base=2us, per_ki_token=0s)";
  const auto timeout = make_termination(config);
  ASSERT_NE(timeout, nullptr);
  EXPECT_EQ(timeout->stop_at({.asked_tokens = 4096, .waits_since = 100}), 2101);
}

}  // namespace
}  // namespace kvtwin
