// The config.json of a small Llama, for tests that change single keys of it.
#pragma once

#include "models/json.hpp"

namespace kvtwin::test {

inline Json llama() {
  return {{"model_type", "llama"},    {"torch_dtype", "bfloat16"}, {"num_hidden_layers", 4},   {"hidden_size", 64},
          {"intermediate_size", 128}, {"num_attention_heads", 8},  {"num_key_value_heads", 2}, {"vocab_size", 100}};
}

}  // namespace kvtwin::test
