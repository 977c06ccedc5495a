// Benchmarks of the hot paths of the policy: index, page pool, page keys, and the index with each eviction policy. Use
// --benchmark_format=json to compare results. The benchmarks eviction/NAME/... fill an index with a million pages, or
// with --resident=PAGES pages. Measure one policy per process: --benchmark_filter=eviction/lru/.
// tests/bench/policy_table does this for all policies.
#include <benchmark/benchmark.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <memory_resource>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/large_pages.hpp"
#include "policy/index/page_key.hpp"
#include "policy/index/page_pool.hpp"
#include "policy/index/radix_tree.hpp"
#include "tests/policy_test_support.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kResidentPages = 40'000;

// Returns requests of `pages` pages. A request has a prefix that it shares with a group (one of 200), and a unique
// tail.
std::vector<std::vector<PageKey>> make_requests(std::size_t count, std::size_t pages) {
  test::Splitmix random(7);
  std::vector<std::vector<PageKey>> requests(count);
  for (std::size_t r = 0; r < count; ++r) {
    const std::uint64_t group = random.below(200);
    const std::size_t shared = random.between(pages / 4, pages);
    PageKey prior;
    for (std::size_t i = 0; i < pages; ++i) {
      const BlockSegment segment{i < shared ? group : (r + 1) << 20 | i, 0, 64};
      requests[r].push_back(prior = block_page_key(&prior, std::span(&segment, 1)));
    }
  }
  return requests;
}

// The index and the pools of one engine, used like a cache with write-through, without a scheduler and without time.
class Replay {
 public:
  Replay(std::string_view policy, Pages evict_unit, Pages device_pages, Pages host_pages)
      : tree_(make_eviction(policy), make_eviction(policy)),
        device_pool_(device_pages),
        host_pool_(host_pages),
        evict_unit_(evict_unit) {}

  void serve(const std::vector<PageKey>& keys) {
    const PrefixMatch match = tree_.match(keys);
    const std::uint64_t stamp = tree_.next_stamp();
    tree_.touch(match.end, stamp);
    tree_.lease(Tier::device, match.end);
    load_back(match);
    const Pages cached = match.device_pages + match.host_pages;
    hits_ += cached;
    if (cached < keys.size()) {
      const auto rest = std::span(keys).subspan(cached);
      std::vector<SlotId> slots = device_slots(rest.size());
      back_up(tree_.insert(match.end, rest, std::move(slots), {}, stamp, 0));
    }
    tree_.release(Tier::device, match.end);
  }

  Pages hits() const { return hits_; }
  std::size_t nodes() const { return tree_.nodes(); }

 private:
  void load_back(const PrefixMatch& match) {
    path_.clear();
    for (NodeId at = match.end; at != match.device_end; at = tree_.node(at).parent) path_.push_back(at);
    for (; !path_.empty(); path_.pop_back()) {
      const Pages pages = tree_.node(path_.back()).facts.pages;
      tree_.set_slots(Tier::device, path_.back(), device_slots(pages));
    }
  }

  std::vector<SlotId> device_slots(Pages pages) {
    while (device_pool_.available() < pages) evict_device(pages - device_pool_.available());
    std::vector<SlotId> slots;
    device_pool_.allocate(pages, slots);
    return slots;
  }

  void evict_device(Pages short_of) {
    const NodeId victim = tree_.device_victim();
    const Pages all = tree_.node(victim).facts.pages;
    const Pages pages = std::min({short_of, evict_unit_, all});
    if (tree_.node(victim).host.resident()) {
      if (pages < all) tree_.split(victim, all - pages);
      device_pool_.release(tree_.clear(Tier::device, victim));
      return;
    }
    device_.clear();
    tree_.remove_tail(victim, pages, device_, host_);
    device_pool_.release(device_);
  }

  void back_up(NodeId id) {
    const NodeId parent = tree_.node(id).parent;
    if (parent != tree_.root() && !tree_.node(parent).host.resident()) return;
    const Pages pages = tree_.node(id).facts.pages;
    while (host_pool_.available() < pages) {
      const NodeId victim = tree_.host_victim();
      if (victim == NodeId::none) return;
      host_.clear();
      tree_.remove_tail(victim,
                        std::min({pages - host_pool_.available(), evict_unit_, Pages{tree_.node(victim).facts.pages}}),
                        device_, host_);
      host_pool_.release(host_);
    }
    std::vector<SlotId> slots;
    host_pool_.allocate(pages, slots);
    tree_.set_slots(Tier::host, id, std::move(slots));
  }

