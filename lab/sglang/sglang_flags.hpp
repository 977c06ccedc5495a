// Converts flags of an SGLang server to an experiment, and back. lab/sglang/sglang_table has the flags of SGLang.
//
// Rules of reading:
// - A given flag overrides the experiment. If a flag is absent and the experiment does not set its key, SGLang's
// default is set.
// - SGLang's fixed behaviour (evicts whole nodes, keeps no clean reserve) overrides the experiment, and so do the tiers
// below the
//   GPU: without --enable-hierarchical-cache there is no host tier.
// - Notes of the experiment name every assumption, flags without effect, flags and values without a model, and the
// model that
//   takes their place.
// - The defaults and the fixed behaviour are those of a release of SGLang (sglang_releases.hpp).
// - An unknown flag or value is an InputError if it is at most two edits from a known one. Otherwise it may belong to a
// later
//   version, and becomes a note.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lab/engine_flags/flag_reader.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/experiment/sglang_releases.hpp"
#include "models/json.hpp"

namespace kvtwin {

// `flags`: the arguments of `python -m sglang.launch_server`; the line may also contain this command. Words are split
// as in a shell, with quotes. A value that begins with { may be JSON without quotes. `release`: null for the latest.
// Errors: InputError.
void apply_sglang_flags(Experiment& experiment, std::string_view flags, KeyList set_later = {},
                        const SglangRelease* release = nullptr);

// The same for one line, or for the lines of a prefill engine and of a decode engine (--disaggregation-mode), in any
// order. The decode engine's keys that differ become cluster.decode_set.
void apply_sglang_lines(Experiment& experiment, std::span<const std::string> lines, KeyList set_later = {},
                        const SglangRelease* release = nullptr);

// `file`: the answer of a running server's /server_info, or its ServerArgs: one JSON object. `release`: null for the
// release that the server reports. Errors: InputError.
void apply_sglang_server_info(Experiment& experiment, const std::filesystem::path& file, KeyList set_later = {},
                              const SglangRelease* release = nullptr);
void apply_sglang_server_info_text(Experiment& experiment, std::string_view json, const std::string& name,
                                   KeyList set_later = {}, const SglangRelease* release = nullptr);

// The same of the fields of ServerArgs, as a server's log has them. `source`: for notes and origins.
void apply_sglang_fields(Experiment& experiment, Json fields, const std::string& source, KeyList set_later = {},
                         const SglangRelease* release = nullptr);

// Sets the rules of the latest release's prefix cache that no flag changes. Requires: cache.write_policy is set.
void apply_sglang_cache_rules(Experiment& experiment, const std::string& origin);

// Returns all flags that the experiment sets, also defaults, in a fixed order. apply_sglang_flags() of this line gives
// the same experiment, except for the keys in the notes.
ServerLine to_sglang_flags(const Experiment& experiment, const Setup& setup);

}  // namespace kvtwin
