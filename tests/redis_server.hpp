// A Redis server for one test: on the loopback interface, at a free port, without files. It ends with the object.
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

// A free port of 127.0.0.1. The socket reserves the port as long as the object exists.
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

// Throws if `program`, the path that CMake found, cannot be executed.
inline void require_redis_server(const char* program) {
  if (::access(program, X_OK) == 0) return;
  throw std::runtime_error(
      "redis-server is not installed: apt-get install redis-server, then configure the build again");
}

class RedisProcess {
 public:
  // `options`: command line options, for example {"--maxmemory", "4mb"}. Returns when the server accepts connections.
  explicit RedisProcess(std::vector<std::string> options = {}) : options_(std::move(options)) {
    require_redis_server(KVTWIN_REDIS_SERVER);
    // Another process may take the port before the server does.
    for (int attempt = 0; attempt < 20; ++attempt) {
      port_ = FreePort().number();
      if (start()) return;
    }
    throw std::runtime_error("redis-server doesn't start:\n" + output_);
  }
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;
  ~RedisProcess() { kill(); }

  int port() const { return port_; }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  // Sends a command and returns the answer: a number or a text.
  std::string ask(const std::string& command) const {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    std::string said;
    if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
      const std::string words = command + "\r\nQUIT\r\n";  // QUIT closes the connection after the answer
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
  // Returns the number of keys that the server evicted because its memory was full.
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
  // Starts a new, empty server at the same port.
  void restart() {
    kill();
    if (!start()) throw std::runtime_error("redis-server doesn't start again:\n" + output_);
  }
  // Stops the process: connections stay open, and the server does not answer until go_on().
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
    output_.clear();
    char buffer[4096];
    // Reads until the server is ready or ends. Nobody reads later output; the server tolerates that.
    while (output_.find("Ready to accept connections") == std::string::npos) {
      const ssize_t got = ::read(output[0], buffer, sizeof buffer);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      output_.append(buffer, static_cast<std::size_t>(got));
    }
    ::close(output[0]);
    if (output_.find("Ready to accept connections") != std::string::npos) return true;
    kill();
    return false;
  }

  std::vector<std::string> options_;
  Folder folder_;
  std::string output_;
  int port_ = 0;
  pid_t process_ = -1;
};

}  // namespace kvtwin::test
