#include "kvtwin/policy.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "capi/guard.hpp"
#include "impl/runtime/policy_library.hpp"
#include "policy/base/check.hpp"
#include "policy/hosted/call_journal.hpp"
#include "policy/hosted/hosted_tree.hpp"
#include "policy/index/page_key.hpp"

static_assert(sizeof(kvtwin_key) == sizeof(kvtwin::PageKey));
// Numbers of the interface are those of the enumerations, so a call passes them on.
static_assert(KVTWIN_TOUCH_RECENCY == static_cast<int>(kvtwin::TouchKind::recency) &&
              KVTWIN_TOUCH_STAMP_NODE == static_cast<int>(kvtwin::TouchKind::stamp_node));
static_assert(KVTWIN_SESSION_END == static_cast<int>(kvtwin::HintKind::session_end) &&
              KVTWIN_UNPIN == static_cast<int>(kvtwin::HintKind::unpin));

namespace kvtwin::capi {

// Records and buffered bytes of a file. Writes whole records. The buffer is no std::FILE, because exit() in a forked
// child would write the child's copy of it to the parent's file.
class JournalFile final : public ByteSink {
 public:
  JournalFile(const char* path, const char* host) : file_(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
    if (file_ < 0) {
      throw BadArgument(std::string("path \"") + path + "\" cannot be written: " + std::strerror(errno));
    }
    try {
      buffer_.reserve(kBufferBytes);
      writer_.emplace(*this, text_or_empty(host));
    } catch (...) {
      close(file_);
      throw;
    }
  }
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  ~JournalFile() override {
    if (file_ >= 0) close(file_);
  }

  // Recording must not disturb the host: after a failure or the end it stops, and in a forked child it does nothing.
  template <class Record>
  void record(Record record) noexcept {
    if (getpid() != owner_) return;
    const std::lock_guard lock(busy_);
    if (failed_ || file_ < 0) return;
    try {
      record(*writer_);
    } catch (const std::exception&) {
      failed_ = true;
    }
  }
  // Return whether all records have reached the file.
  bool flush() {
    if (getpid() != owner_) return true;
    const std::lock_guard lock(busy_);
    write_buffer();
    return !failed_;
  }
  bool end() {
    if (getpid() != owner_) return true;
    record([](CallJournalWriter& writer) { writer.finish(); });
    const std::lock_guard lock(busy_);
    write_buffer();
    failed_ |= close(std::exchange(file_, -1)) != 0;
    return !failed_;
  }

 private:
  void write(std::span<const std::byte> bytes) override {
    if (buffer_.size() + bytes.size() > kBufferBytes) write_buffer();
    if (!failed_) buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  }
  void write_buffer() {
    std::span<const std::byte> rest = buffer_;
    while (!failed_ && !rest.empty()) {
      const ssize_t written = ::write(file_, rest.data(), rest.size());
      if (written > 0) rest = rest.subspan(static_cast<std::size_t>(written));
      failed_ = written == 0 || (written < 0 && errno != EINTR);
    }
    buffer_.clear();
  }

  static constexpr std::size_t kBufferBytes = 1 << 16;
  const pid_t owner_ = getpid();
  std::mutex busy_;
  int file_ = -1;
  std::vector<std::byte> buffer_;
  bool failed_ = false;
  std::optional<CallJournalWriter> writer_;
};

}  // namespace kvtwin::capi

// A policy keeps the file too, so the journal may be closed before the policy.
struct kvtwin_call_journal {
  std::shared_ptr<kvtwin::capi::JournalFile> file;
};

