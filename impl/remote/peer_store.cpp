#include "impl/remote/peer_store.hpp"

#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <mutex>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "impl/remote/remote_url.hpp"
#include "impl/runtime/arena.hpp"
#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr const char* kForm = "nixl+ucx://engines?transports=NAME,NAME&library=PLACE";
constexpr std::size_t kWays = 64;              // places of a set
constexpr std::size_t kTags = 0, kValues = 1;  // regions; the third one is scratch memory
constexpr std::size_t kTagBytes = 16, kSetBytes = kWays * kTagBytes;
constexpr std::size_t kSetsAtOnce = 256;  // of one transfer

using Tag = std::array<std::uint64_t, 2>;
constexpr Tag kFree{};

// The place of a page, computed from its name.
struct PagePlace {
  Tag tag;
  std::size_t owner = 0;
  std::uint64_t set = 0;
};

Tag load_tag(const std::byte* from) { return {load_le64(from), load_le64(from + 8)}; }
void store_tag(std::byte* to, const Tag& tag) { store_le64(store_le64(to, tag[0]), tag[1]); }

std::uint64_t sets_for(Pages pages) { return std::max<std::uint64_t>(1, (pages + kWays - 1) / kWays); }

// Returns the first place of the tag in a set, if it is there. The search begins at the place `start`.
std::optional<std::size_t> way_of(const Tag& tag, const std::byte* set, std::size_t start = 0) {
  for (std::size_t i = 0; i < kWays; ++i) {
    const std::size_t way = (start + i) % kWays;
    if (load_tag(set + way * kTagBytes) == tag) return way;
  }
  return std::nullopt;
}

// Memory for the transfers of one direction with one peer. While a late transfer may use it, nothing else does.
class Scratch {
 public:
  Scratch() : used_(std::make_shared<std::atomic<bool>>(false)) {}
  std::span<std::byte> bytes;
  bool busy() const { return *used_; }
  // Returns the lease of a transfer; `memory` is kept until it has ended.
  PeerMemory::Lease lend(std::shared_ptr<const void> memory) const {
    *used_ = true;
    return {memory.get(), [used = used_, memory](const void*) { *used = false; }};
  }

 private:
  std::shared_ptr<std::atomic<bool>> used_;
};

// The lent memory and the scratch memory. Kept until no transfer can use it.
struct PeerStoreMemory {
  PeerStoreMemory(Bytes tag_bytes, Bytes value_bytes, Bytes scratch_bytes)
      : tags(tag_bytes), values(value_bytes), scratch(scratch_bytes) {
    std::memset(tags.data(), 0, tags.bytes());
  }
  const Arena tags, values, scratch;
};

std::span<std::byte> bytes_of(const Arena& arena) { return {arena.data(), arena.bytes()}; }

class PeerStore final : public ValueStore {
 public:
  PeerStore(const PeerStoreConfig& config, Bytes value_bytes, std::size_t processes, std::size_t values_at_once);

  const std::vector<std::byte>& description() const { return memory_->description(); }
  // Adds the processes of the pool, by their descriptions. Returns an empty text, or a sentence.
  std::string meet(const std::vector<std::string>& descriptions);

  void find(Names names, Answers answers) override;
  void get(Names names, Values values, Answers answers) override;
  void put(Names names, Values values, Answers answers) override;
  void remove(Names names, Answers answers) override;

 private:
  struct Peer {
    PeerId id = 0;
    std::mutex reads, writes;  // one transfer at a time in each direction
    Scratch reading, writing;
  };
  // A copy between memory of this process and a place of the owner.
  struct Copy {
    std::span<std::byte> own;
    std::size_t region = 0;
    Bytes offset = 0;
  };
  // The pages of one owner, by their numbers in the call.
  using Owned = std::vector<std::size_t>;

  std::vector<PagePlace> places_of(Names names) const;
  std::vector<Owned> by_owner(const std::vector<PagePlace>& places) const;
  // Moves bytes from or to the owner's memory. Returns false if the owner does not answer.
  bool move(bool is_write, std::size_t owner, const std::vector<Copy>& copies);
  bool move_local(bool is_write, const std::vector<Copy>& copies);
  // Reads the tags of the sets of pages that have one owner: kSetBytes per page. Empty: the owner does not answer.
  std::vector<std::byte> read_sets(std::size_t owner, const std::vector<PagePlace>& places, const Owned& pages);
  Bytes value_offset(std::uint64_t set, std::size_t way) const { return (set * kWays + way) * value_bytes_; }
  static Bytes tag_offset(std::uint64_t set, std::size_t way) { return set * kSetBytes + way * kTagBytes; }

