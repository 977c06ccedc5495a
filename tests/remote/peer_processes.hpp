// Engines in processes of their own (peer_engine.cpp), which a test commands by pipes.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/paths.hpp"
#include "tests/remote/peer_texts.hpp"

namespace kvtwin::test {

class PeerProcess {
 public:
  PeerProcess(const std::string& name, const std::string& library, const std::string& transports, Pages pages,
              Bytes page_bytes, int timeout_ms = 60'000, Bytes bytes_in_flight = Bytes{1} << 20) {
    int to[2], from[2];
    if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::vector<std::string> words = {built("peer_engine"),
                                      name,
                                      library,
                                      transports,
                                      std::to_string(pages),
                                      std::to_string(page_bytes),
                                      std::to_string(timeout_ms),
                                      std::to_string(bytes_in_flight)};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::dup2(to[0], STDIN_FILENO);
      ::dup2(from[1], STDOUT_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(to[0]);
    ::close(from[1]);
    if (process_ < 0) throw std::runtime_error("no process");
    to_ = ::fdopen(to[1], "w");
    from_ = ::fdopen(from[0], "r");
    description_ = bytes_of_hex(answer());
  }
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess() {
    kill();
    if (to_ != nullptr) std::fclose(to_);
    std::fclose(from_);
  }
  // Lets the engine end by itself. Returns whether its process ended without an error.
  bool end() {
    std::fclose(to_);
    to_ = nullptr;
    int status = -1;
    ::waitpid(process_, &status, 0);
    process_ = -1;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }

  const std::vector<std::byte>& description() const { return description_; }
  pid_t id() const { return process_; }
  // Sends a command, and returns the answer. Throws if the process has ended.
  std::string command(const std::string& line) {
    send(line);
    return answer();
  }
  void send(const std::string& line) {
    std::fprintf(to_, "%s\n", line.c_str());
    std::fflush(to_);
  }
  std::string answer() {
    std::string line;
    for (int character = 0; (character = std::fgetc(from_)) != '\n';) {
      if (character == EOF) throw std::runtime_error("the engine's process has ended");
      line += static_cast<char>(character);
    }
    if (line.starts_with("error")) throw std::runtime_error(line);
    return line;
  }
  std::uint64_t count(const std::string& line) { return std::stoull(command(line)); }

  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  void stop() {
    ::kill(process_, SIGSTOP);
    ::waitpid(process_, nullptr, WUNTRACED);
  }
  void go_on() { ::kill(process_, SIGCONT); }

 private:
  pid_t process_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::vector<std::byte> description_;
};

}  // namespace kvtwin::test