namespace kvtwin::capi {
namespace {

// A broken promise inside the policy, as an exception instead of the end of the host's process.
class BrokenPromise : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

thread_local bool in_policy = false;

void handle_check(const char* condition, const char* sentence, const char* file, int line) {
  const std::string text =
      std::string("internal error: ") + sentence + " (" + condition + ", " + file + ":" + std::to_string(line) + ")";
  if (in_policy) throw BrokenPromise(text);
  std::abort();
}

// In its life, a failed KV_CHECK of this thread becomes a BrokenPromise.
class ChecksThrow {
 public:
  ChecksThrow() {
    static std::once_flag once;
    std::call_once(once, [] { set_check_handler(handle_check); });
    in_policy = true;
  }
  ChecksThrow(const ChecksThrow&) = delete;
  ChecksThrow& operator=(const ChecksThrow&) = delete;
  ~ChecksThrow() { in_policy = false; }
};

Tier tier_of(kvtwin_tier tier) {
  if (tier == KVTWIN_HOST) return Tier::host;
  return tier == KVTWIN_DEVICE ? Tier::device : Tier::disk;  // the tree refuses any other tier
}

HostedSetup setup_of(const kvtwin_policy_config& config) {
  install_policy_loader();
  HostedSetup setup;
  const std::uint32_t slru_protected =
      config.slru_protected_touches == 0 ? kSlruProtected : config.slru_protected_touches;
  if (policy_text(text_or_empty(config.name)).name != text_or_empty(config.name) &&
      (config.slru_protected_touches != 0 || config.tlru_threshold_tokens != 0 ||
       config.tlru_next_prompt_tokens != 0)) {
    throw BadArgument(std::string("policy \"") + config.name +
                      "\": has parameters; leave slru_protected_touches, tlru_threshold_tokens and "
                      "tlru_next_prompt_tokens 0");
  }
  setup.eviction = with_numbers(text_or_empty(config.name), slru_protected, config.tlru_threshold_tokens,
                                config.tlru_next_prompt_tokens);
  setup.device_pages = config.device_pages;
  setup.host_pages = config.host_pages;
  setup.page_tokens = config.page_tokens;
  setup.whole_nodes = config.whole_nodes != 0;
  setup.split_refreshes = config.split_refreshes != 0;
  setup.hits_by_count = config.hits_by_count != 0;
  if (config.doubling_tokens != 0) setup.doubling_tokens = config.doubling_tokens;
  if (const std::string wrong = HostedTree::error_of(setup); !wrong.empty()) {
    throw BadArgument("policy \"" + setup.eviction + "\": " + wrong);
  }
  return setup;
}

}  // namespace
}  // namespace kvtwin::capi

struct kvtwin_policy {
  explicit kvtwin_policy(const kvtwin_policy_config& config)
      : tree(kvtwin::capi::setup_of(config)), journal(config.journal == nullptr ? nullptr : config.journal->file) {
    if (journal != nullptr) journal->record([&](auto& writer) { writer.tree(tree.setup()); });
  }

  kvtwin_status fail(kvtwin_status status, const char* sentence) {
    ++failed_calls;
    error = sentence;
    return status;
  }

  // Keys are copied: the host's memory need not be aligned.
  kvtwin_status run(kvtwin::Call call, const kvtwin_key* with, std::size_t count, kvtwin::Answer& answer) noexcept {
    try {
      ++calls;
      if (broken) return fail(KVTWIN_FAILED, "an earlier call failed inside kvtwin; create a new policy");
      if (with == nullptr && count > 0) return fail(KVTWIN_BAD_ARGUMENT, "keys is NULL");
      if (count > kvtwin::HostedTree::kMaxKeys) return fail(KVTWIN_BAD_ARGUMENT, "too many keys");
      keys.resize(count);
      if (count > 0) std::memcpy(static_cast<void*>(keys.data()), with, count * sizeof(kvtwin_key));
      call.keys = keys;
      const kvtwin::capi::ChecksThrow guard;
      if (const char* wrong = tree.call(call, answer)) return fail(KVTWIN_BAD_ARGUMENT, wrong);
      if (journal != nullptr) {
        journal->record([&](auto& writer) { writer.append(call, answer, tree.mark()); });
      }
      return KVTWIN_OK;
    } catch (const std::bad_alloc&) {
      broken = true;
      return KVTWIN_NO_MEMORY;
    } catch (const std::exception& failure) {
      broken = true;
      try {
        return fail(KVTWIN_FAILED, failure.what());
      } catch (const std::exception&) {
        return KVTWIN_FAILED;
      }
    }
  }
  kvtwin_status run(const kvtwin::Call& call) noexcept {
    kvtwin::Answer ignored;
    return run(call, nullptr, 0, ignored);
  }

  kvtwin::HostedTree tree;
  std::shared_ptr<kvtwin::capi::JournalFile> journal;
  std::vector<kvtwin::PageKey> keys;
  std::string error;
  bool broken = false;
  std::uint64_t calls = 0, failed_calls = 0;
  std::array<std::uint64_t, 2> evicted{};
};

