// A journal on disk (policy/seam/journal.hpp says what is in it). Every record is handed to the operating system
// before the next input is handled: a killed process loses none, a machine that loses power may.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "policy/seam/journal.hpp"

namespace kvtwin {

inline constexpr const char* kJournalName = "journal.kvj";  // in a run folder
// Of a rank that is a policy of its own; rank 0's is the run's.
inline std::string journal_name(std::size_t rank) {
  return rank == 0 ? kJournalName : "journal." + std::to_string(rank) + ".kvj";
}

class JournalFile final : public ByteSink {
 public:
  // Creates or empties the file. WorkError when it can't, and from write.
  explicit JournalFile(std::filesystem::path path);
  ~JournalFile() override;
  JournalFile(const JournalFile&) = delete;
  JournalFile& operator=(const JournalFile&) = delete;
  void write(std::span<const std::byte> bytes) override;

 private:
  std::filesystem::path path_;
  int file_ = -1;
};

// The whole file. InputError when it can't be read.
std::vector<std::byte> read_journal(const std::filesystem::path& path);

}  // namespace kvtwin
