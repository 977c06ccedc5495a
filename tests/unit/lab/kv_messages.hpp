// The messages that SGLang's publisher sent (tests/fixtures/sglang/capture_engine.py).
#pragma once

#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "models/json.hpp"
#include "tests/trace_files.hpp"

namespace kvtwin::test {

struct KvMessage {
  std::string topic;
  std::uint64_t seq = 0;
  std::vector<std::uint8_t> payload;
};

inline const std::vector<KvMessage>& sglang_messages() {
  static const std::vector<KvMessage> all = [] {
    std::vector<KvMessage> messages;
    std::ifstream in(sglang_fixture("engine_messages.jsonl"));
    for (std::string line; std::getline(in, line);) {
      const Json json = Json::parse(line);
      KvMessage message{json.at("topic"), json.at("seq"), {}};
      const std::string hex = json.at("payload");
      for (std::size_t at = 0; at + 1 < hex.size(); at += 2) {
        message.payload.push_back(static_cast<std::uint8_t>(std::stoul(hex.substr(at, 2), nullptr, 16)));
      }
      messages.push_back(std::move(message));
    }
    return messages;
  }();
  return all;
}

}  // namespace kvtwin::test