using kvtwin::Answer;
using kvtwin::Call;
using kvtwin::CallVerb;
using kvtwin::NodeId;
using kvtwin::capi::guarded;
using kvtwin::capi::tier_of;

extern "C" {

const char* const* kvtwin_policy_names(void) {
  static const std::vector<const char*> names = [] {
    std::vector<const char*> made;
    for (const std::string_view name : kvtwin::eviction_names()) made.push_back(name.data());  // literals
    made.push_back(nullptr);
    return made;
  }();
  return names.data();
}

kvtwin_status kvtwin_policy_create(const kvtwin_policy_config* config, kvtwin_policy** policy, kvtwin_error error) {
  return guarded(error, [&] {
    if (policy == nullptr) throw kvtwin::capi::BadArgument("policy is NULL; pass the address of a pointer");
    *policy = nullptr;
    const kvtwin::capi::ChecksThrow guard;
    *policy = new kvtwin_policy(kvtwin::capi::sized_copy(config, "config"));
    return KVTWIN_OK;
  });
}

void kvtwin_policy_destroy(kvtwin_policy* policy) { delete policy; }

const char* kvtwin_policy_error(const kvtwin_policy* policy) {
  return policy == nullptr ? "policy is NULL" : policy->error.c_str();
}

kvtwin_status kvtwin_policy_match(kvtwin_policy* policy, const kvtwin_key* keys, size_t count, kvtwin_match* match) {
  if (policy == nullptr || match == nullptr) return KVTWIN_BAD_ARGUMENT;
  Answer answer;
  const kvtwin_status status = policy->run({.verb = CallVerb::match}, keys, count, answer);
  *match = {static_cast<kvtwin_node>(answer.node), answer.device_pages, answer.host_pages};
  return status;
}

kvtwin_status kvtwin_policy_insert(kvtwin_policy* policy, kvtwin_node parent, const kvtwin_key* keys, size_t count,
                                   kvtwin_tier tier, int32_t priority, kvtwin_node* node) {
  if (policy == nullptr || node == nullptr) return KVTWIN_BAD_ARGUMENT;
  Answer answer;
  const kvtwin_status status =
      policy->run({.verb = CallVerb::insert, .tier = tier_of(tier), .node = NodeId{parent}, .value = priority}, keys,
                  count, answer);
  *node = static_cast<kvtwin_node>(answer.node);
  return status;
}

kvtwin_status kvtwin_policy_share(kvtwin_policy* policy, const kvtwin_key* keys, size_t count, uint64_t* pages) {
  if (policy == nullptr || pages == nullptr) return KVTWIN_BAD_ARGUMENT;
  Answer answer;
  const kvtwin_status status = policy->run({.verb = CallVerb::share}, keys, count, answer);
  *pages = answer.device_pages;
  return status;
}

kvtwin_status kvtwin_policy_split(kvtwin_policy* policy, kvtwin_node node, uint64_t pages, kvtwin_node* upper) {
  if (policy == nullptr || upper == nullptr) return KVTWIN_BAD_ARGUMENT;
  Answer answer;
  const kvtwin_status status =
      policy->run({.verb = CallVerb::split, .node = NodeId{node}, .pages = pages}, nullptr, 0, answer);
  *upper = static_cast<kvtwin_node>(answer.node);
  return status;
}

kvtwin_status kvtwin_policy_place(kvtwin_policy* policy, kvtwin_node node, kvtwin_tier tier) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return policy->run({.verb = CallVerb::place, .tier = tier_of(tier), .node = NodeId{node}});
}

kvtwin_status kvtwin_policy_drop(kvtwin_policy* policy, kvtwin_node node, kvtwin_tier tier) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return policy->run({.verb = CallVerb::drop, .tier = tier_of(tier), .node = NodeId{node}});
}

kvtwin_status kvtwin_policy_touch(kvtwin_policy* policy, kvtwin_node end, kvtwin_touch kind) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return policy->run({.verb = CallVerb::touch, .node = NodeId{end}, .value = kind});
}

kvtwin_status kvtwin_policy_count(kvtwin_policy* policy, kvtwin_node node) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return policy->run({.verb = CallVerb::count, .node = NodeId{node}});
}

kvtwin_status kvtwin_policy_raise(kvtwin_policy* policy, kvtwin_node end, int32_t priority) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return policy->run({.verb = CallVerb::raise, .node = NodeId{end}, .value = priority});
}

