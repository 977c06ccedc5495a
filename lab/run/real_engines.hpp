// A real run of several engines, seen from one of its processes. Engine e has the processes e * R to e * R + R - 1, one
// for each of its R ranks.
//
//   process 0: trace -> RequestRoute --- inputs ---> the ranks of the chosen engine
//                 ^           ^
//                 +-- report -+------ events ------ the first rank of each engine
//
// Engines with roles also send notices to each other: the first rank of an engine to the first rank of the other, which
// passes them on to its other ranks. A notice about a request may come before the request, which another process sends;
// it is then held back until the request is there. Each rank of a prefill engine tells the first rank of the decode
// engine when the last pages of a request have landed; that is `handed` once all ranks have.
//
// A thread of process 0 reads the trace, and sends each input when it is due, by the router of the simulated cluster.
// The router and the report learn from the events of all engines, which their first ranks send. No policy waits for a
// message: inputs come as arrivals of a world (impl/runtime/inbox.hpp), and events are only queued (Mail).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "impl/runtime/hand_over_lane.hpp"
#include "impl/runtime/inbox.hpp"
#include "impl/runtime/mail.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/run/real_ranks.hpp"
#include "policy/seam/event.hpp"

namespace kvtwin {

// What process 0 serves. The members that are pointers outlive the run.
struct EngineStream {
  InputSource* source = nullptr;
  Observer* observer = nullptr;                  // receives the events of all engines, with Event::engine
  std::function<void(std::size_t engine)> lost;  // called when an engine has died; may be empty
  std::function<void(TimeNs)> ticks;             // called from time to time; may be empty
  // An engine that has work, and sends no event for this time, has hung: the run fails.
  TimeNs most_silence = 600 * kNsPerSecond;
};

class RealEngines final : public EnginePost {
 public:
  // `process`: the number of this process. Requires: `mail` and `setup` outlive this object.
  RealEngines(Mail& mail, const Setup& setup, std::size_t process);
  ~RealEngines() override;

  std::size_t ranks() const { return ranks_; }
  // A process has died. The other ranks of its engine are to end themselves, because they wait for each other in each
  // step; the other engines serve its requests. The run cannot go on before it has begun on this process, or without
  // engine 0. Thread: any, while run() serves or before it.
  AfterDeath lose(std::size_t process);
  // Returns by process whether it has died. Requires: run() has returned.
  std::vector<bool> lost_processes() const;
  // To the engine `peer`. Requires: run() serves.
  void notify(std::uint32_t peer, const Notice& notice) override;
  void landed(std::uint32_t peer, const LandedPages& pages) override;
  // Returns the observer for the engine of this process; null on ranks that send no events.
  Observer* reporter();
  // Serves the stream. `serve` runs the engine of this process on the given source, and returns at the source's end.
  // Requires: the clock given to source.begin() outlives this call. `stream` is used on process 0 only.
  // Returns when this process has no more to do; on process 0, when all events of all engines have been observed.
  // Errors: those of `serve`; on process 0 those of the stream, and WorkError if an engine has hung.
  void run(const EngineStream& stream, const std::function<void(InputSource&)>& serve);

 private:
  class Dispatch;
  class Reporter;
  class Notices;
  std::size_t engine() const { return process_ / ranks_; }

  Mail& mail_;
  const Setup& setup_;
  std::size_t process_, ranks_;
  std::unique_ptr<Reporter> reporter_;
  std::unique_ptr<Dispatch> dispatch_;  // on process 0
  std::unique_ptr<Inbox> inbox_;
  std::unique_ptr<Notices> notices_;
  std::atomic<bool> begun_ = false;
};

}  // namespace kvtwin
