#include "impl/remote/peer_memory.hpp"

#include <algorithm>
#include <cstring>
#include <list>
#include <new>
#include <optional>
#include <stdexcept>
#include <utility>

#include "impl/remote/library_settings.hpp"
#include "impl/remote/nixl_agent.hpp"
#include "impl/storage/checksum.hpp"
#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {

// Ends in the thread that uses it last. The registered memory and the leases end after the agent.
struct PeerMemory::Agent {
  Agent(const NixlFunctions& functions, const std::string& name, std::shared_ptr<const void> owner_of_memory)
      : owner(std::move(owner_of_memory)), nixl(functions, name) {}

  const std::shared_ptr<const void> owner;
  std::mutex mutex;
  std::list<Lease> lent;  // to transfers that have not ended well
  NixlAgent nixl;
};

namespace {

constexpr std::uint64_t kMagic = 0x7265657074766B01;  // the bytes "\1kvtpeer"
constexpr std::size_t kMaxRegions = 16;

// Writes and reads the parts of a description: little-endian words, and texts behind their length.
void put(std::vector<std::byte>& to, std::uint64_t word) {
  to.resize(to.size() + 8);
  store_le64(to.data() + to.size() - 8, word);
}
void put(std::vector<std::byte>& to, std::span<const std::byte> bytes) {
  put(to, bytes.size());
  to.insert(to.end(), bytes.begin(), bytes.end());
}
std::optional<std::uint64_t> take_word(std::span<const std::byte>& from) {
  if (from.size() < 8) return std::nullopt;
  const std::uint64_t word = load_le64(from.data());
  from = from.subspan(8);
  return word;
}
std::optional<std::vector<std::byte>> take_bytes(std::span<const std::byte>& from) {
  const auto length = take_word(from);
  if (!length || *length > from.size()) return std::nullopt;
  const auto bytes = from.first(*length);
  from = from.subspan(*length);
  return std::vector<std::byte>(bytes.begin(), bytes.end());
}

constexpr const char* kNotDescribed = "The bytes are not the description of a peer's memory by this version of kvtwin.";

}  // namespace

PeerMemory::PeerMemory(const PeerConfig& config, std::vector<std::span<std::byte>> regions,
                       std::shared_ptr<const void> owner, std::span<const std::byte> about)
    : config_(config), regions_(std::move(regions)) {
  KV_CHECK(!regions_.empty() && regions_.size() <= kMaxRegions, "a peer has a few regions");
  set_ucx_variables(config.transports);
  struct Opening {
    std::shared_ptr<Agent> agent;
    std::vector<std::byte> metadata;
  };
  const auto opening = std::make_shared<Opening>();
  opening->agent = std::make_shared<Agent>(load_nixl(config.library), config.name, std::move(owner));
  const bool in_time = opener_.run(
      [opening, memory = regions_] {
        constexpr bool kAnswersOthers = true;
        if (opening->agent->nixl.open("UCX", {}, memory, kAnswersOthers))
          opening->metadata = opening->agent->nixl.description();
      },
      config.open_timeout);
  if (!in_time) throw std::runtime_error("NIXL's plugin UCX does not start in time.");
  if (opening->metadata.empty()) {
    throw std::runtime_error("NIXL's plugin UCX can't be used (UCX_TLS=" + config.transports + ").");
  }
  agent_ = opening->agent;
  put(description_, kMagic);
  put(description_, regions_.size());
  for (const std::span<std::byte> region : regions_) {
    put(description_, reinterpret_cast<std::uintptr_t>(region.data()));
    put(description_, region.size());
  }
  put(description_, about);
  put(description_, opening->metadata);
  put(description_, checksum(std::span<const std::byte>(description_)));
}

PeerMemory::~PeerMemory() {
  peers_.clear();
  if (opener_.busy()) return;
  // A capture that is moved into the call ends with the call, on its thread.
  opener_.run([last = std::move(agent_)]() mutable { last = nullptr; }, config_.open_timeout);
}

