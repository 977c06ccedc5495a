#include "cli/own_program.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "lab/error.hpp"

namespace kvtwin {
namespace {

[[noreturn]] void broke_off(const char* what) {
  throw WorkError(std::string("a kvtwin of our own: ") + what + ": " + std::strerror(errno));
}

// Of what a child writes; a pipe would have to be emptied while it runs.
class Caught {
 public:
  explicit Caught(const char* name) : file_(memfd_create(name, MFD_CLOEXEC)) {
    if (file_ < 0) broke_off("no memory file");
  }
  ~Caught() { close(file_); }
  Caught(const Caught&) = delete;
  Caught& operator=(const Caught&) = delete;

  int file() const { return file_; }
  std::string text() const {
    std::string text(static_cast<std::size_t>(lseek(file_, 0, SEEK_END)), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t got = pread(file_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (got <= 0) broke_off("its output");
      done += static_cast<std::size_t>(got);
    }
    return text;
  }

 private:
  int file_;
};

}  // namespace

Said run_own_program(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = arguments;
  words.insert(words.begin(), "kvtwin");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const Caught out("stdout"), err("stderr");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) broke_off("no process");
  if (child == 0) {
    dup2(out.file(), STDOUT_FILENO);
    dup2(err.file(), STDERR_FILENO);
    execv("/proc/self/exe", argv.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status)) {
    throw WorkError("kvtwin " + arguments.front() + ": was ended by signal " + std::to_string(WTERMSIG(status)));
  }
  return {WEXITSTATUS(status), out.text(), err.text()};
}

}  // namespace kvtwin
