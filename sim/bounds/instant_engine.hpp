// An engine that serves one request after another, with operations that end at once: the decisions of the engine's own
// code without timing. Each request, its passes and all its copies are done before the next request begins.
//
// Requires: the engine has no storage tier (KV_CHECK). Thread: one. Cost (memory): that of an Engine; the pools grow
// with the pages in use.
#pragma once

#include <memory>

#include "policy/config.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class InstantEngine {
 public:
  explicit InstantEngine(const EngineConfig& config);
  ~InstantEngine();

  // Serves the request at the time `now`, which never decreases. Returns the record of the finished or rejected
  // request, valid until the next call.
  const RequestRecord& serve(const Arrival& arrival, TimeNs now);
  void hint(const Hint& hint, TimeNs now);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
