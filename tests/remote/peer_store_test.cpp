// The conformance suite on the pool in the memory of engines, by NIXL's plugin UCX.
#include "impl/remote/peer_store.hpp"
#include "tests/conformance.hpp"
#include "tests/peer_store_medium.hpp"
#include "tests/remote/environment.hpp"

namespace kvtwin::test {
namespace {

PeerStoreConfig by_ucx() {
  PeerStoreConfig config;
  config.library = remote_packages().string();
  config.timeout = 60 * kNsPerSecond;  // a test machine may be slow
  config.bytes_in_flight = 65'536;
  return config;
}

KVTWIN_CONFORMS(PeerStoreUcx, {.name = "two_processes",
                               .medium = [] { return std::make_unique<PeerStoreMedium>(by_ucx()); },
                               .bounded = false});

}  // namespace
}  // namespace kvtwin::test
