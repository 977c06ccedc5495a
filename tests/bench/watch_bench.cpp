// What kvtwin watch costs beside an engine: messages of KV events, as vLLM publishes them, are read and taken, as fast
// as possible. Conversations of many turns share a pool; a turn stores its prompt, then its answer block by block, and
// the engine removes whole conversations when the pool is full. Counters: events_per_second; core_at_10000 (share of a
// core at 10,000 events per second); MiB (of the figures, at the end) and MiB_half (in the middle); windows (of 1 M
// events, each watched from its beginning, too) and equal (those whose hits of three sizes are hitrate's on the same
// requests). TwinMemory: bytes per page that an engine's twin holds, beside what it says.
//   build/tests/watch_bench --benchmark_filter=Events/1000000/1/
// Instructions: valgrind --tool=callgrind --toggle-collect='*take_messages*' build/tests/watch_bench ...
#include <benchmark/benchmark.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <deque>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "lab/capture/block_batch.hpp"
#include "lab/watch/watch.hpp"
#include "lab/watch/watched_server.hpp"
#include "sim/bounds/hitrate.hpp"
#include "tests/splitmix.hpp"
#include "traces/paging.hpp"

namespace {

using namespace kvtwin;

constexpr std::uint64_t kPool = 20'000, kSystem = 8, kBlockTokens = 16;
constexpr double kEventsPerSecond = 200;

// MessagePack, as far as it is needed.
class Packer {
 public:
  void list(std::size_t n) { n < 16 ? byte(0x90 + n) : (byte(0xdd), big(n, 4)); }
  void map(std::size_t n) { byte(0x80 + n); }
  void text(std::string_view text) {
    byte(0xa0 + text.size());
    bytes_.insert(bytes_.end(), text.begin(), text.end());
  }
  void number(std::uint64_t n) { byte(0xcf), big(n, 8); }
  void small(std::uint64_t n) { byte(0xcd), big(n, 2); }
  void real(double value) {
    std::uint64_t bits = 0;
    static_assert(sizeof bits == sizeof value);
    __builtin_memcpy(&bits, &value, sizeof bits);
    byte(0xcb), big(bits, 8);
  }
  void nil() { byte(0xc0); }
  std::vector<std::uint8_t> take() { return std::exchange(bytes_, {}); }

 private:
  void byte(std::size_t value) { bytes_.push_back(static_cast<std::uint8_t>(value)); }
  void big(std::uint64_t value, int count) {
    for (int i = count - 1; i >= 0; --i) byte(static_cast<std::uint8_t>(value >> (8 * i)));
  }
  std::vector<std::uint8_t> bytes_;
};

// An engine with conversations.
class Engine {
 public:
  // Returns the next message, with one event.
  std::vector<std::uint8_t> next() {
    while (waiting_.empty()) turn();
    std::vector<std::uint8_t> message = std::move(waiting_.front());
    waiting_.pop_front();
    time_ += 1 / kEventsPerSecond;
    return message;
  }

 private:
  struct Conversation {
    std::vector<std::uint64_t> blocks;  // behind the system prompt
    bool is_held = false;
  };

  void turn() {
    if (conversations_.size() < 2000 || random_.below(8) == 0) {
      if (conversations_.size() == 2000) {
        remove(0);
        conversations_.pop_front();
      }
      conversations_.emplace_back();
    }
    const std::size_t at =
        conversations_.size() - 1 - random_.below(std::min<std::size_t>(conversations_.size(), 2000));
    Conversation& conversation = conversations_[at];
    std::vector<std::uint64_t> missing;
    if (!conversation.is_held) missing = conversation.blocks;
    for (std::uint64_t i = 0, more = 2 + random_.below(12); i < more; ++i) {
      conversation.blocks.push_back(next_++);
      missing.push_back(conversation.blocks.back());
    }
    const std::size_t above = conversation.blocks.size() - missing.size();
    while (held_ + missing.size() + 8 > kPool && remove_one(at)) {
    }
    if (!has_system_) {
      std::vector<std::uint64_t> system;
      for (std::uint64_t i = 1; i <= kSystem; ++i) system.push_back(i);
      store(system, 0);
      has_system_ = true;
    }
    store(missing, above == 0 ? kSystem : conversation.blocks[above - 1]);
    for (std::uint64_t i = 0, answer = 1 + random_.below(6); i < answer; ++i) {
      const std::uint64_t parent = conversation.blocks.back();
      conversation.blocks.push_back(next_++);
      store({conversation.blocks.back()}, parent);
      ++held_;
    }
    held_ += missing.size();
    conversation.is_held = true;
    if (conversation.blocks.size() > 600) {
      remove(at);
      conversation.blocks.clear();
    }
  }

