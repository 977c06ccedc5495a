// Converts prompts of token ids to blocks whose ids are salted hashes. The token ids are not kept. Internal to traces/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "traces/fields.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// Returns the key before the first block of a prompt.
PageKey token_blocks_seed(std::string_view salt);

// Appends a part of a namespace, for example cache_salt. Different parts give different texts.
void append_namespace_part(std::string& space, std::string_view name, std::string_view value);

class TokenBlocks {
 public:
  explicit TokenBlocks(const TraceOptions& options);

  Tokens block_tokens() const { return block_tokens_; }
  // Fills request.input and request.blocks from an array of token ids. A partial last block also has a hash.
  void read(const TraceLines& lines, std::string_view key, const JsonValue& value, TraceRequest& request);
  // Fills request.answer_blocks from the answer to the prompt that read() read last. Leaves them empty if `value` is
  // not an array of request.output token ids, and returns false then.
  bool read_answer(const JsonValue& value, TraceRequest& request);
  // Appends a warning if the options have no salt.
  void add_notes(std::vector<std::string>& notes) const;

 private:
  Tokens block_tokens_;
  PageKey seed_;
  bool salted_;
  std::vector<std::uint32_t> tokens_;  // of the current prompt; a member to reuse the memory
  PageKey last_whole_;                 // key of the current prompt's last whole block
};

}  // namespace kvtwin
