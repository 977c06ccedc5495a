// A storage back end on a Mooncake Store: a master with the index, and nodes that lend their memory. kvtwin is a
// client; it can also lend memory (`segment_bytes`). See staged_backend.hpp for errors and deadlines.
//
// Mooncake forgets pages when memory runs low, when their node is gone, and when the master restarts: misses. It keeps
// a page for some seconds after each look-up and get (a lease). kvtwin removes pages in spite of leases.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "impl/remote/staged_backend.hpp"

namespace kvtwin {

struct MooncakeConfig : StagedTerms {
  std::string host;  // of the master
  int port = 50'051;
  bool rdma = false;   // else TCP
  std::string device;  // RDMA device; empty = Mooncake chooses
  std::string metadata = "P2PHANDSHAKE";
  Bytes segment_bytes = 0;  // memory that this client lends to the store
  std::string library;      // place for load_mooncake
  std::string master() const { return host + ":" + std::to_string(port); }
};

// Parses "mooncake://host:port[?protocol=tcp|rdma][&device=...][&segment_mib=...][&metadata=...][&library=...]".
// Returns one sentence if the URL is wrong; the sentence does not contain the URL.
std::variant<MooncakeConfig, std::string> parse_mooncake_url(std::string_view url);

// Errors: std::runtime_error if Mooncake's client cannot be loaded. No server must be present: check() tests this.
std::unique_ptr<StagedBackend> make_mooncake_backend(const MooncakeConfig& config, const PageForm& form);

// Opens the values of the store, for back end and tests. See StagedConfig::open.
OpenedStore open_mooncake(const MooncakeConfig& config, std::span<std::byte> staging);

}  // namespace kvtwin
