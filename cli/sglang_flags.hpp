// SGLang's server flags and an experiment, both ways. cli/sglang_table is what SGLang knows.
//
// Reading: what is given overrides the experiment. What isn't given takes SGLang's default where the experiment says
// nothing either, and the tiers below the GPU are the flags' alone: without --enable-hierarchical-cache there is no
// host tier. Whatever was assumed, or is known and has no effect here, becomes a note of the experiment; an unknown
// flag or an illegal value is an InputError. A legal value that kvtwin doesn't serve is handed on to its key, whose
// own refusal then names the flag.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "cli/experiment.hpp"
#include "cli/setup.hpp"

namespace kvtwin {

// As behind `python -m sglang.launch_server`, which may stand there too: words as in a shell, with quotes; a value
// that begins with { may be JSON without them.
void apply_sglang_flags(Experiment& experiment, std::string_view flags);

// What /get_server_info of a running server says, or its ServerArgs: one JSON object.
void apply_sglang_server_info(Experiment& experiment, const std::filesystem::path& file);
void apply_sglang_server_info_text(Experiment& experiment, std::string_view json, const std::string& name);

struct SglangLine {
  std::string flags;               // to be read by a shell
  std::vector<std::string> notes;  // what the experiment says and no flag does
};
// Every flag that has a value in the experiment, defaults too, in a fixed order: apply_sglang_flags() of it gives the
// same experiment again but for what the notes name.
SglangLine to_sglang_flags(const Experiment& experiment, const Setup& setup);

}  // namespace kvtwin