std::variant<PeerId, std::string> PeerMemory::add(std::span<const std::byte> description) {
  auto peer = std::make_unique<Peer>();
  if (description.size() < 8 ||
      load_le64(description.data() + description.size() - 8) != checksum(description.first(description.size() - 8))) {
    return kNotDescribed;
  }
  std::span<const std::byte> rest = description.first(description.size() - 8);
  const auto magic = take_word(rest), regions = take_word(rest);
  if (magic != kMagic || !regions || *regions > kMaxRegions) return kNotDescribed;
  for (std::uint64_t i = 0; i < *regions; ++i) {
    const auto address = take_word(rest), bytes = take_word(rest);
    if (!address || !bytes) return kNotDescribed;
    peer->regions.push_back({*address, *bytes});
  }
  auto about = take_bytes(rest), metadata = take_bytes(rest);
  if (!about || !metadata) return kNotDescribed;
  peer->about = std::move(*about);

  const std::lock_guard lock(mutex_);
  if (opener_.busy()) return "Another peer is still being added.";
  const auto name = std::make_shared<std::string>();
  const bool in_time = opener_.run(
      [agent = agent_, name, bytes = std::move(*metadata)] { *name = agent->nixl.meet(bytes); }, config_.open_timeout);
  if (!in_time) return "NIXL does not add the peer in time.";
  if (name->empty()) return "NIXL refuses the description of the peer.";
  if (*name == config_.name) return "The peer has this engine's own name, " + config_.name + ".";
  if (std::ranges::any_of(peers_, [&](const auto& other) { return other->name == *name; })) {
    return "There is a peer with the name " + *name + " already.";
  }
  peer->name = *name;
  peers_.push_back(std::move(peer));
  return peers_.size() - 1;
}

PeerMemory::Peer& PeerMemory::at(PeerId peer) const {
  const std::lock_guard lock(mutex_);
  KV_CHECK(peer < peers_.size(), "a peer was added before it is used");
  return *peers_[peer];
}

PeerAnswer PeerMemory::move(bool is_write, PeerId id, const std::vector<Copy>& copies, const Lease& lease) {
  Peer& peer = at(id);
  CallThread& thread = is_write ? peer.writes : peer.reads;
  if (peer.state->lost) return PeerAnswer::failed;
  if (thread.busy()) return PeerAnswer::late;
  struct Batch {
    std::shared_ptr<Agent> agent;
    std::shared_ptr<PeerState> state;
    std::string peer;
    int operation;
    std::vector<NixlAgent::Transfer> transfers;
    std::list<Lease>::iterator lease;
    bool done = false;
  };
  const auto batch = std::make_shared<Batch>();
  batch->agent = agent_;
  batch->state = peer.state;
  batch->peer = peer.name;
  batch->operation = is_write ? kNixlWrite : kNixlRead;
  NixlAgent::Transfer& transfer = batch->transfers.emplace_back();
  for (const Copy& copy : copies) {
    KV_CHECK(std::ranges::any_of(regions_,
                                 [&](std::span<std::byte> region) {
                                   return copy.own.data() >= region.data() &&
                                          copy.own.data() + copy.own.size() <= region.data() + region.size();
                                 }),
             "a transfer uses registered memory");
    KV_CHECK(copy.region < peer.regions.size(), "the peer has the region");
    const Region& region = peer.regions[copy.region];
    KV_CHECK(copy.offset <= region.bytes && copy.own.size() <= region.bytes - copy.offset,
             "a transfer stays in the peer's region");
    transfer.memory.push_back(copy.own);
    transfer.places.push_back({region.address + copy.offset, copy.own.size()});
  }
  if (copies.empty()) return PeerAnswer::done;
  {
    const std::lock_guard lock(agent_->mutex);
    batch->lease = agent_->lent.insert(agent_->lent.end(), lease);
  }
  const bool in_time = thread.run(
      [batch] {
        Agent& agent = *batch->agent;
        try {
          batch->done = agent.nixl.move(batch->operation, kNixlDram, batch->peer, batch->transfers).front();
        } catch (const std::bad_alloc&) {  // a failure, whose lease stays
        }
        batch->state->lost = batch->state->lost || !batch->done;
        if (!batch->done) return;
        std::list<Lease> ended;  // the lease ends without the mutex
        const std::lock_guard lock(agent.mutex);
        ended.splice(ended.end(), agent.lent, batch->lease);
      },
      config_.timeout);
  if (!in_time) return PeerAnswer::late;
  return batch->done ? PeerAnswer::done : PeerAnswer::failed;
}

}  // namespace kvtwin
