#include "cli/terminal.hpp"

#include <unistd.h>

#include <cstdio>

#include "cli/environment.hpp"
#include "cli/say.hpp"

namespace kvtwin {
Terminal::Terminal() : shown_(isatty(STDERR_FILENO) != 0 && environment_progress()) {}

Listener Terminal::listener() {
  Listener listener;
  listener.note = [this](const std::string& sentence) { note(sentence); };
  listener.step = [this](const std::string& line) {
    erase();
    std::fprintf(stderr, "%s\n", line.c_str());
  };
  if (!shown_) return listener;
  listener.requests = [this](const RequestProgress& progress) { draw(progress); };
  listener.cells = [this](const CellProgress& progress) { draw(progress); };
  return listener;
}

void Terminal::note(const std::string& sentence) {
  erase();
  std::fprintf(stderr, "%s %s\n", note_mark().c_str(), sentence.c_str());
}

void Terminal::erase() {
  if (drawn_) std::fprintf(stderr, "\r\033[K");
  drawn_ = false;
}

void Terminal::draw(const RequestProgress& progress) {
  drawn_ = true;
  const double spent = progress.seconds, read = progress.share_read;
  std::fprintf(stderr, "\r\033[K%llu requests done, %.0f s served", static_cast<unsigned long long>(progress.completed),
               static_cast<double>(progress.now) / 1e9);
  if (read > 0.01) std::fprintf(stderr, ", %.0f %% read, about %.0f s left", 100 * read, spent * (1 - read) / read);
  std::fflush(stderr);
}

void Terminal::draw(const CellProgress& progress) {
  drawn_ = true;
  const double left = progress.seconds * static_cast<double>(progress.of - progress.done);
  std::fprintf(stderr, "\r\033[K%zu of %zu %s, about %.0f s left", progress.done, progress.of, progress.what,
               left / static_cast<double>(progress.done));
  std::fflush(stderr);
}

}  // namespace kvtwin
