// Lines of SGLang's request log.
#pragma once

#include <cstdio>
#include <string>

namespace kvtwin::test {

// A log of SGLang with one request per second; request i has the block i.
inline std::string sglang_lines(int from, int to, int latency_s = 1) {
  std::string text;
  for (int i = from; i < to; ++i) {
    const auto date = [](int second) {
      char out[32];
      std::snprintf(out, sizeof out, "2026-11-29T10:%02d:%02d", second / 60, second % 60);
      return std::string(out);
    };
    const std::string rid = "r" + std::to_string(i);
    text += R"({"timestamp": ")" + date(i) + R"(", "event": "request.received", "rid": ")" + rid + "\", \"obj\": {}}\n";
    text += R"({"timestamp": ")" + date(i + latency_s) + R"(", "event": "request.finished", "rid": ")" + rid +
            R"(", "obj": {"input_ids": [)" + std::to_string(i) +
            R"(, 1]}, "out": {"meta_info": {"completion_tokens": 1, "e2e_latency": )" + std::to_string(latency_s) +
            "}}}\n";
  }
  return text;
}

}  // namespace kvtwin::test
