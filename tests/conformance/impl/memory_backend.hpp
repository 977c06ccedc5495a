// The smallest storage back end, as an example: it stores pages in a map.
#pragma once

#include <map>
#include <mutex>
#include <utility>

#include "impl/storage/backend.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin::test {

// The medium, which outlives the back end. Here it is a map; for other back ends, a folder or a server.
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

  // One page at a time. Other back ends may begin several pages before they end the first one.
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
    // give() checks the bytes before they reach a slot. The back end must check the number of bytes.
    Cause cause = Cause::corrupt;
    if (page.size() == kPageHeaderBytes + form_.bytes()) {
      const std::span<const std::byte> bytes = page;
      cause = work.give(task, bytes.first<kPageHeaderBytes>(), bytes.subspan(kPageHeaderBytes));
    }
    if (cause == Cause::corrupt) {  // erase the page; otherwise set() would keep the corrupt page
      const std::lock_guard lock(map_.mutex);
      // In the meantime, the writer may have stored a correct page.
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
  std::uint64_t corrupt_ = 0;  // used by the reading thread only
};

}  // namespace kvtwin::test
