#include "lab/watch/http.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string_view>

#include "lab/error.hpp"

#if KVTWIN_HAVE_HTTP
// No encryption: the loopback, or a network that the token's holder trusts.
#undef CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#endif

namespace kvtwin {
HttpAddress HttpAddress::parse(const std::string& text, const char* option) {
  HttpAddress address;
  const std::size_t colon = text.rfind(':');
  const auto refuse = [&] {
    throw InputError(std::string(option) + " " + text + ": must be HOST:PORT, e.g. 127.0.0.1:8990");
  };
  if (colon == std::string::npos || colon == 0) refuse();
  address.host = text.substr(0, colon);
  if (address.host.starts_with('[') && address.host.ends_with(']')) {
    address.host = address.host.substr(1, address.host.size() - 2);
  }
  const char* const end = text.data() + text.size();
  const auto [at, error] = std::from_chars(text.data() + colon + 1, end, address.port);
  if (error != std::errc() || at != end || address.port < 0 || address.port > 65535 || address.host.empty()) refuse();
  for (const char c : address.host) {
    if (c <= ' ' || c > '~' || c == '/' || c == '@') refuse();
  }
  return address;
}

bool HttpAddress::is_loopback() const {
  if (host == "localhost" || host == "::1") return true;
  if (!host.starts_with("127.")) return false;
  return host.find_first_not_of("0123456789.") == std::string::npos;
}

std::string HttpAddress::text() const {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + std::to_string(port);
}

#if !KVTWIN_HAVE_HTTP

struct HttpServer::State {};
HttpServer::HttpServer(const HttpAddress& /*address*/, const std::string& /*token*/,
                       std::chrono::milliseconds /*patience*/) {
  throw InputError(
      "--serve: this program has no cpp-httplib (0.11 to 0.14), as that of the wheel; take the Debian package, or "
      "install "
      "libcpp-httplib-dev and build from source");
}
HttpServer::~HttpServer() = default;
void HttpServer::put(const std::string& /*path*/, const std::string& /*type*/, std::string /*content*/) {}
std::string HttpServer::url() const { return {}; }

#else

namespace {

constexpr std::size_t kThreads = 4, kMinTokenCharacters = 16, kMaxRequestBytes = std::size_t{64} << 10;
constexpr int kPatiencesToRead = 6;  // for a client that takes the answer
using Clock = std::chrono::steady_clock;

// Compares in a time that does not tell how many characters are right.
bool are_equal(std::string_view a, std::string_view b) {
  unsigned different = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 1 : b[i % b.size()]);
  }
  return different == 0;
}

// The host of a request's header: HOST, HOST:PORT or [HOST]:PORT.
bool names_loopback(const std::string& header) {
  std::string host = header;
  const std::size_t colon = host.rfind(':');
  if (colon != std::string::npos && !host.ends_with(']')) host.resize(colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  return HttpAddress{host, 0}.is_loopback();
}

// A connection that ends at its deadlines, and at once when the server ends.
class Connection final : public httplib::Stream {
 public:
  // `end`: becomes readable when the server ends. Owns `socket`.
  Connection(int socket, int end, std::chrono::milliseconds patience)
      : socket_(socket), end_(end), begin_(Clock::now()), patience_(patience) {}
  ~Connection() override {
    ::shutdown(socket_, SHUT_RDWR);
    close(socket_);
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  bool is_readable() const override { return at_ < held_ || wait_for(POLLIN, patience_); }
  bool is_writable() const override { return wait_for(POLLOUT, kPatiencesToRead * patience_); }

  ssize_t read(char* to, std::size_t size) override {
    if (at_ == held_) {
      if (received_ >= kMaxRequestBytes || !is_readable()) return -1;
      const ssize_t got = recv(socket_, bytes_.data(), bytes_.size(), 0);
      if (got <= 0) return got;
      at_ = 0;
      held_ = static_cast<std::size_t>(got);
      received_ += held_;
    }
    const std::size_t part = std::min(size, held_ - at_);
    std::copy_n(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), part, to);
    at_ += part;
    return static_cast<ssize_t>(part);
  }
  // All of it, or -1.
  ssize_t write(const char* from, std::size_t size) override {
    for (std::size_t sent = 0; sent < size;) {
      if (!is_writable()) return -1;
      const ssize_t part = send(socket_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (part < 0 && errno != EAGAIN && errno != EINTR) return -1;
      sent += static_cast<std::size_t>(std::max<ssize_t>(0, part));
    }
    return static_cast<ssize_t>(size);
  }
  // Of addresses nothing is made.
  void get_remote_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  void get_local_ip_and_port(std::string& /*ip*/, int& /*port*/) const override {}
  socket_t socket() const override { return socket_; }

 private:
  bool wait_for(short events, std::chrono::milliseconds longest) const {
    for (;;) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(begin_ + longest - Clock::now());
      if (left.count() <= 0) return false;
      std::array<pollfd, 2> waited{pollfd{socket_, events, 0}, pollfd{end_, POLLIN, 0}};
      const int ready =
          poll(waited.data(), waited.size(), static_cast<int>(std::min<std::int64_t>(left.count(), 1 << 30)));
      if (ready < 0 && errno == EINTR) continue;
      return ready > 0 && waited[1].revents == 0;
    }
  }

  const int socket_, end_;
  const Clock::time_point begin_;
  const std::chrono::milliseconds patience_;
  std::array<char, 4096> bytes_;
  std::size_t at_ = 0, held_ = 0, received_ = 0;
};

// cpp-httplib's own connections have a time limit for each read, not for a request.
class PatientServer final : public httplib::Server {
 public:
  explicit PatientServer(std::chrono::milliseconds patience) : patience_(patience), end_(eventfd(0, EFD_CLOEXEC)) {}
  ~PatientServer() override { close(end_); }
  PatientServer(const PatientServer&) = delete;
  PatientServer& operator=(const PatientServer&) = delete;

  void end() {
    eventfd_write(end_, 1);
    stop();
  }

 private:
  bool process_and_close_socket(socket_t socket) override {
    Connection connection(socket, end_, patience_);
    bool is_closed = false;
    return process_request(connection, true, is_closed, nullptr);
  }

  const std::chrono::milliseconds patience_;
  const int end_;
};

}  // namespace

