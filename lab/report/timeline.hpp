// timeline.json: what ran when, in Chrome's trace event format; chrome://tracing and ui.perfetto.dev load it.
//
// Two processes: `lanes` with a thread a lane (h2d, d2h, compute ...), whose spans are transfers and passes, with the
// stall of a pass inside it, told at its beginning; and `requests` with a track a request, whose parts up to the first
// token lie end to end in the order queue, prefetch wait, load wait, compute (a chunked prompt's really alternate),
// then decode. Rejections and retractions are instants. Written as it happens, in bounded memory; a request when it
// has finished. Until the run is over the file is called timeline.json.partial: cut off, it is no JSON.
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
  // Hands on what it is told; either may be null. WorkError when the file can't be created.
  Timeline(std::filesystem::path path, LaneObserver* lanes, Observer* events);
  void on_lane(const LaneSpan& span) override;
  void on_event(const Event& event) override;
  // The run is over. WorkError when the file couldn't be written.
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
  std::map<OperationId, Prefill> prefills_;  // under way
  std::uint32_t named_ = 0;                  // lanes, by bit
  bool first_ = true;
};

}  // namespace kvtwin
