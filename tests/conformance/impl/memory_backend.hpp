// The smallest back end there is, and an example of one: pages in a map.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "impl/storage/backend.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin::test {

// What outlives a back end: here a map, elsewhere a folder or a server.
struct PageMap {
  std::mutex mutex;
  std::map<PageKey, std::vector<std::byte>> pages;  // by storage_page_key: header, then payload
};

class MemoryBackend final : public StorageBackend {
 public:
  MemoryBackend(PageMap& map, const PageForm& form, Pages capacity) : map_(map), form_(form), capacity_(capacity) {}

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override {
    const std::lock_guard lock(map_.mutex);
    LookedUp found;
    for (const PageKey& key : keys) {
      if (!map_.pages.contains(storage_page_key(space, key))) return {found.pages, Cause::missing};
      ++found.pages;
    }
    return found;
  }

  // One page at a time. A back end may begin as many as it likes before it ends the first.
  void read(PageWork& work) override {
    PageTask task;
    while (work.next(task)) work.end(task, get(task, work));
  }
  void write(PageWork& work) override {
    PageTask task;
    while (work.next(task)) work.end(task, task.verb == StorageVerb::set ? set(task, work) : remove(task));
  }

  void finish() override {}
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override { return {{"corrupt_pages", corrupt_}}; }

 private:
  Cause get(const PageTask& task, PageWork& work) {
    const PageKey name = storage_page_key(task.space, task.key);
    std::vector<std::byte> page;
    {
      const std::lock_guard lock(map_.mutex);
      const auto found = map_.pages.find(name);
      if (found == map_.pages.end()) return Cause::missing;
      page = found->second;
    }
    // give() looks at the bytes before they reach a slot; whether there are enough of them is ours to see.
    Cause cause = Cause::corrupt;
    if (page.size() == kPageHeaderBytes + form_.bytes()) {
      const std::span<const std::byte> bytes = page;
      cause = work.give(task, bytes.first<kPageHeaderBytes>(), bytes.subspan(kPageHeaderBytes));
    }
    if (cause == Cause::corrupt) {  // or else it could never be stored again
      const std::lock_guard lock(map_.mutex);
      // The writer may have put a right one there since.
      if (const auto found = map_.pages.find(name); found != map_.pages.end() && found->second == page) {
        map_.pages.erase(found);
      }
      ++corrupt_;
    }
    return cause;
  }

  Cause set(const PageTask& task, PageWork& work) {
    const PageKey name = storage_page_key(task.space, task.key);
    {
      const std::lock_guard lock(map_.mutex);
      if (map_.pages.contains(name)) return Cause::none;
      if (map_.pages.size() == capacity_) return Cause::full;
    }
    PageHeader header;
    std::vector<std::byte> page(kPageHeaderBytes + form_.bytes());
    work.take(task, header, std::span(page).subspan(kPageHeaderBytes));
    std::ranges::copy(header, page.begin());
    const std::lock_guard lock(map_.mutex);
    map_.pages.emplace(name, std::move(page));
    return Cause::none;
  }

  Cause remove(const PageTask& task) {
    const std::lock_guard lock(map_.mutex);
    map_.pages.erase(storage_page_key(task.space, task.key));
    return Cause::none;
  }

  PageMap& map_;
  const PageForm form_;
  const Pages capacity_;
  std::uint64_t corrupt_ = 0;  // the reading thread's
};

}  // namespace kvtwin::test
