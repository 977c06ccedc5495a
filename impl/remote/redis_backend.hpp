// A storage back end on one or several Redis servers. Each page is one value: PageHeader, then payload. The name of the
// value is a hash (remote_name.hpp), so the name shows nothing of the page's text. With a secret, the name contains the
// secret's id, so that engines with different secrets, or none, do not see each other's pages.
//
// Rendezvous hashing over the names of the servers assigns each page to a server, equally on every machine. If a server
// is added or removed, only the pages of this server change their place. Commands are pipelined to all servers at the
// same time, in batches of at most `bytes_in_flight`. There is one connection per server and thread. A page that a
// server already has is not sent again.
//
// Errors:
// - A server that evicts pages causes misses. A server without memory gives `full`.
// - A server that does not answer a batch in time, breaks the connection, sends wrong replies or refuses service gives
//   `unreachable`. Until its back-off time has passed, its pages get this result at once, without a command. The other
//   servers continue. counters() has the number of each case.
// - A value that is not the right page is deleted and counted.
//
// A connection takes at most `connect_timeout`, and a batch at most `command_timeout`. Name resolution can take longer,
// if servers are given by name. No server must be present at the start; check_redis_servers() tests this.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "impl/remote/back_off.hpp"
#include "impl/storage/backend.hpp"

namespace kvtwin {

struct RedisServer {
  std::string host;
  int port = 6379;
  std::string name() const { return host + ":" + std::to_string(port); }
};

struct RedisConfig {
  std::vector<RedisServer> servers;
  std::string user, password;  // empty = none
  int database = 0;
  bool tls = false;
  std::string tls_ca_file;  // empty = the system's certificates
  TimeNs connect_timeout = kNsPerSecond / 2, command_timeout = kNsPerSecond;
  BackOffTimes back_off;
  Bytes bytes_in_flight = Bytes{4} << 20;  // at least one page is allowed
  const PageSeal* seal = nullptr;          // keyed check of all pages; null = check without a secret. Outlives the tier

  // For tests: the clock of back-offs, and a function that opens connections (returns a socket, or -1).
  std::function<TimeNs()> now;
  std::function<int(const RedisServer&)> dial;
};

// Parses "redis://[user@]host[:port][,host[:port]...][/database]", or "rediss://..." with TLS. Returns one sentence if
// the URL is wrong; the sentence does not contain the URL. A password in the URL is refused, because run folders
// contain URLs.
std::variant<RedisConfig, std::string> parse_redis_url(std::string_view url);

// Returns the number of the server that has the page. `stored_as`: stored_page_key.
std::size_t redis_server_of(const std::vector<RedisServer>& servers, const PageKey& stored_as);

// Returns an empty text if every server answers, else a sentence about the first one that does not.
std::string check_redis_servers(const RedisConfig& config);

// Errors: std::runtime_error if the configuration needs a feature that this build does not have.
std::unique_ptr<StorageBackend> make_redis_backend(const RedisConfig& config, const PageForm& form);

}  // namespace kvtwin
