// Small pages whose bytes depend only on their number, and the work to store and get them. For tests that call a
// storage back end directly, without TierQueues.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "impl/storage/backend.hpp"
#include "policy/base/check.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

inline PageForm small_form(std::uint32_t page_tokens = 4) {
  return {{1, 2, 1, 8, page_tokens}, Layout::page_first};  // 16 bytes per token
}
inline PageKey some_space(std::uint64_t n = 1) { return {{mix(n), mix(n + 1), mix(n + 2), n}}; }
inline PageKey numbered_key(std::uint64_t n) { return {{mix(n), mix(n ^ 0x5555), mix(n ^ 0xAAAA), n}}; }

inline std::byte byte_of_page(const PageKey& key, std::size_t i) {
  return static_cast<std::byte>(mix(key.words[0] + i / 8) >> (8 * (i % 8)));
}
inline void fill_page(const PageKey& key, std::span<std::byte> page) {
  for (std::size_t i = 0; i < page.size(); i += 8) {
    const std::uint64_t word = mix(key.words[0] + i / 8);
    std::memcpy(page.data() + i, &word, std::min<std::size_t>(8, page.size() - i));
  }
}
inline bool holds_bytes_of(const PageKey& key, std::span<const std::byte> page) {
  for (std::size_t i = 0; i < page.size(); i += 8) {
    const std::uint64_t word = mix(key.words[0] + i / 8);
    if (std::memcmp(page.data() + i, &word, std::min<std::size_t>(8, page.size() - i)) != 0) return false;
  }
  return true;
}

// A list of tasks and the result of each task. `wrong_bytes` counts pages with wrong bytes that passed the check of the
// page header; the count must stay 0.
class ListedWork final : public PageWork {
 public:
  explicit ListedWork(const PageForm& form, const PageSeal* seal = nullptr) : PageWork(form, seal) {}

  std::size_t add(StorageVerb verb, const PageKey& key, const PageKey& space = some_space()) {
    tasks_.push_back({verb, space, key, tasks_.size(), memory, static_cast<SlotId>(tasks_.size())});
    causes_.emplace_back();
    return tasks_.size() - 1;
  }
  // Returns the result of a task.
  Cause cause(std::size_t task) const { return causes_.at(task).value(); }
  std::size_t ended() const { return ended_; }
  std::uint64_t wrong_bytes = 0;
  Tier memory = Tier::host;  // of the tasks added from now on
  std::size_t max_under_way = 0;
  std::function<void(const PageTask&, Cause)> on_end = [](const PageTask&, Cause) {};

  bool next(PageTask& task) override {
    if (begun_ == tasks_.size()) return false;
    // The interface guarantees that a set and a remove are never under way at the same time.
    if (begun_ > ended_ && tasks_[begun_].verb != tasks_[begun_ - 1].verb) return false;
    task = tasks_[begun_++];
    max_under_way = std::max(max_under_way, begun_ - ended_);
    return true;
  }
  void take_bare(const PageTask& task, std::span<std::byte> payload) override { fill_page(task.key, payload); }
  Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override {
    if (!holds_bytes_of(task.key, payload)) ++wrong_bytes;
    return Cause::none;
  }
  void end(const PageTask& task, Cause cause) override {
    KV_CHECK(!causes_.at(task.ticket), "each task ends once");
    causes_[task.ticket] = cause;
    ++ended_;
    on_end(task, cause);
  }

 private:
  std::vector<PageTask> tasks_;
  std::vector<std::optional<Cause>> causes_;
  std::size_t begun_ = 0, ended_ = 0;
};

// The functions below work on one page.
inline Cause set_page(StorageBackend& store, const PageForm& form, std::uint64_t page) {
  ListedWork work(form, store.seal());
  work.add(StorageVerb::set, numbered_key(page));
  store.write(work);
  return work.cause(0);
}
inline Cause remove_page(StorageBackend& store, const PageForm& form, std::uint64_t page) {
  ListedWork work(form);
  work.add(StorageVerb::remove, numbered_key(page));
  store.write(work);
  return work.cause(0);
}
// Aborts if the page has wrong bytes.
inline Cause get_page(StorageBackend& store, const PageForm& form, std::uint64_t page) {
  ListedWork work(form, store.seal());
  work.add(StorageVerb::get, numbered_key(page));
  store.read(work);
  KV_CHECK(work.wrong_bytes == 0, "no wrong bytes are ever given");
  return work.cause(0);
}
inline bool looks_up(StorageBackend& store, std::uint64_t page) {
  const PageKey key = numbered_key(page);
  return store.look_up(some_space(), std::span(&key, 1)).pages == 1;
}

inline std::uint64_t counter(const StorageBackend& store, std::string_view name) {
  for (const auto& [what, count] : store.counters()) {
    if (what == name) return count;
  }
  check_failed("name", "a counter of that name", __FILE__, __LINE__);
}

}  // namespace kvtwin::test
