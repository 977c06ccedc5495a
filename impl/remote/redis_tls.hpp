// TLS below a Redis connection, where hiredis has it (hiredis_ssl, from 1.0 on). Certificates and the server's name
// are checked. Only for redis_connection.cpp.
#pragma once

#include <string>

#include "impl/remote/redis_connection.hpp"

namespace kvtwin {

class RedisTls {
 public:
  virtual ~RedisTls() = default;
  // On a connected context that blocks. False: it can't be trusted, or doesn't want to.
  virtual bool shake_hands(redisContext& context, const std::string& host) = 0;
};

}  // namespace kvtwin
