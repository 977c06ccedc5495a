// Why pages of prompts were not hit: for each page that a request computes at its first admission, the reason by the
// page's own history. A page counts as new only if no earlier request had it.
//
//   new                no earlier request had the page
//   in_computation     an earlier request had the page and had not computed it yet
//   lost_while_waiting on the device or on the host when the request arrived, and evicted before its admission
//   other_engine       only another engine had it
//   evicted_device     evicted from the device; no tier below had a copy
//   evicted_host       evicted from the host; no storage tier had a copy
//   evicted_storage    was in storage, and is no more
//   not_stored         storage did not take it
//   in_storage         is in storage, and was not fetched
//   in_memory          is on the device or on the host, behind a page that is not, or was not loaded
//
// Cost: about 15 bytes per distinct page (page_states.hpp), 8 bytes per page of a waiting prompt, and 4 bytes per
// request; with several engines, a page is distinct on each. Two pages with equal 53-bit fingerprints count as one.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lab/report/page_states.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

enum class MissCause : std::uint8_t {
  fresh,
  in_computation,
  lost_while_waiting,
  other_engine,
  evicted_device,
  evicted_host,
  evicted_storage,
  not_stored,
  in_storage,
  in_memory,
};
constexpr std::size_t kMissCauses = 10;
std::string_view name_of(MissCause cause);
// Returns a short description, for the screen.
std::string_view meaning_of(MissCause cause);
using PerMissCause = IndexedArray<MissCause, std::uint64_t, kMissCauses>;

class PageHistory final : public Observer {
 public:
  // Events go on to `next`. Requires: on_event() receives the events of every engine, `next` outlives this object.
  // `disk_of`: for each engine, the engine whose disk tier it shares, itself if it shares none; empty: each has its
  // own. A shared disk evicts by itself, and only a look-up shows it.
  PageHistory(std::size_t engines, Tokens page_tokens, Observer& next, std::vector<std::size_t> disk_of = {});
  ~PageHistory() override;
  PageHistory(const PageHistory&) = delete;
  PageHistory& operator=(const PageHistory&) = delete;

  // Returns the receiver of the inputs of a seat; the inputs go on to `next`, which may be null.
  InputHandler* inputs_of(std::size_t seat, InputHandler* next);
  void on_event(const Event& event) override;

  // Pages of prompts that were not hit at the first admission, without the last partial page.
  const PerMissCause& missed_pages() const { return missed_; }
  // Prompt tokens of these requests whose pages an earlier request had: the hits of an infinite cache of all engines,
  // at the first admission of each request.
  Tokens repeated(std::span<const RequestId> requests) const;
  // Prefetches that found nothing in storage, by the cause of their first missing page.
  const PerMissCause& empty_look_ups() const { return empty_look_ups_; }
  Pages pages_of_an_engine() const;                       // distinct computed pages, of the engine with most
  Pages pages_of_all() const { return distinct_pages_; }  // distinct computed pages
  // Pages that waiting requests asked storage for: the most at the same time, of one engine; and the sum.
  Pages asked_at_once() const { return asked_most_; }
  Pages asked() const { return asked_sum_; }
  // Prefetches that were declined because the page above was not on the host, and whose page came to the host later.
  std::uint64_t backed_up_later() const { return backed_up_later_; }

 private:
  struct Waiting {
    std::size_t engine = 0;
    std::vector<std::uint64_t> pages;  // fingerprints, without the page of the last token
    Pages near = 0;                    // leading pages on the device or the host at the arrival
    Pages asked = 0;                   // of storage
    bool found_nothing = false;        // a look-up in storage
  };
  struct Engine {
    Pages distinct = 0, asked = 0;
  };
  class Inputs;

  void arrived(std::size_t engine, const Arrival& arrival);
  void admitted(const Event& event);
  void asked(const Event& event);
  void not_backed_up(RequestId request);
  void on_host(const Event& event);
  void found_nothing(RequestId request);
  void forget(RequestId request);
  std::uint64_t own(std::size_t engine, std::uint64_t page) const;
  std::uint64_t place_of(const Event& event, const PageKey& key) const;
  std::size_t disk_of(std::size_t engine) const { return disk_of_.empty() ? engine : disk_of_[engine]; }
  // Chains of an engine's own pages, and of the pages of all engines.
  enum class Chain : std::uint8_t { own, all };
  std::uint64_t state(std::uint64_t page, Chain chain) const;
  std::uint64_t add(std::uint64_t page, Chain chain, std::uint64_t set, std::uint64_t clear = 0);
  void mark(const Event& event, std::uint64_t set, std::uint64_t clear = 0);
  void computed(const Event& event);
  bool is_near(const Waiting& of, Pages page) const;
  MissCause cause_of(const Waiting& of, Pages page) const;
  MissCause cause_of(const Waiting& of, Pages page, std::uint64_t shared) const;

  Tokens page_tokens_;
  Observer& next_;
  std::vector<std::size_t> disk_of_;
  bool disk_is_shared_ = false;
  std::vector<Engine> engines_;
  std::vector<std::unique_ptr<Inputs>> inputs_;
  std::unordered_map<RequestId, Waiting> waiting_;
  std::unordered_map<std::uint64_t, std::uint64_t> not_on_host_;  // page above of declined prefetches, and their number
  PageStates states_;
  mutable IndexedArray<Chain, PageStates::Cursor, 2> cursors_;  // of one engine: the same pages
  std::vector<std::uint32_t> repeated_pages_;                   // by request
  PerMissCause missed_, empty_look_ups_;
  std::uint64_t backed_up_later_ = 0;
  Pages distinct_pages_ = 0, asked_most_ = 0, asked_sum_ = 0;
};

}  // namespace kvtwin
