// A Redis server for one test: on the loopback interface, at a free port, without files. It ends with the object.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/folder.hpp"
#include "tests/free_port.hpp"
#include "tests/server_process.hpp"

namespace kvtwin::test {

// Throws if `program` cannot be executed.
inline void require_redis_server(const char* program) {
  if (::access(program, X_OK) == 0) return;
  throw std::runtime_error(
      "redis-server is not installed: apt-get install redis-server, then configure the build again");
}
// Returns the server that tests start: KVTWIN_TEST_REDIS_SERVER (another server that speaks Redis's protocol), or the
// redis-server that CMake found.
inline const char* redis_server_program() {
  const char* other = std::getenv("KVTWIN_TEST_REDIS_SERVER");
  const char* program = other == nullptr ? KVTWIN_REDIS_SERVER : other;
  require_redis_server(program);
  return program;
}

class RedisProcess {
 public:
  // `options`: command line options, for example {"--maxmemory", "4mb"}. Returns when the server accepts connections.
  explicit RedisProcess(std::vector<std::string> options = {}) : options_(std::move(options)) {
    // Another process may take the port before the server does.
    for (int attempt = 0; attempt < 20; ++attempt) {
      port_ = FreePort().number();
      if (start()) return;
    }
    throw std::runtime_error("redis-server doesn't start:\n" + process_.output());
  }
  RedisProcess(const RedisProcess&) = delete;
  RedisProcess& operator=(const RedisProcess&) = delete;

  int port() const { return port_; }
  pid_t process() const { return process_.id(); }
  std::string url() const { return "redis://127.0.0.1:" + std::to_string(port_); }
  // Sends a command and returns the answer: a number or a text.
  std::string ask(const std::string& command) const {
    const std::string said = ask_port(port_, command + "\r\nQUIT\r\n");  // QUIT closes the connection after the answer
    if (said.empty()) throw std::runtime_error("redis-server doesn't answer " + command);
    return said[0] == ':' ? said.substr(1) : said;
  }
  std::uint64_t keys() const { return std::stoull(ask("DBSIZE")); }
  // Returns the number of keys that the server evicted because its memory was full.
  std::uint64_t evicted() const {
    const std::string stats = ask("INFO stats"), name = "evicted_keys:";
    return std::stoull(stats.substr(stats.find(name) + name.size()));
  }
  void kill() { process_.kill(); }
  // Starts a new, empty server at the same port.
  void restart() {
    kill();
    if (!start()) throw std::runtime_error("redis-server doesn't start again:\n" + process_.output());
  }
  // Stops the process: connections stay open, and the server does not answer until go_on().
  void stop() { process_.stop(); }
  void go_on() { process_.go_on(); }

 private:
  bool start() {
    std::vector<std::string> words = {redis_server_program(),
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
    return process_.start(words, "Ready to accept connections");
  }

  std::vector<std::string> options_;
  Folder folder_;
  int port_ = 0;
  ServerProcess process_;
};

}  // namespace kvtwin::test
