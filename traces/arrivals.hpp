// When the requests of many clients of an API come: each client's gaps are its own draws of a bursty distribution
// (Gamma, one time in four Weibull, with a coefficient of variation of 2 to 5), and a few clients send most of them
// (rates near Zipf's law: of 60 clients the first five send half). Same seed, same times, on every machine.
#pragma once

#include <cstdint>
#include <vector>

#include "policy/base/types.hpp"
#include "traces/random.hpp"

namespace kvtwin {

class ClientArrivals {
 public:
  struct Arrival {
    TimeNs time = 0;
    std::size_t client = 0;
  };

  // `clients` >= 1; `per_second` of them all together, > 0.
  ClientArrivals(std::uint64_t seed, std::size_t clients, double per_second);

  // The earliest that is still to come.
  const Arrival& peek() const { return next_; }
  // Moves on to the one after it.
  void pop();

 private:
  struct Client {
    Random random{0};
    double shape = 0, scale = 0;  // of a gap, in ns
    bool weibull = false;
    TimeNs next = 0;

    double gap();
    double first_gap();
  };
  void find_next();

  std::vector<Client> clients_;
  Arrival next_;
};

}  // namespace kvtwin
