#include "models/weights.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/error.hpp"
#include "models/geometry.hpp"
#include "models/json.hpp"
#include "tests/folder.hpp"
#include "tests/small_config.hpp"

namespace kvtwin::test {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string bytes_of(std::size_t count, char first = 'a') {
  std::string bytes(count, first);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<char>(first + static_cast<char>(i % 23));
  return bytes;
}

constexpr std::size_t kLongBytes = std::size_t{3} << 20;

void write_checkpoint(const fs::path& folder) {
  write(folder / "config.json", "{\"layers\": 2}");
  write(folder / "model.safetensors.index.json", "{\"weight_map\": {}}");
  write(folder / "model-1.safetensors", bytes_of(1000));
  write(folder / "model-2.safetensors", bytes_of(kLongBytes));
  write(folder / "tokenizer.json", "tokens");
}

TEST(WeightsFingerprint, IsEqualForCopiesOfACheckpoint) {
  const Folder folder;
  write_checkpoint(folder / "a");
  write_checkpoint(folder / "b");
  const auto name = weights_fingerprint(folder / "a");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->size(), 40);
  EXPECT_EQ(name->substr(0, 8), "weights-");
  EXPECT_EQ(weights_fingerprint(folder / "b"), name);
  write(fs::path(folder / "b") / "tokenizer.json", "others");
  write(fs::path(folder / "b") / "pytorch_model.bin", "the same weights in another format");
  write(fs::path(folder / "b") / "original/model-1.safetensors", "a folder inside");
  EXPECT_EQ(weights_fingerprint(folder / "b"), name) << "files that are no weights do not count";
  // The cache of Hugging Face has links in place of files.
  fs::create_directories(folder / "c");
  for (const auto& entry : fs::directory_iterator(folder / "a")) {
    fs::create_symlink(entry.path(), fs::path(folder / "c") / entry.path().filename());
  }
  EXPECT_EQ(weights_fingerprint(folder / "c"), name);
}

TEST(WeightsFingerprint, DiffersWithEachPart) {
  const Folder folder;
  std::set<std::string> names;
  const auto add_after = [&](const std::function<void(const fs::path&)>& change) {
    const fs::path place = folder / std::to_string(names.size());
    write_checkpoint(place);
    change(place);
    names.insert(weights_fingerprint(place).value());
  };
  const auto flipped = [](std::size_t count, std::size_t at) {
    std::string bytes = bytes_of(count);
    bytes[at] ^= 1;
    return bytes;
  };
  std::size_t changes = 0;
  const auto expect_another = [&](const std::function<void(const fs::path&)>& change) {
    add_after(change);
    EXPECT_EQ(names.size(), ++changes);
  };
  expect_another([](const fs::path&) {});
  expect_another([](const fs::path& p) { write(p / "config.json", "{\"layers\": 3}"); });
  expect_another([](const fs::path& p) { write(p / "model.safetensors.index.json", "{}"); });
  expect_another([](const fs::path& p) { fs::remove(p / "model.safetensors.index.json"); });
  expect_another([](const fs::path& p) { fs::remove(p / "model-1.safetensors"); });
  expect_another([](const fs::path& p) { fs::rename(p / "model-1.safetensors", p / "model-0.safetensors"); });
  expect_another([](const fs::path& p) { write(p / "model-1.safetensors", bytes_of(999)); });
  expect_another([&](const fs::path& p) { write(p / "model-1.safetensors", flipped(1000, 500)); });
  expect_another([](const fs::path& p) { write(p / "model-2.safetensors", bytes_of(kLongBytes + 1)); });
  constexpr std::size_t kEnd = 64 << 10, kStep = (kLongBytes - 2 * kEnd) / 64;
  for (const std::size_t at :
       {std::size_t{0}, kEnd - 1, kEnd + kStep, kEnd + 63 * kStep + 4095, kLongBytes - kEnd, kLongBytes - 1}) {
    expect_another([&](const fs::path& p) { write(p / "model-2.safetensors", flipped(kLongBytes, at)); });
  }
}

TEST(WeightsFingerprint, TakesTheFirstKindOfFiles) {
  const Folder folder;
  const fs::path place = folder / "m";
  EXPECT_EQ(weights_fingerprint(place), std::nullopt) << "no folder";
  write(place / "config.json", "{}");
  EXPECT_EQ(weights_fingerprint(place), std::nullopt) << "no weights";
  EXPECT_EQ(weights_fingerprint(place / "config.json"), std::nullopt);
  std::set<std::string> names;
  for (const char* file : {"a.pt", "a.pth", "a.gguf", "a.bin", "a.safetensors"}) {
    write(place / file, "w");
    names.insert(weights_fingerprint(place).value());
    names.insert(weights_fingerprint(place / file).value());
  }
  EXPECT_EQ(names.size(), 10);
}

// A file of safetensors: a header that names each tensor with its bytes, and the bytes.
std::string safetensors(const std::vector<std::pair<std::string, std::size_t>>& tensors) {
  std::string header = "{\"__metadata__\": {\"format\": \"pt\"}";
  std::size_t at = 0;
  for (const auto& [name, bytes] : tensors) {
    header += ", \"" + name + "\": {\"dtype\": \"U8\", \"shape\": [" + std::to_string(bytes) +
              "], \"data_offsets\": [" + std::to_string(at) + ", " + std::to_string(at + bytes) + "]}";
    at += bytes;
  }
  header += "}";
  std::string file;
  for (std::size_t i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> 8 * i & 255U);
  return file + header + std::string(at, 'w');
}