  bool remove_one(std::size_t but) {
    for (std::size_t i = 0; i < conversations_.size(); ++i) {
      const std::size_t at = hand_++ % conversations_.size();
      if (at == but || !conversations_[at].is_held) continue;
      remove(at);
      return true;
    }
    return false;
  }
  void remove(std::size_t at) {
    Conversation& conversation = conversations_[at];
    if (!conversation.is_held) return;
    conversation.is_held = false;
    held_ -= std::min<std::uint64_t>(held_, conversation.blocks.size());
    head();
    packer_.map(3);
    packer_.text("type"), packer_.text("BlockRemoved");
    packer_.text("block_hashes"), packer_.list(conversation.blocks.size());
    for (std::size_t i = conversation.blocks.size(); i-- > 0;) packer_.number(conversation.blocks[i]);
    packer_.text("medium"), packer_.text("GPU");
    end();
  }
  void store(const std::vector<std::uint64_t>& blocks, std::uint64_t parent) {
    head();
    packer_.map(6);
    packer_.text("type"), packer_.text("BlockStored");
    packer_.text("block_hashes"), packer_.list(blocks.size());
    for (const std::uint64_t block : blocks) packer_.number(block);
    packer_.text("parent_block_hash");
    parent == 0 ? packer_.nil() : packer_.number(parent);
    packer_.text("token_ids"), packer_.list(blocks.size() * kBlockTokens);
    for (std::size_t i = 0; i < blocks.size() * kBlockTokens; ++i) packer_.small(random_.below(60'000));
    packer_.text("block_size"), packer_.small(kBlockTokens);
    packer_.text("medium"), packer_.text("GPU");
    end();
  }
  void head() {
    packer_.list(3);
    packer_.real(1.79e9 + time_ + static_cast<double>(waiting_.size()) / kEventsPerSecond);
    packer_.list(1);
  }
  void end() {
    packer_.nil();
    waiting_.push_back(packer_.take());
  }

  test::Splitmix random_{1};
  Packer packer_;
  std::deque<std::vector<std::uint8_t>> waiting_;
  std::deque<Conversation> conversations_;
  std::uint64_t next_ = 1000, held_ = 0;
  std::size_t hand_ = 0;
  bool has_system_ = false;
  double time_ = 0;
};

// Requests that were kept, as a source.
class Kept final : public TraceSource {
 public:
  Kept(const std::vector<TraceRequest>& requests, Tokens block_tokens)
      : requests_(requests), block_tokens_(block_tokens) {}
  bool next(TraceRequest& request) override {
    if (at_ == requests_.size()) return false;
    request = requests_[at_++];
    return true;
  }
  Tokens block_tokens() const override { return block_tokens_; }

 private:
  const std::vector<TraceRequest>& requests_;
  std::size_t at_ = 0;
  Tokens block_tokens_;
};

bool is_equal_to_hitrate(const std::vector<TraceRequest>& requests, const WatchFigures& figures) {
  Kept kept(requests, figures.block_tokens);
  TraceInputOptions options;
  options.page_tokens = figures.block_tokens;
  options.last_page = LastPage::partial;
  TraceInputSource source(kept, options);
  HitRateConfig config;
  config.evictions = {"lru"};
  config.block_tokens = figures.block_tokens;
  for (const WatchFigures::Row& row : figures.rows) {
    if (config.capacities.size() < 3) config.capacities.push_back(row.blocks);
  }
  const std::vector<HitRate> rates = replay_hit_rates(source, config);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    if (static_cast<double>(rates[i].hit_blocks) != figures.rows[i].lru.blocks) return false;
  }
  return true;
}

// A watch of a part of the events, and its requests.
struct Window {
  explicit Window(const WatchSettings& settings) : watch(settings, {"engine"}, nullptr) {
    watch.on_request([this](std::size_t, const TraceRequest& request, Tokens) { requests.push_back(request); });
  }
  bool is_equal() {
    watch.end();
    return is_equal_to_hitrate(requests, watch.figures());
  }

