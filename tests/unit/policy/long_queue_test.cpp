// A step of the engine must need the same number of CPU instructions with a short and with a long waiting queue.
// Not compiled with sanitizers, because their instructions would be counted, too.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <stdexcept>
#include <string>

#include "stored_rig.hpp"

namespace kvtwin {
namespace {

// Counts the instructions of `work`. A forked copy of this process runs it in single steps, so the changes that `work`
// makes are not visible in this process.
std::uint64_t instructions_of(const std::function<void()>& work) {
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("fork fails");
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    work();
    raise(SIGSTOP);
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  std::uint64_t count = 0;
  for (;; ++count) {
    if (ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr) != 0) throw std::runtime_error("ptrace is not allowed");
    waitpid(child, &status, 0);
    if (!WIFSTOPPED(status)) throw std::runtime_error("the work failed");
    if (WSTOPSIG(status) == SIGSTOP) break;
  }
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  return count;
}

// An engine with one running request and `waiting` waiting requests, which all share their first two pages.
class Queue {
 public:
  Queue(const EngineConfig& config, std::uint64_t waiting) : engine_(config, world, decisions_, nullptr) {
    arrive(0, chain(9, 1), 4, 40);  // too short to be prefetched
    for (std::uint64_t request = 1; request <= waiting; ++request) {
      arrive(request, branch(1, 2, 100 + request, 4), 17, 1);
    }
    complete_pass();
    complete_pass();
  }

  void arrive(RequestId request, const std::vector<PageKey>& keys, Tokens prompt, Tokens output) {
    Arrival arrival;
    arrival.request = request;
    arrival.prompt_tokens = prompt;
    arrival.output_tokens = output;
    arrival.keys = keys;
    give(arrival);
  }
  void complete_pass() {
    const ManualWorld::Forward pass = world.passes.at(0);
    world.passes.pop_front();
    world.time += 1000;
    give(Completion{.id = pass.id, .steps = pass.steps});
  }
  // Completes the oldest storage operation, on a disk that holds no pages.
  void complete_stored() {
    const ManualWorld::Stored operation = world.stored.front();
    world.stored.pop_front();
    const bool set = operation.work.verb == kSet || operation.work.verb == kRemove;
    give(Completion{.id = operation.id, .pages = set ? operation.pages.size() : 0});
  }
  void abort(RequestId request) { give(Hint{HintKind::abort, request, 0}); }
  // Ends the running request; the next one is admitted.
  void next_request() {
    abort(0);
    complete_pass();
  }

  ManualWorld world;

 private:
  template <typename What>
  void give(const What& what) {
    engine_.handle({world.time, what});
    while (!world.reductions.empty()) {
      const Reduction reduction = world.reductions.front();
      world.reductions.pop_front();
      engine_.handle({world.time, reduction});
    }
  }

  DecisionLog decisions_;
  Engine engine_;
};

EngineConfig queue_config() {
  EngineConfig config = small_config(64, 64);
  config.max_running = 1;
  config.burst_steps = 1;
  config.order_window = 8;
  return config;
}

EngineConfig stored_queue_config(std::string_view policy) {
  EngineConfig config = queue_config();
  config.storage = {{Tier::disk, 100'000, true}};
  config.prefetch_policy = policy;
  config.prefetch_min_tokens = 1;
  config.prefetch_host_share = 1024;
  config.host_pages = 100'000;  // enough that no prefetch is declined
  config.max_running = 2;       // so that a seat is free, and requests wait only because of their prefetch
  return config;
}

constexpr std::uint64_t kShortQueue = 800, kLongQueue = 8'000;

// With a queue ten times as long, `work` may take at most 10 % more instructions, for lookups in larger tables.
void expect_no_growth(const EngineConfig& config, const char* what, const std::function<void(Queue&)>& work) {
  SCOPED_TRACE(what);
  Queue few(config, kShortQueue), many(config, kLongQueue);
  const std::uint64_t with_few = instructions_of([&] { work(few); });
  const std::uint64_t with_many = instructions_of([&] { work(many); });
  EXPECT_LT(with_many, with_few + with_few / 10 + 500) << with_few << " with " << kShortQueue << " waiting requests";
}

void expect_no_growth(const EngineConfig& config) {
  expect_no_growth(config, "a pass", [](Queue& queue) { queue.complete_pass(); });
  expect_no_growth(config, "an arrival", [](Queue& queue) {
    queue.arrive(kLongQueue + 1, branch(1, 2, 99, 4), 17, 1);
    queue.complete_pass();
  });
  expect_no_growth(config, "an admission", [](Queue& queue) { queue.next_request(); });
  if (config.storage.empty()) return;
  expect_no_growth(config, "an answer", [](Queue& queue) {
    queue.complete_stored();
    queue.complete_pass();
  });
}

TEST(LongQueue, costs_a_step_nothing) {
  for (const std::string_view order : {"fcfs", "longest_prefix"}) {
    SCOPED_TRACE(order);
    EngineConfig config = queue_config();
    config.order = order;
    expect_no_growth(config);
  }
}

TEST(LongQueue, costs_policies_that_look_ahead_nothing) {
  for (const char* eviction : {"queue", "tide"}) {
    SCOPED_TRACE(eviction);
    EngineConfig config = queue_config();
    config.eviction = eviction;
    expect_no_growth(config);
  }
}

TEST(LongQueue, costs_prefetches_nothing) {
  for (const std::string_view policy : {"wait_complete", "timeout", "cost_stop"}) {
    SCOPED_TRACE(policy);
    EngineConfig config = stored_queue_config(policy);
    config.cost_token_ps = 1'000'000;
    config.storage.front().read_token_ps = 1'000;
    if (policy == "cost_stop") config.prefetch_admission = "cost";
    expect_no_growth(config);
  }
}

}  // namespace
}  // namespace kvtwin
#endif
