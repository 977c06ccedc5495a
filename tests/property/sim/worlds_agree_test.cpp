// Without shared links, the SimGrid world and the event heap give the policy the same inputs, to the nanosecond.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "world_script.hpp"

namespace kvtwin::test {
namespace {

// Sets of lanes that share no link: loads, backups, sets to disk, and the remote tier through the host; or the reads of
// both storage tiers through the host, after something was stored; or the direct reads and writes of the remote tier.
enum class Lanes : std::uint8_t { writes_to_disk, reads_by_host, direct };

// Does random actions on every input, depending on a seed. Two copies that get the same inputs do the same actions.
class RandomPolicy {
 public:
  RandomPolicy(std::uint64_t seed, int budget)
      : rng_(mix(seed)), budget_(budget), scale_(1 + rng_.below(3)), lanes_(static_cast<Lanes>(rng_.below(3))) {}

  void operator()(Substrate& s, const Input& input) {
    if (const auto* c = std::get_if<Completion>(&input.what)) {
      std::erase(loads_, c->id);
      stored_ = stored_ || c->id == first_set_;
    }
    const std::uint64_t actions = rng_.below(5);
    for (std::uint64_t i = 0; i < actions && budget_ > 0; ++i, --budget_) act(s, input.now);
  }

 private:
  Bytes size() {
    const Bytes most[] = {0, 60, 3'000, 4'000'000};
    return most[scale_] == 0 ? 0 : rng_.below(most[scale_]);
  }

  void act(Substrate& s, TimeNs now) {
    switch (rng_.below(11)) {
      case 0:
      case 1:
        if (lanes_ != Lanes::direct) keep(s.submit(move(Lane::h2d)), true);
        break;
      case 2:
        if (lanes_ != Lanes::direct) keep(s.submit(move(Lane::d2h)), false);
        break;
      case 3: submit_pass(s, {}); break;
      case 4: {
        std::vector<OperationId> gates;
        for (const OperationId load : loads_) {
          if (rng_.below(2) == 0) gates.push_back(load);
        }
        submit_pass(s, gates);
        break;
      }
      case 5: keep(s.call_at(now + static_cast<TimeNs>(rng_.below(100)) - 10), false); break;
      case 6: keep(s.reduce_min(ReduceVector{static_cast<std::int64_t>(rng_.below(1000))}), false); break;
      case 7:
        if (!all_.empty()) s.cancel(all_[all_.size() - 1 - rng_.below(std::min<std::size_t>(all_.size(), 12))]);
        break;
      default: store(s); break;
    }
  }

  void store(Substrate& s) {
    constexpr StorageVerb kVerbs[] = {StorageVerb::look_up, StorageVerb::get, StorageVerb::get,
                                      StorageVerb::set,     StorageVerb::set, StorageVerb::remove};
    StorageVerb verb = kVerbs[rng_.below(std::size(kVerbs))];
    const Tier tier = lanes_ != Lanes::direct && rng_.below(2) == 0 ? Tier::disk : Tier::remote;
    if (tier == Tier::disk && verb == StorageVerb::get && lanes_ == Lanes::writes_to_disk) verb = StorageVerb::set;
    if (tier == Tier::disk && verb == StorageVerb::set && lanes_ == Lanes::reads_by_host) {
      if (set_) return;
      set_ = true;  // must come before the first get, see set_ below
    }
    const bool reads = verb == StorageVerb::get;
    if (reads && tier == Tier::disk && (!set_ || !stored_)) return;
    const Tier memory = lanes_ == Lanes::direct ? Tier::device : Tier::host;
    StorageCall call(verb, tier, rng_.below(30), 1 + rng_.below(20), memory);
    call.latency(static_cast<TimeNs>(1 + rng_.below(50)));
    call.work.page_bytes = 1 + size() / 8;
    call.work.ranks = ranks_;
    const OperationId id = call.submit(s);
    if (verb == StorageVerb::set && tier == Tier::disk && lanes_ == Lanes::reads_by_host) first_set_ = id;
    keep(id, reads && memory == Tier::device);
  }

  Operation move(Lane lane) {
    const TimeNs latency = rng_.below(3) == 0 ? 0 : static_cast<TimeNs>(rng_.below(50));
    const std::uint64_t most = rng_.below(2) == 0 ? 0 : 10'000'000'000 + rng_.below(60'000'000'000);
    return layered(static_cast<std::uint32_t>(1 + rng_.below(12)),
                   transfer(lane, size(), latency, most, 1 + rng_.below(20)));
  }

