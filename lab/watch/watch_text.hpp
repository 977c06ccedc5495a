// The figures of a watch for people, as JSON, and as Prometheus' text.
#pragma once

#include <string>

#include "lab/watch/watch.hpp"
#include "lab/watch/watch_advice.hpp"
#include "models/json.hpp"

namespace kvtwin {

// One screen, at most 40 lines of at most 100 characters, without the control sequences of a terminal.
std::string watch_screen(const WatchFigures& figures, const WatchAdvice& advice);
// A line about an interval of a watch with these figures.
std::string watch_line(const WatchInterval& interval, const WatchFigures& figures);
Json watch_json(const WatchFigures& figures, const WatchAdvice& advice);
std::string watch_prometheus(const WatchFigures& figures);

}  // namespace kvtwin
