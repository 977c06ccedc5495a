// Journals of cache calls (policy/hosted/call_journal.hpp): the calls are made again on a new tree, and the answers are
// compared; the calls of one request are described; the times of the storage calls become measurements.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "lab/past_run/explain.hpp"
#include "models/calibration_samples.hpp"
#include "policy/hosted/call_journal.hpp"

namespace kvtwin {

inline constexpr const char* kCallJournalSuffix = ".kvc";

// Returns whether the file begins as a journal of calls.
bool is_call_journal(const std::filesystem::path& path);

struct CallReplay {
  std::string host;                                  // text of the header
  std::string eviction;                              // of the last tree
  std::uint64_t calls = 0, storage_calls = 0;        // made again; storage calls are not
  std::uint64_t victims = 0, equal_victims = 0;      // asked for
  std::uint64_t evictions = 0, other_evictions = 0;  // by the host; of another node than the last victim of its tier
  DecisionMark mark;
  JournalStatus end = JournalStatus::end;  // end, truncated or corrupt
  bool diverged = false;
  JournalPlace place;    // where it diverged, or where the journal ends
  std::string sentence;  // what diverged; empty if nothing did
};

// Makes the calls again. `eviction`: the policy instead of the recorded one; empty: the recorded one. The host's calls
// stay as they were recorded, whatever the policy answers.
// Errors: InputError if the file cannot be read, or if there is no such policy.
CallReplay replay_calls(const std::filesystem::path& path, const std::string& eviction);

// Errors: InputError if the journal has no such request.
Explanation explain_calls(const std::filesystem::path& path, std::int64_t request, bool as_json);

// One measurement for each storage call that moved all its pages, as calls of a disk tier.
// Errors: InputError.
Measurements measurements_of_calls(const std::filesystem::path& path);

}  // namespace kvtwin
