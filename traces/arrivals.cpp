#include "traces/arrivals.hpp"

#include <iterator>

#include "policy/base/check.hpp"
#include "traces/draws.hpp"

namespace kvtwin {
namespace {

// Weibull shapes for coefficients of variation from 2 to 5 in steps of 0.5, and the mean for scale 1:
// Gamma(1 + 1 / shape).
struct WeibullShape {
  double shape, mean;
};
constexpr WeibullShape kWeibulls[] = {
    {.5426925612864533, 1.7383759649343233}, {.46270771154695706, 2.33244857419186},
    {.4113402690207457, 3.08247152966378},   {.3753932543448688, 3.9992617788764955},
    {.34868845875618065, 5.095314490690429}, {.3279645487536639, 6.383957205845409},
    {.3113407284243254, 7.878988063959012},
};

}  // namespace

double ClientArrivals::Client::gap() { return scale * (weibull ? random.weibull(shape) : random.gamma(shape)); }

// Returns the time from time 0 to the client's first arrival. Time 0 falls into a random gap, and the longer a gap, the
// more likely. The length of that gap has the length-biased distribution: a Gamma with the shape increased by 1, or,
// for Weibull, a Gamma of shape 1 + 1 / shape to the power 1 / shape. Time 0 divides the gap at a uniform random point.
double ClientArrivals::Client::first_gap() {
  const double part = random.uniform();
  if (!weibull) return part * scale * random.gamma(shape + 1.0);
  return part * scale * exp_of(log_of(random.gamma(1.0 + 1.0 / shape)) / shape);
}

ClientArrivals::ClientArrivals(std::uint64_t seed, std::size_t clients, double per_second) : clients_(clients) {
  KV_CHECK(clients > 0 && per_second > 0, "some client sends something");
  double weights = 0;
  for (std::size_t i = 0; i < clients; ++i) weights += 1.0 / static_cast<double>(i + 1);
  Random random(mix64(seed ^ 0x636c69656e7473ULL));
  for (std::size_t i = 0; i < clients; ++i) {
    Client& client = clients_[i];
    client.random = Random(random.next());
    const double rate = per_second / weights / static_cast<double>(i + 1);
    const double mean = static_cast<double>(kNsPerSecond) / rate;
    client.weibull = random.chance(0.25);
    if (client.weibull) {
      const WeibullShape& shape = kWeibulls[random.integer(0, std::size(kWeibulls) - 1)];
      client.shape = shape.shape;
      client.scale = mean / shape.mean;
    } else {
      const double variation = 2.0 + 3.0 * random.uniform();
      client.shape = 1.0 / (variation * variation);
      client.scale = mean / client.shape;
    }
    client.next = later_by(0, client.first_gap());
  }
  find_next();
}

void ClientArrivals::pop() {
  Client& client = clients_[next_.client];
  client.next = later_by(client.next, client.gap());
  find_next();
}

// If two clients have the same time, the client with the smaller number is first.
void ClientArrivals::find_next() {
  next_ = {clients_[0].next, 0};
  for (std::size_t i = 1; i < clients_.size(); ++i) {
    if (clients_[i].next < next_.time) next_ = {clients_[i].next, i};
  }
}

}  // namespace kvtwin
