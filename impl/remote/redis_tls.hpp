// TLS for a Redis connection, if hiredis has it (hiredis_ssl, version 1.0 or newer). Checks the certificates and the
// server's name. Only redis_connection.cpp uses this header.
#pragma once

#include <string>

#include "impl/remote/redis_connection.hpp"

namespace kvtwin {

class RedisTls {
 public:
  virtual ~RedisTls() = default;
  // Requires: a connected context that blocks. Returns false if the handshake fails or the server is not trusted.
  virtual bool shake_hands(redisContext& context, const std::string& host) = 0;
};

}  // namespace kvtwin
