// A Redis server of a test's own: on loopback, a port that nobody has, nothing on disk; gone with the object.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/folder.hpp"

namespace kvtwin::test {

// A port of 127.0.0.1 that was free a moment ago, and the socket that holds it until it is closed.
class FreePort {
 public:
  FreePort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (socket_ < 0 || ::bind(socket_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw std::runtime_error("no free port on 127.0.0.1");
    }
    number_ = ntohs(address.sin_port);
  }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;
  ~FreePort() { ::close(socket_); }
  int number() const { return number_; }
  int socket() const { return socket_; }

 private:
  int socket_;
  int number_ = 0;
};

// Throws unless `program`, as CMake found it, can be run.
inline void require_redis_server(const char* program) {
  if (::access(program, X_OK) == 0) return;
  throw std::runtime_error(
      "redis-server is not installed: apt-get install redis-server, then configure the build again");
}

class RedisProcess {
 public:
  // `options`: as on its command line, e.g. {"--maxmemory", "4mb"}. Returns when it accepts connections.
  explicit RedisProcess(std::vector<std::string> options = {}) : options_(std::move(options)) {
    require_redis_server(KVTWIN_REDIS_SERVER);
    // Somebody else may take the port between our look and the server's.
    for (int attempt = 0; attempt < 20; ++attempt) {
      port_ = FreePort().number();
      if (start()) return;
    }
    throw std::runtime_error("redis-server doesn't start:\n" + said_);
  }
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;
  ~RedisProcess() { kill(); }

  int port() const { return port_; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  // What it says to a command: a number, or a text. Waits for it.
  std::string ask(const std::string& command) const {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::string said;
    if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      const std::string words = command + "\r\nQUIT\r\n";  // closes the connection behind its answer
      char buffer[4096];
      ssize_t got = ::send(descriptor, words.data(), words.size(), MSG_NOSIGNAL);
      while (got > 0 && (got = ::recv(descriptor, buffer, sizeof buffer, 0)) > 0) {
        said.append(buffer, static_cast<std::size_t>(got));
      }
    }
    ::close(descriptor);
    if (said.empty()) throw std::runtime_error("redis-server doesn't answer " + command);
    return said[0] == ':' ? said.substr(1) : said;
  }
  std::uint64_t keys() const { return std::stoull(ask("DBSIZE")); }
  // That it dropped for want of memory.
  std::uint64_t evicted() const {
    const std::string stats = ask("INFO stats"), name = "evicted_keys:";
    return std::stoull(stats.substr(stats.find(name) + name.size()));
  }
  void kill() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = -1;
  }
  // Empty, at the same port.
  void restart() {
    kill();
    if (!start()) throw std::runtime_error("redis-server doesn't start again:\n" + said_);
  }
  // Connections stay open, nothing is answered.
  void stop() {
    ::kill(process_, SIGSTOP);
    int status = 0;
    ::waitpid(process_, &status, WUNTRACED);
  }
  void go_on() { ::kill(process_, SIGCONT); }

 private:
  bool start() {
    int output[2];
    if (::pipe2(output, O_CLOEXEC) != 0) throw std::runtime_error("no pipe");
    std::vector<std::string> words = {KVTWIN_REDIS_SERVER,
                                      "--port",
                                      std::to_string(port_),
                                      "--bind",
                                      "127.0.0.1",
                                      "--save",
                                      "",
                                      "--appendonly",
                                      "no",
                                      "--daemonize",
                                      "no",
                                      "--dir",
                                      folder_.path().string()};
    words.insert(words.end(), options_.begin(), options_.end());
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    process_ = ::fork();
    if (process_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::dup2(output[1], STDOUT_FILENO);
      ::dup2(output[1], STDERR_FILENO);
      ::execv(arguments[0], arguments.data());
      ::_exit(127);
    }
    ::close(output[1]);
    if (process_ < 0) throw std::runtime_error("no process for redis-server");
    said_.clear();
    char buffer[4096];
    // Reads until it says so, or ends. It doesn't mind that nobody reads the rest.
    while (said_.find("Ready to accept connections") == std::string::npos) {
      const ssize_t got = ::read(output[0], buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      said_.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(output[0]);
    if (said_.find("Ready to accept connections") != std::string::npos) return true;
    kill();
    return false;
  }

  std::vector<std::string> options_;
  Folder folder_;
  std::string said_;
  int port_ = 0;
  pid_t process_ = -1;
};

}  // namespace kvtwin::test
