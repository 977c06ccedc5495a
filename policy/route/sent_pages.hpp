// What an engine is likely to have, estimated from the prompts that were sent to it: the pages that were sent last are
// on the device, as many as the device holds; the pages before them are on the host, as many as the host holds.
//
//   sent --> device, least recently sent --> host, least recently sent --> forgotten
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/route.hpp"
#include "policy/route/page_holders.hpp"

namespace kvtwin {

class SentPages {
 public:
  explicit SentPages(const RouterSetup& setup)
      : device_pages_(setup.device_pages), host_pages_(setup.host_pages), engines_(setup.engines) {}

  // Adds the pages to `holders` on their tiers, and moves or removes the pages that lose their place.
  void sent(std::size_t engine, std::span<const PageKey> keys, PageHolders& holders) {
    Engine& own = engines_[engine];
    // The start of a chain is the last to be forgotten, because a prefix needs it.
    for (auto key = keys.rbegin(); key != keys.rend(); ++key) {
      const auto [at, is_new] = own.place_of.try_emplace(*key);
      Place& place = at->second;
      if (is_new) {
        own.device.push_front(*key);
      } else {
        own.device.splice(own.device.begin(), place.on_host ? own.host : own.device, place.at);
        if (place.on_host) holders.remove(engine, Tier::host, *key);
      }
      place = {false, own.device.begin()};
      holders.add(engine, Tier::device, *key);
    }
    while (own.device.size() > device_pages_) demote(engine, own, holders);
    while (own.host.size() > host_pages_) {
      holders.remove(engine, Tier::host, own.host.back());
      own.place_of.erase(own.host.back());
      own.host.pop_back();
    }
  }

 private:
  struct Place {
    bool on_host = false;
    std::list<PageKey>::iterator at;
  };
  struct Engine {
    std::list<PageKey> device, host;                           // most recently sent first
    std::unordered_map<PageKey, Place, PageKeyHash> place_of;  // looked up only, never iterated
  };

  static void demote(std::size_t engine, Engine& own, PageHolders& holders) {
    const PageKey key = own.device.back();
    own.host.splice(own.host.begin(), own.device, std::prev(own.device.end()));
    own.place_of.at(key) = {true, own.host.begin()};
    holders.add(engine, Tier::host, key);
    holders.remove(engine, Tier::device, key);
  }

  Pages device_pages_, host_pages_;  // of each engine
  std::vector<Engine> engines_;
};

}  // namespace kvtwin