  const Bytes value_bytes_;
  const std::uint64_t sets_;
  const std::size_t values_at_once_;
  const std::shared_ptr<PeerStoreMemory> lent_;
  std::size_t own_ = 0;  // number of this process in the pool
  std::mutex local_;     // guards lent_ against the threads of this process
  std::vector<std::unique_ptr<Peer>> peers_;
  std::unique_ptr<PeerMemory> memory_;  // last member
};

PeerStore::PeerStore(const PeerStoreConfig& config, Bytes value_bytes, std::size_t processes,
                     std::size_t values_at_once)
    : value_bytes_(value_bytes),
      sets_(sets_for(config.pages)),
      values_at_once_(values_at_once),
      lent_(std::make_shared<PeerStoreMemory>(
          sets_ * kSetBytes, sets_ * kWays * value_bytes,
          processes * 2 * std::max<Bytes>(kSetsAtOnce * kSetBytes, values_at_once * value_bytes))) {
  if (config.lends) config.lends(bytes_of(lent_->tags), bytes_of(lent_->values));
  const Bytes scratch_bytes = lent_->scratch.bytes() / (2 * processes);
  for (std::size_t process = 0; process < processes; ++process) {
    Peer& peer = *peers_.emplace_back(std::make_unique<Peer>());
    peer.reading.bytes = bytes_of(lent_->scratch).subspan(2 * process * scratch_bytes, scratch_bytes);
    peer.writing.bytes = bytes_of(lent_->scratch).subspan((2 * process + 1) * scratch_bytes, scratch_bytes);
  }
  PeerConfig peer;
  peer.name = config.name;
  peer.library = config.library;
  peer.transports = config.transports;
  peer.timeout = config.timeout;
  // The pool's form, which all processes have in common.
  std::array<std::byte, 16> about{};
  store_le64(store_le64(about.data(), value_bytes_), sets_);
  memory_ = std::make_unique<PeerMemory>(
      peer, std::vector{bytes_of(lent_->tags), bytes_of(lent_->values), bytes_of(lent_->scratch)}, lent_, about);
}

std::string PeerStore::meet(const std::vector<std::string>& descriptions) {
  std::array<std::byte, 16> about{};
  store_le64(store_le64(about.data(), value_bytes_), sets_);
  bool found_own = false;
  for (std::size_t process = 0; process < descriptions.size(); ++process) {
    const auto bytes = std::as_bytes(std::span(descriptions[process]));
    if (std::ranges::equal(bytes, description())) {
      own_ = process;
      found_own = true;
      continue;
    }
    const std::variant<PeerId, std::string> added = memory_->add(bytes);
    if (const auto* wrong = std::get_if<std::string>(&added)) return *wrong;
    peers_[process]->id = std::get<PeerId>(added);
    if (!std::ranges::equal(memory_->about(peers_[process]->id), about)) {
      return "The peer " + memory_->name(peers_[process]->id) + " lends memory for pages of another form or number.";
    }
  }
  if (!found_own) return "The descriptions of the peers lack this process's own.";
  // The first transfer with a peer makes a connection, which takes long. A failure shows later, too.
  for (std::size_t process = 0; process < descriptions.size(); ++process) read_sets(process, {PagePlace{}}, {0});
  return "";
}

std::vector<PagePlace> PeerStore::places_of(Names names) const {
  std::vector<PagePlace> places;
  for (const std::string& name : names) {
    const XXH128_hash_t hash = XXH3_128bits(name.data(), name.size());
    PagePlace place;
    place.tag = {hash.low64 | 1, hash.high64};  // never kFree
    place.owner = (hash.low64 >> 1) % peers_.size();
    place.set = hash.high64 % sets_;
    places.push_back(place);
  }
  return places;
}

std::vector<PeerStore::Owned> PeerStore::by_owner(const std::vector<PagePlace>& places) const {
  std::vector<Owned> owned(peers_.size());
  for (std::size_t i = 0; i < places.size(); ++i) owned[places[i].owner].push_back(i);
  return owned;
}

bool PeerStore::move_local(bool is_write, const std::vector<Copy>& copies) {
  const std::lock_guard lock(local_);
  for (const Copy& copy : copies) {
    std::byte* const place = (copy.region == kTags ? lent_->tags : lent_->values).data() + copy.offset;
    std::byte* const own = copy.own.data();
    std::memcpy(is_write ? place : own, is_write ? own : place, copy.own.size());
  }
  return true;
}

