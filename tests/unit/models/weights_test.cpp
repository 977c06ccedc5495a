#include "models/weights.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>

#include "tests/folder.hpp"

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

}  // namespace
}  // namespace kvtwin::test
