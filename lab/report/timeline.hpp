// timeline.json: lanes and requests over time, in Chrome's trace event format, for chrome://tracing and
// ui.perfetto.dev.
//
// The process `lanes` has one thread per lane (h2d, d2h, compute, ...), with transfers and passes as spans. The stall
// of a pass is a span within the pass, always at the beginning of the pass. The process `requests` has one track per
// request: queue, prefetch wait, load wait, compute, then decode. Up to the first token these parts stand in this
// order, although they alternate in a chunked prompt. Rejections and retractions are instants.
//
// The file is written during the run, a request when it finishes, in bounded memory. Until finish() the name is
// timeline.json.partial, and the text is not complete JSON.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>

#include "policy/seam/event.hpp"
#include "policy/seam/world.hpp"

namespace kvtwin {

class Timeline final : public LaneObserver, public Observer {
 public:
  // Spans go on to `lanes`, and events to `events`; both may be null. Errors: WorkError if the file cannot be created.
  Timeline(std::filesystem::path path, LaneObserver* lanes, Observer* events);
  void on_lane(const LaneSpan& span) override;
  void on_event(const Event& event) override;
  // Completes the file and gives it its name. Errors: WorkError if the file cannot be written.
  void finish();

 private:
  struct Prefill {
    Tokens tokens = 0;
    std::uint64_t requests = 0;
  };
  void add(const char* format, ...) __attribute__((format(printf, 2, 3)));
  void name_lane(Lane lane);
  void add_request(const RequestRecord& record);
  void add_part(RequestId request, std::string_view name, TimeNs begin, TimeNs end);
  void add_instant(std::string_view name, const Event& event);

  std::filesystem::path path_;
  std::ofstream out_;
  LaneObserver* lanes_;
  Observer* events_;
  std::map<OperationId, Prefill> prefills_;  // running prefill passes
  std::uint32_t named_ = 0;                  // one bit per lane that has a name in the file
  bool first_ = true;
};

}  // namespace kvtwin