kvtwin_status kvtwin_policy_lease(kvtwin_policy* policy, kvtwin_node end, kvtwin_tier tier) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return policy->run({.verb = CallVerb::lease, .tier = tier_of(tier), .node = NodeId{end}});
}

kvtwin_status kvtwin_policy_release(kvtwin_policy* policy, kvtwin_node end, kvtwin_tier tier) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return policy->run({.verb = CallVerb::release, .tier = tier_of(tier), .node = NodeId{end}});
}

kvtwin_status kvtwin_policy_visit(kvtwin_policy* policy, const kvtwin_visit* visit) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return guarded({}, [&] {
    const auto given = kvtwin::capi::sized_copy(visit, "visit");
    Answer ignored;
    return policy->run({.verb = CallVerb::visit,
                        .request = given.request,
                        .time = given.time_ns,
                        .session = given.session,
                        .value = given.is_further,
                        .prompt_tokens = given.prompt_tokens,
                        .output_tokens = given.output_tokens},
                       given.keys, given.count, ignored);
  });
}

kvtwin_status kvtwin_policy_queue(kvtwin_policy* policy, uint64_t request, const kvtwin_key* keys, size_t count) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  Answer ignored;
  return policy->run({.verb = CallVerb::queue, .request = request}, keys, count, ignored);
}

kvtwin_status kvtwin_policy_unqueue(kvtwin_policy* policy, uint64_t request) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  return policy->run({.verb = CallVerb::unqueue, .request = request});
}

kvtwin_status kvtwin_policy_hint(kvtwin_policy* policy, kvtwin_hint hint, uint64_t session, int64_t value,
                                 int64_t time_ns) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  const auto kind = hint > KVTWIN_UNPIN ? kvtwin::HintKind::abort : static_cast<kvtwin::HintKind>(hint);
  return policy->run({.verb = CallVerb::hint, .hint = kind, .time = time_ns, .session = session, .value = value});
}

kvtwin_status kvtwin_policy_victim(kvtwin_policy* policy, kvtwin_tier tier, kvtwin_node* node) {
  if (policy == nullptr || node == nullptr) return KVTWIN_BAD_ARGUMENT;
  Answer answer;
  const kvtwin_status status = policy->run({.verb = CallVerb::victim, .tier = tier_of(tier)}, nullptr, 0, answer);
  *node = static_cast<kvtwin_node>(answer.node);
  return status;
}

kvtwin_status kvtwin_policy_evict(kvtwin_policy* policy, kvtwin_node node, kvtwin_tier tier, uint64_t pages) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  const kvtwin_status status =
      policy->run({.verb = CallVerb::evict, .tier = tier_of(tier), .node = NodeId{node}, .pages = pages});
  if (status == KVTWIN_OK) policy->evicted[tier == KVTWIN_HOST ? 1 : 0] += pages;
  return status;
}

kvtwin_status kvtwin_policy_clear(kvtwin_policy* policy) {
  return policy == nullptr ? KVTWIN_BAD_ARGUMENT : policy->run({.verb = CallVerb::clear});
}

kvtwin_status kvtwin_policy_get_stats(const kvtwin_policy* policy, kvtwin_policy_stats* stats) {
  return guarded({}, [&] {
    if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
    kvtwin_policy_stats now = kvtwin::capi::sized_copy(stats, "stats");
    const kvtwin::RadixTree& tree = policy->tree.tree();
    now.nodes = tree.nodes();
    now.device_pages = tree.pages(kvtwin::Tier::device);
    now.host_pages = tree.pages(kvtwin::Tier::host);
    now.evictable_device_pages = tree.evictable_device_pages();
    now.calls = policy->calls;
    now.failed_calls = policy->failed_calls;
    now.victims = policy->tree.mark().count;
    now.victims_digest = policy->tree.mark().digest;
    now.device_evicted_pages = policy->evicted[0];
    now.host_evicted_pages = policy->evicted[1];
    now.looks_ahead = policy->tree.looks_ahead() ? 1 : 0;
    now.takes_hints = policy->tree.takes_hints() ? 1 : 0;
    std::memcpy(stats, &now, now.struct_size);
    return KVTWIN_OK;
  });
}

kvtwin_status kvtwin_policy_check(kvtwin_policy* policy) {
  if (policy == nullptr) return KVTWIN_BAD_ARGUMENT;
  try {
    const kvtwin::capi::ChecksThrow guard;
    policy->tree.tree().check_invariants();
    return KVTWIN_OK;
  } catch (const std::exception& failure) {
    policy->broken = true;
    return policy->fail(KVTWIN_FAILED, failure.what());
  }
}

