#include "impl/remote/peer_pools.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>
#include <variant>

#include "kernels/transfer.hpp"
#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxCopies = 4096;  // of one transfer

// What peers must know of the pools: the bytes and the number of the slots of each.
constexpr std::size_t kPoolAboutBytes = 16;
std::vector<std::byte> about_of(std::span<const DevicePool> pools) {
  std::vector<std::byte> about(pools.size() * kPoolAboutBytes);
  std::byte* to = about.data();
  for (const DevicePool& pool : pools) to = store_le64(store_le64(to, pool.shape.page_bytes()), pool.pages);
  return about;
}

// The registered memory. Kept until no transfer can use it.
struct Registered {
  std::vector<DevicePool> pools;
  std::array<std::byte, 64> scratch{};
};

class NixlPools final : public PeerPools {
 public:
  NixlPools(const PeerPoolsConfig& config, std::vector<DevicePool> pools)
      : config_(config), registered_(std::make_shared<Registered>()) {
    registered_->pools = std::move(pools);
    std::vector<std::span<std::byte>> regions;
    for (const DevicePool& pool : own()) regions.push_back(pool.bytes);
    regions.emplace_back(registered_->scratch);
    PeerConfig peer;
    peer.name = "hand-over" + std::to_string(config.process);
    peer.library = config.library;
    peer.transports = config.transports;
    peer.timeout = config.timeout;
    memory_ = std::make_unique<PeerMemory>(peer, std::move(regions), registered_, about_of(own()));
  }

  const std::vector<std::byte>& description() const { return memory_->description(); }

  // Errors: std::runtime_error.
  void meet(const std::vector<std::string>& descriptions) {
    peers_.resize(config_.peers.size());
    for (std::size_t engine = 0; engine < config_.peers.size(); ++engine) {
      const std::size_t process = config_.peers[engine];
      if (process == PeerPoolsConfig::kNoPeer) continue;
      const auto added = memory_->add(std::as_bytes(std::span(descriptions.at(process))));
      if (const auto* wrong = std::get_if<std::string>(&added)) throw std::runtime_error(*wrong);
      Peer peer{std::get<PeerId>(added), {}};
      const auto about = memory_->about(peer.id);
      bool equal = about.size() == own().size() * kPoolAboutBytes;
      for (std::size_t pool = 0; equal && pool < own().size(); ++pool) {
        const std::byte* const of_pool = about.data() + pool * kPoolAboutBytes;
        equal = load_le64(of_pool) == own()[pool].shape.page_bytes();
        peer.pages.push_back(load_le64(of_pool + 8));
      }
      if (!equal) throw std::runtime_error("The pages of engine " + std::to_string(engine) + " have another form.");
      // The first transfer makes a connection, which takes long. A failure shows later, too.
      memory_->read(peer.id, {{registered_->scratch, own().size(), 0}}, registered_);
      peers_[engine] = std::move(peer);
    }
  }

  Answer write(std::uint32_t peer, std::span<const Moves> all, const std::atomic<bool>& stop) override {
    KV_CHECK(peer < peers_.size() && peers_[peer].has_value(), "pages are handed over to an engine that was added");
    Batch batch{*peers_[peer], stop, {}, 0};
    for (const Moves& of : all) {
      for (std::size_t pool = 0; pool < own().size(); ++pool) {
        if (own()[pool].slots != of.slots) continue;
        if (const Answer answer = add(batch, pool, of.moves); answer != Answer::done) return answer;
      }
    }
    return flush(batch);
  }

 private:
  struct Peer {
    PeerId id = 0;
    std::vector<Pages> pages;  // of its pools
  };
  // The copies of a write that are not in progress yet.
  struct Batch {
    const Peer& to;
    const std::atomic<bool>& stop;
    std::vector<PeerMemory::Copy> copies;
    Bytes bytes = 0;
  };

  const std::vector<DevicePool>& own() const { return registered_->pools; }

  Answer flush(Batch& batch) {
    const PeerAnswer answer = memory_->write(batch.to.id, std::exchange(batch.copies, {}), registered_);
    batch.bytes = 0;
    return answer == PeerAnswer::done ? Answer::done : answer == PeerAnswer::late ? Answer::late : Answer::failed;
  }

  // Adds what a pool has in these slots. Writes what is enough for a transfer.
  Answer add(Batch& batch, std::size_t pool, std::span<const PageMove> moves) {
    const KvShape& shape = own()[pool].shape;
    const auto offset = [&](Pages pages, SlotId slot, std::uint32_t layer, std::uint32_t plane) {
      return byte_offset(Layout::layer_first, shape, pages, {.page = slot, .plane = plane, .layer = layer});
    };
    const Bytes block = shape.row_bytes() * shape.page_tokens;
    for (std::size_t first = 0; first < moves.size();) {
      // Slots that are neighbours on both sides go as one piece of each layer and plane.
      std::size_t end = first + 1;
      while (end < moves.size() && moves[end].source == moves[end - 1].source + 1 &&
             moves[end].target == moves[end - 1].target + 1) {
        ++end;
      }
      for (std::uint32_t layer = 0; layer < shape.layers; ++layer) {
        for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
          const Bytes from = offset(own()[pool].pages, moves[first].source, layer, plane);
          const Bytes there = offset(batch.to.pages[pool], moves[first].target, layer, plane);
          if (const Answer answer = add(batch, pool, from, there, block * (end - first)); answer != Answer::done) {
            return answer;
          }
        }
      }
      first = end;
    }
    return Answer::done;
  }

  Answer add(Batch& batch, std::size_t pool, Bytes from, Bytes there, Bytes bytes) {
    while (bytes > 0) {
      const Bytes piece = std::min(bytes, config_.bytes_in_flight);
      batch.copies.push_back({own()[pool].bytes.subspan(from, piece), pool, there});
      batch.bytes += piece;
      from += piece;
      there += piece;
      bytes -= piece;
      if (batch.bytes < config_.bytes_in_flight && batch.copies.size() < kMaxCopies) continue;
      if (batch.stop.load(std::memory_order_relaxed)) return Answer::stopped;
      if (const Answer answer = flush(batch); answer != Answer::done) return answer;
    }
    return Answer::done;
  }

  const PeerPoolsConfig config_;
  const std::shared_ptr<Registered> registered_;
  std::unique_ptr<PeerMemory> memory_;
  std::vector<std::optional<Peer>> peers_;  // by engine
};

}  // namespace

std::unique_ptr<PeerPools> open_peer_pools(const PeerPoolsConfig& config, std::vector<DevicePool> pools) {
  auto [made, all] =
      make_and_exchange([&] { return std::make_unique<NixlPools>(config, std::move(pools)); }, config.exchange);
  made->meet(all);
  return std::move(made);
}

}  // namespace kvtwin