  RadixTree tree_;
  PagePool device_pool_, host_pool_;
  Pages evict_unit_;
  std::vector<SlotId> device_, host_;
  std::vector<NodeId> path_;
  Pages hits_ = 0;
};

// The work of the index in a replay of Mooncake's conversation trace: 12,031 requests of 188 pages, 40,000 resident
// pages.
void replay(benchmark::State& state, std::string_view policy, Pages evict_unit, Pages host_pages, std::size_t pages) {
  const auto requests = make_requests(12'031, pages);
  Pages hits = 0;
  std::size_t nodes = 0;
  for (auto _ : state) {
    Replay run(policy, evict_unit, kResidentPages, host_pages);
    for (const auto& keys : requests) run.serve(keys);
    hits = run.hits();
    nodes = run.nodes();
  }
  state.counters["hit_ratio"] = static_cast<double>(hits) / static_cast<double>(requests.size() * pages);
  state.counters["nodes"] = static_cast<double>(nodes);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(requests.size() * pages));
}

void tree_match(benchmark::State& state) {
  const auto requests = make_requests(200, 188);
  RadixTree tree(make_eviction("lru"), nullptr);
  SlotId next = 0;
  for (const auto& keys : requests) {
    const PrefixMatch match = tree.match(keys);
    const auto rest = std::span(keys).subspan(match.device_pages);
    if (rest.empty()) continue;
    tree.insert(match.end, rest, test::slots(next, rest.size()), {}, tree.next_stamp(), 0);
    next += static_cast<SlotId>(rest.size());
  }
  std::size_t at = 0;
  for (auto _ : state) {
    const PrefixMatch match = tree.match(requests[at]);
    tree.touch(match.end, tree.next_stamp());
    benchmark::DoNotOptimize(match);
    at = at + 1 == requests.size() ? 0 : at + 1;
  }
}

// Inserts a leaf of 188 pages, and evicts its pages one by one.
void tree_insert_and_evict(benchmark::State& state) {
  const auto requests = make_requests(1, 188);
  RadixTree tree(make_eviction("lru"), nullptr);
  std::vector<SlotId> device, host;
  for (auto _ : state) {
    tree.insert(tree.root(), requests[0], test::slots(0, 188), {}, tree.next_stamp(), 0);
    device.clear();
    while (tree.pages(Tier::device) > 0) tree.remove_tail(tree.device_victim(), 1, device, host);
  }
  state.SetItemsProcessed(state.iterations() * 188);
}