bool PeerStore::move(bool is_write, std::size_t owner, const std::vector<Copy>& copies) {
  if (copies.empty()) return true;
  if (owner == own_) return move_local(is_write, copies);
  Peer& peer = *peers_[owner];
  const std::lock_guard lock(is_write ? peer.writes : peer.reads);
  const Scratch& scratch = is_write ? peer.writing : peer.reading;
  if (scratch.busy()) return false;
  std::vector<PeerMemory::Copy> moves;
  std::size_t used = 0;
  for (const Copy& copy : copies) {
    const std::span<std::byte> part = scratch.bytes.subspan(used, copy.own.size());
    used += part.size();
    if (is_write) std::ranges::copy(copy.own, part.begin());
    moves.push_back({part, copy.region, copy.offset});
  }
  const PeerMemory::Lease lease = scratch.lend(lent_);
  const PeerAnswer answer = is_write ? memory_->write(peer.id, moves, lease) : memory_->read(peer.id, moves, lease);
  if (answer != PeerAnswer::done) return false;
  for (std::size_t i = 0; i < copies.size() && !is_write; ++i) {
    std::ranges::copy(moves[i].own, copies[i].own.begin());
  }
  return true;
}

std::vector<std::byte> PeerStore::read_sets(std::size_t owner, const std::vector<PagePlace>& places,
                                            const Owned& pages) {
  std::vector<std::byte> sets(pages.size() * kSetBytes);
  for (std::size_t first = 0; first < pages.size(); first += kSetsAtOnce) {
    std::vector<Copy> copies;
    for (std::size_t i = first; i < std::min(pages.size(), first + kSetsAtOnce); ++i) {
      copies.push_back({std::span(sets).subspan(i * kSetBytes, kSetBytes), kTags, tag_offset(places[pages[i]].set, 0)});
    }
    if (!move(false, owner, copies)) return {};
  }
  return sets;
}

void PeerStore::find(Names names, Answers answers) {
  const std::vector<PagePlace> places = places_of(names);
  const std::vector<Owned> owned = by_owner(places);
  for (std::size_t owner = 0; owner < owned.size(); ++owner) {
    const Owned& pages = owned[owner];
    const std::vector<std::byte> sets = read_sets(owner, places, pages);
    for (std::size_t i = 0; i < pages.size() && !sets.empty(); ++i) {
      const bool there = way_of(places[pages[i]].tag, sets.data() + i * kSetBytes).has_value();
      answers[pages[i]] = there ? ValueAnswer::done : ValueAnswer::missing;
    }
  }
}

void PeerStore::get(Names names, Values values, Answers answers) {
  const std::vector<PagePlace> places = places_of(names);
  const std::vector<Owned> owned = by_owner(places);
  for (std::size_t owner = 0; owner < owned.size(); ++owner) {
    const std::vector<std::byte> sets = read_sets(owner, places, owned[owner]);
    if (sets.empty()) continue;
    Owned found;
    std::vector<Copy> copies;
    const auto read = [&] {
      const bool done = move(false, owner, copies);
      for (const std::size_t page : found) answers[page] = done ? ValueAnswer::done : ValueAnswer::failed;
      copies.clear();
      found.clear();
    };
    for (std::size_t i = 0; i < owned[owner].size(); ++i) {
      const std::size_t page = owned[owner][i];
      const auto way = way_of(places[page].tag, sets.data() + i * kSetBytes);
      answers[page] = ValueAnswer::missing;
      if (!way) continue;
      found.push_back(page);
      copies.push_back({values[page], kValues, value_offset(places[page].set, *way)});
      if (copies.size() == values_at_once_) read();
    }
    read();
  }
}

