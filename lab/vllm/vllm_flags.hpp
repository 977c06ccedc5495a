// Converts the command line of a vLLM server to an experiment, and back. lab/vllm/vllm_table has the flags of vLLM.
//
// The rules of reading are those of lab/sglang/sglang_flags.hpp: a given flag overrides the experiment, an absent one
// sets vLLM's default where the experiment does not set its key, and notes name every assumption, and every flag and
// value without a model.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lab/engine_flags/flag_reader.hpp"
#include "lab/experiment/experiment.hpp"
#include "lab/experiment/setup.hpp"
#include "models/json.hpp"

namespace kvtwin {

// `line`: as people paste it: variables before the command, `vllm serve MODEL`, `python -m
// vllm.entrypoints.openai.api_server`, `docker run ... vllm/vllm-openai:TAG ...`, or flags alone. Words are split as in
// a shell. Names may have _ for -, and a JSON argument may be given in parts (--kv-transfer-config.kv_role kv_both).
// `hardware`: the GPU, on which vLLM's defaults depend. Errors: InputError.
void apply_vllm_line(Experiment& experiment, std::string_view line, const HardwareSpec& hardware,
                     KeyList set_later = {});

// The same of values by the names of vLLM's arguments, as a server's log has them. `source`: for notes and origins.
// `pool_tokens`: the size of the KV cache that the server printed; 0: it printed none.
void apply_vllm_arguments(Experiment& experiment, Json arguments, std::int64_t pool_tokens, const std::string& source,
                          const HardwareSpec& hardware, KeyList set_later = {});

// Returns the command of a server that is as the experiment. apply_vllm_line() of it gives the same experiment, but for
// the keys in the notes.
ServerLine to_vllm_line(const Experiment& experiment, const Setup& setup);

}  // namespace kvtwin
