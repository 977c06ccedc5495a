// When a page is written to the tiers below L1 (cache.write_policy). Each engine has one WritePolicy.
//
// A write policy is two constants. The cache has the mechanism (policy/cache.hpp describes both ways). So a policy
// decides whether a page is written ahead, after how many inserts, or only when it is chosen to leave L1. It does not
// decide which page is written, in which order, to which tier, or how large the clean reserve is (cache.clean_reserve).
// A policy learns nothing at run time; that would need changes of the cache.
//
// A policy is one file, policy/write/NAME.cpp, that defines std::unique_ptr<WritePolicy> make_NAME_write_policy(const
// Parameters&); the build finds the file by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/parameters.hpp"

namespace kvtwin {

class WritePolicy {
 public:
  virtual ~WritePolicy() = default;
  // Returns how many requests must have inserted a prefix completely before it is written: at least 1. The key
  // cache.write_threshold replaces this number, unless the key is 0.
  virtual std::uint32_t writes_after_inserts() const = 0;
  // True: pages are written to L2 when they are chosen to leave L1, ahead of need, however often they were inserted.
  // Without L2, pages are written to the storage tiers by writes_after_inserts(), as under any policy.
  virtual bool writes_when_evicted() const { return false; }
};

// Known names.
std::span<const std::string_view> write_policy_names();
// `text`: a name, with parameters or without (policy/choices.hpp). Null for a text with a fault.
std::unique_ptr<WritePolicy> make_write_policy(std::string_view text);

}  // namespace kvtwin
