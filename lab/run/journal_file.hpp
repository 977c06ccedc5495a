// A journal on disk (format: policy/seam/journal.hpp). Each record is given to the operating system before the next
// input is handled. So a killed process loses no record. A power loss may lose records.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "policy/seam/journal.hpp"

namespace kvtwin {

inline constexpr const char* kJournalName = "journal.kvj";  // in a run folder
// Returns the name of a rank's journal. Rank 0 has kJournalName.
inline std::string journal_name(std::size_t rank) {
  return rank == 0 ? kJournalName : "journal." + std::to_string(rank) + ".kvj";
}

class JournalFile final : public ByteSink {
 public:
  // Creates or empties the file. Errors: WorkError, also from write().
  explicit JournalFile(std::filesystem::path path);
  ~JournalFile() override;
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  void write(std::span<const std::byte> bytes) override;

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

// Returns the whole file. Errors: InputError if the file cannot be read.
std::vector<std::byte> read_journal(const std::filesystem::path& path);

}  // namespace kvtwin
