#include "impl/runtime/mpi_ranks.hpp"

#define OMPI_SKIP_MPICXX 1  // leaves out MPI's C++ bindings
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>

#include "impl/runtime/launcher.hpp"
#include "impl/runtime/mpi_call.hpp"
#include "impl/runtime/process_watch.hpp"

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;
// MPI_Wait polls without a break, which takes a core from the ranks' own threads. So wait() polls with pauses.
constexpr std::uint64_t kPollsBeforeSleep = 200;  // polls in a row with a yield in between; then the thread sleeps
constexpr std::chrono::microseconds kMinSleep{20}, kMaxSleep{500};
// Ranks wait for each other's copies and passes, but not for arrivals: all ranks get an arrival at the same time.
constexpr std::chrono::minutes kMaxWait{10};
// After the death of a process, for MPI_Finalize.
constexpr std::chrono::seconds kMaxFinalize{5};

std::vector<std::string> parts_of(const std::string& all, const std::vector<int>& lengths,
                                  const std::vector<int>& places) {
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    parts.push_back(all.substr(static_cast<std::size_t>(places[i]), static_cast<std::size_t>(lengths[i])));
  }
  return parts;
}

class MpiRanks final : public RankGroup {
 public:
  explicit MpiRanks(std::unique_ptr<StartWatch> start);  // all processes; begins MPI
  explicit MpiRanks(std::size_t ranks);                  // the ranks of this process's engine
  ~MpiRanks() override;

  std::size_t rank() const override { return static_cast<std::size_t>(rank_); }
  std::size_t size() const override { return static_cast<std::size_t>(size_); }
  std::size_t size_here() const override { return static_cast<std::size_t>(size_here_); }
  std::size_t rank_here() const override { return static_cast<std::size_t>(rank_here_); }
  bool minimum(RankChannel channel, std::span<std::int64_t> values) override;
  std::vector<std::string> gather(const std::string& bytes) override;
  std::vector<std::string> share(const std::string& bytes) override;
  void leave(int code) override;
  void watch(std::function<void(std::size_t)> ended) override;
  void end_self() override;
  void end_run(int code) override;
  void go_on_without(const std::vector<bool>& ended) override;

 private:
  MPI_Comm comm(RankChannel channel) const { return comms_[static_cast<std::size_t>(channel)]; }
  void join(MPI_Comm whole);
  void wait(MPI_Request& request, const char* what) const;
  void has_ended(std::size_t process);
  bool a_member_has_ended();
  void meet_the_living();
  void finalize();

  bool began_mpi_ = false;
  int rank_ = 0, size_ = 1, size_here_ = 1, rank_here_ = 0;
  std::array<MPI_Comm, kRankChannels> comms_{};
  std::vector<std::size_t> members_;  // of the channel `run`, in its order
  bool lost_ = false;                 // processes have ended early

  // Of all processes, with their deaths.
  std::unique_ptr<StartWatch> start_;
  std::mutex calling_;  // held while `ended_` is called
  std::function<void(std::size_t)> ended_;
  std::mutex mutex_;  // of `dead_`
  std::condition_variable died_;
  std::vector<bool> dead_;
  std::optional<ProcessWatch> watch_;  // last member: its thread ends first
};

// Processes with the same name can watch each other by their ids.
std::string name_of_machine() {
  std::string name;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), name);
  std::error_code error;
  return name + std::filesystem::read_symlink("/proc/self/ns/pid", error).string();
}

MpiRanks::MpiRanks(std::unique_ptr<StartWatch> start) : start_(std::move(start)) {
  int threads = MPI_THREAD_SINGLE;
  must_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &threads), "MPI_Init_thread");
  if (threads != MPI_THREAD_MULTIPLE) {
    MPI_Finalize();
    throw std::runtime_error(
        "this MPI doesn't serve several threads (MPI_THREAD_MULTIPLE), which a run of ranks needs");
  }
  began_mpi_ = true;
  must_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  join(MPI_COMM_WORLD);
}

MpiRanks::MpiRanks(std::size_t ranks) {
  int process = 0;
  must_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &process), "MPI_Comm_rank");
  MPI_Comm engine = MPI_COMM_NULL;
  must_mpi(MPI_Comm_split(MPI_COMM_WORLD, process / static_cast<int>(ranks), process, &engine), "MPI_Comm_split");
  join(engine);
  must_mpi(MPI_Comm_free(&engine), "MPI_Comm_free");
}

