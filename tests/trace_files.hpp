// Paths of traces for tests. The bundled trace is always present. Larger public traces may be in ../shared/traces.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "tests/paths.hpp"

namespace kvtwin::test {

inline std::string bundled_trace() { return in_source("traces/chat_small.jsonl.zst"); }

// A file that another program wrote, for example "sglang/request_log.jsonl".
inline std::string fixture(const std::string& path) { return in_source("tests/fixtures/") + path; }
inline std::string sglang_fixture(const std::string& name) { return fixture("sglang/" + name); }

inline std::optional<std::string> shared_trace(const std::string& name) {
  const std::string path = in_source("../shared/traces/") + name;
  if (!std::filesystem::exists(path)) return std::nullopt;
  return path;
}

inline std::optional<std::string> conversation_trace() { return shared_trace("mooncake_conversation_trace.jsonl.zst"); }
inline std::optional<std::string> agentic_trace() { return shared_trace("agentic_coding_kct_2h.jsonl.zst"); }

}  // namespace kvtwin::test
