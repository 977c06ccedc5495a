// A storage back end without a server: the processes of one run lend memory to a common pool, and read and write it by
// one-sided transfers (peer_memory.hpp). See staged_backend.hpp for errors and deadlines.
//
//   name of a page --hash--> tag: owner (process), set of places in the owner's memory
//   owner's memory: tags, 64 places per set | values: header and payload of a page, one per place
//
// Every process computes the owner and the set of a page from its name alone. A look-up reads the tags of the set. A
// write reads the tags, takes the place with the same tag, else a free place, else a place that depends on the tag
// (this evicts the page there), writes the value, and then the tag. Nobody takes a lock, so two writers may take the
// same place at the same time. A reader therefore trusts no tag: the header proves which page the value is, and another
// value is a miss.
//
// The memory ends with the process that lends it: its pages are `unreachable` then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "impl/remote/peer_memory.hpp"
#include "impl/remote/staged_backend.hpp"

namespace kvtwin {

// `timeout`: of each transfer.
struct PeerStoreConfig : StagedTerms {
  std::string name;        // of this process; no two processes of the pool have the same one
  std::string library;     // place for load_nixl
  std::string transports;  // for UCX_TLS, for example "tcp,self"; empty: UCX chooses
  Pages pages = 0;         // values that this process lends memory for; rounded up to whole sets
  // For tests: receives the lent memory, 16 bytes of tag and one value per place, before anyone uses it. May be empty.
  std::function<void(std::span<std::byte> tags, std::span<std::byte> values)> lends;

  PeerExchange exchange;  // of all processes of the pool
};

// Parses "nixl+ucx://engines[?transports=...][&library=...]". Returns one sentence if the URL is wrong; the sentence
// does not contain the URL.
std::variant<PeerStoreConfig, std::string> parse_peer_url(std::string_view url);

// Returns the memory that one process lends for pages of this form, in bytes.
Bytes lent_bytes(Pages pages, const PageForm& form);

// Calls config.exchange. `processes`: the number of processes of the pool. Errors: std::runtime_error, one sentence, if
// NIXL cannot be used in this process or in another one.
std::unique_ptr<StagedBackend> make_peer_store(const PeerStoreConfig& config, std::size_t processes,
                                               const PageForm& form);

}  // namespace kvtwin
