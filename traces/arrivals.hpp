// Generates the arrival times of requests from many API clients.
//
// Every client draws its gaps independently from a bursty distribution: Gamma, or Weibull for one client in four, with
// a coefficient of variation of 2 to 5. The rates follow Zipf's law: of 60 clients, the first five send half of the
// requests. The same seed generates the same times on every machine.
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

  // Requires: `clients` >= 1; `per_second` > 0, the rate of all clients together (KV_CHECK).
  ClientArrivals(std::uint64_t seed, std::size_t clients, double per_second);

  // Returns the next arrival.
  const Arrival& peek() const { return next_; }
  // Advances to the arrival after the next one.
  void pop();

 private:
  struct Client {
    Random random{0};
    double shape = 0, scale = 0;  // parameters of the gap's distribution; scale in ns
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
