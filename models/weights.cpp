#include "models/weights.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "models/config_reader.hpp"
#include "models/error.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"

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

// Whether layers with this name before their number are of the language model. An encoder of images or sound has
// numbers of its own.
bool is_of_language(std::string_view before) {
  for (const std::string_view part : {"model.", "language_model.", "model."}) {
    if (before.starts_with(part)) before.remove_prefix(part.size());
  }
  return before.empty();
}

// Whether the tensor is of a layer that predicts further tokens.
bool predicts(std::string_view tensor, std::uint64_t layers) {
  if (tensor.starts_with("mtp.")) return true;
  constexpr std::string_view kLayers = "layers.";
  const std::size_t at = tensor.find(kLayers);
  if (at == std::string_view::npos || !is_of_language(tensor.substr(0, at))) return false;
  std::uint64_t layer = 0;
  const char* const begin = tensor.data() + at + kLayers.size();
  const auto [end, error] = std::from_chars(begin, tensor.data() + tensor.size(), layer);
  return error == std::errc() && end != begin && layer >= layers;
}

// Returns the bytes of the tensors of one file by its header; nothing if it has no header.
std::optional<std::uint64_t> tensor_bytes(const fs::path& path, std::uint64_t layers) {
  constexpr std::uint64_t kMaxHeaderBytes = 100 << 20;
  std::ifstream file(path, std::ios::binary);
  std::array<unsigned char, 8> length_bytes{};
  file.read(reinterpret_cast<char*>(length_bytes.data()), length_bytes.size());
  std::uint64_t length = 0;
  for (std::size_t i = length_bytes.size(); i-- > 0;) length = length << 8 | length_bytes[i];
  std::error_code error;
  const std::uint64_t size = fs::file_size(path, error);
  if (!file || error || length < 2 || length > kMaxHeaderBytes || length + length_bytes.size() > size) {
    return std::nullopt;
  }
  std::string text(length, '\0');
  file.read(text.data(), static_cast<std::streamsize>(length));
  const Json header = Json::parse_or_discard(text);
  if (!file || !header.is_object()) return std::nullopt;
  std::uint64_t bytes = 0;
  for (const auto& [name, tensor] : header.items()) {
    if (name == "__metadata__" || predicts(name, layers)) continue;
    const auto offsets = tensor.is_object() ? tensor.find("data_offsets") : tensor.end();
    const bool sound = tensor.is_object() && offsets != tensor.end() && offsets->is_array() && offsets->size() == 2 &&
                       (*offsets)[0].is_number_unsigned() && (*offsets)[1].is_number_unsigned() &&
                       (*offsets)[0] <= (*offsets)[1] && (*offsets)[1] <= size;
    if (!sound) return std::nullopt;
    bytes += (*offsets)[1].get<std::uint64_t>() - (*offsets)[0].get<std::uint64_t>();
  }
  return bytes;
}

// The index of a checkpoint: the files, and the bytes of all tensors.
struct WeightIndex {
  std::set<std::string> files;
  std::optional<std::uint64_t> bytes;
  bool is_pointer = false;  // of git-lfs: a clone without it has a few lines of text in place of each large file
};

std::optional<WeightIndex> read_index(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  constexpr std::size_t kMaxIndexBytes = std::size_t{256} << 20;  // of a trillion parameters: 50 MB
  const std::string text = read_text_file(path, "give the index of a checkpoint (JSON)", kMaxIndexBytes);
  WeightIndex index;
  index.is_pointer = text.starts_with("version https://git-lfs");
  if (index.is_pointer) return index;
  const Json object = parse_object(text, path.string());
  if (const auto map = object.find("weight_map"); map != object.end() && map->is_object()) {
    for (const auto& [tensor, file] : map->items()) {
      if (file.is_string()) index.files.insert(file.get<std::string>());
    }
  }
  const auto metadata = object.find("metadata");
  if (metadata == object.end() || !metadata->is_object() || !metadata->contains("total_size")) return index;
  const Json& size = (*metadata)["total_size"];
  constexpr double kMostBytes = 1e15;
  if (!size.is_number() || !(size.get<double>() > 0) || !(size.get<double>() < kMostBytes)) {
    throw ModelError(path.string() + ": key \"metadata.total_size\" must be the bytes of the weights, below 10^15.");
  }
  index.bytes = static_cast<std::uint64_t>(size.get<double>());
  return index;
}

}  // namespace

CheckpointBytes checkpoint_bytes(const fs::path& folder, std::uint64_t layers) {
  const fs::path index_path = folder / "model.safetensors.index.json";
  const std::optional<WeightIndex> index = read_index(index_path);
  std::set<std::string> files = index ? index->files : std::set<std::string>{};
  std::error_code error;
  if (!index && fs::is_regular_file(folder / "model.safetensors", error)) files = {"model.safetensors"};
  if (files.empty() && !index) return {};
  std::uint64_t sum = 0;
  std::string reason;
  for (const std::string& name : files) {
    const std::optional<std::uint64_t> bytes = tensor_bytes(folder / name, layers);
    if (!bytes) {
      reason = (folder / name).string() + " has no header of safetensors";
      break;
    }
    sum += *bytes;
  }
  if (reason.empty() && sum != 0) {
    return {sum, "the headers of " + std::to_string(files.size()) + " safetensors files in " + folder.string()};
  }
  if (index && index->bytes) return {index->bytes, index_path.string()};
  if (!reason.empty()) return {std::nullopt, reason};
  return {std::nullopt, index_path.string() + (index && index->is_pointer ? " is a pointer of git-lfs, not the index"
                                                                          : " has no metadata.total_size")};
}

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
