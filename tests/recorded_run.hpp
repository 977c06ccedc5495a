// Run folders that the program writes, with or without a journal; and journals split into their records.
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

// Tiers so small that both evict and hit, and that requests wait, are rejected and are retracted.
inline Settings tight() {
  return {"tiers.device.tokens=12032", "tiers.host.tokens=40064", "scheduler.max_waiting=40",
          "scheduler.chunk_tokens=2048"};
}

// A journal, split into its parts.
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
    ends.push_back(reader.place().offset);  // offset of the end record
  }
  std::vector<std::byte> bytes;
  std::string text;
  std::vector<KeptRecord> records;
  std::vector<std::size_t> ends;  // ends[i]: offset of record i + 1
  JournalStatus status = JournalStatus::record;
};

// Simulates `settings` and writes the run folder `folder`/`name`. Throws if the program fails.
inline Json simulate_to(const Folder& folder, const std::string& name, const Settings& settings, bool journal,
                        const std::string& world = kAnyWorld, const std::vector<std::string>& more = {}) {
  write_text(folder / "experiment.toml", kNoEngine);
  std::vector<std::string> arguments = simulate_arguments(folder / "experiment.toml", settings, folder / name, world);
  if (journal) arguments.emplace_back("--journal");
  arguments.insert(arguments.end(), more.begin(), more.end());
  return run(arguments).json();
}

// The simulated worlds of this build.
inline std::vector<std::string> worlds() {
  if (KVTWIN_TEST_SIMGRID) return {"simgrid", "events"};
  return {"events"};
}

}  // namespace kvtwin::test
