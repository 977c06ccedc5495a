// What playing and live watching have in common: a Watch, its output, and its end. Internal to lab/watch.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lab/watch/watch_page.hpp"
#include "lab/watch/watch_run.hpp"

namespace kvtwin {

class WatchSession {
 public:
  // `server`: null without a description. Requires: all outlive this object.
  WatchSession(const WatchArguments& arguments, std::vector<std::string> names, const WatchedServer* server,
               const WatchOutput& output, const Listener& listener);

  Watch& watch() { return watch_; }
  // Draws the screen if it is due, with `more` at its end.
  void refresh(const std::string& more = {});
  void publish(WatchPage& page);
  WatchResult end();

 private:
  using Clock = std::chrono::steady_clock;

  const WatchArguments& arguments_;
  const WatchOutput& output_;
  const WatchedServer* server_;
  Watch watch_;
  Clock::time_point drawn_{};
};

}  // namespace kvtwin
