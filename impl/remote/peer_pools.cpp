#include "impl/remote/peer_pools.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "kernels/transfer.hpp"
#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kPoolRegion = 0, kScratchRegion = 1;
constexpr std::size_t kMaxCopies = 4096;  // of one transfer

// What peers must know of a pool.
constexpr std::size_t kPoolAboutBytes = 16;
using About = std::array<std::byte, kPoolAboutBytes>;
About about_of(Bytes page_bytes, Pages pages) {
  About about{};
  store_le64(store_le64(about.data(), page_bytes), pages);
  return about;
}

// The registered memory. Kept until no transfer can use it.
struct Registered {
  std::shared_ptr<const void> pool;
  std::array<std::byte, 64> scratch{};
};

class NixlPools final : public PeerPools {
 public:
  NixlPools(const PeerPoolsConfig& config, const DevicePool& pool)
      : config_(config), pool_(pool.bytes), registered_(std::make_shared<Registered>()) {
    registered_->pool = pool.owner;
    PeerConfig peer;
    peer.name = "hand-over" + std::to_string(config.process);
    peer.library = config.library;
    peer.transports = config.transports;
    peer.timeout = config.timeout;
    const About about = about_of(config.shape.page_bytes(), config.pages);
    memory_ = std::make_unique<PeerMemory>(peer, std::vector{pool_, std::span<std::byte>(registered_->scratch)},
                                           registered_, about);
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
      const PeerId id = std::get<PeerId>(added);
      const auto about = memory_->about(id);
      if (about.size() != kPoolAboutBytes || load_le64(about.data()) != config_.shape.page_bytes()) {
        throw std::runtime_error("The pages of engine " + std::to_string(engine) + " have another form.");
      }
      peers_[engine] = {id, load_le64(about.data() + 8)};
      // The first transfer makes a connection, which takes long. A failure shows later, too.
      memory_->read(id, {{registered_->scratch, kScratchRegion, 0}}, registered_);
    }
  }

  Answer write(std::uint32_t peer, std::span<const PageMove> pages, const std::atomic<bool>& stop) override {
    KV_CHECK(peer < peers_.size() && peers_[peer].has_value(), "pages are handed over to an engine that was added");
    const Peer& to = *peers_[peer];
    const Bytes block = config_.shape.row_bytes() * config_.shape.page_tokens;
    std::vector<PeerMemory::Copy> copies;
    Bytes bytes = 0;
    const auto flush = [&] {
      const PeerAnswer answer = memory_->write(to.id, std::move(copies), registered_);
      copies.clear();
      bytes = 0;
      return answer == PeerAnswer::done ? Answer::done : answer == PeerAnswer::late ? Answer::late : Answer::failed;
    };
    for (std::size_t first = 0; first < pages.size();) {
      // Pages that are neighbours on both sides go as one piece of each layer and plane.
      std::size_t end = first + 1;
      while (end < pages.size() && pages[end].source == pages[end - 1].source + 1 &&
             pages[end].target == pages[end - 1].target + 1) {
        ++end;
      }
      for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) {
        for (std::uint32_t plane = 0; plane < config_.shape.planes; ++plane) {
          Bytes from = offset(config_.pages, pages[first].source, layer, plane);
          Bytes there = offset(to.pages, pages[first].target, layer, plane);
          for (Bytes left = block * (end - first); left > 0;) {
            const Bytes piece = std::min(left, config_.bytes_in_flight);
            copies.push_back({pool_.subspan(from, piece), kPoolRegion, there});
            bytes += piece;
            from += piece;
            there += piece;
            left -= piece;
            if (bytes < config_.bytes_in_flight && copies.size() < kMaxCopies) continue;
            if (stop.load(std::memory_order_relaxed)) return Answer::stopped;
            if (const Answer answer = flush(); answer != Answer::done) return answer;
          }
        }
      }
      first = end;
    }
    return flush();
  }

 private:
  struct Peer {
    PeerId id = 0;
    Pages pages = 0;  // of its pool
  };

  Bytes offset(Pages pool_pages, SlotId slot, std::uint32_t layer, std::uint32_t plane) const {
    return byte_offset(Layout::layer_first, config_.shape, pool_pages, {.page = slot, .plane = plane, .layer = layer});
  }

  const PeerPoolsConfig config_;
  const std::span<std::byte> pool_;
  const std::shared_ptr<Registered> registered_;
  std::unique_ptr<PeerMemory> memory_;
  std::vector<std::optional<Peer>> peers_;  // by engine
};

}  // namespace

std::unique_ptr<PeerPools> open_peer_pools(const PeerPoolsConfig& config, const DevicePool& pool) {
  auto [pools, all] = make_and_exchange([&] { return std::make_unique<NixlPools>(config, pool); }, config.exchange);
  pools->meet(all);
  return std::move(pools);
}

}  // namespace kvtwin
