// A page that is served while the program works (only in builds with cpp-httplib; others refuse with InputError), and
// pages that are fetched.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace kvtwin {

// HOST:PORT. Errors: InputError, with `option` in front.
struct HttpAddress {
  std::string host;
  int port = 0;

  static HttpAddress parse(const std::string& text, const char* option);
  // Only programs of this machine reach it.
  bool is_loopback() const;
  std::string text() const;
};

// Serves texts at fixed paths, read only, one request per connection. Threads: its own, at most 4 connections at once.
// A client is dropped whose whole request does not come within `patience` or has more than 64 KiB, or that does not
// read the answer within six times as long. A request needs the token, if there is one, as `Authorization: Bearer
// TOKEN` or
// `?token=TOKEN`. On the loopback a request must name a loopback host, so that no page of another site can read it.
class HttpServer {
 public:
  static constexpr std::chrono::milliseconds kPatience{5'000};

  // Listens; port 0: any free one. Errors: InputError: the address can't be listened on, or others than this machine
  // could reach it without a token of at least 16 characters.
  HttpServer(const HttpAddress& address, const std::string& token, std::chrono::milliseconds patience = kPatience);
  // Drops all clients, whatever they do.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Sets what a path answers from now on.
  void put(const std::string& path, const std::string& type, std::string content);
  std::string url() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Returns the text at http://HOST:PORT/PATH; nothing if it can't be had within `longest`, has more than 16 MiB, or is
// no longer wanted; `why` then says why. (The look-up of a name has the system's own time limit.)
std::optional<std::string> http_get(
    const std::string& url, std::string& why, const std::function<bool()>& is_wanted = [] { return true; },
    std::chrono::milliseconds longest = std::chrono::seconds(10));
// Errors: InputError if http_get() could never fetch this.
void check_http_url(const std::string& url, const char* option);

}  // namespace kvtwin
