#include "impl/runtime/mpi_ranks.hpp"

#define OMPI_SKIP_MPICXX 1  // leaves out MPI's C++ bindings
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <climits>
#include <stdexcept>
#include <thread>

#include "impl/runtime/mpi_call.hpp"

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;
// MPI_Wait polls without a break, which takes a core from the ranks' own threads. So wait() polls with pauses.
constexpr std::uint64_t kPollsBeforeSleep = 200;  // polls in a row with a yield in between; then the thread sleeps
constexpr std::chrono::microseconds kMinSleep{20}, kMaxSleep{500};
// Ranks wait for each other's copies and passes, but not for arrivals: all ranks get an arrival at the same time.
constexpr std::chrono::minutes kMaxWait{10};

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
  MpiRanks();                            // all processes; begins MPI
  explicit MpiRanks(std::size_t ranks);  // the ranks of this process's engine
  ~MpiRanks() override;

  std::size_t rank() const override { return static_cast<std::size_t>(rank_); }
  std::size_t size() const override { return static_cast<std::size_t>(size_); }
  std::size_t size_here() const override { return static_cast<std::size_t>(size_here_); }
  std::size_t rank_here() const override { return static_cast<std::size_t>(rank_here_); }
  bool minimum(RankChannel channel, std::span<std::int64_t> values) override;
  std::vector<std::string> gather(const std::string& bytes) override;
  std::vector<std::string> share(const std::string& bytes) override;
  void leave(int code) override;
  void go_on_without(const std::vector<bool>& ended) override;

 private:
  MPI_Comm comm(RankChannel channel) const { return comms_[static_cast<std::size_t>(channel)]; }
  void join(MPI_Comm whole);
  void wait(MPI_Request& request, const char* what) const;

  bool began_mpi_ = false;
  int rank_ = 0, size_ = 1, size_here_ = 1, rank_here_ = 0;
  std::array<MPI_Comm, kRankChannels> comms_{};
  std::vector<std::size_t> members_;  // of the channel `run`, in its order
  bool lost_ = false;                 // processes have ended early
};

MpiRanks::MpiRanks() {
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

MpiRanks::~MpiRanks() {
  if (lost_) return;  // freeing and MPI_Finalize take all processes, and would wait for the dead ones
  for (MPI_Comm& channel : comms_) MPI_Comm_free(&channel);
  if (began_mpi_) MPI_Finalize();
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

void MpiRanks::leave(int code) {
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();  // MPI_Abort does not return
}

}  // namespace

std::unique_ptr<RankGroup> join_mpi_ranks() { return std::make_unique<MpiRanks>(); }

std::unique_ptr<RankGroup> join_engine_ranks(std::size_t ranks) { return std::make_unique<MpiRanks>(ranks); }

}  // namespace kvtwin
