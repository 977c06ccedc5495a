// Feeds a journal to a fresh engine, without any world, and compares its decisions with the recorded ones
// after every input. Equal configurations decide equally, on every machine; where they don't, the first record
// that differs is named.
//
// Any bytes will do: an input that answers nothing the engine has asked for is reported, not handed on.
#pragma once

#include <cstdint>

#include "policy/engine.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/journal.hpp"

namespace kvtwin {

enum class ReplayVerdict : std::uint8_t {
  equal,     // every record that was read
  diverged,  // the decisions after a record differ
  misfit,    // a record isn't what a world could have answered this engine
};

struct ReplayResult {
  ReplayVerdict verdict = ReplayVerdict::equal;
  // How reading ended; `record` if the verdict ended it. A killed run's journal is truncated, and equal up to there.
  JournalStatus journal = JournalStatus::record;
  JournalPlace place;                   // where it ended: the record that differs, or that couldn't be read
  TimeNs now = 0;                       // of the last record that was read, the end included
  std::uint64_t inputs = 0;             // replayed and equal
  InputKind kind = InputKind::arrival;  // of the record that differs
  DecisionMark agreed;                  // after the last equal record
  DecisionMark expected, got;           // after the one that differs; without a difference, as `agreed`
  const char* misfit = nullptr;         // the promise that the misfit breaks

  bool whole_and_equal() const { return verdict == ReplayVerdict::equal && journal == JournalStatus::end; }
};

// Who is told what the replaying engine decides and does; each may be null.
struct ReplayAudience {
  DecisionSink* sink = nullptr;
  Observer* observer = nullptr;
  InputHandler* inputs = nullptr;  // of each input before the engine is, so that what follows has its time and cause
};

ReplayResult replay(JournalReader& journal, const EngineConfig& config, const ReplayAudience& audience = {});

}  // namespace kvtwin
