#include "traces/token_ids.hpp"

#include <limits>

#include "policy/index/page_key.hpp"

namespace kvtwin {

namespace {

constexpr Tokens kIdsBlockTokens = 64;
constexpr std::string_view kDefaultSalt = "kvtwin";

}  // namespace

PageKey token_blocks_seed(std::string_view salt) {
  return *namespace_seed(std::nullopt, salt.empty() ? kDefaultSalt : salt);
}

void append_namespace_part(std::string& space, std::string_view name, std::string_view value) {
  space.append(name).append(" ").append(std::to_string(value.size())).append(" ").append(value);
}

TokenBlocks::TokenBlocks(const TraceOptions& options)
    : block_tokens_(options.block_tokens == 0 ? kIdsBlockTokens : options.block_tokens),
      seed_(token_blocks_seed(options.salt)),
      salted_(!options.salt.empty()) {}

// A block id is 64 bits of the chain's digest. Among ten million different blocks, the probability that any two have
// the same id is 3e-6.
void TokenBlocks::read(const TraceLines& lines, std::string_view key, const JsonValue& value, TraceRequest& request) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) lines.fail(key, "must be an array of token ids");
  tokens_.clear();
  for (const JsonValue& element : array) {
    std::uint64_t token = 0;
    if (element.get(token) != simdjson::SUCCESS || token > std::numeric_limits<std::uint32_t>::max()) {
      lines.fail(key, "must hold token ids, integers of 32 bits; entry " + std::to_string(tokens_.size()) +
                          " (from 0) is something else");
    }
    tokens_.push_back(static_cast<std::uint32_t>(token));
  }
  if (tokens_.empty()) lines.fail(key, "is empty; a request has at least 1 input token");
  request.input = tokens_.size();
  PageKey page = last_whole_ = seed_;
  for (std::size_t at = 0; at < tokens_.size(); at += block_tokens_) {
    const std::size_t count = std::min<std::size_t>(block_tokens_, tokens_.size() - at);
    page = token_page_key(&page, std::span(tokens_).subspan(at, count));
    request.blocks.push_back(page.words[0]);
    if (count == block_tokens_) last_whole_ = page;
  }
}

bool TokenBlocks::read_answer(const JsonValue& value, TraceRequest& request) {
  simdjson::dom::array array;
  if (value.get(array) != simdjson::SUCCESS) return false;
  tokens_.erase(tokens_.begin(), tokens_.end() - static_cast<std::ptrdiff_t>(request.input % block_tokens_));
  std::size_t answer = 0;
  for (const JsonValue& element : array) {
    std::uint64_t token = 0;
    if (element.get(token) != simdjson::SUCCESS || token > std::numeric_limits<std::uint32_t>::max()) return false;
    tokens_.push_back(static_cast<std::uint32_t>(token));
    ++answer;
  }
  if (answer != request.output) return false;
  for (std::size_t at = 0; at + block_tokens_ <= tokens_.size(); at += block_tokens_) {
    last_whole_ = token_page_key(&last_whole_, std::span(tokens_).subspan(at, block_tokens_));
    request.answer_blocks.push_back(last_whole_.words[0]);
  }
  return true;
}

void TokenBlocks::add_notes(std::vector<std::string>& notes) const {
  if (salted_) return;
  notes.push_back(
      "trace: block ids are hashes of the prompts with the default salt: who guesses a prompt can tell that it is in "
      "there; give a salt of your own before you pass them on");
}

}  // namespace kvtwin
