// SGLang's server flags and an experiment, both ways. lab/sglang/sglang_table is what SGLang knows.
//
// Reading: a given flag overrides the experiment. A flag that isn't given takes SGLang's default where the experiment
// doesn't give its key. SGLang's fixed behaviour (it evicts whole nodes and keeps no clean reserve) overrides the
// experiment, and so do the tiers below the GPU: without --enable-hierarchical-cache there is no host tier.
// A note of the experiment says what was assumed, what has no effect here, which flags and values aren't modelled, and
// what stands for them. A flag or value that SGLang doesn't have is an InputError if it is at most two edits from one
// that it has; farther ones may be a later version's and become a note.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"

namespace kvtwin {

// `set_later`: keys that the caller sets afterwards; no note speaks of their value.
using KeyList = std::span<const std::string>;

// As behind `python -m sglang.launch_server`, which may stand there too: words as in a shell, with quotes; a value
// that begins with { may be JSON without them.
void apply_sglang_flags(Experiment& experiment, std::string_view flags, KeyList set_later = {});

// The answer of a running server's /server_info, or its ServerArgs: one JSON object.
void apply_sglang_server_info(Experiment& experiment, const std::filesystem::path& file, KeyList set_later = {});
void apply_sglang_server_info_text(Experiment& experiment, std::string_view json, const std::string& name,
                                   KeyList set_later = {});

struct SglangLine {
  std::string flags;               // to be read by a shell
  std::vector<std::string> notes;  // what the experiment says and no flag does
};
// Every flag that has a value in the experiment, defaults too, in a fixed order: apply_sglang_flags() of it gives the
// same experiment again but for what the notes name.
SglangLine to_sglang_flags(const Experiment& experiment, const Setup& setup);

}  // namespace kvtwin