void PeerStore::put(Names names, Values values, Answers answers) {
  const std::vector<PagePlace> places = places_of(names);
  const std::vector<Owned> owned = by_owner(places);
  for (std::size_t owner = 0; owner < owned.size(); ++owner) {
    const Owned& pages = owned[owner];
    std::vector<std::byte> sets = read_sets(owner, places, pages);
    if (sets.empty()) continue;
    std::vector<std::byte> tags(pages.size() * kTagBytes);
    std::vector<Copy> value_copies, tag_copies;
    std::size_t first = 0;
    const auto write = [&](std::size_t end) {
      const bool done = move(true, owner, value_copies) && move(true, owner, tag_copies);
      for (; first < end; ++first) answers[pages[first]] = done ? ValueAnswer::done : ValueAnswer::failed;
      value_copies.clear();
      tag_copies.clear();
    };
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const PagePlace& place = places[pages[i]];
      std::byte* const set = sets.data() + i * kSetBytes;
      auto way = way_of(place.tag, set);
      // Nothing locks a set. Each process begins elsewhere, so that two rarely take the same place at the same time;
      // then one page is lost, which its header shows.
      if (!way) way = way_of(kFree, set, own_ * kWays / peers_.size());
      if (!way) way = (place.tag[0] >> 32) % kWays;
      // Pages of the call that come later see the choice.
      for (std::size_t j = i; j < pages.size(); ++j) {
        if (places[pages[j]].set == place.set) store_tag(sets.data() + j * kSetBytes + *way * kTagBytes, place.tag);
      }
      const std::span<std::byte> tag = std::span(tags).subspan(i * kTagBytes, kTagBytes);
      store_tag(tag.data(), place.tag);
      value_copies.push_back({values[pages[i]], kValues, value_offset(place.set, *way)});
      tag_copies.push_back({tag, kTags, tag_offset(place.set, *way)});
      if (value_copies.size() == values_at_once_) write(i + 1);
    }
    write(pages.size());
  }
}

void PeerStore::remove(Names names, Answers answers) {
  const std::vector<PagePlace> places = places_of(names);
  const std::vector<Owned> owned = by_owner(places);
  std::array<std::byte, kTagBytes> free{};
  for (std::size_t owner = 0; owner < owned.size(); ++owner) {
    const Owned& pages = owned[owner];
    const std::vector<std::byte> sets = read_sets(owner, places, pages);
    if (sets.empty()) continue;
    std::vector<Copy> copies;
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const PagePlace& place = places[pages[i]];
      const auto way = way_of(place.tag, sets.data() + i * kSetBytes);
      answers[pages[i]] = way ? ValueAnswer::failed : ValueAnswer::missing;
      if (way) copies.push_back({free, kTags, tag_offset(place.set, *way)});
    }
    if (!move(true, owner, copies)) continue;
    for (const std::size_t page : pages) {
      if (answers[page] == ValueAnswer::failed) answers[page] = ValueAnswer::done;
    }
  }
}

// The store belongs to the back end's sessions one after another.
class SharedStore final : public ValueStore {
 public:
  explicit SharedStore(std::shared_ptr<PeerStore> store) : store_(std::move(store)) {}
  void find(Names names, Answers answers) override { store_->find(names, answers); }
  void get(Names names, Values values, Answers answers) override { store_->get(names, values, answers); }
  void put(Names names, Values values, Answers answers) override { store_->put(names, values, answers); }
  void remove(Names names, Answers answers) override { store_->remove(names, answers); }

 private:
  std::shared_ptr<PeerStore> store_;
};

}  // namespace

std::variant<PeerStoreConfig, std::string> parse_peer_url(std::string_view url) {
  const auto parsed = parse_remote_url(url, "nixl+ucx://", kForm);
  if (const auto* wrong = std::get_if<std::string>(&parsed)) return *wrong;
  const auto& parts = std::get<RemoteUrl>(parsed);
  if (parts.place != "engines") return std::string("The pool in the memory of the engines is ") + kForm + ".";
  PeerStoreConfig config;
  config.library = parts.setting("library", "");
  config.transports = parts.setting("transports", "");
  return config;
}

Bytes lent_bytes(Pages pages, const PageForm& form) {
  return sets_for(pages) * kWays * (kTagBytes + kPageHeaderBytes + form.bytes());
}

std::unique_ptr<StagedBackend> make_peer_store(const PeerStoreConfig& config, std::size_t processes,
                                               const PageForm& form) {
  const Bytes value_bytes = kPageHeaderBytes + form.bytes();
  const auto at_once =
      static_cast<std::size_t>(std::clamp<Bytes>(config.bytes_in_flight / value_bytes, 1, kSetsAtOnce));
  const auto [store, all] = make_and_exchange(
      [&] { return std::make_shared<PeerStore>(config, value_bytes, processes, at_once); }, config.exchange);
  KV_CHECK(all.size() == processes, "each process has a description");
  if (const std::string error = store->meet(all); !error.empty()) throw std::runtime_error(error);
  StagedConfig staged{config};
  staged.open = [store = store](std::span<std::byte>) -> OpenedStore {
    return {std::make_unique<SharedStore>(store), ""};
  };
  // A call has up to three transfers with each process: tags, values, tags.
  staged.timeout = config.timeout * static_cast<TimeNs>(3 * processes);
  staged.keys_per_look_up = kSetsAtOnce;
  return std::make_unique<StagedBackend>(std::move(staged), form);
}

}  // namespace kvtwin
