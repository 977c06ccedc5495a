// Pages for a storage back end to move, for benchmarks: as many as are told, between it and a few pages of memory that
// stay in the processor's cache; checked as TierQueues checks them.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "impl/storage/backend.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

class BenchWork final : public PageWork {
 public:
  BenchWork(const PageForm& form, StorageVerb verb, std::vector<std::uint64_t> pages)
      : form_(form), verb_(verb), pages_(std::move(pages)), memory_(16 * form.bytes(), std::byte{7}) {}
  bool next(PageTask& task) override {
    if (begun_ == pages_.size()) return false;
    const std::uint64_t page = pages_[begun_++];
    task = {verb_, {}, PageKey{{mix(page), page, 0, 0}}, page};
    return true;
  }
  void take(const PageTask& task, PageHeader& header, std::span<std::byte> payload) override {
    take_bare(task, payload);
    header = make_page_header(form_, task.space, task.key, payload);
  }
  Cause give(const PageTask& task, std::span<const std::byte, kPageHeaderBytes> header,
             std::span<const std::byte> payload) override {
    if (!holds_page(form_, task.space, task.key, header, payload)) return Cause::corrupt;
    return give_bare(task, payload);
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
  std::byte* place(const PageTask& task) { return memory_.data() + task.ticket % 16 * form_.bytes(); }
  const PageForm form_;
  const StorageVerb verb_;
  const std::vector<std::uint64_t> pages_;
  std::vector<std::byte> memory_;
  std::size_t begun_ = 0;
};

}  // namespace kvtwin::test
