// A connection to a Redis server, and pipelined talks over several of them at once. What goes wrong ends as a
// RedisTrouble and a closed connection, never as an exception or a signal; the next talk begins with a new one.
// A connection is one thread's.
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
  untrusted,  // no TLS there, or nobody we know
  slow,       // no answer in time
  closed,     // the connection broke
  garbled,    // no reply to what was asked
  denied,     // who we are, or what we may do
  loading,    // not ready yet
  read_only,  // a replica
  error       // whatever else it says
};
constexpr std::size_t kRedisTroubles = 10;
std::string_view name_of(RedisTrouble trouble);
// What an error reply means.
RedisTrouble trouble_of(std::string_view error);

// What TLS connections have in common; none where hiredis has no TLS.
class RedisTls;
// Null without TLS. std::runtime_error if it can't be had.
std::shared_ptr<RedisTls> make_redis_tls(const RedisConfig& config);

class RedisConnection {
 public:
  // `longest_reply`: longer ones are garbled. config outlives it.
  RedisConnection(const RedisConfig& config, const RedisServer& server, std::shared_ptr<RedisTls> tls,
                  Bytes longest_reply);
  ~RedisConnection();
  RedisConnection(RedisConnection&&) noexcept;

  // There and in step, or connected anew.
  RedisTrouble ready();
  void close();

 private:
  friend class RedisExchange;
  struct Closer {
    void operator()(redisContext* context) const;
  };
  RedisTrouble connect();
  RedisTrouble introduce();

  const RedisConfig* config_;
  RedisServer server_;
  std::shared_ptr<RedisTls> tls_;
  Bytes longest_reply_;
  std::unique_ptr<redisContext, Closer> context_;
};

// Commands to one server, and their replies in order.
struct RedisTalk {
  using Words = std::vector<std::string_view>;
  RedisConnection* connection = nullptr;  // ready
  std::size_t commands = 0;
  std::function<void(std::size_t command, Words& words)> say;
  // Anything but `none` ends the talk.
  std::function<RedisTrouble(std::size_t command, const redisReply& reply)> hear;

  std::size_t answered = 0;  // commands, by the end
  RedisTrouble trouble = RedisTrouble::none;
};

// All at once. Ends after `timeout` at the latest.
void talk(std::span<RedisTalk> talks, TimeNs timeout);

}  // namespace kvtwin
