// timeline.json: lanes and requests over time, in Chrome's trace event format, for chrome://tracing and
// ui.perfetto.dev.
//
// The process `lanes` has one thread per lane (h2d, d2h, compute, ...), with transfers and passes as spans; with
// several engines, each engine has such a process. The stall of a pass is a span within the pass, always at the
// beginning of the pass. The process `requests` has one track per request: queue, prefetch wait, load wait, compute,
// hand-over, then decode; with several engines, its arguments name the engine, and the prefill engine. Up to the first
// token these parts stand in this order, although they alternate in a chunked prompt. Rejections and retractions are
// instants. For a model with windows or states, each engine has a counter of the slots that each further pool has
// evicted (of vLLM's groups of blocks, of all but the first).
//
// The file is written during the run, a request when it finishes, in bounded memory. Until finish() the name is
// timeline.json.partial, and the text is not complete JSON.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "policy/seam/event.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

class Timeline final : public Observer {
 public:
  // `engines`: their names; one empty name for a single engine. Events go on to `events`, which may be null. Errors:
  // WorkError if the file cannot be created.
  Timeline(std::filesystem::path path, const std::vector<std::string>& engines, Observer* events);
  std::size_t engines() const { return engines_.size(); }
  // Returns the observer of an engine's lanes. Spans go on to `next`, which may be null.
  LaneObserver* lanes_of(std::size_t engine, LaneObserver* next);
  // With several engines, passes have numbers of their own: returns an observer of the engine's events, which go on to
  // `next`. The requests' own events still come to on_event().
  Observer* events_of(std::size_t engine, Observer* next);
  void on_event(const Event& event) override;
  // Completes the file and gives it its name. Errors: WorkError if the file cannot be written.
  void finish();

 private:
  struct Prefill {
    Tokens tokens = 0;
    std::uint64_t requests = 0;
  };
  struct Engine final : public LaneObserver, public Observer {
    Timeline* timeline = nullptr;
    std::size_t number = 0;
    LaneObserver* lanes = nullptr;
    Observer* events = nullptr;
    std::uint32_t named = 0;                  // one bit per lane that has a name in the file
    std::map<OperationId, Prefill> prefills;  // running prefill passes
    void on_lane(const LaneSpan& span) override { timeline->add_span(*this, span); }
    void on_event(const Event& event) override;
    void count(const Event& event);
  };
  void add_span(Engine& engine, const LaneSpan& span);
  void add(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void name_lane(Engine& engine, Lane lane);
  void add_request(const RequestRecord& record, std::size_t engine);
  void add_part(RequestId request, std::string_view name, TimeNs begin, TimeNs end);
  void add_instant(std::string_view name, const Event& event);
  void add_evicted(const Event& event);

  std::filesystem::path path_;
  std::ofstream out_;
  std::deque<Engine> engines_;
  Observer* events_;
  std::map<std::tuple<std::size_t, Tier, std::uint8_t>, Pages> evicted_;  // slots, by engine, tier and pool
  bool first_ = true;
};

}  // namespace kvtwin
