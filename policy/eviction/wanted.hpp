// Which pages the waiting requests want, and which request wants a page first. For policies that look ahead at the
// queue.
//
// Memory: about 100 bytes per page, for at most four million pages. A request that would exceed this bound is ignored.
#pragma once

#include <algorithm>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

class Wanted {
 public:
  void queued(RequestId request, std::span<const PageKey> keys) {
    if (pages_ + keys.size() > kMaxPages) return;
    const auto [entry, fresh] = waiting_.try_emplace(request);
    if (!fresh) return;
    pages_ += keys.size();
    for (const PageKey& key : keys) {
      entry->second.push_back(key.words[0]);
      wanted_[key.words[0]].add(request);
    }
  }

  void unqueued(RequestId request) {
    const auto entry = waiting_.find(request);
    if (entry == waiting_.end()) return;
    for (const std::uint64_t page : entry->second) {
      const auto by = wanted_.find(page);
      if (by->second.is_last(request)) {
        wanted_.erase(by);
      } else {
        by->second.remove(request);
      }
    }
    pages_ -= entry->second.size();
    waiting_.erase(entry);
  }

  // Returns the first request in the queue that wants the page; kNoRequest if none does.
  RequestId first(const PageKey& key) const {
    if (wanted_.empty()) return kNoRequest;
    const auto by = wanted_.find(key.words[0]);
    return by == wanted_.end() ? kNoRequest : by->second.first;
  }
  bool any() const { return !waiting_.empty(); }
  // The range of all waiting requests; first_waiting() > last_waiting() if no request waits.
  RequestId first_waiting() const { return waiting_.empty() ? kNoRequest : waiting_.begin()->first; }
  RequestId last_waiting() const { return waiting_.empty() ? 0 : waiting_.rbegin()->first; }

  // Returns how many of the first pages are wanted, if the first page is; else how many are not.
  Pages equally_wanted_prefix(std::span<const PageKey> keys) const {
    const bool is = first(keys.front()) != kNoRequest;
    const auto other = std::ranges::find_if(keys, [&](const PageKey& key) { return (first(key) != kNoRequest) != is; });
    return static_cast<Pages>(other - keys.begin());
  }

 private:
  // The requests that want one page, in order; usually one. Nearly all requests join at the end and leave at the front.
  // Both cost O(1), however many requests wait for a page that they share.
  struct Requests {
    RequestId first = kNoRequest;
    std::uint32_t gone = 0;  // entries of `later` that have left, from its front on
    std::vector<RequestId> later;

    void add(RequestId request) {
      if (request < first) std::swap(request, first);
      if (request != kNoRequest) later.insert(place_of(request), request);
    }
    bool is_last(RequestId request) const { return first == request && gone == later.size(); }
    void remove(RequestId request) {
      if (request != first) {
        later.erase(place_of(request));
        return;
      }
      first = later[gone++];
      if (2 * std::size_t{gone} < later.size()) return;
      later.erase(later.begin(), later.begin() + gone);
      gone = 0;
    }

   private:
    std::vector<RequestId>::iterator place_of(RequestId request) {
      return std::lower_bound(later.begin() + gone, later.end(), request);
    }
  };

  static constexpr Pages kMaxPages = 1U << 22;
  Pages pages_ = 0;
  std::map<RequestId, std::vector<std::uint64_t>> waiting_;
  std::unordered_map<std::uint64_t, Requests> wanted_;  // by the key's first word
};

}  // namespace kvtwin
