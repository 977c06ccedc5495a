// Stops a run at every possible place. All threads must end, and all resources must be released.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <thread>

#include "real_rig.hpp"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KV_SANITIZED 1  // the memory of sanitizers grows, so the resident memory is not checked
#else
#define KV_SANITIZED 0
#endif

namespace kvtwin::test {
namespace {

struct Trouble : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::size_t entries(const char* folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder)) ++count;
  return count;
}

std::size_t threads() { return entries("/proc/self/task"); }
std::size_t descriptors() { return entries("/proc/self/fd"); }

// Returns the resident memory. The pools are written, so a pool that is not released stays resident.
Bytes resident() {
  std::ifstream in("/proc/self/statm");
  Bytes mapped = 0, pages = 0;
  in >> mapped >> pages;
  return pages * static_cast<Bytes>(sysconf(_SC_PAGESIZE));
}

// Waits until the process has `wanted` threads: a joined thread may stay in /proc for a moment.
bool threads_come_to(std::size_t wanted) {
  for (int i = 0; i < 100'000; ++i) {
    if (threads() == wanted) return true;
    std::this_thread::yield();
  }
  return false;
}

// Returns the number of threads at rest, including threads that a sanitizer starts with the first thread.
std::size_t threads_at_rest() {
  std::thread([] {}).join();
  std::size_t fewest = threads();
  for (int i = 0; i < 1000; ++i) {
    std::this_thread::yield();
    fewest = std::min(fewest, threads());
  }
  return fewest;
}

// Uses one malloc arena, so that the resident memory of the process is meaningful.
class Failures : public testing::Test {
 protected:
  Failures() { mallopt(M_ARENA_MAX, 1); }
};

HostDeviceConfig device() {
  HostDeviceConfig config = small_device(256, 256);
  config.shape = {4, 2, 2, 64, 16};  // a pool has 4 MiB
  config.hidden = 16;
  config.width = 48;
  return config;
}

// Keeps all lanes busy; the handler throws at its `throw_at`th input.
class BusyHandler final : public InputHandler {
 public:
  BusyHandler(Substrate& substrate, std::uint64_t throw_at) : substrate_(substrate), throw_at_(throw_at) {}

