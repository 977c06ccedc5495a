// kvtwin._core.Policy and CallJournal: include/kvtwin/policy.h. python/kvtwin/policy.py has the documentation.
#include "kvtwin/policy.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "python/src/parts.hpp"

namespace nb = nanobind;

namespace kvtwin::python {
namespace {

using Tokens = nb::ndarray<const std::int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

std::string sentence_buffer() { return std::string(1024, '\0'); }

[[noreturn]] void raise_status(kvtwin_status status, const char* sentence) {
  if (status == KVTWIN_NO_MEMORY) throw std::bad_alloc();
  raise(status == KVTWIN_BAD_ARGUMENT ? "InputError" : "WorkError", sentence);
}

// Page keys as Python has them: 32 bytes a page, one after the other.
struct Keys {
  explicit Keys(const nb::bytes& bytes)
      : first(reinterpret_cast<const kvtwin_key*>(bytes.c_str())), count(bytes.size() / sizeof(kvtwin_key)) {
    if (bytes.size() % sizeof(kvtwin_key) != 0) raise("InputError", "keys are 32 bytes a page");
  }
  const kvtwin_key* first;
  std::size_t count;
};

class CallJournal {
 public:
  CallJournal(const std::string& path, const std::string& host) {
    std::string sentence = sentence_buffer();
    const kvtwin_status status = kvtwin_call_journal_open(c_text(path, "path"), c_text(host, "host"), &journal_,
                                                          {sentence.data(), sentence.size()});
    if (status != KVTWIN_OK) raise_status(status, sentence.c_str());
  }
  CallJournal(const CallJournal&) = delete;
  CallJournal& operator=(const CallJournal&) = delete;
  ~CallJournal() { kvtwin_call_journal_close(journal_); }

  void storage_call(std::uint32_t verb, std::uint64_t pages, std::uint64_t ok, std::uint64_t bytes, std::uint64_t ns) {
    kvtwin_call_journal_storage_call(journal_, verb, pages, ok, bytes, ns);
  }
  void flush() const { check(kvtwin_call_journal_flush(journal_)); }
  void close() { check(kvtwin_call_journal_close(std::exchange(journal_, nullptr))); }
  kvtwin_call_journal* get() const { return journal_; }

 private:
  static void check(kvtwin_status status) {
    if (status != KVTWIN_OK) raise("WorkError", "the journal could not be written; is the disk full?");
  }
  kvtwin_call_journal* journal_ = nullptr;
};

class Policy {
 public:
  explicit Policy(const kvtwin_policy_config& config) {
    std::string sentence = sentence_buffer();
    const kvtwin_status status = kvtwin_policy_create(&config, &policy_, {sentence.data(), sentence.size()});
    if (status != KVTWIN_OK) raise_status(status, sentence.c_str());
  }
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;
  ~Policy() { kvtwin_policy_destroy(policy_); }

  void check(kvtwin_status status) const {
    if (status != KVTWIN_OK) raise_status(status, kvtwin_policy_error(policy_));
  }
  kvtwin_policy* get() const { return policy_; }

