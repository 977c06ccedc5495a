// An SGLang server's settings, as a command line or a caller gives them, applied to an experiment.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "lab/experiment/experiment.hpp"

namespace kvtwin {

struct SglangArguments {
  std::optional<std::string> flags, server_info;  // the flag line; a file
};

// Sets the keys and adds the notes, but for notes on the keys in `set_later`, which the caller sets afterwards. A key
// may have its value behind it, as in --set. InputError.
void apply_sglang(const SglangArguments& arguments, std::span<const std::string> set_later, Experiment& experiment);

}  // namespace kvtwin
