#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#define OMPI_SKIP_MPICXX 1  // leaves out MPI's C++ bindings
#include <mpi.h>

#include "impl/runtime/mpi_call.hpp"
#include "impl/runtime/mpi_ranks.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

// Between polls for messages. MPI wakes no thread, so the longest sleep is a part of a message's time.
constexpr std::chrono::microseconds kMinPollSleep{20}, kMaxPollSleep{200};
constexpr std::size_t kMaxParcelBytes = std::size_t{1} << 30;

// All messages to one process that wait at the same time go as one MPI message, a parcel: u64 bytes | the bytes, each.
class MpiMail final : public Mail {
 public:
  MpiMail();
  ~MpiMail() override;

  void start(Receiver receiver) override;
  void send(std::size_t to, std::string_view bytes) override;
  void forget(std::size_t process) override;
  void stop() override;

 private:
  struct Sending {
    std::size_t to = 0;
    std::string parcel;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  void loop();
  bool send_parcels();
  bool receive_parcel();
  void deliver(std::size_t from, std::string_view parcel);
  bool all_sent();
  bool is_lost(std::size_t process) {
    const std::lock_guard lock(mutex_);
    return lost_[process];
  }

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 1;
  Receiver receiver_;
  std::thread thread_;

  std::mutex mutex_;  // of the members below
  std::condition_variable changed_;
  std::vector<std::string> waiting_;  // the next parcel to each process
  std::vector<bool> lost_;            // by process: has ended
  bool stopping_ = false;

  std::deque<Sending> sending_;  // of the thread. A deque, because MPI keeps the addresses.
  std::string received_;
};

MpiMail::MpiMail() {
  must_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm_), "MPI_Comm_dup");
  must_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
  must_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  waiting_.resize(static_cast<std::size_t>(size_));
  lost_.resize(static_cast<std::size_t>(size_));
}

MpiMail::~MpiMail() {
  if (thread_.joinable()) stop();
  // Freeing takes all processes.
  if (std::ranges::find(lost_, true) == lost_.end()) MPI_Comm_free(&comm_);
}

void MpiMail::start(Receiver receiver) {
  receiver_ = std::move(receiver);
  thread_ = std::thread([this] { loop(); });
}

void MpiMail::send(std::size_t to, std::string_view bytes) {
  {
    const std::lock_guard lock(mutex_);
    KV_CHECK(to < waiting_.size() && !stopping_, "a message goes to a process of the run");
    if (lost_[to]) return;
    const std::uint64_t size = bytes.size();
    waiting_[to].append(reinterpret_cast<const char*>(&size), sizeof size).append(bytes);
    KV_CHECK(waiting_[to].size() <= kMaxParcelBytes, "the thread that sends messages goes on");
  }
  changed_.notify_one();
}

void MpiMail::forget(std::size_t process) {
  const std::lock_guard lock(mutex_);
  lost_[process] = true;
  waiting_[process].clear();
}

void MpiMail::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void MpiMail::loop() {
  auto sleep_time = kMinPollSleep;
  for (;;) {
    const bool sent = send_parcels();
    const bool received = receive_parcel();
    std::erase_if(sending_, [](Sending& one) {
      int done = 0;
      must_mpi(MPI_Test(&one.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
      return done != 0;
    });
    if (sent || received) {
      sleep_time = kMinPollSleep;
      continue;
    }
    if (all_sent()) {
      // MPI keeps the addresses of messages that nobody receives.
      if (!sending_.empty()) new std::deque<Sending>(std::move(sending_));
      return;
    }
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, sleep_time) == std::cv_status::timeout) {
      sleep_time = std::min(kMaxPollSleep, sleep_time + sleep_time / 4);
    }
  }
}

bool MpiMail::all_sent() {
  const std::lock_guard lock(mutex_);
  const auto is_lost = [this](const Sending& one) { return lost_[one.to]; };
  return stopping_ && std::ranges::all_of(sending_, is_lost) &&
         std::ranges::all_of(waiting_, [](const auto& one) { return one.empty(); });
}

bool MpiMail::send_parcels() {
  bool sent = false;
  for (int to = 0; to < size_; ++to) {
    std::string parcel;
    {
      const std::lock_guard lock(mutex_);
      parcel.swap(waiting_[static_cast<std::size_t>(to)]);
    }
    if (parcel.empty()) continue;
    sent = true;
    if (to == rank_) {
      deliver(static_cast<std::size_t>(to), parcel);
      continue;
    }
    Sending& one = sending_.emplace_back();
    one.to = static_cast<std::size_t>(to);
    one.parcel = std::move(parcel);
    must_mpi(MPI_Isend(one.parcel.data(), static_cast<int>(one.parcel.size()), MPI_CHAR, to, 0, comm_, &one.request),
             "MPI_Isend");
  }
  return sent;
}

bool MpiMail::receive_parcel() {
  int there = 0, bytes = 0;
  MPI_Status status{};
  must_mpi(MPI_Iprobe(MPI_ANY_SOURCE, 0, comm_, &there, &status), "MPI_Iprobe");
  if (there == 0) return false;
  must_mpi(MPI_Get_count(&status, MPI_CHAR, &bytes), "MPI_Get_count");
  received_.resize(static_cast<std::size_t>(bytes));
  const auto from = static_cast<std::size_t>(status.MPI_SOURCE);
  MPI_Request request = MPI_REQUEST_NULL;
  must_mpi(MPI_Irecv(received_.data(), bytes, MPI_CHAR, status.MPI_SOURCE, 0, comm_, &request), "MPI_Irecv");
  for (int done = 0;;) {
    must_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    if (done != 0) break;
    if (is_lost(from)) {
      // The rest of the message never comes. MPI keeps the address.
      new std::string(std::move(received_));
      return true;
    }
    std::this_thread::yield();
  }
  deliver(from, received_);
  return true;
}

void MpiMail::deliver(std::size_t from, std::string_view parcel) {
  while (!parcel.empty()) {
    std::uint64_t size = 0;
    KV_CHECK(parcel.size() >= sizeof size, "a parcel holds whole messages");
    std::memcpy(&size, parcel.data(), sizeof size);
    parcel.remove_prefix(sizeof size);
    KV_CHECK(parcel.size() >= size, "a parcel holds whole messages");
    receiver_(from, parcel.substr(0, size));
    parcel.remove_prefix(size);
  }
}

}  // namespace

std::unique_ptr<Mail> open_mpi_mail() { return std::make_unique<MpiMail>(); }

}  // namespace kvtwin
