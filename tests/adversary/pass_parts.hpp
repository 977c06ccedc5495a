// Windows and states in the adversarial world: one arena per pool and memory tier, and what a pass reads and writes
// there. A state has the bytes of its pool and of its length: the key of the page that it ends, or ends in.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "policy/index/page_key.hpp"
#include "policy/seam/substrate.hpp"
#include "tests/adversary/page_arena.hpp"

namespace kvtwin {

class PassParts {
 public:
  // A sequence of the pass, as in SequenceWork.
  struct Sequence {
    RequestId request = kNoRequest;
    Tokens context = 0;
    std::span<const PageKey> keys;
  };
  // Told about each slot that the pass uses, before it does, and about each wrong page.
  struct Reports {
    std::function<void(std::size_t pool, const PageKey& key, SlotId slot)> use;
    std::function<void(const PageKey& key, SlotId slot, const std::string& what)> wrong;
  };

  void take(const SequenceParts* parts, std::size_t sequences) {
    parts_.resize(parts == nullptr ? 0 : sequences);
    for (std::size_t i = 0; i < parts_.size(); ++i) parts->get(i, parts_[i]);
  }
  bool empty() const { return parts_.empty(); }

  // The pass begins: what it continues from is right. Copies cached states. `arenas`: of device memory, by pool.
  void begin(std::size_t at, const Sequence& sequence, Tokens page, std::span<PageArena> arenas,
             const Reports& reports) const {
    for (std::size_t pool = 0; pool < parts_[at].size(); ++pool) {
      const SequencePart& part = parts_[at][pool];
      check_windows(part, sequence, 0, page, pool, arenas[pool], reports);
      if (part.running == kNoSlot) continue;
      reports.use(pool + 1, {}, part.running);
      check_state(part, sequence, page, pool, arenas[pool], reports);
      if (part.from != kNoSlot) std::memcpy(arenas[pool].at(part.running), arenas[pool].at(part.from), kPageBytes);
    }
  }
  // Writes the windows of the new tokens [from, to).
  void write(std::size_t at, const Sequence& sequence, Tokens from, Tokens to, Tokens page,
             std::span<PageArena> arenas) const {
    for (std::size_t pool = 0; pool < parts_[at].size(); ++pool) {
      const SequencePart& part = parts_[at][pool];
      for (Tokens i = sequence.context + from; i < sequence.context + to && !part.slots.empty();) {
        const Tokens index = i / page, stop = std::min(sequence.context + to, (index + 1) * page);
        const PageImage right = image_of(pool_page_key(sequence.keys[index], pool + 1));
        const std::size_t first = (i - index * page) * kPageBytes / page,
                          last = (stop - index * page) * kPageBytes / page;
        std::memcpy(arenas[pool].at(part.slots[index - part.first]) + first, right.data() + first, last - first);
        i = stop;
      }
    }
  }
  // The pass has computed so many new tokens, more than none: leaves the states.
  void end(std::size_t at, const Sequence& sequence, Tokens fresh, Tokens page, std::span<PageArena> arenas,
           const Reports& reports) const {
    for (std::size_t pool = 0; pool < parts_[at].size(); ++pool) {
      const SequencePart& part = parts_[at][pool];
      check_windows(part, sequence, fresh, page, pool, arenas[pool], reports);
      if (part.running == kNoSlot) continue;
      if (part.from != part.running) check_state(part, sequence, page, pool, arenas[pool], reports);
      const auto leave = [&](Tokens length, SlotId slot) {
        const PageKey key = state_key(sequence.keys[(length - 1) / page], (length - 1) % page + 1, page, pool + 1);
        reports.use(pool + 1, key, slot);
        const PageImage right = image_of(key);
        std::memcpy(arenas[pool].at(slot), right.data(), kPageBytes);
      };
      for (const SequencePart::Point& point : part.points) {
        if (point.length <= sequence.context + fresh) leave(point.length, point.slot);
      }
      leave(sequence.context + fresh, part.running);
    }
  }
  // The pass fails: the windows that it would have written have any bytes, and the states stay.
  void fail(std::size_t at, const Sequence& sequence, Tokens page, std::span<PageArena> arenas, Chance& chance) const {
    for (std::size_t pool = 0; pool < parts_[at].size(); ++pool) {
      const SequencePart& part = parts_[at][pool];
      const Pages written = (sequence.context + page - 1) / page;
      for (std::size_t i = written - std::min(written, part.first); i < part.slots.size(); ++i) {
        arenas[pool].scribble(part.slots[i], chance);
      }
    }
  }

 private:
  static void check(const PageKey& key, std::size_t bytes, const PageArena& arena, SlotId slot, RequestId request,
                    std::string_view what, std::size_t pool, const Reports& reports) {
    reports.use(pool + 1, key, slot);
    const PageImage right = image_of(key);
    if (std::memcmp(arena.at(slot), right.data(), bytes) == 0) return;
    reports.wrong(key, slot,
                  "request " + std::to_string(request) + " would continue from a wrong " + std::string(what) +
                      " in pool " + std::to_string(pool));
  }
  static void check_windows(const SequencePart& part, const Sequence& sequence, Tokens fresh, Tokens page,
                            std::size_t pool, const PageArena& arena, const Reports& reports) {
    const Tokens end = sequence.context + fresh;
    for (std::size_t i = 0; i < part.slots.size() && (part.first + i) * page < end; ++i) {
      const Tokens tokens = std::min(page, end - (part.first + i) * page);
      check(pool_page_key(sequence.keys[part.first + i], pool + 1), tokens * kPageBytes / page, arena, part.slots[i],
            sequence.request, "window", pool, reports);
    }
  }
  static void check_state(const SequencePart& part, const Sequence& sequence, Tokens page, std::size_t pool,
                          const PageArena& arena, const Reports& reports) {
    if (part.from == kNoSlot) return;
    const PageKey& last = sequence.keys[(sequence.context - 1) / page];
    check(state_key(last, (sequence.context - 1) % page + 1, page, pool + 1), kPageBytes, arena, part.from,
          sequence.request, "state", pool, reports);
  }

  std::vector<std::vector<SequencePart>> parts_;  // by sequence, by pool
};

}  // namespace kvtwin