 private:
  kvtwin_policy* policy_ = nullptr;
};

nb::dict stats_of(const Policy& policy) {
  kvtwin_policy_stats stats{};
  stats.struct_size = sizeof stats;
  policy.check(kvtwin_policy_get_stats(policy.get(), &stats));
  nb::dict result;
  result["nodes"] = stats.nodes;
  result["device_pages"] = stats.device_pages;
  result["host_pages"] = stats.host_pages;
  result["evictable_device_pages"] = stats.evictable_device_pages;
  result["calls"] = stats.calls;
  result["failed_calls"] = stats.failed_calls;
  result["victims"] = stats.victims;
  result["victims_digest"] = stats.victims_digest;
  result["device_evicted_pages"] = stats.device_evicted_pages;
  result["host_evicted_pages"] = stats.host_evicted_pages;
  result["looks_ahead"] = stats.looks_ahead != 0;
  result["takes_hints"] = stats.takes_hints != 0;
  return result;
}

nb::bytes page_keys(const Tokens& tokens, std::uint32_t page_tokens, const std::optional<nb::bytes>& prior,
                    const std::optional<std::string>& extra_key, const std::optional<std::string>& salt) {
  if (page_tokens == 0) raise("InputError", "page_tokens is 0; a page has at least one token");
  // The seed of the namespace is made here, because a salt that a client chose may contain a zero byte.
  std::optional<kvtwin_key> before;
  if (prior) {
    if (prior->size() != sizeof(kvtwin_key)) raise("InputError", "prior is the key of one page, 32 bytes");
    std::memcpy(&before.emplace(), prior->c_str(), sizeof(kvtwin_key));
  } else {
    const auto bytes = [](const std::optional<std::string>& text) { return text ? text->size() : 0; };
    const auto first = [](const std::optional<std::string>& text) { return text ? text->data() : nullptr; };
    kvtwin_key seed;
    const kvtwin_status status =
        kvtwin_policy_namespace(first(extra_key), bytes(extra_key), first(salt), bytes(salt), &seed);
    if (status == KVTWIN_OK) before = seed;
    if (status != KVTWIN_OK && status != KVTWIN_MISSING) raise_status(status, "the namespace has no key");
  }
  std::vector<kvtwin_key> keys(tokens.size() / page_tokens);
  const kvtwin_status status = kvtwin_policy_keys(tokens.data(), tokens.size(), page_tokens,
                                                  before ? &*before : nullptr, nullptr, nullptr, keys.data());
  if (status != KVTWIN_OK) raise_status(status, "a page has 1 to 2^20 tokens");
  return nb::bytes(reinterpret_cast<const char*>(keys.data()), keys.size() * sizeof(kvtwin_key));
}

}  // namespace

void add_policy(nb::module_& module) {
  std::vector<std::string> names;
  for (const char* const* name = kvtwin_policy_names(); *name != nullptr; ++name) names.emplace_back(*name);
  module.attr("policy_names") = names;
  module.def("page_keys", page_keys, nb::arg("tokens").noconvert(), nb::arg("page_tokens"), nb::arg("prior").none(),
             nb::arg("extra_key").none(), nb::arg("salt").none());

  nb::class_<CallJournal>(module, "CallJournal")
      .def(nb::init<const std::string&, const std::string&>())
      .def("storage_call", &CallJournal::storage_call)
      .def("flush", &CallJournal::flush)
      .def("close", &CallJournal::close);

  nb::class_<Policy>(module, "Policy")
      .def(
          "__init__",
          [](Policy* self, const std::string& name, std::uint64_t device_pages, std::uint64_t host_pages,
             std::uint32_t page_tokens, bool whole_nodes, bool split_refreshes, bool hits_by_count,
             std::uint64_t doubling_tokens, std::uint32_t slru_protected_touches, std::uint64_t tlru_threshold_tokens,
             std::uint64_t tlru_next_prompt_tokens, const CallJournal* journal) {
            kvtwin_policy_config config{};
            config.struct_size = sizeof config;
            config.name = c_text(name, "name");
            config.device_pages = device_pages;
            config.host_pages = host_pages;
            config.page_tokens = page_tokens;
            config.whole_nodes = whole_nodes ? 1 : 0;
            config.split_refreshes = split_refreshes ? 1 : 0;
            config.hits_by_count = hits_by_count ? 1 : 0;
            config.doubling_tokens = doubling_tokens;
            config.slru_protected_touches = slru_protected_touches;
            config.tlru_threshold_tokens = tlru_threshold_tokens;
            config.tlru_next_prompt_tokens = tlru_next_prompt_tokens;
            config.journal = journal == nullptr ? nullptr : journal->get();
            new (self) Policy(config);
          },
          nb::arg("name"), nb::arg("device_pages"), nb::arg("host_pages"), nb::arg("page_tokens"),
          nb::arg("whole_nodes"), nb::arg("split_refreshes"), nb::arg("hits_by_count"), nb::arg("doubling_tokens"),
          nb::arg("slru_protected_touches"), nb::arg("tlru_threshold_tokens"), nb::arg("tlru_next_prompt_tokens"),
          nb::arg("journal").none(), nb::keep_alive<1, 13>())
      .def("match",
           [](const Policy& self, const nb::bytes& keys) {
             const Keys given(keys);
             kvtwin_match match{};
             self.check(kvtwin_policy_match(self.get(), given.first, given.count, &match));
             return nb::make_tuple(match.end, match.device_pages, match.host_pages);
           })
      .def(
          "insert",
          [](const Policy& self, kvtwin_node parent, const nb::bytes& keys, std::uint32_t tier, std::int32_t priority) {
            const Keys given(keys);
            kvtwin_node node = KVTWIN_NO_NODE;
            self.check(kvtwin_policy_insert(self.get(), parent, given.first, given.count, tier, priority, &node));
            return node;
          })
      .def("share",
           [](const Policy& self, const nb::bytes& keys) {
             const Keys given(keys);
             std::uint64_t pages = 0;
             self.check(kvtwin_policy_share(self.get(), given.first, given.count, &pages));
             return pages;
           })
      .def("split",
           [](const Policy& self, kvtwin_node node, std::uint64_t pages) {
             kvtwin_node upper = KVTWIN_NO_NODE;
             self.check(kvtwin_policy_split(self.get(), node, pages, &upper));
             return upper;
           })
      .def("place", [](const Policy& self, kvtwin_node node,
                       std::uint32_t tier) { self.check(kvtwin_policy_place(self.get(), node, tier)); })
      .def("drop", [](const Policy& self, kvtwin_node node,
                      std::uint32_t tier) { self.check(kvtwin_policy_drop(self.get(), node, tier)); })
      .def("touch", [](const Policy& self, kvtwin_node end,
                       std::uint32_t kind) { self.check(kvtwin_policy_touch(self.get(), end, kind)); })
      .def("count", [](const Policy& self, kvtwin_node node) { self.check(kvtwin_policy_count(self.get(), node)); })
      .def("raise_priority", [](const Policy& self, kvtwin_node end,
                                std::int32_t priority) { self.check(kvtwin_policy_raise(self.get(), end, priority)); })
      .def("lease", [](const Policy& self, kvtwin_node end,
                       std::uint32_t tier) { self.check(kvtwin_policy_lease(self.get(), end, tier)); })
      .def("release", [](const Policy& self, kvtwin_node end,
                         std::uint32_t tier) { self.check(kvtwin_policy_release(self.get(), end, tier)); })
      .def("visit",
           [](const Policy& self, std::uint64_t request, std::int64_t time_ns, std::uint64_t session,
              std::uint64_t prompt_tokens, std::uint64_t output_tokens, const nb::bytes& keys, bool is_further) {
             const Keys given(keys);
             kvtwin_visit visit{};
             visit.struct_size = sizeof visit;
             visit.is_further = is_further ? 1 : 0;
             visit.request = request;
             visit.time_ns = time_ns;
             visit.session = session;
             visit.prompt_tokens = prompt_tokens;
             visit.output_tokens = output_tokens;
             visit.keys = given.first;
             visit.count = given.count;
             self.check(kvtwin_policy_visit(self.get(), &visit));
           })
      .def("queue",
           [](const Policy& self, std::uint64_t request, const nb::bytes& keys) {
             const Keys given(keys);
             self.check(kvtwin_policy_queue(self.get(), request, given.first, given.count));
           })
      .def("unqueue",
           [](const Policy& self, std::uint64_t request) { self.check(kvtwin_policy_unqueue(self.get(), request)); })
      .def("hint",
           [](const Policy& self, std::uint32_t hint, std::uint64_t session, std::int64_t value, std::int64_t time_ns) {
             self.check(kvtwin_policy_hint(self.get(), hint, session, value, time_ns));
           })
      .def("victim",
           [](const Policy& self, std::uint32_t tier) -> std::optional<kvtwin_node> {
             kvtwin_node node = KVTWIN_NO_NODE;
             self.check(kvtwin_policy_victim(self.get(), tier, &node));
             if (node == KVTWIN_NO_NODE) return std::nullopt;
             return node;
           })
      .def("evict", [](const Policy& self, kvtwin_node node, std::uint32_t tier,
                       std::uint64_t pages) { self.check(kvtwin_policy_evict(self.get(), node, tier, pages)); })
      .def("clear", [](const Policy& self) { self.check(kvtwin_policy_clear(self.get())); })
      .def("stats", stats_of)
      .def("check", [](const Policy& self) { self.check(kvtwin_policy_check(self.get())); });
}

}  // namespace kvtwin::python