  Watch watch;
  std::vector<TraceRequest> requests;
};

double cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

// What is measured; a function of its own, so that a profiler can count its instructions alone.
[[gnu::noinline]] std::string take_messages(const std::vector<std::vector<std::uint8_t>>& messages, BlockBatch& batch,
                                            Watch& watch) {
  for (const auto& message : messages) {
    std::string why = batch.read(message);
    if (!why.empty()) return why;
    for (const BlockEvent& event : batch.events()) watch.take(0, event);
  }
  return {};
}

void Events(benchmark::State& state) {
  const auto events = static_cast<std::uint64_t>(state.range(0));
  constexpr std::uint64_t kBatch = 10'000, kWindow = 1'000'000;
  for (auto _ : state) {
    Engine engine;
    WatchSettings settings;
    settings.one_in = static_cast<std::uint64_t>(state.range(1));
    Watch watch(settings, {"engine"}, nullptr);
    BlockBatch batch;
    std::unique_ptr<Window> window;
    int windows = 0, equal = 0;
    const auto end_window = [&] {
      if (window == nullptr) return;
      ++windows;
      equal += window->is_equal() ? 1 : 0;
      window.reset();
    };
    std::vector<std::vector<std::uint8_t>> messages(kBatch);
    double seconds = 0;
    std::size_t half = 0;
    for (std::uint64_t done = 0; done < events; done += kBatch) {
      for (auto& message : messages) message = engine.next();
      const double begin = cpu_seconds();
      const std::string why = take_messages(messages, batch, watch);
      if (!why.empty()) return state.SkipWithError(why.c_str());
      seconds += cpu_seconds() - begin;
      if (done < events / 2) half = watch.figures().memory_bytes;
      if (settings.one_in > 1) continue;
      if (window == nullptr) window = std::make_unique<Window>(settings);
      take_messages(messages, batch, window->watch);
      if ((done + kBatch) % kWindow == 0) end_window();
    }
    end_window();
    watch.end();
    const WatchFigures figures = watch.figures();
    state.SetIterationTime(seconds);
    state.counters["events_per_second"] = static_cast<double>(events) / seconds;
    state.counters["core_at_10000"] = 10'000 * seconds / static_cast<double>(events);
    state.counters["MiB_half"] = static_cast<double>(half) / (1 << 20);
    state.counters["MiB"] = static_cast<double>(figures.memory_bytes) / (1 << 20);
    state.counters["requests"] = static_cast<double>(figures.requests);
    state.counters["blocks"] = static_cast<double>(figures.lookup_blocks);
    if (windows == 0) continue;
    state.counters["windows"] = windows;
    state.counters["equal"] = equal;
  }
}
// A window of 1 M events, with all blocks and one in eight, and 24 hours of 200 events per second.
BENCHMARK(Events)
    ->Args({100'000, 1})
    ->Args({1'000'000, 1})
    ->Args({1'000'000, 8})
    ->Args({17'280'000, 1})
    ->UseManualTime()
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

double resident_bytes() {
  std::ifstream in("/proc/self/statm");
  double all = 0, resident = 0;
  in >> all >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

// Of a twin that is full: its memory, by the pages that it holds, and what it says.
void TwinMemory(benchmark::State& state) {
  const bool has_host = state.range(0) != 0;
  ServerDescription description;
  description.sets = {"model.name=llama-3.1-8b", "hardware.name=h100-sxm", "cache.page_tokens=16",
                      "tiers.device.tokens=3200000"};
  if (has_host) {
    description.flags.sglang_flags = {"--page-size 16 --enable-hierarchical-cache --hicache-ratio 2"};
  } else {
    description.flags.vllm_flags = "vllm serve meta-llama/Llama-3.1-8B --block-size 16";
  }
  const auto server = WatchedServer::make(description);
  for (auto _ : state) {
    const double before = resident_bytes();
    EngineTwin twin(server->setup().engine, server->block_tokens());
    TraceRequest request;
    const auto blocks = static_cast<std::uint64_t>(state.range(1));
    for (std::uint64_t i = 0; i < 1'000'000 / blocks; ++i) {
      request.clear();
      request.arrival = static_cast<TimeNs>(i) * kNsPerSecond;
      request.input = blocks * 16 + 1;
      request.output = 1;
      for (std::uint64_t block = 0; block <= blocks; ++block) request.blocks.push_back(i * (blocks + 1) + block);
      twin.serve(request);
    }
    const double bytes = resident_bytes() - before;
    const auto pages = static_cast<double>(server->device_blocks() + server->host_blocks());
    state.counters["bytes_per_page"] = bytes / pages;
    state.counters["said_per_page"] = static_cast<double>(twin.memory_bytes()) / pages;
  }
}
BENCHMARK(TwinMemory)->ArgsProduct({{0, 1}, {1, 40}})->Iterations(1);

}  // namespace

BENCHMARK_MAIN();
