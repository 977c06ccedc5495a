// An engine with a pool of pages that peers read and write. A page of the tests has a number, which is its key.
#pragma once

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "impl/remote/peer_pages.hpp"
#include "impl/runtime/arena.hpp"
#include "impl/storage/pool_blocks.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {

inline PeerPage numbered_page(std::uint64_t number, SlotId own, SlotId theirs) {
  return {some_space(), numbered_key(number), own, theirs};
}

class PeerEngine {
 public:
  PeerEngine(const PeerConfig& config, const PageForm& form, Pages pages, const PageSeal* seal = nullptr)
      : form_(form),
        pages_(pages),
        arena_(std::make_shared<const Arena>(pages * form.bytes())),
        peers_(std::make_unique<PeerPages>(config, PeerPool{form, pages, arena_->data(), arena_}, seal)) {}

  PeerPages& peers() { return *peers_; }
  const std::shared_ptr<const Arena>& arena() const { return arena_; }
  void end() { peers_ = nullptr; }

  PeerId add(const std::vector<std::byte>& description) {
    const auto added = peers_->add(description);
    if (const auto* sentence = std::get_if<std::string>(&added)) throw std::runtime_error(*sentence);
    return std::get<PeerId>(added);
  }
  PeerId add(PeerEngine& other) { return add(other.peers_->description()); }

  // Writes the bytes of a page into a slot, and publishes them.
  void store(SlotId slot, std::uint64_t number) {
    std::vector<std::byte> page(form_.bytes());
    fill_page(numbered_key(number), page);
    scatter(page, pieces(slot));
    peers_->publish(slot, some_space(), numbered_key(number));
  }
  // Returns whether the slot has exactly the bytes of the page.
  bool has(SlotId slot, std::uint64_t number) const {
    std::vector<std::byte> page(form_.bytes());
    gather(pieces(slot), page);
    return holds_bytes_of(numbered_key(number), page);
  }
  Pieces pieces(SlotId slot) const {
    Pieces list;
    for (std::uint64_t block = 0; block < pool_blocks(form_); ++block) {
      list.emplace_back(arena_->data() + pool_block_offset(form_, pages_, slot, block),
                        form_.bytes() / pool_blocks(form_));
    }
    return list;
  }

  // Moves one page.
  Cause read(PeerId from, std::uint64_t number, SlotId own, SlotId theirs) {
    const PeerPage page = numbered_page(number, own, theirs);
    Cause cause{};
    peers_->read(from, {&page, 1}, {&cause, 1});
    return cause;
  }
  Cause write(PeerId to, std::uint64_t number, SlotId own, SlotId theirs) {
    const PeerPage page = numbered_page(number, own, theirs);
    Cause cause{};
    peers_->write(to, {&page, 1}, {&cause, 1});
    return cause;
  }
  std::uint64_t counter(const std::string& name) const {
    for (const auto& [key, value] : peers_->counters()) {
      if (key == name) return value;
    }
    throw std::logic_error("no counter " + name);
  }

 private:
  const PageForm form_;
  const Pages pages_;
  const std::shared_ptr<const Arena> arena_;
  std::unique_ptr<PeerPages> peers_;
};

}  // namespace kvtwin::test
