#include "models/weights.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string_view>
#include <vector>

#include "models/error.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 5> kWeightSuffixes{".safetensors", ".bin", ".gguf", ".pth", ".pt"};
constexpr std::uint64_t kMaxWholeBytes = 1 << 20, kEndBytes = 64 << 10, kPieceBytes = 4 << 10, kPieces = 64;

class FileSample {
 public:
  FileSample() : state_(XXH3_createState(), &XXH3_freeState) {
    if (!state_) throw std::bad_alloc();
    XXH3_128bits_reset(state_.get());
  }
  // Each number and text has a fixed length or its length before it, so that none runs into the next one.
  void add(std::uint64_t number) {
    std::array<unsigned char, 8> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<unsigned char>(number >> 8 * i);
    XXH3_128bits_update(state_.get(), bytes.data(), bytes.size());
  }
  void add(std::string_view text) {
    add(text.size());
    XXH3_128bits_update(state_.get(), text.data(), text.size());
  }
  void add_file(const fs::path& path, bool whole) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    const auto bytes = static_cast<std::uint64_t>(std::max<std::streamoff>(file.tellg(), 0));
    add(path.filename().string());
    add(bytes);
    const auto read = [&](std::uint64_t from, std::uint64_t count) {
      std::string piece(count, '\0');
      file.seekg(static_cast<std::streamoff>(from));
      file.read(piece.data(), static_cast<std::streamsize>(count));
      add(piece);
    };
    if (whole || bytes <= kMaxWholeBytes) {
      read(0, bytes);
    } else {
      read(0, kEndBytes);
      const std::uint64_t step = (bytes - 2 * kEndBytes) / kPieces;
      for (std::uint64_t i = 0; i < kPieces; ++i) read(kEndBytes + i * step, kPieceBytes);
      read(bytes - kEndBytes, kEndBytes);
    }
    if (!file) {
      throw ModelError(path.string() + ": can't be read, and the name of the weights depends on it; make it readable");
    }
  }
  std::string text() const {
    const XXH128_hash_t hash = XXH3_128bits_digest(state_.get());
    std::array<char, 48> text{};
    std::snprintf(text.data(), text.size(), "weights-%016llx%016llx", static_cast<unsigned long long>(hash.high64),
                  static_cast<unsigned long long>(hash.low64));
    return text.data();
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

std::vector<fs::path> files_in(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    std::error_code unknown;
    if (it->is_regular_file(unknown)) files.push_back(it->path());  // also by a link, as in the Hugging Face cache
  }
  if (error) {
    throw ModelError(folder.string() +
                     ": can't be listed, and the name of the weights depends on its files; make it "
                     "readable");
  }
  std::ranges::sort(files, {}, [](const fs::path& path) { return path.filename().string(); });
  return files;
}

}  // namespace

std::optional<std::string> weights_fingerprint(const fs::path& checkpoint) {
  std::error_code error;
  FileSample sample;
  if (fs::is_regular_file(checkpoint, error)) {
    if (std::ranges::find(kWeightSuffixes, checkpoint.extension().string()) == kWeightSuffixes.end()) {
      return std::nullopt;
    }
    sample.add_file(checkpoint, false);
    return sample.text();
  }
  if (!fs::is_directory(checkpoint, error)) return std::nullopt;
  const std::vector<fs::path> files = files_in(checkpoint);
  for (const std::string_view suffix : kWeightSuffixes) {
    const auto is_weights = [&](const fs::path& path) { return path.extension() == suffix; };
    if (std::ranges::none_of(files, is_weights)) continue;
    for (const fs::path& path : files) {
      const std::string name = path.filename().string();
      const bool describes = name == "config.json" || name.ends_with(".index.json");
      if (describes || is_weights(path)) sample.add_file(path, describes);
    }
    return sample.text();
  }
  return std::nullopt;
}

}  // namespace kvtwin
