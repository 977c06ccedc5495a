// The C interface of the policies. The tree itself: tests/property/policy/hosted_tree_test.cpp.
#include "kvtwin/policy.h"

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "policy/hosted/call_journal.hpp"
#include "tests/folder.hpp"

namespace kvtwin {
namespace {

kvtwin_policy_config config_of(const char* name) {
  kvtwin_policy_config config{};
  config.struct_size = sizeof config;
  config.name = name;
  config.device_pages = 8;
  config.host_pages = 8;
  config.page_tokens = 4;
  config.whole_nodes = 1;
  return config;
}

struct Handle {
  explicit Handle(const kvtwin_policy_config& config) {
    EXPECT_EQ(kvtwin_policy_create(&config, &policy, {text.data(), text.size()}), KVTWIN_OK) << text.data();
  }
  ~Handle() { kvtwin_policy_destroy(policy); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::array<char, 256> text{};
  kvtwin_policy* policy = nullptr;
};

std::vector<kvtwin_key> keys_of(std::int64_t first_token, std::size_t pages) {
  std::vector<std::int64_t> tokens(pages * 4);
  std::iota(tokens.begin(), tokens.end(), first_token);
  std::vector<kvtwin_key> keys(pages);
  EXPECT_EQ(kvtwin_policy_keys(tokens.data(), tokens.size(), 4, nullptr, nullptr, nullptr, keys.data()), KVTWIN_OK);
  return keys;
}

kvtwin_node insert(kvtwin_policy* policy, kvtwin_node parent, const std::vector<kvtwin_key>& keys,
                   kvtwin_tier tier = KVTWIN_DEVICE) {
  kvtwin_node node = KVTWIN_NO_NODE;
  EXPECT_EQ(kvtwin_policy_insert(policy, parent, keys.data(), keys.size(), tier, 0, &node), KVTWIN_OK)
      << kvtwin_policy_error(policy);
  return node;
}

TEST(PolicyC, KnowsItsPolicies) {
  std::vector<std::string> names;
  for (const char* const* name = kvtwin_policy_names(); *name != nullptr; ++name) names.emplace_back(*name);
  EXPECT_TRUE(std::ranges::find(names, "tide") != names.end());
  for (const std::string& name : names) {
    const Handle handle(config_of(name.c_str()));
    EXPECT_EQ(kvtwin_policy_check(handle.policy), KVTWIN_OK) << name;
  }
}

// Returns the sentence for a configuration that is refused.
std::string sentence_for(const kvtwin_policy_config& config) {
  std::array<char, 256> text{};
  kvtwin_policy* policy = nullptr;
  EXPECT_EQ(kvtwin_policy_create(&config, &policy, {text.data(), text.size()}), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(policy, nullptr);
  return text.data();
}

TEST(PolicyC, RefusesBadConfigurations) {
  kvtwin_policy* policy = nullptr;
  EXPECT_EQ(sentence_for(config_of("best")), "policy \"best\": no policy has this name");
  EXPECT_NE(sentence_for(config_of(nullptr)).find("no policy has this name"), std::string::npos);
  kvtwin_policy_config config = config_of("lru");
  config.device_pages = 0;
  EXPECT_NE(sentence_for(config).find("a tier has 1 to"), std::string::npos);
  config = config_of("lru");
  config.struct_size = 1 << 20;
  EXPECT_NE(sentence_for(config).find("struct_size"), std::string::npos);
  EXPECT_EQ(kvtwin_policy_create(nullptr, &policy, {}), KVTWIN_BAD_ARGUMENT);
  config = config_of("lru");
  EXPECT_EQ(kvtwin_policy_create(&config, nullptr, {}), KVTWIN_BAD_ARGUMENT);
}

TEST(PolicyC, ChoosesByRecencyOnBothTiers) {
  const Handle handle(config_of("lru"));
  kvtwin_policy* const policy = handle.policy;
  const kvtwin_node a = insert(policy, KVTWIN_ROOT, keys_of(0, 2));
  const kvtwin_node b = insert(policy, KVTWIN_ROOT, keys_of(100, 1));
  ASSERT_EQ(kvtwin_policy_touch(policy, a, KVTWIN_TOUCH_RECENCY), KVTWIN_OK);
  kvtwin_node victim = KVTWIN_NO_NODE;
  ASSERT_EQ(kvtwin_policy_victim(policy, KVTWIN_DEVICE, &victim), KVTWIN_OK);
  EXPECT_EQ(victim, b);
  ASSERT_EQ(kvtwin_policy_place(policy, b, KVTWIN_HOST), KVTWIN_OK);
  ASSERT_EQ(kvtwin_policy_evict(policy, b, KVTWIN_DEVICE, 1), KVTWIN_OK);
  ASSERT_EQ(kvtwin_policy_victim(policy, KVTWIN_HOST, &victim), KVTWIN_OK);
  EXPECT_EQ(victim, b);
  ASSERT_EQ(kvtwin_policy_lease(policy, a, KVTWIN_DEVICE), KVTWIN_OK);
  ASSERT_EQ(kvtwin_policy_victim(policy, KVTWIN_DEVICE, &victim), KVTWIN_OK);
  EXPECT_EQ(victim, KVTWIN_NO_NODE);

  kvtwin_match match{};
  const std::vector<kvtwin_key> begin = keys_of(0, 1);
  ASSERT_EQ(kvtwin_policy_match(policy, begin.data(), 1, &match), KVTWIN_OK);
  EXPECT_EQ(match.device_pages, 1U);
  EXPECT_NE(match.end, a);  // the upper part is a new node
  const std::vector<kvtwin_key> on_host = keys_of(100, 3);
  ASSERT_EQ(kvtwin_policy_match(policy, on_host.data(), 3, &match), KVTWIN_OK);
  EXPECT_EQ(match.end, b);
  EXPECT_EQ(match.host_pages, 1U);

  kvtwin_policy_stats stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(kvtwin_policy_get_stats(policy, &stats), KVTWIN_OK);
  EXPECT_EQ(stats.nodes, 3U);
  EXPECT_EQ(stats.device_pages, 2U);
  EXPECT_EQ(stats.host_pages, 1U);
  EXPECT_EQ(stats.device_evicted_pages, 1U);
  EXPECT_EQ(stats.victims, 2U);
  EXPECT_EQ(stats.looks_ahead, 0U);
  EXPECT_EQ(kvtwin_policy_check(policy), KVTWIN_OK);
}

TEST(PolicyC, SaysWhatIsWrongAndChangesNothing) {
  const Handle handle(config_of("tide"));
  kvtwin_policy* const policy = handle.policy;
  const std::vector<kvtwin_key> keys = keys_of(0, 2);
  const kvtwin_node node = insert(policy, KVTWIN_ROOT, keys);
  kvtwin_node made = 0;
  EXPECT_EQ(kvtwin_policy_insert(policy, KVTWIN_ROOT, keys.data(), 2, KVTWIN_DEVICE, 0, &made), KVTWIN_BAD_ARGUMENT);
  EXPECT_NE(std::string(kvtwin_policy_error(policy)).find("in the tree already"), std::string::npos);
  EXPECT_EQ(kvtwin_policy_release(policy, node, KVTWIN_DEVICE), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_evict(policy, node, KVTWIN_HOST, 2), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_evict(policy, node, KVTWIN_DEVICE, 3), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_touch(policy, 77, KVTWIN_TOUCH_RECENCY), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_insert(policy, node, nullptr, 1, KVTWIN_DEVICE, 0, &made), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_place(policy, node, 7), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_unqueue(policy, 3), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_victim(nullptr, KVTWIN_DEVICE, &made), KVTWIN_BAD_ARGUMENT);
  kvtwin_visit visit{};
  visit.struct_size = sizeof visit;
  visit.time_ns = 5;
  EXPECT_EQ(kvtwin_policy_visit(policy, &visit), KVTWIN_OK);
  visit.time_ns = 4;
  EXPECT_EQ(kvtwin_policy_visit(policy, &visit), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_hint(policy, 4, 1, 0, 6), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_hint(policy, KVTWIN_PIN, 1, 0, 6), KVTWIN_OK);
  kvtwin_policy_stats stats{};
  stats.struct_size = sizeof stats;
  ASSERT_EQ(kvtwin_policy_get_stats(policy, &stats), KVTWIN_OK);
  EXPECT_EQ(stats.nodes, 1U);
  EXPECT_EQ(stats.failed_calls, 10U);
  EXPECT_EQ(stats.takes_hints, 1U);
  EXPECT_EQ(kvtwin_policy_check(policy), KVTWIN_OK);
}

TEST(PolicyC, KeysContinueAChainAndKeepNamespacesApart) {
  const std::vector<kvtwin_key> whole = keys_of(0, 3);
  const std::array<std::int64_t, 8> rest{4, 5, 6, 7, 8, 9, 10, 11};
  std::array<kvtwin_key, 2> keys{};
  ASSERT_EQ(kvtwin_policy_keys(rest.data(), 8, 4, whole.data(), nullptr, nullptr, keys.data()), KVTWIN_OK);
  EXPECT_EQ(std::memcmp(keys.data(), &whole[1], sizeof keys), 0);
  std::array<std::int64_t, 4> first{0, 1, 2, 3};
  ASSERT_EQ(kvtwin_policy_keys(first.data(), 4, 4, nullptr, "lora", nullptr, keys.data()), KVTWIN_OK);
  EXPECT_NE(std::memcmp(keys.data(), whole.data(), sizeof whole[0]), 0);
  const kvtwin_key named = keys[0];
  kvtwin_key seed;
  const auto key_after = [&](std::size_t extra_key_bytes) {
    EXPECT_EQ(kvtwin_policy_namespace("lora\0a", extra_key_bytes, nullptr, 0, &seed), KVTWIN_OK);
    EXPECT_EQ(kvtwin_policy_keys(first.data(), 4, 4, &seed, nullptr, nullptr, keys.data()), KVTWIN_OK);
    return std::memcmp(&keys[0], &named, sizeof named);
  };
  EXPECT_EQ(key_after(4), 0);
  EXPECT_NE(key_after(5), 0) << "the zero byte counts";
  EXPECT_NE(key_after(6), 0);
  EXPECT_EQ(kvtwin_policy_namespace(nullptr, 0, nullptr, 0, &seed), KVTWIN_MISSING);
  EXPECT_EQ(kvtwin_policy_namespace("a", 1, nullptr, 0, nullptr), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_policy_keys(first.data(), 4, 0, nullptr, nullptr, nullptr, keys.data()), KVTWIN_BAD_ARGUMENT);
}

// The child has a copy of the buffer. Whether it calls, closes or just exits, the file has each record of the parent
// once.
TEST(PolicyC, AForkedChildWritesNothingIntoTheJournal) {
  const test::Folder folder;
  const std::string path = (folder.path() / "calls.kvc").string();
  kvtwin_call_journal* journal = nullptr;
  ASSERT_EQ(kvtwin_call_journal_open(path.c_str(), "a host 1.0", &journal, {}), KVTWIN_OK);
  constexpr std::uint64_t kCalls = 2000;  // more than the buffer holds
  const auto call = [&](std::uint64_t number) {
    kvtwin_call_journal_storage_call(journal, KVTWIN_PUT, number, 2, 4096, 1500);
  };
  for (std::uint64_t i = 0; i < kCalls; ++i) {
    call(i);
    if (i % 500 != 250) continue;
    const pid_t child = fork();
    if (child == 0) {
      for (std::uint64_t more = 0; more < kCalls; ++more) call(more);
      const bool nothing = kvtwin_call_journal_flush(journal) == KVTWIN_OK;
      if (i > 500) kvtwin_call_journal_close(journal);
      std::quick_exit(nothing && std::fflush(nullptr) == 0 ? 7 : 1);  // exit() would flush, too, and run gtest's ends
    }
    int ended = 0;
    ASSERT_EQ(waitpid(child, &ended, 0), child);
    EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 7) << ended;
  }
  ASSERT_EQ(kvtwin_call_journal_close(journal), KVTWIN_OK);
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  CallJournalReader reader(std::as_bytes(std::span(bytes)));
  CallRecord record;
  for (std::uint64_t i = 0; i < kCalls; ++i) {
    ASSERT_EQ(reader.next(record), JournalStatus::record) << i;
    EXPECT_EQ(record.storage->pages, i);
  }
  EXPECT_EQ(reader.next(record), JournalStatus::end);
}

TEST(PolicyC, JournalsHaveEveryCallOfPolicyAndStorage) {
  const test::Folder folder;
  const std::string path = (folder.path() / "calls.kvc").string();
  kvtwin_call_journal* journal = nullptr;
  ASSERT_EQ(kvtwin_call_journal_open(path.c_str(), "a host 1.0", &journal, {}), KVTWIN_OK);
  kvtwin_policy_config outlives = config_of("fifo");
  outlives.journal = journal;
  const Handle later(outlives);
  {
    kvtwin_policy_config config = config_of("lru");
    config.journal = journal;
    const Handle handle(config);
    insert(handle.policy, KVTWIN_ROOT, keys_of(0, 2));
    std::thread([&] { kvtwin_call_journal_storage_call(journal, KVTWIN_PUT, 3, 2, 4096, 1500); }).join();
    EXPECT_EQ(kvtwin_policy_drop(handle.policy, 9, KVTWIN_DEVICE), KVTWIN_BAD_ARGUMENT);  // is not recorded
    kvtwin_node victim = 0;
    EXPECT_EQ(kvtwin_policy_victim(handle.policy, KVTWIN_DEVICE, &victim), KVTWIN_OK);
  }
  ASSERT_EQ(kvtwin_call_journal_close(journal), KVTWIN_OK);
  insert(later.policy, KVTWIN_ROOT, keys_of(0, 2));  // is not recorded

  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  CallJournalReader reader(std::as_bytes(std::span(bytes)));
  CallRecord record;
  ASSERT_EQ(reader.next(record), JournalStatus::record);
  EXPECT_EQ(record.tree->eviction, "fifo");
  ASSERT_EQ(reader.next(record), JournalStatus::record);
  EXPECT_EQ(reader.text(), "a host 1.0");
  EXPECT_EQ(record.tree->eviction, "lru");
  EXPECT_EQ(record.tree->host_pages, 8U);
  ASSERT_EQ(reader.next(record), JournalStatus::record);
  EXPECT_EQ(record.call.verb, CallVerb::insert);
  EXPECT_EQ(record.call.keys.size(), 2U);
  ASSERT_EQ(reader.next(record), JournalStatus::record);
  ASSERT_TRUE(record.storage);
  EXPECT_EQ(record.storage->verb, StorageVerb::set);
  EXPECT_EQ(record.storage->pages, 3U);
  EXPECT_EQ(record.storage->done, 2U);
  EXPECT_EQ(record.storage->bytes, 4096U);
  EXPECT_EQ(record.storage->duration, 1500);
  ASSERT_EQ(reader.next(record), JournalStatus::record);
  EXPECT_EQ(record.call.verb, CallVerb::victim);
  EXPECT_EQ(record.after.count, 1U);
  EXPECT_EQ(reader.next(record), JournalStatus::end);
}

// The calls of a journal; `keys`: how many keys each call has.
struct Recorded {
  std::vector<CallRecord> calls;
  std::vector<std::size_t> keys;
  HostedSetup setup;
};

Recorded calls_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  CallJournalReader reader(std::as_bytes(std::span(bytes)));
  Recorded result;
  for (CallRecord record; reader.next(record) == JournalStatus::record;) {
    if (record.tree) {
      result.setup = *record.tree;
      continue;
    }
    result.keys.push_back(record.call.keys.size());
    result.calls.push_back(record);
  }
  return result;
}

TEST(PolicyC, EachFunctionPassesItsArgumentsAndAnswersOn) {
  const test::Folder folder;
  const std::string path = (folder.path() / "calls.kvc").string();
  kvtwin_call_journal* journal = nullptr;
  ASSERT_EQ(kvtwin_call_journal_open(path.c_str(), "h", &journal, {}), KVTWIN_OK);
  std::vector<Call> made;
  std::vector<std::size_t> keys;
  std::vector<std::uint64_t> answers;  // of the calls that answer
  {
    kvtwin_policy_config config = config_of("tlru");
    config.whole_nodes = 0;
    config.split_refreshes = 1;
    config.hits_by_count = 1;
    config.device_pages = 16;
    config.doubling_tokens = 1'000;
    config.slru_protected_touches = 5;
    config.tlru_threshold_tokens = 6;
    config.tlru_next_prompt_tokens = 7;
    config.journal = journal;
    const Handle handle(config);
    kvtwin_policy* const policy = handle.policy;
    const auto expect = [&](const Call& call, std::size_t count, kvtwin_status status) {
      EXPECT_EQ(status, KVTWIN_OK) << kvtwin_policy_error(policy);
      made.push_back(call);
      keys.push_back(count);
    };
    const std::vector<kvtwin_key> chain = keys_of(0, 4), other = keys_of(100, 3);
    kvtwin_node a = KVTWIN_NO_NODE, node = KVTWIN_NO_NODE;
    kvtwin_match match{};
    std::uint64_t pages = 0;
    expect({.verb = CallVerb::insert, .tier = Tier::device, .value = 3}, 4,
           kvtwin_policy_insert(policy, KVTWIN_ROOT, chain.data(), 4, KVTWIN_DEVICE, 3, &a));
    answers.push_back(a);
    expect({.verb = CallVerb::match}, 3, kvtwin_policy_match(policy, chain.data(), 3, &match));
    answers.insert(answers.end(), {match.end, match.device_pages, match.host_pages});
    EXPECT_EQ(match.device_pages, 3U);
    expect({.verb = CallVerb::share}, 3, kvtwin_policy_share(policy, other.data(), 3, &pages));
    answers.push_back(pages);
    const NodeId upper{match.end};
    expect({.verb = CallVerb::split, .node = upper, .pages = 2}, 0, kvtwin_policy_split(policy, match.end, 2, &node));
    answers.push_back(node);
    expect({.verb = CallVerb::insert, .tier = Tier::host, .node = NodeId{a}, .value = -4}, 3,
           kvtwin_policy_insert(policy, a, other.data(), 3, KVTWIN_HOST, -4, &node));
    answers.push_back(node);
    const NodeId on_host{node}, end{a};
    expect({.verb = CallVerb::place, .tier = Tier::host, .node = end}, 0, kvtwin_policy_place(policy, a, KVTWIN_HOST));
    expect({.verb = CallVerb::touch, .node = end, .value = KVTWIN_TOUCH_STAMP}, 0,
           kvtwin_policy_touch(policy, a, KVTWIN_TOUCH_STAMP));
    expect({.verb = CallVerb::count, .node = end}, 0, kvtwin_policy_count(policy, a));
    expect({.verb = CallVerb::raise, .node = end, .value = -9}, 0, kvtwin_policy_raise(policy, a, -9));
    expect({.verb = CallVerb::lease, .tier = Tier::host, .node = on_host}, 0,
           kvtwin_policy_lease(policy, node, KVTWIN_HOST));
    expect({.verb = CallVerb::lease, .tier = Tier::device, .node = end}, 0,
           kvtwin_policy_lease(policy, a, KVTWIN_DEVICE));
    expect({.verb = CallVerb::release, .tier = Tier::host, .node = on_host}, 0,
           kvtwin_policy_release(policy, node, KVTWIN_HOST));
    expect({.verb = CallVerb::release, .tier = Tier::device, .node = end}, 0,
           kvtwin_policy_release(policy, a, KVTWIN_DEVICE));
    kvtwin_visit visit{sizeof visit, 1, 21, 22, 23, 24, 25, chain.data(), 2};
    expect({.verb = CallVerb::visit,
            .request = 21,
            .time = 22,
            .session = 23,
            .value = 1,
            .prompt_tokens = 24,
            .output_tokens = 25},
           2, kvtwin_policy_visit(policy, &visit));
    expect({.verb = CallVerb::queue, .request = 31}, 3, kvtwin_policy_queue(policy, 31, chain.data(), 3));
    expect({.verb = CallVerb::unqueue, .request = 31}, 0, kvtwin_policy_unqueue(policy, 31));
    expect({.verb = CallVerb::hint, .hint = HintKind::unpin, .time = 44, .session = 42, .value = 43}, 0,
           kvtwin_policy_hint(policy, KVTWIN_UNPIN, 42, 43, 44));
    kvtwin_node victim = 0;
    expect({.verb = CallVerb::victim, .tier = Tier::host}, 0, kvtwin_policy_victim(policy, KVTWIN_HOST, &victim));
    answers.push_back(victim);
    EXPECT_EQ(victim, node);
    expect({.verb = CallVerb::evict, .tier = Tier::host, .node = on_host, .pages = 2}, 0,
           kvtwin_policy_evict(policy, node, KVTWIN_HOST, 2));
    expect({.verb = CallVerb::drop, .tier = Tier::host, .node = on_host}, 0,
           kvtwin_policy_drop(policy, node, KVTWIN_HOST));
    expect({.verb = CallVerb::evict, .tier = Tier::device, .node = end, .pages = 1}, 0,
           kvtwin_policy_evict(policy, a, KVTWIN_DEVICE, 1));
    kvtwin_policy_stats stats{};
    stats.struct_size = sizeof stats;
    ASSERT_EQ(kvtwin_policy_get_stats(policy, &stats), KVTWIN_OK);
    EXPECT_EQ(stats.host_evicted_pages, 2U);
    EXPECT_EQ(stats.device_evicted_pages, 1U);
    EXPECT_EQ(stats.host_pages, 1U);
    EXPECT_EQ(stats.device_pages, 3U);
    EXPECT_EQ(stats.evictable_device_pages, 3U);
    EXPECT_EQ(stats.calls, made.size());
    EXPECT_EQ(stats.failed_calls, 0U);
    expect({.verb = CallVerb::clear}, 0, kvtwin_policy_clear(policy));
    ASSERT_EQ(kvtwin_policy_get_stats(policy, &stats), KVTWIN_OK);
    EXPECT_EQ(stats.nodes, 0U);
  }
  ASSERT_EQ(kvtwin_call_journal_close(journal), KVTWIN_OK);

  const Recorded recorded = calls_in(path);
  EXPECT_EQ(recorded.setup.device_pages, 16U);
  EXPECT_FALSE(recorded.setup.whole_nodes);
  EXPECT_TRUE(recorded.setup.split_refreshes);
  EXPECT_TRUE(recorded.setup.hits_by_count);
  EXPECT_EQ(recorded.setup.doubling_tokens, 1'000U);
  EXPECT_EQ(recorded.setup.eviction, "tlru(threshold=6, next_prompt=7)");
  ASSERT_EQ(recorded.calls.size(), made.size());
  EXPECT_EQ(recorded.keys, keys);
  std::vector<std::uint64_t> answered;
  for (std::size_t i = 0; i < made.size(); ++i) {
    const Call &call = recorded.calls[i].call, &wanted = made[i];
    SCOPED_TRACE(name_of(wanted.verb));
    EXPECT_EQ(call.verb, wanted.verb);
    EXPECT_EQ(call.tier, wanted.tier);
    EXPECT_EQ(call.hint, wanted.hint);
    EXPECT_EQ(call.node, wanted.node);
    EXPECT_EQ(call.pages, wanted.pages);
    EXPECT_EQ(call.request, wanted.request);
    EXPECT_EQ(call.time, wanted.time);
    EXPECT_EQ(call.session, wanted.session);
    EXPECT_EQ(call.value, wanted.value);
    EXPECT_EQ(call.prompt_tokens, wanted.prompt_tokens);
    EXPECT_EQ(call.output_tokens, wanted.output_tokens);
    const Answer& answer = recorded.calls[i].answer;
    const auto node = static_cast<std::uint64_t>(answer.node);
    switch (wanted.verb) {
      case CallVerb::match: answered.insert(answered.end(), {node, answer.device_pages, answer.host_pages}); break;
      case CallVerb::share: answered.push_back(answer.device_pages); break;
      case CallVerb::insert:
      case CallVerb::split:
      case CallVerb::victim: answered.push_back(node); break;
      default: break;
    }
  }
  EXPECT_EQ(answered, answers);
}

TEST(PolicyC, ZerosOfAConfigurationAreTheDefaults) {
  const test::Folder folder;
  const std::string path = (folder.path() / "calls.kvc").string();
  kvtwin_call_journal* journal = nullptr;
  ASSERT_EQ(kvtwin_call_journal_open(path.c_str(), nullptr, &journal, {}), KVTWIN_OK);
  kvtwin_policy_config config = config_of("slru");
  config.journal = journal;
  { const Handle handle(config); }
  ASSERT_EQ(kvtwin_call_journal_close(journal), KVTWIN_OK);
  const HostedSetup setup = calls_in(path).setup;
  EXPECT_EQ(setup.eviction, "slru");
  EXPECT_TRUE(setup.whole_nodes);
  EXPECT_FALSE(setup.split_refreshes);
  EXPECT_FALSE(setup.hits_by_count);
  EXPECT_EQ(setup.doubling_tokens, HostedSetup{}.doubling_tokens);
}

TEST(PolicyC, ANameMayHaveParameters) {
  const test::Folder folder;
  const std::string path = (folder.path() / "calls.kvc").string();
  for (const auto& [name, touches, eviction] :
       {std::tuple{"slru(protected=3)", 0U, "slru(protected=3)"}, std::tuple{"slru", 3U, "slru(protected=3)"},
        std::tuple{"slru", 2U, "slru"}, std::tuple{"lru", 3U, "lru"}}) {
    kvtwin_call_journal* journal = nullptr;
    ASSERT_EQ(kvtwin_call_journal_open(path.c_str(), nullptr, &journal, {}), KVTWIN_OK);
    kvtwin_policy_config config = config_of(name);
    config.slru_protected_touches = touches;
    config.journal = journal;
    { const Handle handle(config); }
    ASSERT_EQ(kvtwin_call_journal_close(journal), KVTWIN_OK);
    EXPECT_EQ(calls_in(path).setup.eviction, eviction);
  }
  for (const auto& [name, touches, sentence] :
       {std::tuple{"slru(protected=0)", 0U, "slru: protected is 0; it must be at least 1"},
        std::tuple{"slru", 2'000'000'000U, "slru: protected is 2000000000; it must be at least 1"},
        std::tuple{"slru(protected=3)", 4U, "slru_protected_touches"},
        std::tuple{"lru(", 0U, "name(parameter=value"}}) {
    kvtwin_policy_config config = config_of(name);
    config.slru_protected_touches = touches;
    const std::string error = sentence_for(config);
    EXPECT_NE(error.find(sentence), std::string::npos) << name << ": " << error;
  }
}

TEST(PolicyC, EveryFunctionRefusesNull) {
  const Handle handle(config_of("lru"));
  const std::vector<kvtwin_key> keys = keys_of(0, 1);
  kvtwin_policy* const policy = handle.policy;
  kvtwin_match match{};
  kvtwin_node node = 0;
  std::uint64_t pages = 0;
  kvtwin_visit visit{};
  visit.struct_size = sizeof visit;
  kvtwin_policy_stats stats{};
  stats.struct_size = sizeof stats;
  const std::vector<kvtwin_status> refused{
      kvtwin_policy_match(nullptr, keys.data(), 1, &match),
      kvtwin_policy_match(policy, keys.data(), 1, nullptr),
      kvtwin_policy_insert(nullptr, KVTWIN_ROOT, keys.data(), 1, KVTWIN_DEVICE, 0, &node),
      kvtwin_policy_insert(policy, KVTWIN_ROOT, keys.data(), 1, KVTWIN_DEVICE, 0, nullptr),
      kvtwin_policy_share(nullptr, keys.data(), 1, &pages),
      kvtwin_policy_share(policy, keys.data(), 1, nullptr),
      kvtwin_policy_split(nullptr, 1, 1, &node),
      kvtwin_policy_split(policy, 1, 1, nullptr),
      kvtwin_policy_place(nullptr, 1, KVTWIN_HOST),
      kvtwin_policy_drop(nullptr, 1, KVTWIN_HOST),
      kvtwin_policy_touch(nullptr, 0, KVTWIN_TOUCH_RECENCY),
      kvtwin_policy_count(nullptr, 1),
      kvtwin_policy_raise(nullptr, 0, 1),
      kvtwin_policy_lease(nullptr, 0, KVTWIN_DEVICE),
      kvtwin_policy_release(nullptr, 0, KVTWIN_DEVICE),
      kvtwin_policy_visit(nullptr, &visit),
      kvtwin_policy_visit(policy, nullptr),
      kvtwin_policy_queue(nullptr, 1, keys.data(), 1),
      kvtwin_policy_unqueue(nullptr, 1),
      kvtwin_policy_hint(nullptr, KVTWIN_PIN, 1, 0, 0),
      kvtwin_policy_victim(nullptr, KVTWIN_DEVICE, &node),
      kvtwin_policy_victim(policy, KVTWIN_DEVICE, nullptr),
      kvtwin_policy_evict(nullptr, 1, KVTWIN_DEVICE, 1),
      kvtwin_policy_clear(nullptr),
      kvtwin_policy_get_stats(nullptr, &stats),
      kvtwin_policy_get_stats(policy, nullptr),
      kvtwin_policy_check(nullptr),
  };
  EXPECT_EQ(refused, std::vector<kvtwin_status>(refused.size(), KVTWIN_BAD_ARGUMENT));
  EXPECT_STREQ(kvtwin_policy_error(nullptr), "policy is NULL");
  ASSERT_EQ(kvtwin_policy_get_stats(policy, &stats), KVTWIN_OK);
  EXPECT_EQ(stats.calls, 0U) << "a call without a place for its answer changes nothing";
}

TEST(PolicyC, KeysHaveWholePagesOfAllowedSizes) {
  const std::vector<std::int64_t> tokens(12, 7);
  std::vector<kvtwin_key> keys(3);
  const auto keys_with = [&](const std::int64_t* from, std::size_t count, std::uint32_t page_tokens, kvtwin_key* to) {
    return kvtwin_policy_keys(from, count, page_tokens, nullptr, nullptr, nullptr, to);
  };
  EXPECT_EQ(keys_with(tokens.data(), 12, 1U << 20, keys.data()), KVTWIN_OK);
  EXPECT_EQ(keys_with(tokens.data(), 12, (1U << 20) + 1, keys.data()), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(keys_with(nullptr, 4, 4, keys.data()), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(keys_with(tokens.data(), 4, 4, nullptr), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(keys_with(nullptr, 3, 4, nullptr), KVTWIN_OK) << "no whole page";
  const kvtwin_key untouched = keys[2];
  EXPECT_EQ(keys_with(tokens.data(), 11, 4, keys.data()), KVTWIN_OK);
  EXPECT_EQ(std::memcmp(&keys[2], &untouched, sizeof untouched), 0) << "the last page is not whole";
  EXPECT_NE(std::memcmp(&keys[0], &keys[1], sizeof keys[0]), 0) << "a key depends on the pages before";
  kvtwin_key salted, unsalted;
  EXPECT_EQ(kvtwin_policy_namespace(nullptr, 0, "salt", 4, &salted), KVTWIN_OK);
  EXPECT_EQ(kvtwin_policy_namespace("salt", 4, nullptr, 0, &unsalted), KVTWIN_OK);
  EXPECT_NE(std::memcmp(&salted, &unsalted, sizeof salted), 0) << "a salt is no extra key";
}

TEST(PolicyC, JournalsAreFlushedAndSayThatTheDiskIsFull) {
  const test::Folder folder;
  const std::string path = (folder.path() / "calls.kvc").string();
  kvtwin_call_journal* journal = nullptr;
  ASSERT_EQ(kvtwin_call_journal_open(path.c_str(), "h", &journal, {}), KVTWIN_OK);
  kvtwin_call_journal_storage_call(journal, KVTWIN_LOOK_UP, 1, 1, 1, 1);
  kvtwin_call_journal_storage_call(journal, KVTWIN_LOOK_UP + 1, 1, 1, 1, 1);  // no such verb: is not recorded
  EXPECT_EQ(kvtwin_call_journal_flush(journal), KVTWIN_OK);
  const Recorded recorded = calls_in(path);
  ASSERT_EQ(recorded.calls.size(), 1U);
  ASSERT_TRUE(recorded.calls[0].storage);
  EXPECT_EQ(recorded.calls[0].storage->verb, StorageVerb::look_up);
  EXPECT_EQ(kvtwin_call_journal_close(journal), KVTWIN_OK);
  EXPECT_EQ(kvtwin_call_journal_flush(nullptr), KVTWIN_OK);

  for (const bool flush : {true, false}) {
    ASSERT_EQ(kvtwin_call_journal_open("/dev/full", "h", &journal, {}), KVTWIN_OK);
    kvtwin_call_journal_storage_call(journal, KVTWIN_PUT, 1, 1, 1, 1);
    if (flush) {
      EXPECT_EQ(kvtwin_call_journal_flush(journal), KVTWIN_IO_ERROR);
    }
    EXPECT_EQ(kvtwin_call_journal_close(journal), KVTWIN_IO_ERROR);
  }
}

TEST(PolicyC, NamesOfJournalsAndHostsHaveLimits) {
  const test::Folder folder;
  const std::string path = (folder.path() / "calls.kvc").string();
  kvtwin_call_journal* journal = nullptr;
  EXPECT_EQ(kvtwin_call_journal_open("", "h", &journal, {}), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_call_journal_open(path.c_str(), "h", nullptr, {}), KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(kvtwin_call_journal_open(path.c_str(), std::string(1025, 'h').c_str(), &journal, {}), KVTWIN_BAD_ARGUMENT);
  EXPECT_FALSE(std::filesystem::exists(path));
  ASSERT_EQ(kvtwin_call_journal_open(path.c_str(), std::string(1024, 'h').c_str(), &journal, {}), KVTWIN_OK);
  EXPECT_EQ(kvtwin_call_journal_close(journal), KVTWIN_OK);
}

TEST(PolicyC, RefusesAJournalWhereNoFileCanBe) {
  std::array<char, 256> text{};
  kvtwin_call_journal* journal = nullptr;
  EXPECT_EQ(kvtwin_call_journal_open("/no/such/folder/x", "h", &journal, {text.data(), text.size()}),
            KVTWIN_BAD_ARGUMENT);
  EXPECT_EQ(journal, nullptr);
  EXPECT_NE(std::string(text.data()).find("/no/such/folder/x"), std::string::npos);
  EXPECT_EQ(kvtwin_call_journal_open(nullptr, "h", &journal, {}), KVTWIN_BAD_ARGUMENT);
  kvtwin_call_journal_storage_call(nullptr, KVTWIN_GET, 1, 1, 1, 1);
  EXPECT_EQ(kvtwin_call_journal_close(nullptr), KVTWIN_OK);
}

}  // namespace
}  // namespace kvtwin
