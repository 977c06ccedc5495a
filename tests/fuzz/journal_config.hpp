// The engine that the fuzzer of journals replays a journal with: chosen by the journal's last byte.
#pragma once

#include "policy/engine.hpp"

namespace kvtwin::test {

inline EngineConfig fuzzed_engine(unsigned pick) {
  EngineConfig config;
  config.shape = {2, 2, 1, 8, pick % 2 == 0 ? 4U : 1U};
  config.device_pages = pick % 4 < 2 ? 6 : 40;
  config.host_pages = pick % 8 < 4 ? 16 : 0;
  config.load_back_min_tokens = 1;
  config.chunk_tokens = 64;
  config.max_waiting = 64;
  config.hand_over.role = static_cast<EngineRole>(pick / 16 % 3);
  config.hand_over.unit = static_cast<HandOverUnit>(pick / 64 % 3);
  config.hand_over.from = config.hand_over.to = HandOverSide{config.shape, 1, Layout::layer_first};
  return config;
}

}  // namespace kvtwin::test
