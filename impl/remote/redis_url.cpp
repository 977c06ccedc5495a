#include <algorithm>
#include <charconv>

#include "impl/remote/redis_backend.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kHostCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
constexpr std::string_view kAddressCharacters = "0123456789abcdefABCDEF:.";

bool is_of(std::string_view text, std::string_view characters) {
  return !text.empty() && text.find_first_not_of(characters) == std::string_view::npos;
}

bool read_number(std::string_view text, int least, int most, int& number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() && number >= least && number <= most;
}

// Parses host, host:port, [address] or [address]:port. Returns an error text, or an empty text.
std::string read_server(std::string_view text, RedisServer& server) {
  std::string_view host = text, port;
  if (text.starts_with('[')) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return "A Redis server's address lacks its closing ']'.";
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!is_of(host, kAddressCharacters)) return "Only an IPv6 address stands between '[' and ']' in a Redis URL.";
  } else {
    host = text.substr(0, text.find(':'));
    port = text.substr(host.size());
    if (!is_of(host, kHostCharacters)) {
      return "A Redis URL is redis://[user@]host[:port][,host[:port]...][/database], its hosts names or addresses.";
    }
  }
  server.host = host;
  if (port.empty()) return "";
  if (port[0] != ':' || !read_number(port.substr(1), 1, 65'535, server.port)) {
    return "A Redis server's port is a number from 1 to 65535.";
  }
  return "";
}

}  // namespace

std::variant<RedisConfig, std::string> parse_redis_url(std::string_view url) {
  RedisConfig config;
  constexpr std::string_view kPlain = "redis://", kTls = "rediss://";
  if (url.starts_with(kTls)) {
    config.tls = true;
    url.remove_prefix(kTls.size());
  } else if (url.starts_with(kPlain)) {
    url.remove_prefix(kPlain.size());
  } else {
    return "A Redis URL begins with redis:// or rediss://.";
  }
  if (const std::size_t at = url.rfind('@'); at != std::string_view::npos) {
    const std::string_view user = url.substr(0, at);
    if (user.find(':') != std::string_view::npos) {
      return "A password doesn't belong into a Redis URL, which is written into run folders, but into the environment "
             "variable KVTWIN_REDIS_PASSWORD.";
    }
    if (!is_of(user, kHostCharacters)) return "A Redis URL's user is made of letters, digits, '.', '_' and '-'.";
    config.user = user;
    url.remove_prefix(at + 1);
  }
  if (const std::size_t slash = url.find('/'); slash != std::string_view::npos) {
    const std::string_view database = url.substr(slash + 1);
    if (!database.empty() && !read_number(database, 0, 999'999, config.database)) {
      return "A Redis URL's database is a number from 0 on.";
    }
    url = url.substr(0, slash);
  }
  for (std::size_t from = 0; from <= url.size();) {
    const std::size_t comma = std::min(url.find(',', from), url.size());
    RedisServer server;
    if (std::string error = read_server(url.substr(from, comma - from), server); !error.empty()) return error;
    if (std::ranges::count(config.servers, server.name(), &RedisServer::name) > 0) {
      return "A Redis URL names each server once.";
    }
    config.servers.push_back(std::move(server));
    from = comma + 1;
  }
  return config;
}

}  // namespace kvtwin