TEST(CheckpointBytes, AreThoseOfTheTensors) {
  const Folder folder;
  EXPECT_EQ(checkpoint_bytes(folder.path(), 2).bytes, std::nullopt);
  EXPECT_EQ(checkpoint_bytes(folder.path(), 2).from, "");
  write(folder / "model.safetensors", safetensors({{"model.layers.0.a", 100}, {"lm_head", 11}}));
  EXPECT_EQ(checkpoint_bytes(folder.path(), 2).bytes, 111U);
  write(folder / "model-1.safetensors", safetensors({{"model.layers.0.a", 100}, {"model.layers.1.a", 200}}));
  write(folder / "model-2.safetensors",
        safetensors({{"model.layers.2.a", 1000}, {"mtp.layers.0.a", 5000}, {"lm_head", 7}}));
  write(
      folder / "model.safetensors.index.json",
      R"({"metadata": {"total_size": 6307}, "weight_map": {"x": "model-1.safetensors", "y": "model-2.safetensors"}})");
  EXPECT_EQ(checkpoint_bytes(folder.path(), 2).bytes, 307U) << "without the layers that predict";
  EXPECT_EQ(checkpoint_bytes(folder.path(), 3).bytes, 1307U);
  fs::remove(folder / "model-2.safetensors");
  const CheckpointBytes index = checkpoint_bytes(folder.path(), 2);
  EXPECT_EQ(index.bytes, 6307U);
  EXPECT_NE(index.from.find("model.safetensors.index.json"), std::string::npos);
}

// PaliGemma has 18 layers of text and 27 of images; a prefix differs from release to release of the checkpoints.
TEST(CheckpointBytes, HaveAllLayersOfTheOtherEncoders) {
  const Folder folder;
  write(folder / "model.safetensors", safetensors({{"vision_tower.vision_model.encoder.layers.26.a", 1},
                                                   {"model.vision_tower.encoder.layers.26.a", 2},
                                                   {"audio_tower.layers.31.a", 4},
                                                   {"language_model.model.layers.17.a", 8},
                                                   {"language_model.model.layers.18.a", 100},
                                                   {"model.language_model.layers.18.a", 100},
                                                   {"model.layers.18.a", 100},
                                                   {"layers.18.a", 100}}));
  EXPECT_EQ(checkpoint_bytes(folder.path(), 18).bytes, 15U);
}

TEST(CheckpointBytes, AFileWithoutAHeaderSaysNothing) {
  const Folder folder;
  for (const std::string& bytes : {std::string("version https://git-lfs"), std::string("abc"), std::string(100, '\0'),
                                   safetensors({{"a", 100}}).substr(0, 20)}) {
    write(folder / "model.safetensors", bytes);
    const CheckpointBytes found = checkpoint_bytes(folder.path(), 2);
    EXPECT_EQ(found.bytes, std::nullopt);
    EXPECT_NE(found.from.find("no header of safetensors"), std::string::npos);
  }
  write(folder / "model.safetensors.index.json", "version https://git-lfs\noid sha256:0\nsize 1\n");
  EXPECT_EQ(checkpoint_bytes(folder.path(), 2).bytes, std::nullopt);
  EXPECT_NE(checkpoint_bytes(folder.path(), 2).from.find("is a pointer of git-lfs"), std::string::npos);
  write(folder / "model.safetensors.index.json", R"({"metadata": {"total_size": -3}, "weight_map": {}})");
  EXPECT_THROW(checkpoint_bytes(folder.path(), 2), ModelError);
  write(folder / "model.safetensors.index.json", R"({"metadata": {"total_size": 5.0}, "weight_map": {}})");
  EXPECT_EQ(checkpoint_bytes(folder.path(), 2).bytes, 5U);
}

TEST(CheckpointBytes, ReplaceThoseOfTheConfig) {
  const Folder folder;
  write(folder / "config.json", llama().dump());
  const ModelGeometry computed = model_from_file(folder / "config.json");
  EXPECT_TRUE(computed.notes.empty());
  write(folder / "model.safetensors", safetensors({{"lm_head", 100'000}}));
  const ModelGeometry m = model_from_file(folder / "config.json");
  EXPECT_EQ(m.weight_bytes, 100'000U);
  EXPECT_NEAR(static_cast<double>(m.group_weight_bytes) / 100'000,
              static_cast<double>(computed.group_weight_bytes) / static_cast<double>(computed.weight_bytes), 1e-3);
  ASSERT_EQ(m.notes.size(), 1U);
  EXPECT_NE(m.notes[0].find("100000 bytes, by the headers of 1 safetensors"), std::string::npos) << m.notes[0];
  const ModelGeometry chosen = model_from_file(folder / "config.json", KvDtype::automatic, WeightChoice::bf16);
  EXPECT_EQ(chosen.weight_bytes, computed.weight_bytes) << "a choice of the user";
}

}  // namespace
}  // namespace kvtwin::test
