// Prompts given as token ids, and what becomes of them: salted hashes of their blocks. Internal to traces/.
#pragma once

#include <string>
#include <vector>

#include "policy/base/types.hpp"
#include "traces/fields.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

class TokenBlocks {
 public:
  explicit TokenBlocks(const TraceOptions& options);

  Tokens block_tokens() const { return block_tokens_; }
  // Fills request.input and .blocks from an array of token ids; the last, partial block has an id of its tokens too.
  void read(const TraceLines& lines, std::string_view key, const JsonValue& value, TraceRequest& request);
  // Of the salt; empty if one was given.
  void add_notes(std::vector<std::string>& notes) const;

 private:
  Tokens block_tokens_;
  PageKey seed_;
  bool salted_;
  std::vector<std::uint32_t> tokens_;  // of the prompt being read
};

}  // namespace kvtwin
