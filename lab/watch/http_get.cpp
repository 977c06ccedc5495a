// The client of counters' pages: one GET by HTTP/1.0 over a socket that never blocks. It trusts nothing that a server
// sends: every wait ends at the deadline, and the header and the page have limits.
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>

#include "lab/error.hpp"
#include "lab/watch/http.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxPageBytes = std::size_t{16} << 20, kMaxHeaderBytes = std::size_t{64} << 10;
constexpr std::chrono::milliseconds kLookAgain{100};  // between two looks at whether the page is still wanted

struct UrlParts {
  HttpAddress address;
  std::string path;
};

UrlParts parts_of(const std::string& url, const char* option) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) {
    throw InputError(std::string(option) + " " + url +
                     ": must be http://HOST:PORT/PATH, e.g. "
                     "http://127.0.0.1:8000/metrics");
  }
  const std::string rest = url.substr(kScheme.size());
  const std::size_t slash = rest.find('/');
  std::string host = rest.substr(0, slash);
  if (host.rfind(':') == std::string::npos || host.ends_with(']')) host += ":80";
  return {HttpAddress::parse(host, option), slash == std::string::npos ? "/" : rest.substr(slash)};
}

class Get {
 public:
  Get(std::string& why, const std::function<bool()>& is_wanted, std::chrono::milliseconds longest)
      : why_(why), is_wanted_(is_wanted), longest_(longest), end_(std::chrono::steady_clock::now() + longest) {}
  ~Get() { leave(); }
  Get(const Get&) = delete;
  Get& operator=(const Get&) = delete;

  std::optional<std::string> run(const UrlParts& url) {
    if (!connect_to(url.address)) return std::nullopt;
    if (!write("GET " + url.path + " HTTP/1.0\r\nHost: " + url.address.text() +
               "\r\nAccept: text/plain, */*\r\n\r\n")) {
      return std::nullopt;
    }
    return read();
  }

 private:
  std::nullopt_t fail(std::string why) {
    why_ = std::move(why);
    return std::nullopt;
  }

  // With what is still unread: a server that sends without end is told so at once.
  void leave() {
    if (socket_ < 0) return;
    const linger at_once{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close(socket_);
    socket_ = -1;
  }

  // Returns false, with the reason, if the socket does not become ready in time.
  bool wait_for(short events) {
    for (;;) {
      if (!is_wanted_()) return fail("is no longer wanted"), false;
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - std::chrono::steady_clock::now());
      if (left.count() <= 0) {
        return fail("takes longer than " + std::to_string(longest_.count() / 1000) + " s"), false;
      }
      pollfd socket{socket_, events, 0};
      const int ready = poll(&socket, 1, static_cast<int>(std::min(left, kLookAgain).count()));
      if (ready > 0) return true;
      if (ready < 0 && errno != EINTR) return fail(std::strerror(errno)), false;
    }
  }

  bool connect_to(const HttpAddress& address) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (const int error = getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
        error != 0) {
      return fail("can't be found: " + std::string(gai_strerror(error))), false;
    }
    std::string refused = "can't be connected";
    for (const addrinfo* to = found; to != nullptr; to = to->ai_next) {
      leave();
      socket_ = socket(to->ai_family, to->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, to->ai_protocol);
      if (socket_ < 0) continue;
      int error = connect(socket_, to->ai_addr, to->ai_addrlen) == 0 ? 0 : errno;
      if (error == EINPROGRESS) {
        if (!wait_for(POLLOUT)) {
          freeaddrinfo(found);
          return false;
        }
        socklen_t size = sizeof error;
        getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &size);
      }
      if (error == 0) {
        freeaddrinfo(found);
        return true;
      }
      refused = "can't be connected: " + std::string(std::strerror(error));
    }
    freeaddrinfo(found);
    return fail(refused), false;
  }

  bool write(std::string_view text) {
    while (!text.empty()) {
      if (!wait_for(POLLOUT)) return false;
      const ssize_t sent = send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN && errno != EINTR) return fail(std::strerror(errno)), false;
      if (sent > 0) text.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Appends what has come. Returns false at the end of the connection; the reason is empty then.
  bool receive(std::string& to) {
    char bytes[16384];
    why_.clear();
    for (;;) {
      if (!wait_for(POLLIN)) return false;
      const ssize_t got = recv(socket_, bytes, sizeof bytes, 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got < 0) return fail(std::strerror(errno)), false;
      to.append(bytes, static_cast<std::size_t>(got));
      return got > 0;
    }
  }

  std::optional<std::string> read() {
    constexpr std::string_view kBlank = "\r\n\r\n";
    std::string answer;
    std::size_t header = std::string::npos;
    while ((header = answer.find(kBlank)) == std::string::npos) {
      if (answer.size() > kMaxHeaderBytes) return fail("is no HTTP answer: its header has more than 64 KiB");
      if (!receive(answer)) return why_.empty() ? fail("is no HTTP answer: it ends in its header") : std::nullopt;
    }
    int status = 0;
    if (!answer.starts_with("HTTP/1.") || answer.size() < 12 ||
        std::from_chars(answer.data() + 9, answer.data() + 12, status).ec != std::errc()) {
      return fail("is no HTTP answer");
    }
    if (status != 200) return fail("answers " + std::to_string(status));
    std::string fields = answer.substr(0, header);
    std::ranges::transform(fields, fields.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (fields.find("\r\ntransfer-encoding:") != std::string::npos) return fail("answers HTTP/1.0 in chunks");
    std::string body = answer.substr(header + kBlank.size());
    const std::size_t most = length_in(fields);
    while (body.size() < most) {
      if (body.size() > kMaxPageBytes) return fail("has more than 16 MiB");
      if (receive(body)) continue;
      if (!why_.empty()) return std::nullopt;
      if (most != kUntilEnd) return fail("ends before its length");
      break;
    }
    if (body.size() > kMaxPageBytes) return fail("has more than 16 MiB");
    body.resize(std::min(body.size(), most));
    return body;
  }

  static constexpr std::size_t kUntilEnd = std::string::npos;
  static std::size_t length_in(std::string_view fields) {
    constexpr std::string_view kName = "\r\ncontent-length:";
    std::size_t at = fields.find(kName), length = kUntilEnd;
    if (at == std::string_view::npos) return kUntilEnd;
    at = std::min(fields.find_first_not_of(' ', at + kName.size()), fields.size());
    const auto read = std::from_chars(fields.data() + at, fields.data() + fields.size(), length);
    return read.ec == std::errc() ? length : kUntilEnd;
  }

  std::string& why_;
  const std::function<bool()>& is_wanted_;
  const std::chrono::milliseconds longest_;
  const std::chrono::steady_clock::time_point end_;
  int socket_ = -1;
};

}  // namespace

void check_http_url(const std::string& url, const char* option) { parts_of(url, option); }

std::optional<std::string> http_get(const std::string& url, std::string& why, const std::function<bool()>& is_wanted,
                                    std::chrono::milliseconds longest) {
  return Get(why, is_wanted, longest).run(parts_of(url, "--metrics"));
}

}  // namespace kvtwin
