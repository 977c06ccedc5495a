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

[[noreturn]] void throw_errno(const char* what) {
  throw WorkError(std::string("a kvtwin of our own: ") + what + ": " + std::strerror(errno));
}

// A memory file that takes the child's output. A pipe would need a reader while the child runs.
class CapturedOutput {
 public:
  explicit CapturedOutput(const char* name) : file_(memfd_create(name, MFD_CLOEXEC)) {
    if (file_ < 0) throw_errno("no memory file");
  }
  ~CapturedOutput() { close(file_); }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  int file() const { return file_; }
  std::string text() const {
    std::string text(static_cast<std::size_t>(lseek(file_, 0, SEEK_END)), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t got = pread(file_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (got <= 0) throw_errno("its output");
      done += static_cast<std::size_t>(got);
    }
    return text;
  }

 private:
  int file_;
};

}  // namespace

ProgramOutput run_own_program(const std::vector<std::string>& arguments) {
  std::vector<std::string> words = arguments;
  words.insert(words.begin(), "kvtwin");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const CapturedOutput out("stdout"), err("stderr");
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) throw_errno("no process");
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
