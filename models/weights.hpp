// Names the weights of a model by the files of its checkpoint, so that weights that differ under one config.json have
// different names.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace kvtwin {

// Returns "weights-" and 32 hex digits: a 128-bit XXH3 hash of what the files of the weights are called, how long they
// are, and a sample of their bytes. `checkpoint`: a folder with a Hugging Face checkpoint, or one file of weights.
// Returns nullopt if there is no such folder or file, or if it has no weights.
//
// The files are those of the first kind that the folder has: *.safetensors, *.bin, *.gguf, *.pth, *.pt; with them
// config.json and *.index.json as a whole. A file of up to 1 MiB is read as a whole, of a longer one its first and last
// 64 KiB and 64 pieces of 4 KiB in between. Copies of a checkpoint have the same name on all machines. Weights that
// differ only in bytes outside the sample have the same name too: give such weights a revision of their own.
//
// Errors: std::runtime_error, one sentence, if a file cannot be read.
// Cost: at most 1 MiB of reads a file.
std::optional<std::string> weights_fingerprint(const std::filesystem::path& checkpoint);

// The bytes of the weights that a checkpoint has.
struct CheckpointBytes {
  std::optional<std::uint64_t> bytes;  // nothing: no safetensors, or none that says its size
  std::string from;                    // the file or files that say so, or the reason why none does; may be empty
};

// Returns the bytes of the tensors of the *.safetensors files in `folder`, by their headers, without the layers that
// predict further tokens (mtp.*, and model.layers.N with N >= `layers`), which are a draft model's. If files are
// missing: metadata.total_size of model.safetensors.index.json, which counts these layers too. Vision parts are
// counted.
//
// Cost: reads the headers, a few MB.
CheckpointBytes checkpoint_bytes(const std::filesystem::path& folder, std::uint64_t layers);

}  // namespace kvtwin
