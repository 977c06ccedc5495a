// Names the pages of an engine's KV events as a simulation of the engine's request log names them (format sglang,
// blocks of one page).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

class EventPages {
 public:
  struct Page {
    PageKey digest;  // of the chain of token ids
    PageKey key;     // in the simulation
  };

  // `salt`: that of the trace and of the page keys; empty: none.
  explicit EventPages(std::string salt) : salt_(std::move(salt)) {}

  // Returns the page of `tokens` that follows `parent`, or that begins a prompt, if `parent` is null, in the namespace
  // of `cache_salt` (empty: the default one).
  Page page(const Page* parent, std::span<const std::uint32_t> tokens, std::string_view cache_salt) const;

 private:
  std::string salt_;
};

}  // namespace kvtwin
