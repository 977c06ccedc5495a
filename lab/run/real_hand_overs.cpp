#include "lab/run/real_hand_overs.hpp"

#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "impl/remote/peer_pools.hpp"
#include "lab/error.hpp"

namespace kvtwin {

void refuse_roles(const Experiment& experiment, const Setup& setup) {
  if (setup.decode == nullptr) return;
  if (setup.decode->engine.ranks != setup.engine.ranks) {
    throw InputError(experiment.where("cluster.decode_set") +
                     ": gives decode engines parallel.tp = " + std::to_string(setup.decode->engine.ranks) +
                     ", and prefill engines have " + std::to_string(setup.engine.ranks) +
                     "; in a real run, each rank writes to the rank of its number: leave parallel.tp out, or use "
                     "kvtwin simulate");
  }
  if (setup.decode->draft && !setup.draft && setup.decode->draft->restored) {
    throw InputError(
        experiment.where("cluster.decode_set") +
        ": gives only decode engines a draft model, whose KV no page of a prefill engine has, and backs it "
        "up; set model.draft.* for both roles, or add model.draft.restore=false, or take kvtwin simulate");
  }
  if (experiment.flag("cluster.hand_over_staged")) {
    throw InputError(experiment.where("cluster.hand_over_staged") +
                     ": is true, and a real run writes from device pool to device pool; set it to false, or take "
                     "kvtwin simulate");
  }
}

std::unique_ptr<HandOverLane> open_hand_overs(const Experiment& experiment, const Setup& setup, Device& device,
                                              RealEngines* engines, RealRanks* ranks) {
  if (setup.decode == nullptr) return nullptr;
  std::vector<DevicePool> device_pools = device.pools();
  if (device_pools.empty()) {
    throw InputError(experiment.where("cluster.prefill") +
                     ": hand-overs of a real run need real.device = host, whose pools are memory of the process; take "
                     "that, or kvtwin simulate");
  }
  const bool prefills = !setup.is_decode_engine(0);
  PeerPoolsConfig config;
  config.library = experiment.text("real.nixl_library");
  config.process = ranks->rank();
  for (std::size_t engine = 0; engine < setup.world.engines; ++engine) {
    const bool decodes = engine >= setup.roles.prefill;
    config.peers.push_back(prefills && decodes ? engine * setup.engine.ranks + setup.rank : PeerPoolsConfig::kNoPeer);
  }
  config.exchange = [ranks](const std::string& own) { return ranks->group().share(own); };
  std::unique_ptr<PeerPools> pools;
  try {
    pools = open_peer_pools(config, std::move(device_pools));
  } catch (const std::runtime_error& error) {
    throw InputError(experiment.where("real.nixl_library") + ": " + error.what());
  }
  return std::make_unique<HandOverLane>(std::move(pools), *engines);
}

}  // namespace kvtwin
