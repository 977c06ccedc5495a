// The stand-in for Mooncake's library, and a master that accepts connections and says nothing.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <stdexcept>
#include <string>

#include "impl/remote/mooncake_backend.hpp"
#include "impl/runtime/shared_library.hpp"
#include "tests/free_port.hpp"
#include "tests/mooncake_stand_in/mooncake_stand_in.hpp"
#include "tests/paths.hpp"

namespace kvtwin::test {

inline MooncakeStandIn& mooncake_stand_in() {
  static const SharedLibrary library("the stand-in", {built("libmooncake_stand_in.so")}, "build it");
  static MooncakeStandIn& one = *library.find<MooncakeStandIn*>("kvtwin_mooncake_stand_in");
  return one;
}

// A port of a master. Connections are refused until answer().
class MooncakePort {
 public:
  int number() const { return port_.number(); }
  void answer() {
    constexpr int kConnections = 4096;
    if (::listen(port_.socket(), kConnections) != 0) throw std::runtime_error("a port that can't be listened to");
  }
  MooncakeConfig config() const {
    MooncakeConfig config;
    config.host = "127.0.0.1";
    config.port = number();
    config.library = built("libmooncake_stand_in.so");
    config.timeout = 60 * kNsPerSecond;  // a test machine may be slow
    return config;
  }

 private:
  FreePort port_;
};

}  // namespace kvtwin::test
