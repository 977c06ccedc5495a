// The first lines of the log of an inference server: its arguments, and the size of its KV cache.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "models/json.hpp"

namespace kvtwin {

struct ServerLog {
  bool of_vllm = false;  // else of SGLang
  // By the names of the server's arguments: of SGLang all, in `server_args=ServerArgs(...)`; of vLLM those of
  // `non-default args: {...}`, or else those that `Initializing a V1 LLM engine ... with config: ...` has.
  Json arguments = Json::object();
  std::int64_t pool_tokens = 0;  // `max_total_num_tokens=N`, `KV cache size: N tokens`; 0: not printed
  std::string version;           // empty: not printed
};

// `where`: for errors. Errors: InputError for a text without such lines, and for a line that is cut short.
ServerLog read_server_log(std::string_view text, const std::string& where);

}  // namespace kvtwin
