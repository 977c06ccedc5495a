// The page of a watch: live figures for a browser, Prometheus' metrics, and a snapshot in one file.
//   /              the page; fetches /figures.json every 2 s, and nothing from elsewhere
//   /figures.json  watch_json()
//   /metrics       watch_prometheus()
//   /report.html   the page with the figures of this moment in it
#pragma once

#include <memory>
#include <string>

#include "lab/watch/http.hpp"
#include "models/json.hpp"

namespace kvtwin {

class WatchPage {
 public:
  // Errors: InputError, as HttpServer.
  WatchPage(const HttpAddress& address, const std::string& token);

  void publish(const Json& figures, const std::string& prometheus);
  std::string url() const { return server_.url(); }

 private:
  HttpServer server_;
};

// The page with these figures in it; it fetches nothing.
std::string watch_report(const Json& figures);

}  // namespace kvtwin