void MpiRanks::join(MPI_Comm whole) {
  must_mpi(MPI_Comm_rank(whole, &rank_), "MPI_Comm_rank");
  must_mpi(MPI_Comm_size(whole, &size_), "MPI_Comm_size");
  for (MPI_Comm& channel : comms_) must_mpi(MPI_Comm_dup(whole, &channel), "MPI_Comm_dup");
  for (std::size_t member = 0; member < size(); ++member) members_.push_back(member);
  MPI_Comm here = MPI_COMM_NULL;
  must_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &here), "MPI_Comm_split_type");
  must_mpi(MPI_Comm_size(here, &size_here_), "MPI_Comm_size");
  must_mpi(MPI_Comm_rank(here, &rank_here_), "MPI_Comm_rank");
  must_mpi(MPI_Comm_free(&here), "MPI_Comm_free");
}

// Freeing and MPI_Finalize take all processes, and would wait for the dead ones.
MpiRanks::~MpiRanks() {
  const bool all_live = !lost_ && !a_member_has_ended();
  if (all_live && began_mpi_) {
    finalize();
  } else if (all_live) {
    for (MPI_Comm& channel : comms_) MPI_Comm_free(&channel);
  } else if (began_mpi_) {
    meet_the_living();
  }
}

// A process that ends counts as dead for each process that still watches it. So each one waits until none watches.
void MpiRanks::meet_the_living() {
  MPI_Request request = MPI_REQUEST_NULL;
  if (MPI_Ibarrier(comm(RankChannel::run), &request) != MPI_SUCCESS) return;
  for (int done = 0; !a_member_has_ended(); std::this_thread::sleep_for(kMaxSleep)) {
    if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS || done != 0) return;
  }
}

// MPI_Finalize waits for all processes. If one dies meanwhile, the others have done their work all the same.
void MpiRanks::finalize() {
  bool finalized = false;
  const int code = std::uncaught_exceptions() > 0 ? 1 : 0;
  std::thread guard([&] {
    std::unique_lock lock(mutex_);
    died_.wait(lock, [&] { return finalized || std::ranges::find(dead_, true) != dead_.end(); });
    if (died_.wait_for(lock, kMaxFinalize, [&] { return finalized; })) return;
    lock.unlock();
    std::fflush(nullptr);
    end_launcher();
    std::_Exit(code);
  });
  for (MPI_Comm& channel : comms_) MPI_Comm_free(&channel);
  MPI_Finalize();
  {
    const std::lock_guard lock(mutex_);
    finalized = true;
  }
  died_.notify_one();
  guard.join();
}

void MpiRanks::watch(std::function<void(std::size_t)> ended) {
  {
    const std::lock_guard lock(calling_);
    ended_ = std::move(ended);
  }
  if (watch_) return;
  const std::string machine = name_of_machine();
  const std::vector<std::string> all = share(std::to_string(::getpid()) + " " + machine);
  std::vector<std::size_t> numbers;
  std::vector<pid_t> processes;
  for (std::size_t process = 0; process < all.size(); ++process) {
    const std::size_t space = all[process].find(' ');
    if (process == rank() || all[process].substr(space + 1) != machine) continue;
    numbers.push_back(process);
    processes.push_back(std::stoi(all[process]));
  }
  dead_.resize(size());
  watch_.emplace(processes, [this, numbers](std::size_t index) { has_ended(numbers[index]); });
  start_.reset();
}

void MpiRanks::has_ended(std::size_t process) {
  {
    const std::lock_guard lock(mutex_);
    dead_[process] = true;
  }
  died_.notify_one();
  const std::lock_guard lock(calling_);
  if (ended_) ended_(process);
}

// Returns whether a process has ended that the channel `run` waits for.
bool MpiRanks::a_member_has_ended() {
  const std::lock_guard lock(mutex_);
  return !dead_.empty() && std::ranges::any_of(members_, [this](std::size_t member) { return dead_[member]; });
}

void MpiRanks::wait(MPI_Request& request, const char* what) const {
  const Clock::time_point begin = Clock::now();
  auto sleep_time = kMinSleep;
  for (std::uint64_t polls = 1;; ++polls) {
    int done = 0;
    must_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done != 0) return;
    if (polls < kPollsBeforeSleep) {
      std::this_thread::yield();
      continue;
    }
    std::this_thread::sleep_for(sleep_time);
    sleep_time = std::min(kMaxSleep, sleep_time + sleep_time / 4);
    if (Clock::now() - begin > kMaxWait) {
      abort_mpi("waited " + std::to_string(std::chrono::seconds(kMaxWait).count()) + " s in " + what +
                " for a rank that doesn't come; has it hung, or decided otherwise?");
    }
  }
}

