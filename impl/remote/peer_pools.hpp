// The device pools of all engines of a run, registered with NIXL, so that prefill engines write pages, windows and
// states into the pools of decode engines by one-sided writes (peer_memory.hpp).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "impl/device/device.hpp"
#include "impl/remote/peer_memory.hpp"
#include "impl/runtime/hand_over_lane.hpp"

namespace kvtwin {

struct PeerPoolsConfig {
  std::string library;                 // place for load_nixl
  std::string transports;              // for UCX_TLS; empty: UCX chooses
  TimeNs timeout = 60 * kNsPerSecond;  // of each transfer
  Bytes bytes_in_flight = Bytes{4} << 20;
  std::size_t process = 0;         // of this process
  std::vector<std::size_t> peers;  // by engine: the process whose pools this one writes, or kNoPeer
  static constexpr std::size_t kNoPeer = ~std::size_t{0};

  PeerExchange exchange;  // of all processes of the run
};

// `pools`: the own ones. Those of the peers are of the same kinds, in the same order. Calls config.exchange. Errors:
// std::runtime_error, one sentence, if NIXL cannot be used in this process or in another one.
std::unique_ptr<PeerPools> open_peer_pools(const PeerPoolsConfig& config, std::vector<DevicePool> pools);

}  // namespace kvtwin
