#include "impl/remote/peer_pages.hpp"

#include <algorithm>
#include <cstring>

#include "impl/runtime/arena.hpp"
#include "impl/storage/pool_blocks.hpp"
#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr PeerId kNobody = ~PeerId{0};
constexpr std::size_t kPool = 0, kHeaders = 1;  // regions
constexpr std::size_t kListedAtOnce = 2048;     // headers

// What peers tell each other about their pools: form, id of the secret, number of pages.
constexpr std::size_t kFormBytes = 28, kAboutBytes = kFormBytes + 8;
std::vector<std::byte> about(const PeerPool& pool, const PageSeal* seal) {
  std::vector<std::byte> bytes(kAboutBytes);
  const KvShape& s = pool.form.shape;
  std::byte* at = bytes.data();
  for (const std::uint32_t word : {static_cast<std::uint32_t>(pool.form.layout), s.layers, s.planes, s.heads,
                                   s.head_bytes, s.page_tokens, id_of(seal)}) {
    at = store_le32(at, word);
  }
  store_le64(at, pool.pages);
  return bytes;
}

}  // namespace

// The memory that transfers use, and the slots that they have not given back.
struct PeerPages::Shared {
  // Of one slot: kIncoming, or the number of transfers that read the slot.
  using Uses = std::atomic<std::int32_t>;
  static constexpr std::int32_t kIncoming = -1;

  Shared(std::shared_ptr<const void> owner, Pages pages)
      : pool_owner(std::move(owner)),
        headers(pages * kPageHeaderBytes),
        listed(kListedAtOnce * kPageHeaderBytes),
        uses(pages) {
    std::memset(headers.data(), 0, headers.bytes());
  }

  const std::shared_ptr<const void> pool_owner;
  const Arena headers, listed;
  std::vector<Uses> uses;
  Uses list_uses = 0;
};

PeerPages::PeerPages(const PeerConfig& config, PeerPool pool, const PageSeal* seal)
    : pool_(std::move(pool)),
      seal_(seal),
      bytes_in_flight_(config.bytes_in_flight),
      shared_(std::make_shared<Shared>(pool_.owner, pool_.pages)),
      granted_(pool_.pages, kNobody) {
  KV_CHECK(pool_.pages > 0 && pool_.form.bytes() > 0, "a pool has pages");
  const std::span<std::byte> all(pool_.memory, pool_.pages * pool_.form.bytes());
  const std::span<std::byte> headers(shared_->headers.data(), shared_->headers.bytes());
  const std::span<std::byte> listed(shared_->listed.data(), shared_->listed.bytes());
  memory_ = std::make_unique<PeerMemory>(config, std::vector{all, headers, listed}, shared_, about(pool_, seal));
}

std::variant<PeerId, std::string> PeerPages::add(std::span<const std::byte> description) {
  auto added = memory_->add(description);
  if (const PeerId* peer = std::get_if<PeerId>(&added)) {
    const std::span<const std::byte> theirs = memory_->about(*peer);
    const std::vector<std::byte> ours = about(pool_, seal_);
    if (theirs.size() != kAboutBytes || !std::equal(ours.begin(), ours.begin() + kFormBytes, theirs.begin())) {
      return "The peer " + memory_->name(*peer) + " has pages of another form (model, layout, page size or secret).";
    }
  }
  return added;
}

Pages PeerPages::pages_of(PeerId peer) const { return load_le64(memory_->about(peer).data() + kFormBytes); }

Pieces PeerPages::pieces(SlotId slot) const {
  const std::uint64_t blocks = pool_blocks(pool_.form);
  Pieces list;
  for (std::uint64_t block = 0; block < blocks; ++block) {
    list.emplace_back(pool_.memory + pool_block_offset(pool_.form, pool_.pages, slot, block),
                      pool_.form.bytes() / blocks);
  }
  return list;
}

std::span<std::byte, kPageHeaderBytes> PeerPages::header(SlotId slot) const {
  KV_CHECK(slot < pool_.pages, "a slot is one of the pool");
  return std::span<std::byte, kPageHeaderBytes>(shared_->headers.data() + slot * kPageHeaderBytes, kPageHeaderBytes);
}

bool PeerPages::holds(SlotId slot, const PageKey& space, const PageKey& key) const {
  return holds_page(pool_.form, space, key, header(slot), pieces(slot), seal_);
}

bool PeerPages::in_use(SlotId slot) const {
  KV_CHECK(slot < pool_.pages, "a slot is one of the pool");
  const std::lock_guard lock(mutex_);
  return granted_[slot] != kNobody || shared_->uses[slot] != 0;
}

void PeerPages::publish(SlotId slot, const PageKey& space, const PageKey& key) {
  KV_CHECK(!in_use(slot), "a slot in use is not published");
  const PageHeader made = make_page_header(pool_.form, space, key, pieces(slot), seal_);
  std::ranges::copy(made, header(slot).begin());
}

void PeerPages::withdraw(SlotId slot) {
  KV_CHECK(!in_use(slot), "a slot in use is not withdrawn");
  std::ranges::fill(header(slot), std::byte{0});
}

void PeerPages::grant(SlotId slot, PeerId writer) {
  withdraw(slot);
  memory_->name(writer);  // checks that there is such a peer
  const std::lock_guard lock(mutex_);
  granted_[slot] = writer;
}

bool PeerPages::accept(SlotId slot, const PageKey& space, const PageKey& key) {
  {
    const std::lock_guard lock(mutex_);
    KV_CHECK(slot < pool_.pages && granted_[slot] != kNobody, "an accepted slot was granted");
    granted_[slot] = kNobody;
  }
  const bool is_page = holds(slot, space, key);
  ++(is_page ? accepted_ : refused_);
  if (!is_page) withdraw(slot);
  return is_page;
}

