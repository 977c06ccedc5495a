#include "lab/watch/watch_page.hpp"

#include <string_view>

namespace kvtwin {

// lab/watch/page.html
extern const std::string_view kWatchPageHtml;

namespace {

constexpr std::string_view kFiguresMark = "/*FIGURES*/null";

std::string with_figures(const std::string& json) {
  std::string page(kWatchPageHtml);
  // A text in the figures must not end the script.
  std::string safe;
  for (const char c : json) c == '<' ? safe += "\\u003c" : safe += c;
  const std::size_t at = page.find(kFiguresMark);
  return at == std::string::npos ? page : page.replace(at, kFiguresMark.size(), safe);
}

}  // namespace

std::string watch_report(const Json& figures) { return with_figures(figures.dump()); }

WatchPage::WatchPage(const HttpAddress& address, const std::string& token) : server_(address, token) {
  server_.put("/", "text/html; charset=utf-8", std::string(kWatchPageHtml));
}

void WatchPage::publish(const Json& figures, const std::string& prometheus) {
  server_.put("/figures.json", "application/json", figures.dump());
  server_.put("/metrics", "text/plain; version=0.0.4; charset=utf-8", prometheus);
  server_.put("/report.html", "text/html; charset=utf-8", watch_report(figures));
}

}  // namespace kvtwin
