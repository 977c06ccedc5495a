// One-sided reads and writes of memory of other engines, by NIXL's plugin UCX: RDMA between machines, the kernel's
// copies between processes (process_vm_readv) on one machine, TCP where nothing else is possible. By RDMA and by the
// kernel's copies, the peer does nothing, even if it is stopped. docs/internals/peers.md has the protocol and the
// measurements.
//
//   own memory --regions--> description() --bytes, by the caller's way--> add() --PeerId--> read(), write()
//
// A transfer that is late or fails may still change or read own memory. Therefore each transfer holds a lease of the
// caller: the lease is destroyed when the transfer has ended, and, for a failed one, when the agent has. Memory under a
// lease is used for nothing else.
//
// Thread: any thread; one read and one write per peer at a time. Calls end in bounded time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "impl/remote/call_thread.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct PeerConfig {
  std::string name;                         // of this engine; no two engines have the same one
  std::string library;                      // place for load_nixl
  std::string transports;                   // for UCX_TLS, for example "tcp,self"; empty: UCX chooses
  TimeNs timeout = kNsPerSecond;            // of each transfer
  TimeNs open_timeout = 60 * kNsPerSecond;  // of making the agent, of adding a peer, and of the end
  Bytes bytes_in_flight = Bytes{4} << 20;   // of one transfer of pages; at least one page is allowed
};

using PeerId = std::size_t;

enum class PeerAnswer : std::uint8_t {
  done,
  failed,  // the peer, or the connection, is gone: every later transfer fails
  late     // no answer in time, or an earlier transfer of this direction is still in progress
};

class PeerMemory {
 public:
  using Lease = std::shared_ptr<const void>;
  // Own memory, which is in one of the own regions, and the same number of bytes in a region of the peer.
  struct Copy {
    std::span<std::byte> own;
    std::size_t region = 0;
    Bytes offset = 0;
  };

  // Registers the regions. `owner` owns their memory, and is kept until the agent has ended. `about`: bytes that peers
  // receive with the description. Errors: std::runtime_error, one sentence.
  PeerMemory(const PeerConfig& config, std::vector<std::span<std::byte>> regions, std::shared_ptr<const void> owner,
             std::span<const std::byte> about = {});
  // Transfers that are in progress go on, and keep memory and agent.
  ~PeerMemory();

  // Returns bytes by which peers reach the regions. They prove nothing: exchange them among trusted engines.
  const std::vector<std::byte>& description() const { return description_; }
  // Adds the peer that is described. Returns one sentence if that is impossible.
  std::variant<PeerId, std::string> add(std::span<const std::byte> description);

  const std::string& name(PeerId peer) const { return at(peer).name; }
  std::span<const std::byte> about(PeerId peer) const { return at(peer).about; }
  // Returns whether a transfer with the peer has failed.
  bool is_lost(PeerId peer) const { return at(peer).state->lost; }

  PeerAnswer read(PeerId from, std::vector<Copy> copies, Lease lease) { return move(false, from, copies, lease); }
  PeerAnswer write(PeerId to, std::vector<Copy> copies, Lease lease) { return move(true, to, copies, lease); }

 private:
  struct Agent;
  struct Region {
    std::uintptr_t address = 0;
    Bytes bytes = 0;
  };
  struct PeerState {
    std::atomic<bool> lost = false;
  };
  struct Peer {
    std::string name;
    std::vector<Region> regions;
    std::vector<std::byte> about;
    std::shared_ptr<PeerState> state = std::make_shared<PeerState>();
    CallThread reads, writes;
  };

  Peer& at(PeerId peer) const;
  PeerAnswer move(bool is_write, PeerId peer, const std::vector<Copy>& copies, const Lease& lease);

  const PeerConfig config_;
  const std::vector<std::span<std::byte>> regions_;
  CallThread opener_;
  std::shared_ptr<Agent> agent_;
  std::vector<std::byte> description_;
  mutable std::mutex mutex_;  // guards peers_, whose elements stay; and the use of opener_
  std::vector<std::unique_ptr<Peer>> peers_;
};

// Gives the description of this process to all processes of a run. Returns those of all, by process, on each of them;
// an empty list if a process has left. All processes call it once.
using PeerExchange = std::function<std::vector<std::string>(const std::string& own)>;

// What make() returns, a pointer to something with a description(), and the descriptions of all processes. A process
// whose make() throws takes part with an empty description, so that no other one waits for it.
// Errors: std::runtime_error, one sentence, if this process or another one has no memory to be reached.
template <typename Make>
auto make_and_exchange(const Make& make, const PeerExchange& exchange) {
  std::pair<decltype(make()), std::vector<std::string>> met;
  std::string own, error;
  try {
    met.first = make();
    const std::span<const std::byte> description = met.first->description();
    own.assign(reinterpret_cast<const char*>(description.data()), description.size());
  } catch (const std::runtime_error& failed) {
    error = failed.what();
  }
  met.second = exchange(own);
  if (!error.empty()) throw std::runtime_error(error);
  if (met.second.empty() || std::ranges::any_of(met.second, [](const std::string& one) { return one.empty(); })) {
    throw std::runtime_error("another process of the run can't register its memory.");
  }
  return met;
}

}  // namespace kvtwin
