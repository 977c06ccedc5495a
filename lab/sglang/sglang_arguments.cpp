#include "lab/sglang/sglang_arguments.hpp"

#include <vector>

#include "lab/sglang/sglang_flags.hpp"

namespace kvtwin {

void apply_sglang(const SglangArguments& arguments, std::span<const std::string> set_later, Experiment& experiment) {
  std::vector<std::string> keys;
  for (const std::string& text : set_later) keys.push_back(text.substr(0, text.find('=')));
  if (arguments.flags) apply_sglang_flags(experiment, *arguments.flags, keys);
  if (arguments.server_info) apply_sglang_server_info(experiment, *arguments.server_info, keys);
}

}  // namespace kvtwin