  void submit_pass(Substrate& s, const std::vector<OperationId>& gates) {
    const auto step = static_cast<TimeNs>(1 + rng_.below(scale_ == 3 ? 50'000 : 40));
    keep(s.submit(pass(static_cast<TimeNs>(rng_.below(20)), step, 1 + rng_.below(3) * rng_.below(5), gates)), false);
  }

  void keep(OperationId id, bool load) {
    all_.push_back(id);
    if (load) loads_.push_back(id);
  }

  Splitmix rng_;
  int budget_;
  std::uint64_t scale_;
  Lanes lanes_;
  std::uint32_t ranks_ = static_cast<std::uint32_t>(1 + rng_.below(4));
  bool set_ = false, stored_ = false;  // reads_by_host: the only set of the disk; the gets wait for it
  OperationId first_set_ = OperationId::none;
  std::vector<OperationId> all_;
  std::vector<OperationId> loads_;
};

std::vector<Input> random_arrivals(std::uint64_t seed) {
  Splitmix rng(mix(seed ^ 77));
  std::vector<Input> inputs;
  TimeNs now = 0;
  for (RequestId i = 0; i < 200; ++i) {
    inputs.push_back(arrival(now, i));
    now += static_cast<TimeNs>(rng.below(3) * rng.below(3'000));
  }
  return inputs;
}

WorldConfig random_config(std::uint64_t seed) {
  Splitmix rng(mix(seed ^ 99));
  WorldConfig config = plain_config();
  config.ranks = static_cast<std::uint32_t>(1 + rng.below(8));
  if (rng.below(2) == 0) config.h2d_bytes_per_second = 28'123'456'789;
  if (rng.below(2) == 0) config.d2h_bytes_per_second = 64'000'000'000;
  config.disk_read_bytes_per_second = 27'200'000'000;
  config.disk_write_bytes_per_second = 16'100'000'001;
  config.nic_bytes_per_second = 93'200'000'000;
  config.fabric_bytes_per_second = rng.below(2) == 0 ? 190'000'000'000 : 30'000'000'000;
  config.storage = {{Tier::disk, 1 + rng.below(40), rng.below(2) == 0}, {Tier::remote, 1 + rng.below(40), true}};
  if (rng.below(2) == 0) config.storage_stall_share = 0.2;
  if (rng.below(2) == 0) {
    config.fabric_bytes_per_second = 0;
    config.network.nodes = static_cast<std::uint32_t>(1 + rng.below(5));
    config.network.node_bytes_per_second = 21'000'000'001;
    config.network.rails = static_cast<std::uint32_t>(rng.below(3));
    if (rng.below(2) == 0) config.network.switch_bytes_per_second = 50'000'000'000;
    if (rng.below(2) == 0) config.storage[1].lease_ns = 20'000;
    const auto down = static_cast<TimeNs>(rng.below(200'000));
    config.node_downs = {{static_cast<std::uint32_t>(rng.below(config.network.nodes)), {down, down + 60'000}}};
  }
  if (rng.below(2) == 0) config.slow_drives = {{3, {50'000, 150'000}}};
  return config;
}

Act random_act(std::uint64_t seed) {
  auto policy = std::make_shared<RandomPolicy>(seed, 600);
  return [policy](Substrate& s, const Input& input) { (*policy)(s, input); };
}

TEST(WorldsAgree, OnRandomScripts) {
  if (!have_simgrid()) GTEST_SKIP() << "built without SimGrid";
  std::size_t inputs = 0;
  for (std::uint64_t seed = 1; seed <= 120; ++seed) {
    const Log event = run_event(random_config(seed), random_arrivals(seed), random_act(seed));
    const Log simgrid = run_simgrid(random_config(seed), random_arrivals(seed), random_act(seed));
    inputs += event.size();
    const std::size_t both = std::min(event.size(), simgrid.size());
    for (std::size_t i = 0; i < both; ++i) {
      ASSERT_EQ(event[i], simgrid[i]) << "seed " << seed << ", input " << i;
    }
    ASSERT_EQ(event.size(), simgrid.size()) << "seed " << seed;
  }
  EXPECT_GT(inputs, 50'000u);
}

// Every operation is answered exactly once, and times and order keep the contract.
TEST(WorldsAgree, StreamsKeepTheContract) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    const Log log = run_event(random_config(seed), random_arrivals(seed), random_act(seed));
    std::map<std::uint64_t, int> answers;
    TimeNs last = 0;
    for (const Seen& seen : log) {
      ASSERT_GE(seen.now, last) << "seed " << seed;
      last = seen.now;
      if (seen.kind >= kCompletionKind) ++answers[seen.id];
    }
    std::uint64_t expected = 1;
    for (const auto& [id, count] : answers) {
      ASSERT_EQ(id, expected++) << "seed " << seed;
      ASSERT_EQ(count, 1) << "seed " << seed << ", operation " << id;
    }
  }
}

}  // namespace
}  // namespace kvtwin::test
