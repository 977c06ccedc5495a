// Feeds a journal to a fresh engine, without any world, and compares its decisions with the recorded ones
// after every input. Equal configurations decide equally, on every machine; where they don't, the first record
// that differs is named.
//
// Any bytes will do: an input that answers nothing the engine has asked for is reported, not handed on.
#pragma once

#include <cstdint>

#include "policy/decision.hpp"
#include "policy/engine.hpp"
#include "policy/event.hpp"
#include "policy/journal.hpp"

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
  std::uint64_t inputs = 0;             // replayed and equal
  InputKind kind = InputKind::arrival;  // of the record that differs
  DecisionMark expected, got;           // after it; without a difference, after the last equal one
  const char* misfit = nullptr;         // the promise that the misfit breaks

  bool whole_and_equal() const { return verdict == ReplayVerdict::equal && journal == JournalStatus::end; }
};

// `sink` and `observer` may be null; they are told what the replaying engine decides and does.
ReplayResult replay(JournalReader& journal, const EngineConfig& config, DecisionSink* sink = nullptr,
                    Observer* observer = nullptr);

}  // namespace kvtwin