struct HttpServer::State {
  explicit State(std::chrono::milliseconds patience) : server(patience) {}

  struct Page {
    std::string type, content;
  };
  HttpAddress address;
  std::string token;
  PatientServer server;
  std::mutex mutex;  // of pages
  std::map<std::string, Page> pages;
  std::thread thread;

  bool is_allowed(const httplib::Request& request) const {
    if (token.empty()) return true;
    const std::string bearer = request.get_header_value("Authorization");
    if (bearer.starts_with("Bearer ") && are_equal(bearer.substr(7), token)) return true;
    return request.has_param("token") && are_equal(request.get_param_value("token"), token);
  }

  httplib::Server::HandlerResponse answer(const httplib::Request& request, httplib::Response& response) {
    constexpr auto kDone = httplib::Server::HandlerResponse::Handled;
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Cache-Control", "no-store");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header(
        "Content-Security-Policy",
        "default-src 'none'; img-src data:; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src "
        "'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    const auto refuse = [&](int status, const char* why) {
      response.status = status;
      response.set_content(why, "text/plain");
      return kDone;
    };
    if (request.method != "GET" && request.method != "HEAD") return refuse(405, "read only: GET\n");
    if (address.is_loopback() && !names_loopback(request.get_header_value("Host"))) {
      return refuse(403, "name this machine as localhost\n");
    }
    if (!is_allowed(request)) return refuse(401, "give the token\n");
    const std::scoped_lock lock(mutex);
    const auto page = pages.find(request.path);
    if (page == pages.end()) return refuse(404, "no such page\n");
    response.set_content(page->second.content, page->second.type.c_str());
    response.status = 200;
    return kDone;
  }
};

HttpServer::HttpServer(const HttpAddress& address, const std::string& token, std::chrono::milliseconds patience)
    : state_(std::make_unique<State>(patience)) {
  State& s = *state_;
  if (!address.is_loopback() && token.size() < kMinTokenCharacters) {
    throw InputError("--serve " + address.text() +
                     ": other machines may reach this address; give --token-file with at least 16 characters, or "
                     "127.0.0.1:" +
                     std::to_string(address.port));
  }
  s.address = address;
  s.token = token;
  s.server.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // Not SO_REUSEPORT, by which another program could answer in the place of this one.
  s.server.set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  s.server.set_payload_max_length(1024);
  s.server.set_pre_routing_handler(
      [&s](const httplib::Request& request, httplib::Response& response) { return s.answer(request, response); });
  if (address.port == 0) {
    s.address.port = s.server.bind_to_any_port(address.host.c_str());
  } else if (!s.server.bind_to_port(address.host.c_str(), address.port)) {
    s.address.port = -1;
  }
  if (s.address.port <= 0) {
    throw InputError("--serve " + address.text() + ": can't be listened on; give another port");
  }
  s.thread = std::thread([&s] { s.server.listen_after_bind(); });
}

HttpServer::~HttpServer() {
  if (state_ == nullptr || !state_->thread.joinable()) return;
  // stop() has no effect before the thread listens.
  while (!state_->server.is_running()) std::this_thread::yield();
  state_->server.end();
  state_->thread.join();
}

void HttpServer::put(const std::string& path, const std::string& type, std::string content) {
  const std::scoped_lock lock(state_->mutex);
  state_->pages[path] = {type, std::move(content)};
}

std::string HttpServer::url() const { return "http://" + state_->address.text() + "/"; }

#endif

}  // namespace kvtwin