std::vector<SlotId> PeerPages::end_grants(PeerId writer) {
  std::vector<SlotId> ended;
  {
    const std::lock_guard lock(mutex_);
    for (SlotId slot = 0; slot < pool_.pages; ++slot) {
      if (granted_[slot] == writer) {
        granted_[slot] = kNobody;
        ended.push_back(slot);
      }
    }
  }
  for (const SlotId slot : ended) withdraw(slot);
  return ended;
}

std::vector<PeerPage> PeerPages::list(PeerId peer) {
  std::vector<PeerPage> found;
  const Pages pages = pages_of(peer);
  for (Pages first = 0; first < pages; first += kListedAtOnce) {
    const auto count = static_cast<std::size_t>(std::min<Pages>(pages - first, kListedAtOnce));
    const std::span<std::byte> to(shared_->listed.data(), count * kPageHeaderBytes);
    std::int32_t free = 0;  // a late or failed list leaves the memory in use
    if (!shared_->list_uses.compare_exchange_strong(free, Shared::kIncoming)) return found;
    const PeerMemory::Lease lease(shared_.get(), [shared = shared_](const Shared*) { shared->list_uses = 0; });
    if (memory_->read(peer, {{to, kHeaders, first * kPageHeaderBytes}}, lease) != PeerAnswer::done) return found;
    for (std::size_t i = 0; i < count; ++i) {
      const auto claimed = read_page_header(pool_.form, to.subspan(i * kPageHeaderBytes).first<kPageHeaderBytes>());
      if (claimed) found.push_back({claimed->space, claimed->key, kNoSlot, static_cast<SlotId>(first + i)});
    }
  }
  return found;
}

// Moves pages with their headers, in one transfer. Its lease: the own slots.
PeerAnswer PeerPages::move(bool is_write, PeerId peer, std::span<const PeerPage> pages) {
  struct Lent {
    std::shared_ptr<Shared> shared;
    std::vector<SlotId> slots;
    bool incoming;
    ~Lent() {
      for (const SlotId slot : slots) shared->uses[slot] += incoming ? 1 : -1;
    }
  };
  const Pages their_pages = pages_of(peer);
  const auto lent = std::make_shared<Lent>(Lent{shared_, {}, !is_write});
  lent->slots.reserve(pages.size());
  std::vector<PeerMemory::Copy> copies;
  for (const PeerPage& page : pages) {
    KV_CHECK(page.theirs < their_pages, "a slot is one of the peer's pool");
    copies.push_back({header(page.own), kHeaders, page.theirs * kPageHeaderBytes});
    const Pieces list = pieces(page.own);
    for (std::size_t block = 0; block < list.size(); ++block) {
      copies.push_back({list[block], kPool, pool_block_offset(pool_.form, their_pages, page.theirs, block)});
    }
    Shared::Uses& uses = shared_->uses[page.own];
    {
      const std::lock_guard lock(mutex_);
      KV_CHECK(granted_[page.own] == kNobody && (is_write ? uses >= 0 : uses == 0), "a slot in use is not moved");
    }
    uses += is_write ? 1 : Shared::kIncoming;
    lent->slots.push_back(page.own);
  }
  const PeerAnswer answer =
      is_write ? memory_->write(peer, std::move(copies), lent) : memory_->read(peer, std::move(copies), lent);
  if (answer == PeerAnswer::late) late_ += pages.size();
  if (answer == PeerAnswer::failed) failed_ += pages.size();
  return answer;
}

// Moves pages in batches, one after another, until one fails. `done` receives each batch that has moved, and its
// causes. The causes of all other pages are `unreachable`.
template <typename Done>
void PeerPages::move_all(bool is_write, PeerId peer, std::span<const PeerPage> pages, std::span<Cause> causes,
                         const Done& done) {
  KV_CHECK(pages.size() == causes.size(), "each page has a cause");
  const std::size_t batch = std::max<std::size_t>(bytes_in_flight_ / (kPageHeaderBytes + pool_.form.bytes()), 1);
  std::ranges::fill(causes, Cause::unreachable);
  for (std::size_t first = 0; first < pages.size(); first += batch) {
    const auto some = pages.subspan(first, std::min(batch, pages.size() - first));
    if (move(is_write, peer, some) != PeerAnswer::done) return;
    done(some, causes.subspan(first, some.size()));
  }
}

void PeerPages::read(PeerId from, std::span<const PeerPage> pages, std::span<Cause> causes) {
  move_all(false, from, pages, causes, [this](std::span<const PeerPage> some, std::span<Cause> of_some) {
    for (std::size_t i = 0; i < some.size(); ++i) {
      const bool is_page = holds(some[i].own, some[i].space, some[i].key);
      if (!is_page) withdraw(some[i].own);
      ++(is_page ? got_ : stale_);
      of_some[i] = is_page ? Cause::none : Cause::missing;
    }
  });
}

void PeerPages::write(PeerId to, std::span<const PeerPage> pages, std::span<Cause> causes) {
  move_all(true, to, pages, causes, [this](std::span<const PeerPage> some, std::span<Cause> of_some) {
    written_ += some.size();
    std::ranges::fill(of_some, Cause::none);
  });
}

std::vector<std::pair<std::string, std::uint64_t>> PeerPages::counters() const {
  return {{"got_pages", got_},           {"written_pages", written_}, {"stale_pages", stale_},
          {"accepted_pages", accepted_}, {"refused_pages", refused_}, {"late_pages", late_},
          {"failed_pages", failed_}};
}

}  // namespace kvtwin