kvtwin_status kvtwin_policy_namespace(const char* extra_key, size_t extra_key_bytes, const char* salt,
                                      size_t salt_bytes, kvtwin_key* key) {
  return guarded({}, [&] {
    if (key == nullptr) return KVTWIN_BAD_ARGUMENT;
    const auto text = [](const char* given, std::size_t bytes) {
      return given == nullptr ? std::nullopt : std::optional<std::string_view>({given, bytes});
    };
    const auto seed = kvtwin::namespace_seed(text(extra_key, extra_key_bytes), text(salt, salt_bytes));
    if (!seed) return KVTWIN_MISSING;
    std::memcpy(key, seed->words.data(), sizeof *key);
    return KVTWIN_OK;
  });
}

kvtwin_status kvtwin_policy_keys(const int64_t* tokens, size_t count, uint32_t page_tokens, const kvtwin_key* prior,
                                 const char* extra_key, const char* salt, kvtwin_key* keys) {
  return guarded({}, [&] {
    if (page_tokens == 0 || page_tokens > 1U << 20) return KVTWIN_BAD_ARGUMENT;
    const std::size_t pages = count / page_tokens;
    if (pages > 0 && (tokens == nullptr || keys == nullptr)) return KVTWIN_BAD_ARGUMENT;
    const auto text = [](const char* given) {
      return given == nullptr ? std::nullopt : std::optional<std::string_view>(given);
    };
    std::optional<kvtwin::PageKey> before;
    if (prior == nullptr) {
      before = kvtwin::namespace_seed(text(extra_key), text(salt));
    } else {
      std::memcpy(before.emplace().words.data(), prior, sizeof *prior);
    }
    std::vector<kvtwin::BlockSegment> page(page_tokens);
    for (std::size_t i = 0; i < pages; ++i) {
      for (std::size_t j = 0; j < page_tokens; ++j) {
        page[j] = {static_cast<std::uint64_t>(tokens[i * page_tokens + j]), 0, 1};
      }
      before = kvtwin::block_page_key(before ? &*before : nullptr, page);
      std::memcpy(&keys[i], before->words.data(), sizeof keys[i]);
    }
    return KVTWIN_OK;
  });
}

kvtwin_status kvtwin_call_journal_open(const char* path, const char* host, kvtwin_call_journal** journal,
                                       kvtwin_error error) {
  return guarded(error, [&] {
    if (journal == nullptr) throw kvtwin::capi::BadArgument("journal is NULL; pass the address of a pointer");
    *journal = nullptr;
    if (path == nullptr || *path == '\0') throw kvtwin::capi::BadArgument("path is empty; pass the name of a file");
    if (host != nullptr && std::strlen(host) > 1024) throw kvtwin::capi::BadArgument("host has over 1024 bytes");
    *journal = new kvtwin_call_journal{std::make_shared<kvtwin::capi::JournalFile>(path, host)};
    return KVTWIN_OK;
  });
}

void kvtwin_call_journal_storage_call(kvtwin_call_journal* journal, kvtwin_storage_verb verb, uint64_t pages,
                                      uint64_t ok, uint64_t bytes, uint64_t ns) {
  if (journal == nullptr || verb > KVTWIN_LOOK_UP) return;
  using kvtwin::StorageVerb;
  const StorageVerb of_storage = verb == KVTWIN_GET   ? StorageVerb::get
                                 : verb == KVTWIN_PUT ? StorageVerb::set
                                                      : StorageVerb::look_up;
  const kvtwin::HostStorageCall call{of_storage, pages, ok, bytes, static_cast<kvtwin::TimeNs>(ns)};
  journal->file->record([&](auto& writer) { writer.append(call); });
}

kvtwin_status kvtwin_call_journal_flush(kvtwin_call_journal* journal) {
  return journal == nullptr || journal->file->flush() ? KVTWIN_OK : KVTWIN_IO_ERROR;
}

kvtwin_status kvtwin_call_journal_close(kvtwin_call_journal* journal) {
  const bool written = journal == nullptr || journal->file->end();
  delete journal;
  return written ? KVTWIN_OK : KVTWIN_IO_ERROR;
}

}  // extern "C"
