// Work for benchmarks of storage back ends: moves the given pages between a back end and 16 pages of memory that stay
// in the processor's cache. `in_place`: this memory is the pages' pieces, so that a back end needs no copy. PageWork
// checks the pages as it does for TierQueues.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "impl/runtime/arena.hpp"
#include "impl/storage/backend.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

class BenchWork final : public PageWork {
 public:
  BenchWork(const PageForm& form, StorageVerb verb, std::vector<std::uint64_t> pages, const PageSeal* seal = nullptr,
            bool in_place = false)
      : PageWork(form, seal), verb_(verb), pages_(std::move(pages)), in_place_(in_place), memory_(16 * form.bytes()) {
    std::memset(memory_.data(), 7, 16 * form.bytes());
  }
  bool next(PageTask& task) override {
    if (begun_ == pages_.size()) return false;
    const std::uint64_t page = pages_[begun_++];
    task = {verb_, {}, PageKey{{mix(page), page, 0, 0}}, page};
    return true;
  }
  bool pieces(const PageTask& task, Pieces& pieces) override {
    if (in_place_) pieces.emplace_back(place(task), form().bytes());
    return in_place_;
  }
  void take_bare(const PageTask& task, std::span<std::byte> payload) override {
    std::memcpy(payload.data(), place(task), payload.size());
  }
  Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override {
    std::memcpy(place(task), payload.data(), payload.size());
    return Cause::none;
  }
  void end(const PageTask&, Cause cause) override { failed += cause == Cause::none ? 0 : 1; }
  std::uint64_t failed = 0;

 private:
  std::byte* place(const PageTask& task) { return memory_.data() + task.ticket % 16 * form().bytes(); }
  const StorageVerb verb_;
  const std::vector<std::uint64_t> pages_;
  const bool in_place_;
  Arena memory_;  // aligned like the pools of the tiers: without alignment, some processors copy at half the speed
  std::size_t begun_ = 0;
};

}  // namespace kvtwin::test
