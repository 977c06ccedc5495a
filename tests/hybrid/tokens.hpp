// The tokens of the segments in a sequence, and the keys of their pages.
#pragma once

#include "policy/index/block_groups.hpp"
#include "policy/index/page_key.hpp"
#include "tests/hybrid/hybrid_server.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin::test {

std::unique_ptr<HybridServer> make_sglang_server(const Json& config);
std::unique_ptr<HybridServer> make_vllm_server(const Json& config);
std::unique_ptr<HybridServer> make_vllm_host_server(const Json& config);

// vLLM's pool of a configuration, and the tokens of a page.
struct VllmPool {
  BlockGroupsConfig config;
  Tokens page = 0;
};
VllmPool vllm_pool_of(const Json& config);

std::unique_ptr<HybridServer> make_offload_server(const Json& config);

// Token j of segment s is s * 65,536 + j.
inline std::vector<std::uint64_t> tokens_of(const Json& segments) {
  std::vector<std::uint64_t> tokens;
  for (const Json& segment : segments) {
    const std::uint64_t first = segment.at(0).get<std::uint64_t>() * 65'536;
    for (std::uint64_t j = 0; j < segment.at(1).get<std::uint64_t>(); ++j) tokens.push_back(first + j);
  }
  return tokens;
}

// Of the full pages.
inline std::vector<PageKey> keys_of(const std::vector<std::uint64_t>& tokens, Tokens page) {
  std::vector<PageKey> keys;
  PageKey key;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    key = chain_key(key, tokens[i]);
    if ((i + 1) % page == 0) keys.push_back(key);
  }
  return keys;
}

}  // namespace kvtwin::test