  void handle(const Input&) override {
    if (++seen_ == throw_at_) throw Trouble("the handler's");
    if (seen_ > 12) return;
    const HostDeviceConfig config = device();
    const std::vector<PageKey> keys = some_keys(40);
    std::vector<PageMove> moves;
    for (SlotId i = 0; i < 40; ++i) moves.push_back({keys[i], i, 100 + i});
    const PageRun run{0, 100, 40};
    const auto transfer = [&](Lane lane, Direction direction) {
      return substrate_.submit(
          TransferOperation{lane,
                            plan_transfer(std::span(&run, 1), direction,
                                          {config.shape, config.host_layout, config.device_pages, config.host_pages},
                                          seen_ % 2 == 0 ? IoBackend::kernel : IoBackend::automatic, PlannerLimits{}),
                            moves});
    };
    transfer(Lane::d2h, Direction::device_to_host);
    const OperationId gate = transfer(Lane::h2d, Direction::host_to_device);
    const std::vector<SlotId> at = slots(150, 40);
    SequenceWork work{0, 0, 640, at, keys};
    ForwardOperation pass;
    pass.shape.prefill_tokens = 640;
    pass.shape.prefill_sequences = 1;
    pass.sequences = std::span(&work, 1);
    pass.gates = std::span(&gate, 1);
    const OperationId id = substrate_.submit(pass);
    if (seen_ % 3 == 0) substrate_.cancel(id);
    if (seen_ % 4 == 0) substrate_.cancel(gate);
    substrate_.call_at(seen_ % 2 == 0 ? 0 : substrate_.now() + 50'000);
    substrate_.reduce_min({1});
  }

  std::uint64_t seen() const { return seen_; }

 private:
  Substrate& substrate_;
  std::uint64_t throw_at_, seen_ = 0;
};

class FailingSource final : public InputSource {
 public:
  explicit FailingSource(std::uint64_t throw_at) : throw_at_(throw_at) {}
  bool next(Input& input) override {
    if (++calls_ == throw_at_) throw Trouble("the source's");
    if (calls_ > 6) return false;
    input = arrival_at(static_cast<TimeNs>(calls_ - 1) * 20'000, calls_ - 1);
    return true;
  }

 private:
  std::uint64_t throw_at_, calls_ = 0;
};

constexpr std::uint64_t kInputs = 24;  // number of inputs at which the handler may throw
constexpr std::uint64_t kPulls = 7;    // number of calls at which the source may throw

// The number of places where a run can stop. The last place means: the run does not stop.
std::uint64_t places() { return test_device_acquires + kInputs + kPulls + 1; }

std::vector<std::string> steps_seen;

// Makes a run that stops at this place. Returns true if the run stopped.
bool one_run(std::uint64_t place) {
  // For each kind of place, a number from 1 on. A run never reaches 0 or a number above the last place.
  const std::uint64_t failing_step = place < test_device_acquires ? place + 1 : 0;
  const std::uint64_t failing_input =
      place >= test_device_acquires && place < test_device_acquires + kInputs ? place - test_device_acquires + 1 : 0;
  const std::uint64_t failing_pull =
      place >= test_device_acquires + kInputs ? place - test_device_acquires - kInputs + 1 : 0;
  HostDeviceConfig config = device();
  std::uint64_t steps = 0;
  config.before = [&](const char* step) {
    if (++steps > steps_seen.size()) steps_seen.emplace_back(step);
    if (steps == failing_step) throw Trouble(step);
  };
  try {
    const std::unique_ptr<RealWorld> world = make_real_world(make_test_device(config));
    BusyHandler handler(world->substrate(), failing_input);
    FailingSource source(failing_pull);
    world->run(source, handler);
    EXPECT_GT(handler.seen(), kInputs) << "each of the handler's places is reached";
  } catch (const Trouble&) {
    return true;
  }
  return false;
}

TEST_F(Failures, LeaveNothingBehindWhereverTheyHappen) {
  const std::size_t threads_before = threads_at_rest();
  for (std::uint64_t place = 0; place < places(); ++place) one_run(place);  // warm-up
  EXPECT_EQ(steps_seen.size(), test_device_acquires) << "a new thing is acquired: let it fail too";
  ASSERT_TRUE(threads_come_to(threads_before));
  const std::size_t descriptors_before = descriptors();
  const Bytes resident_before = resident();
  std::uint64_t failed = 0;
  for (std::uint64_t round = 0; round < 3 * places(); ++round) {
    SCOPED_TRACE("place " + std::to_string(round % places()));
    const bool broke_off = one_run(round % places());
    EXPECT_EQ(broke_off, round % places() != places() - 1);
    failed += broke_off ? 1 : 0;
    ASSERT_TRUE(threads_come_to(threads_before)) << threads() << " threads, not " << threads_before;
  }
  EXPECT_EQ(failed, 3 * (places() - 1));
  EXPECT_EQ(descriptors(), descriptors_before);
  if (!KV_SANITIZED) {  // losing one pool in each run would cost half a GiB
    EXPECT_LE(resident(), resident_before + (Bytes{32} << 20));
  }
}

// The run ends while loads are queued that will never complete, and while a pass waits for these loads.
TEST_F(Failures, APassThatWaitsForLoadsDoesntHoldUpTheEnd) {
  struct Handler final : InputHandler {
    explicit Handler(Substrate& below) : substrate(below) {}
    void handle(const Input&) override {
      const HostDeviceConfig config = device();
      const std::vector<PageKey> keys = some_keys(200);
      std::vector<PageMove> moves;
      for (SlotId i = 0; i < 200; ++i) moves.push_back({keys[i], i, i});
      const PageRun run{0, 0, 200};
      std::vector<OperationId> gates;
      for (int i = 0; i < 50; ++i) {
        gates.push_back(substrate.submit(
            TransferOperation{Lane::h2d,
                              plan_transfer(std::span(&run, 1), Direction::host_to_device,
                                            {config.shape, config.host_layout, config.device_pages, config.host_pages},
                                            IoBackend::kernel, PlannerLimits{}),
                              moves}));
      }
      const std::vector<SlotId> at = slots(250, 1);  // a slot that is not the target of a load
      SequenceWork work{0, 0, 1, at, std::span(keys).first(1)};
      ForwardOperation pass;
      pass.shape.prefill_tokens = pass.shape.prefill_sequences = 1;
      pass.sequences = std::span(&work, 1);
      pass.gates = std::span(&gates.back(), 1);
      substrate.submit(pass);
      throw Trouble("with everything in flight");
    }
    Substrate& substrate;
  };
  for (int round = 0; round < 10; ++round) {
    const std::unique_ptr<RealWorld> world = make_real_world(make_test_device(device()));
    Handler handler(world->substrate());
    ListedInputs source({arrival_at(0, 0)});
    EXPECT_THROW(world->run(source, handler), Trouble);
  }
}

// A world that never ran, and a world whose device cannot be created.
TEST_F(Failures, AWorldThatNeverRanGoesQuietly) {
  make_real_world(make_test_device(device()));
  HostDeviceConfig huge = device();
  huge.device_pages = Pages{1} << 50;  // larger than the address space
  huge.shape.page_tokens = 1;
  huge.shape.head_bytes = 1;
  EXPECT_THROW(make_test_device(huge), std::runtime_error);
}

}  // namespace
}  // namespace kvtwin::test
