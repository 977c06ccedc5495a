// The conformance suite on the pool in the memory of engines, with a stand-in for NIXL. tests/remote/ has NIXL itself.
#include "impl/remote/peer_store.hpp"
#include "tests/conformance.hpp"
#include "tests/paths.hpp"
#include "tests/peer_store_medium.hpp"

namespace kvtwin::test {
namespace {

PeerStoreConfig stand_in() {
  PeerStoreConfig config;
  config.library = built("libnixl_stand_in.so");
  config.timeout = 60 * kNsPerSecond;
  config.bytes_in_flight = 4096;  // several batches an operation
  return config;
}

KVTWIN_CONFORMS(PeerStore, {.name = "two_processes",
                            .medium = [] { return std::make_unique<PeerStoreMedium>(stand_in()); },
                            .bounded = false});

}  // namespace
}  // namespace kvtwin::test