// Half of a fragmented pool is free. Allocates and releases `pages` pages at a time.
void pool_allocate_and_release(benchmark::State& state) {
  PagePool pool(kResidentPages);
  std::vector<SlotId> slots, back;
  pool.allocate(kResidentPages, slots);
  test::Splitmix random(5);
  for (const SlotId slot : slots) {
    if (random.chance(50)) back.push_back(slot);
  }
  pool.release(back);
  const auto pages = static_cast<Pages>(state.range(0));
  for (auto _ : state) {
    slots.clear();
    pool.allocate(pages, slots);
    pool.release(slots);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void key_of_block(benchmark::State& state) {
  PageKey prior;
  BlockSegment segment{1, 0, 64};
  for (auto _ : state) {
    ++segment.block;
    prior = block_page_key(&prior, std::span(&segment, 1));
  }
  benchmark::DoNotOptimize(prior);
}

void key_of_tokens(benchmark::State& state) {
  std::vector<std::uint32_t> tokens(64, 1);
  PageKey prior = token_page_key(nullptr, tokens);
  for (auto _ : state) prior = token_page_key(&prior, tokens);
  benchmark::DoNotOptimize(prior);
}

// Traffic of paths, or of single pages. Of ten requests, five are new, four repeat one of the last N requests, and one
// repeats one of the last 4 N, where N is the number of requests that fill the tier. A path has 32 to 256 pages, drawn
// for each request. The first pages are shared within one of 1,000 groups. A repeated path continues, or branches off
// halfway.
class Traffic {
 public:
  Traffic(Pages resident, bool paths) : paths_(paths), window_(std::max<Pages>(1, resident / (paths ? kMean : 1))) {}

  // Returns the next request, valid until the next call.
  std::span<const PageKey> next() {
    draw(served_);
    return served_;
  }

 private:
  using Keys = std::vector<PageKey>;
  static constexpr Pages kMean = 144;

  void draw(Keys& keys) {
    const std::uint64_t draw = random_.below(10);
    if (draw < 5 || made_ < 4 * window_) return path(made_++, keys);
    path(made_ - random_.between(1, draw < 9 ? window_ : 4 * window_), keys);
  }
  void path(std::uint64_t number, Keys& keys) {
    keys.clear();
    const std::uint64_t group = test::mix(number) % 1000, own = number + 1000;
    const std::uint64_t shared = paths_ ? 4 + group % 28 : 0, pages = paths_ ? random_.between(32, 256) : 1;
    for (std::uint64_t i = 0; i < pages; ++i) {
      const std::uint64_t name = (i < shared ? group : own) << 8 | i;
      keys.push_back({{test::mix(name), name, 0, 0}});
    }
  }

  const bool paths_;
  const Pages window_;  // approximate number of requests that fill the tier
  test::Splitmix random_{3};
  std::uint64_t made_ = 0;
  Keys served_;
};

// A full tier with one policy. Eviction works as in Cache: one victim at a time, and as many of its pages as needed.
// The tier has already evicted four times its pages (eight times with tide), so that the memory of the policies is full
// too.
class FullTier {
 public:
  FullTier(std::string_view policy, Pages resident, bool paths)
      : resident_(resident),
        traffic_(resident, paths),
        tree_(make_eviction(policy, {resident, 512, 53'000, true}), nullptr) {
    const Pages remembered = (policy == "tide" ? 8 : 4) * resident_;
    while (evicted_ < remembered) request();
  }

  // Serves the next request. Returns the number of its pages.
  Pages request() {
    const std::span<const PageKey> keys = traffic_.next();
    const PrefixMatch match = tree_.match(keys);
    tree_.lease(Tier::device, match.end);
    const std::uint64_t stamp = tree_.next_stamp();
    time_ += kNsPerSecond / 1000;
    tree_.visit({requests_++, time_, 0, keys.size() * 512, 200, keys, false});
    tree_.touch(match.end, stamp);
    const auto missing = keys.subspan(match.device_pages);
    while (resident_ - tree_.pages(Tier::device) < missing.size()) {
      evict(missing.size() - (resident_ - tree_.pages(Tier::device)));
    }
    NodeId end = match.end;
    for (std::size_t at = 0; at < missing.size();) {
      const Pages pages = tree_.shared_history_prefix(missing.subspan(at));
      end = tree_.insert(end, missing.subspan(at, pages), std::vector<SlotId>(pages), {}, stamp, 0);
      at += pages;
    }
    tree_.release(Tier::device, match.end);
    return keys.size();
  }
  void evict(Pages most) {
    const NodeId victim = tree_.device_victim();
    const Pages pages = std::min<Pages>(most, tree_.node(victim).facts.pages);
    tree_.notify_evicted(PolicyRole::device, victim, pages);
    released_.clear();
    tree_.remove_tail(victim, pages, released_, released_);
    evicted_ += pages;
  }
  void make_room(Pages pages) {
    while (resident_ - tree_.pages(Tier::device) < pages) evict(1);
  }
  void fill() {
    while (resident_ - tree_.pages(Tier::device) >= 256) request();
  }
  Pages resident() const { return resident_; }

 private:
  const Pages resident_;
  Traffic traffic_;
  RadixTree tree_;
  RequestId requests_ = 0;
  TimeNs time_ = 0;
  Pages evicted_ = 0;
  std::vector<SlotId> released_;
};

// Returns the tier for a policy. Only one tier exists at a time; consecutive benchmarks of one kind share it.
FullTier& full_tier(std::string_view policy, Pages resident, bool paths) {
  static std::unique_ptr<FullTier> tier;
  static std::pair<std::string_view, bool> kind;
  if (tier == nullptr || kind != std::pair(policy, paths)) {
    tier.reset();
    tier = std::make_unique<FullTier>(policy, resident, paths);
    kind = {policy, paths};
  }
  return *tier;
}

void count_pages(benchmark::State& state, Pages pages) {
  state.SetItemsProcessed(static_cast<std::int64_t>(pages));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_kib"] = static_cast<double>(usage.ru_maxrss);
}

// Requests, including the evictions that they need. The items are the pages of the paths, hit or missed.
void eviction_requests(benchmark::State& state, std::string_view policy, Pages resident, bool paths) {
  FullTier& tier = full_tier(policy, resident, paths);
  Pages pages = 0;
  for (auto _ : state) pages += tier.request();
  count_pages(state, pages);
}

// Requests of single pages, without evictions: the evictions for 256 requests at a time are not measured.
void eviction_requests_in_room(benchmark::State& state, std::string_view policy, Pages resident) {
  constexpr Pages kRequests = 256;
  FullTier& tier = full_tier(policy, resident, false);
  Pages pages = 0;
  for (auto _ : state) {
    if (pages % kRequests == 0) {
      state.PauseTiming();
      tier.make_room(kRequests);
      state.ResumeTiming();
    }
    pages += tier.request();
  }
  count_pages(state, pages);
}

// Evictions only, page by page. Filling the tier again is not measured.
void eviction_evict(benchmark::State& state, std::string_view policy, Pages resident, bool paths) {
  FullTier& tier = full_tier(policy, resident, paths);
  tier.fill();
  for (auto _ : state) tier.evict(1);
  count_pages(state, state.iterations());
}

// Every repetition continues with the tier of the previous one.
void add_evictions(Pages resident) {
  constexpr int kTimes = 5;
  const auto evictions = static_cast<benchmark::IterationCount>(resident / 16);
  for (const std::string_view name : eviction_names()) {
    for (const bool paths : {true, false}) {
      const std::string prefix = "eviction/" + std::string(name) + (paths ? "/paths" : "/single_pages");
      benchmark::RegisterBenchmark((prefix + "/serve").c_str(),
                                   [=](benchmark::State& state) { eviction_requests(state, name, resident, paths); })
          ->Iterations(paths ? 10'000 : 500'000)
          ->Repetitions(kTimes);
      if (!paths) {
        benchmark::RegisterBenchmark((prefix + "/serve_in_room").c_str(),
                                     [=](benchmark::State& state) { eviction_requests_in_room(state, name, resident); })
            ->Iterations(500'000)
            ->Repetitions(kTimes);
      }
      benchmark::RegisterBenchmark((prefix + "/evict_a_page").c_str(),
                                   [=](benchmark::State& state) { eviction_evict(state, name, resident, paths); })
          ->Iterations(evictions)
          ->Repetitions(kTimes);
    }
  }
}

// The cost of a cache miss on this machine, a lower bound for the cost of a request of one page. Reads a table much
// larger than any cache; each read determines the position of the next one.
template <typename Table>
void random_reads(benchmark::State& state) {
  Table table((std::size_t{2} << 30) / sizeof(std::uint64_t));
  std::uint64_t at = 1;
  for (auto _ : state) at = at * 6364136223846793005ULL + 1442695040888963407ULL + table[at >> 20 & (table.size() - 1)];
  benchmark::DoNotOptimize(at);
  state.SetItemsProcessed(state.iterations());
}

constexpr Pages kAny = ~Pages{0};
BENCHMARK(random_reads<std::vector<std::uint64_t>>)->Name("random_reads/small_pages");
BENCHMARK(random_reads<std::pmr::vector<std::uint64_t>>)->Name("random_reads/large_pages");
BENCHMARK_CAPTURE(replay, lru, "lru", kAny, 0, 188)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay, lru_one_by_one, "lru", 1, 0, 188)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay, fifo, "fifo", kAny, 0, 188)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay, lru_two_tiers, "lru", kAny, 2 * kResidentPages, 188)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay, lru_two_tiers_one_by_one, "lru", 1, 2 * kResidentPages, 188)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(replay, lru_24_blocks_one_by_one, "lru", 1, 0, 24)->Unit(benchmark::kMillisecond);
BENCHMARK(tree_match);
BENCHMARK(tree_insert_and_evict);
BENCHMARK(pool_allocate_and_release)->Arg(1)->Arg(188);
BENCHMARK(key_of_block);
BENCHMARK(key_of_tokens);

}  // namespace
}  // namespace kvtwin

int main(int argc, char** argv) {
  std::pmr::set_default_resource(kvtwin::large_pages());  // as in the program kvtwin
  kvtwin::Pages resident = 1'000'000;
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    constexpr std::string_view kResident = "--resident=";
    if (std::strncmp(argv[i], kResident.data(), kResident.size()) == 0) {
      resident = std::strtoull(argv[i] + kResident.size(), nullptr, 10);
    } else {
      argv[kept++] = argv[i];
    }
  }
  if (resident < 1024) return 2;
  argc = kept;
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  kvtwin::add_evictions(resident);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
