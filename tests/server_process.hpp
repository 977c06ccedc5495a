// A server that a test starts as a process of its own. It ends with the object, and with the test's process.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace kvtwin::test {

class ServerProcess {
 public:
  ServerProcess() = default;
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;
  ~ServerProcess() { kill(); }

  // Starts the program words[0], and returns true when its output contains `ready`. Returns false if the process ends
  // first. Requires: no process runs.
  bool start(std::vector<std::string> words, const std::string& ready) {
    int output[2];
    if (::pipe2(output, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(output[1], STDOUT_FILENO);
      ::dup2(output[1], STDERR_FILENO);
      ::execv(arguments[0], arguments.data());
      ::dprintf(STDOUT_FILENO, "%s: %s\n", arguments[0], std::strerror(errno));
      ::_exit(127);
    }
    ::close(output[1]);
    if (process_ < 0) throw std::runtime_error("no process for " + words[0]);
    output_.clear();
    char buffer[4096];
    bool is_ready = false;
    while (!is_ready) {
      const ssize_t got = ::read(output[0], buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      output_.append(buffer, static_cast<std::size_t>(got));
      is_ready = output_.find(ready) != std::string::npos;
    }
    if (is_ready) {
      // Programs of Go end if nobody reads their output.
      reader_ = std::thread([from = output[0]] {
        char ignored[4096];
        ssize_t got = 0;
        while ((got = ::read(from, ignored, sizeof ignored)) > 0 || (got < 0 && errno == EINTR)) continue;
        ::close(from);
      });
      return true;
    }
    ::close(output[0]);
    kill();
    return false;
  }
  // Returns what the process wrote before it was ready, or ended.
  const std::string& output() const { return output_; }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
    if (reader_.joinable()) reader_.join();
  }
  // Stops the process: connections stay open, and the process does not answer until go_on().
  void stop() {
    ::kill(process_, SIGSTOP);
    int status = 0;
    ::waitpid(process_, &status, WUNTRACED);
  }
  void go_on() { ::kill(process_, SIGCONT); }
  pid_t id() const { return process_; }

 private:
  std::string output_;
  std::thread reader_;
  pid_t process_ = -1;
};

}  // namespace kvtwin::test
