#include "lab/watch/http.hpp"

#include <charconv>
#include <string_view>

#include "lab/error.hpp"

#if KVTWIN_HAVE_HTTP
// No encryption: the loopback, or a network that the token's holder trusts.
#undef CPPHTTPLIB_OPENSSL_SUPPORT
#include <httplib.h>

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
HttpServer::HttpServer(const HttpAddress& /*address*/, const std::string& /*token*/) {
  throw InputError(
      "--serve: this program has no cpp-httplib, as that of the wheel; take the Debian package, or install "
      "libcpp-httplib-dev and build from source");
}
HttpServer::~HttpServer() = default;
void HttpServer::put(const std::string& /*path*/, const std::string& /*type*/, std::string /*content*/) {}
std::string HttpServer::url() const { return {}; }

#else

namespace {

constexpr int kPatienceS = 5;
constexpr std::size_t kThreads = 4, kMinTokenCharacters = 16;

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

}  // namespace

struct HttpServer::State {
  struct Page {
    std::string type, content;
  };
  HttpAddress address;
  std::string token;
  httplib::Server server;
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

HttpServer::HttpServer(const HttpAddress& address, const std::string& token) : state_(std::make_unique<State>()) {
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
  s.server.set_read_timeout(kPatienceS, 0);
  s.server.set_write_timeout(kPatienceS, 0);
  s.server.set_keep_alive_max_count(100);
  s.server.set_keep_alive_timeout(kPatienceS);
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
  state_->server.stop();
  state_->thread.join();
}

void HttpServer::put(const std::string& path, const std::string& type, std::string content) {
  const std::scoped_lock lock(state_->mutex);
  state_->pages[path] = {type, std::move(content)};
}

std::string HttpServer::url() const { return "http://" + state_->address.text() + "/"; }

#endif

}  // namespace kvtwin
