// Run folders with and without a journal, made by the program, and journals taken apart and put together again.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/journal_test_support.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {

inline std::vector<std::byte> bytes_of(const fs::path& path) {
  const std::string text = text_of(path);
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

inline void write_bytes(const fs::path& path, std::span<const std::byte> bytes) {
  write_text(path, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// Both tiers evict and hit, and requests wait, are rejected and retracted.
inline Settings tight() {
  return {"tiers.device.tokens=12032", "tiers.host.tokens=40064", "scheduler.max_waiting=40",
          "scheduler.chunk_tokens=2048"};
}

// A journal as its parts.
struct Taken {
  explicit Taken(const fs::path& path) : bytes(bytes_of(path)) {
    JournalReader reader(bytes);
    reader.header();
    text = reader.text();
    JournalRecord record;
    while ((status = reader.next(record)) == JournalStatus::record) {
      records.push_back(kept(record.input, record.after));
      ends.push_back(reader.place().offset);
    }
    ends.push_back(reader.place().offset);  // where the end record begins
  }
  std::vector<std::byte> bytes;
  std::string text;
  std::vector<KeptRecord> records;
  std::vector<std::size_t> ends;  // where record i + 1 begins
  JournalStatus status = JournalStatus::record;
};

// Writes the run of `settings` to `folder`/`name`; throws when that fails.
inline Json simulate_to(const Folder& folder, const std::string& name, const Settings& settings, bool journal,
                        const std::string& world = kAnyWorld, const std::vector<std::string>& more = {}) {
  write_text(folder / "experiment.toml", "");
  std::vector<std::string> arguments = simulate_arguments(folder / "experiment.toml", settings, folder / name, world);
  if (journal) arguments.emplace_back("--journal");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run(arguments).json();
}

// Worlds that this build has.
inline std::vector<std::string> worlds() {
  if (KVTWIN_TEST_SIMGRID) return {"simgrid", "events"};
  return {"events"};
}

}  // namespace kvtwin::test