bool MpiRanks::minimum(RankChannel channel, std::span<std::int64_t> values) {
  MPI_Request request = MPI_REQUEST_NULL;
  must_mpi(MPI_Iallreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_INT64_T, MPI_MIN,
                          comm(channel), &request),
           "MPI_Iallreduce");
  wait(request, "MPI_Iallreduce");
  return true;  // if a rank leaves, MPI_Abort ends this process
}

std::vector<std::string> MpiRanks::gather(const std::string& bytes) {
  if (bytes.size() > INT_MAX / size()) abort_mpi("has too much to tell rank 0");
  const int length = static_cast<int>(bytes.size());
  std::vector<int> lengths(members_.size()), places(members_.size());
  MPI_Request request = MPI_REQUEST_NULL;
  must_mpi(MPI_Igather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, 0, comm(RankChannel::run), &request),
           "MPI_Igather");
  wait(request, "MPI_Igather");
  for (std::size_t i = 1; i < lengths.size(); ++i) places[i] = places[i - 1] + lengths[i - 1];
  std::string all(static_cast<std::size_t>(places.back()) + static_cast<std::size_t>(lengths.back()), '\0');
  must_mpi(MPI_Igatherv(bytes.data(), length, MPI_CHAR, all.data(), lengths.data(), places.data(), MPI_CHAR, 0,
                        comm(RankChannel::run), &request),
           "MPI_Igatherv");
  wait(request, "MPI_Igatherv");
  if (rank_ != 0) return {};
  std::vector<std::string> parts = parts_of(all, lengths, places), of_all(size());
  for (std::size_t i = 0; i < parts.size(); ++i) of_all[members_[i]] = std::move(parts[i]);
  return of_all;
}

std::vector<std::string> MpiRanks::share(const std::string& bytes) {
  if (bytes.size() > INT_MAX / size()) abort_mpi("has too much to tell the other ranks");
  const int length = static_cast<int>(bytes.size());
  std::vector<int> lengths(size()), places(size());
  MPI_Request request = MPI_REQUEST_NULL;
  must_mpi(MPI_Iallgather(&length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm(RankChannel::run), &request),
           "MPI_Iallgather");
  wait(request, "MPI_Iallgather");
  for (std::size_t i = 1; i < lengths.size(); ++i) places[i] = places[i - 1] + lengths[i - 1];
  std::string all(static_cast<std::size_t>(places.back()) + static_cast<std::size_t>(lengths.back()), '\0');
  must_mpi(MPI_Iallgatherv(bytes.data(), length, MPI_CHAR, all.data(), lengths.data(), places.data(), MPI_CHAR,
                           comm(RankChannel::run), &request),
           "MPI_Iallgatherv");
  wait(request, "MPI_Iallgatherv");
  return parts_of(all, lengths, places);
}

void MpiRanks::go_on_without(const std::vector<bool>& ended) {
  if (std::ranges::find(ended, true) == ended.end()) return;
  lost_ = true;
  std::vector<int> living;
  members_.clear();
  for (std::size_t member = 0; member < size(); ++member) {
    if (ended[member]) continue;
    members_.push_back(member);
    living.push_back(static_cast<int>(member));
  }
  MPI_Comm& channel = comms_[static_cast<std::size_t>(RankChannel::run)];
  MPI_Group all = MPI_GROUP_NULL, others = MPI_GROUP_NULL;
  must_mpi(MPI_Comm_group(channel, &all), "MPI_Comm_group");
  must_mpi(MPI_Group_incl(all, static_cast<int>(living.size()), living.data(), &others), "MPI_Group_incl");
  must_mpi(MPI_Comm_create_group(channel, others, 0, &channel), "MPI_Comm_create_group");
  MPI_Group_free(&all);
  MPI_Group_free(&others);
}

void MpiRanks::end_self() {
  flush_stderr();
  std::raise(SIGKILL);
}

// The launcher's exit code is 1 after a signal.
void MpiRanks::end_run(int code) {
  if (code == 1) end_launcher();
  leave(code);
}

void MpiRanks::leave(int code) {
  flush_stderr();
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();  // MPI_Abort does not return
}

}  // namespace

std::unique_ptr<RankGroup> join_mpi_ranks(std::size_t all) {
  return std::make_unique<MpiRanks>(std::make_unique<StartWatch>(all));
}

std::unique_ptr<RankGroup> join_engine_ranks(std::size_t ranks) { return std::make_unique<MpiRanks>(ranks); }

}  // namespace kvtwin
