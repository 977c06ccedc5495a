// Names the weights of a model by the files of its checkpoint, so that weights that differ under one config.json have
// different names.
#pragma once

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

}  // namespace kvtwin
