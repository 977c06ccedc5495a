// Several adversarial worlds with one clock, for engines with roles: hand-overs write into the device pool of another
// world, notices take random times, engines die. Equal seeds and equal calls give equal runs.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "tests/adversary/adversarial_world.hpp"
#include "tests/adversary/page_arena.hpp"

namespace kvtwin {

struct FleetConfig {
  std::vector<AdversarialConfig> engines;  // by seat
  std::uint64_t seed = 0;
  std::uint64_t max_notice_ns = 0;
  std::vector<WorldConfig::Death> deaths;
  TimeNs detect_ns = 0;
};

class AdversarialFleet final : private AdversarialPeers {
 public:
  explicit AdversarialFleet(const FleetConfig& config);

  TimeNs now() const { return now_; }
  AdversarialWorld& world(std::size_t seat) { return *worlds_[seat]; }
  bool is_dead(std::uint32_t seat) const override { return dead_[seat]; }
  // Delivers everything until the source is at its end and nothing is in flight.
  void run(InputSource& source, std::span<InputHandler* const> handlers, InputRoute& route);

 private:
  struct Post {
    enum class Kind : std::uint8_t { notice, death, detection };
    Kind kind = Kind::notice;
    std::uint32_t to = 0;
    Notice notice;
    std::vector<SlotId> slots;
  };

  PageArena& device_of(std::uint32_t seat, std::size_t pool) override { return worlds_[seat]->device(pool); }
  void post(std::uint32_t from, std::uint32_t to, const Notice& notice) override;
  void deliver_post(InputRoute& route);
  void deliver(Input& input, InputRoute& route);
  void give(std::size_t seat, const Input& input);

  FleetConfig config_;
  Chance chance_;
  TimeNs now_ = 0;
  std::vector<std::unique_ptr<AdversarialWorld>> worlds_;
  std::vector<bool> dead_;
  std::map<std::pair<TimeNs, std::uint64_t>, Post> posts_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, TimeNs> last_notice_;  // by sender and receiver
  std::uint64_t last_post_ = 0;
};

}  // namespace kvtwin
