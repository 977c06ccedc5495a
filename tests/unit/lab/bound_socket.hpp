// The sockets of an engine: its publisher and its replay socket, on a free port.
#pragma once

#include <gtest/gtest.h>
#include <zmq.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvtwin::test {

inline std::array<std::uint8_t, 8> big_endian(std::uint64_t number) {
  std::array<std::uint8_t, 8> bytes{};
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<std::uint8_t>(number >> (56 - 8 * i));
  return bytes;
}

class BoundSocket {
 public:
  BoundSocket(void* context, int type) : socket_(zmq_socket(context, type)) {
    const int none = 0;
    zmq_setsockopt(socket_, ZMQ_SNDHWM, &none, sizeof none);
    // What has not been sent to a client that is gone is dropped. Else zmq_ctx_term() may wait for this client.
    zmq_setsockopt(socket_, ZMQ_LINGER, &none, sizeof none);
    EXPECT_EQ(zmq_bind(socket_, "tcp://127.0.0.1:*"), 0);
    std::array<char, 256> text{};
    std::size_t size = text.size();
    zmq_getsockopt(socket_, ZMQ_LAST_ENDPOINT, text.data(), &size);
    endpoint = text.data();
  }
  ~BoundSocket() { zmq_close(socket_); }
  std::vector<std::uint8_t> receive() {
    std::vector<std::uint8_t> bytes(4096);
    const int size = zmq_recv(socket_, bytes.data(), bytes.size(), 0);
    bytes.resize(size < 0 ? 0 : static_cast<std::size_t>(size));
    return bytes;
  }
  // Waits for a message that may not come: a client that closes its socket drops what it has not sent yet. Returns
  // false if `is_over` is true first.
  bool wait(const std::function<bool()>& is_over) {
    zmq_pollitem_t item{socket_, 0, ZMQ_POLLIN, 0};
    while (zmq_poll(&item, 1, 10) <= 0) {
      if (is_over()) return false;
    }
    return true;
  }
  template <class Bytes>
  void send(const Bytes& bytes, bool more) {
    zmq_send(socket_, bytes.data(), bytes.size(), more ? ZMQ_SNDMORE : 0);
  }

  std::string endpoint;

 private:
  void* socket_;
};

}  // namespace kvtwin::test
