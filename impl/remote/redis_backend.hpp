// Pages on one or several Redis servers, each page as one value: PageHeader, then payload. Its name is "kvtwin:" and 32
// hex digits of storage_page_key; nothing of a page's text shows in it. With a secret the secret's id stands between
// the two, so that engines with different secrets, or none, do not see each other's pages.
//
// Which server has a page: rendezvous hashing over the servers' names, the same on every machine; with a server more
// or less only its own pages move. Commands are pipelined, a batch of at most `bytes_in_flight` at a time, to all
// servers at once; one connection a server and thread. A page that is there isn't sent again.
//
// A server that evicts pages makes misses. Out of memory: `full`. A server that doesn't answer a batch in time, breaks
// the connection, talks nonsense or refuses its service: `unreachable`, at once and without asking again until its
// back-off has passed; the others go on. counters() says how often which of these. A value that isn't the page it
// should be is deleted and counted.
//
// Nothing waits longer than `connect_timeout` for a connection and `command_timeout` for a batch, but for the
// resolver, where servers are given by name. No server needs to be there at the start: check_redis_servers() tells.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "impl/storage/backend.hpp"

namespace kvtwin {

struct RedisServer {
  std::string host;
  int port = 6379;
  std::string name() const { return host + ":" + std::to_string(port); }
};

struct RedisConfig {
  std::vector<RedisServer> servers;
  std::string user, password;  // empty: without
  int database = 0;
  bool tls = false;
  std::string tls_ca_file;  // empty: the system's
  TimeNs connect_timeout = kNsPerSecond / 2, command_timeout = kNsPerSecond;
  TimeNs first_back_off = kNsPerSecond / 10, longest_back_off = 10 * kNsPerSecond;
  Bytes bytes_in_flight = Bytes{4} << 20;  // at least a page is
  const PageSeal* seal = nullptr;          // pages carry its check; null: the one without a secret. Outlives the tier

  // For tests. The time that back-offs are measured in; and who makes connections (a socket, or -1), instead of us.
  std::function<TimeNs()> now;
  std::function<int(const RedisServer&)> dial;
};

// "redis://[user@]host[:port][,host[:port]...][/database]", with TLS "rediss://...". Or one sentence of what is wrong
// with it, which doesn't repeat it. A password has no place in it: URLs are written into run folders.
std::variant<RedisConfig, std::string> parse_redis_url(std::string_view url);

// The server's number that has this page (of storage_page_key).
std::size_t redis_server_of(const std::vector<RedisServer>& servers, const PageKey& stored_as);
// `secret`: its id; 0: none.
std::string redis_name_of(const PageKey& stored_as, std::uint32_t secret = 0);

// Empty if every server answers, else a sentence about the first that doesn't.
std::string check_redis_servers(const RedisConfig& config);

// std::runtime_error if the configuration asks for what this build hasn't got.
std::unique_ptr<StorageBackend> make_redis_backend(const RedisConfig& config, const PageForm& form);

}  // namespace kvtwin
