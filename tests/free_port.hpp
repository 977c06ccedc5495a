// A free port, for the servers that tests start.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace kvtwin::test {

// A free port of 127.0.0.1. The socket reserves the port as long as the object exists.
class FreePort {
 public:
  FreePort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    if (socket_ < 0 || ::bind(socket_, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        ::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
      throw std::runtime_error("no free port on 127.0.0.1");
    }
    number_ = ntohs(address.sin_port);
  }
  FreePort(const FreePort&) = delete;
  FreePort& operator=(const FreePort&) = delete;
  ~FreePort() { ::close(socket_); }
  int number() const { return number_; }
  int socket() const { return socket_; }

 private:
  int socket_;
  int number_ = 0;
};

// Returns whether a server accepts connections at a port of 127.0.0.1.
inline bool accepts_connections(int port) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const bool accepted = ::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  ::close(descriptor);
  return accepted;
}

// Sends bytes to a port of 127.0.0.1, and returns what the server answers until it closes the connection.
inline std::string ask_port(int port, const std::string& bytes) {
  const int descriptor = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string said;
  if (::connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) {
    char buffer[4096];
    ssize_t got = ::send(descriptor, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    while (got > 0 && (got = ::recv(descriptor, buffer, sizeof buffer, 0)) > 0) {
      said.append(buffer, static_cast<std::size_t>(got));
    }
  }
  ::close(descriptor);
  return said;
}

}  // namespace kvtwin::test
