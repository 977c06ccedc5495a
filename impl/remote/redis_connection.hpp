// A connection to a Redis server, and pipelined batches of commands over several connections at the same time.
// Errors: every failure gives a RedisTrouble and closes the connection, without exception or signal. The next batch
// opens a new connection.
// Thread: a connection belongs to one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "impl/remote/redis_backend.hpp"

struct redisContext;
struct redisReply;

namespace kvtwin {

enum class RedisTrouble : std::uint8_t {
  none,
  refused,    // no connection
  untrusted,  // no TLS, or no trusted certificate
  slow,       // no answer in time
  closed,     // the connection broke
  garbled,    // the reply does not fit the command
  denied,     // the server refuses the user, the password or the command
  loading,    // the server is not ready yet
  read_only,  // the server is a replica
  error       // any other error reply
};
constexpr std::size_t kRedisTroubles = 10;
std::string_view name_of(RedisTrouble trouble);
// Returns the trouble that an error reply means.
RedisTrouble trouble_of(std::string_view error);

// The common state of TLS connections. Not implemented if hiredis has no TLS.
class RedisTls;
// Returns null if the configuration has no TLS. Errors: std::runtime_error if TLS is not available.
std::shared_ptr<RedisTls> make_redis_tls(const RedisConfig& config);

class RedisConnection {
 public:
  // `longest_reply`: longer replies are garbled; in bytes. `config` outlives the connection.
  RedisConnection(const RedisConfig& config, const RedisServer& server, std::shared_ptr<RedisTls> tls,
                  Bytes longest_reply);
  ~RedisConnection();
  RedisConnection(RedisConnection&&) noexcept;

  // Makes sure that the connection is open and has no unread reply; reconnects if needed.
  RedisTrouble ready();
  void close();

 private:
  friend class RedisExchange;
  struct Closer {
    void operator()(redisContext* context) const;
  };
  RedisTrouble connect();
  RedisTrouble log_in();

  const RedisConfig* config_;
  RedisServer server_;
  std::shared_ptr<RedisTls> tls_;
  Bytes longest_reply_;
  std::unique_ptr<redisContext, Closer> context_;
};

// Commands to one server, with their replies in order.
struct RedisBatch {
  using Words = std::vector<std::string_view>;
  RedisConnection* connection = nullptr;  // connected
  std::size_t commands = 0;
  // Writes the words of a command.
  std::function<void(std::size_t command, Words& words)> write_command;
  // Handles a reply. A result other than `none` ends the batch.
  std::function<RedisTrouble(std::size_t command, const redisReply& reply)> on_reply;

  std::size_t answered = 0;  // out: number of answered commands
  RedisTrouble trouble = RedisTrouble::none;
};

// Executes all batches at the same time. Returns after `timeout` at the latest.
void execute_batches(std::span<RedisBatch> batches, TimeNs timeout);

}  // namespace kvtwin
