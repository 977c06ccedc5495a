// Feeds a journal to a new engine, without a world, and compares its decisions with the recorded ones after every
// input. Equal configurations decide equally on every machine. If decisions differ, the result names the first record
// that differs.
//
// Accepts any bytes: an input that does not answer an operation of the engine is reported, not passed on.
#pragma once

#include <cstdint>

#include "policy/engine.hpp"
#include "policy/seam/decision.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/journal.hpp"

namespace kvtwin {

enum class ReplayVerdict : std::uint8_t {
  equal,     // all records that were read are equal
  diverged,  // the decisions after a record differ
  misfit,    // no world could have given this input to this engine
};

struct ReplayResult {
  ReplayVerdict verdict = ReplayVerdict::equal;
  // How reading ended; `record` if the verdict ended it. The journal of a killed run is truncated, and equal up to
  // there.
  JournalStatus journal = JournalStatus::record;
  JournalPlace place;                   // where it ended: the record that differs or could not be read
  TimeNs now = 0;                       // time of the last record that was read, including the end record
  std::uint64_t inputs = 0;             // replayed inputs that are equal
  InputKind kind = InputKind::arrival;  // of the record that differs
  DecisionMark agreed;                  // after the last equal record
  DecisionMark expected, got;           // after the record that differs; if none differs, equal to `agreed`
  const char* misfit = nullptr;         // the promise that the record breaks

  bool whole_and_equal() const { return verdict == ReplayVerdict::equal && journal == JournalStatus::end; }
};

// Receivers of the replaying engine's decisions and events; each may be null.
struct ReplayAudience {
  DecisionSink* sink = nullptr;
  Observer* observer = nullptr;
  // Receives each input before the engine does, so that later calls have its time and cause.
  InputHandler* inputs = nullptr;
};

ReplayResult replay(JournalReader& journal, const EngineConfig& config, const ReplayAudience& audience = {});

}  // namespace kvtwin
