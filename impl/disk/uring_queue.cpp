#include "impl/disk/uring_queue.hpp"

#include <liburing.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <thread>

#include "impl/disk/folder_file.hpp"
#include "impl/runtime/arena.hpp"

namespace kvtwin {
namespace {

constexpr unsigned kMaxRegisteredFiles = 64;  // files registered at a time; the least recently used file is replaced
constexpr int kMaxRingRetries = 1000;         // of an operation that was interrupted or moved no byte
constexpr unsigned kMaxSyncs = 16;            // in addition to the operations with a buffer
// One thread submits and waits, and completions run only during its waits, so they do not interrupt its copies. Needs
// Linux 6.1.
constexpr unsigned kSingleThreadFlags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN;

// Returns a number that no other thread of this process has had or gets. A std::thread::id does not suffice: a thread
// gets the id of one that has ended, and the kernel refuses it every operation on the ring of that thread.
std::uint64_t number_of_this_thread() {
  static std::atomic<std::uint64_t> last = 0;
  thread_local const std::uint64_t number = ++last;
  return number;
}

class UringQueue final : public BlockQueue {
 public:
  UringQueue(std::uint32_t depth, std::size_t buffer_bytes, const std::function<void(const char*)>& before)
      : depth_(depth), buffer_bytes_(buffer_bytes), flights_(depth + kMaxSyncs) {
    for (std::uint32_t i = static_cast<std::uint32_t>(flights_.size()); i-- > 0;) free_.push_back(i);
    before("buffers");
    buffers_ = Arena(depth * buffer_bytes);
    begin_ring(before);
  }
  ~UringQueue() override { end_ring(); }

  bool usable() const { return running_; }
  std::span<std::byte> buffer(std::uint32_t index) override {
    return {buffers_.data() + index * buffer_bytes_, buffer_bytes_};
  }
  void submit(const BlockOperation& operation) override;
  void flush() override;
  void wait(std::vector<BlockEnd>& ends) override;
  std::string description() const override {
    const char* buffers = fixed_buffers_ ? "registered" : "plain";
    const char* files = fixed_files_ ? "registered" : "plain";
    return std::string("io_uring with ") + buffers + " buffers and " + files + " files";
  }

 private:
  struct Flight {
    BlockOperation operation;
    Bytes done = 0;
    int retries = 0;
    int file = -1;  // place in the table of files, or -1
  };
  struct TableFile {
    std::uint64_t serial = 0;
    std::uint64_t last_use = 0;
    unsigned users = 0;
  };

  void begin_ring(const std::function<void(const char*)>& before);
  void end_ring();
  bool change_thread();
  bool knows_operations();
  // liburing 2.3 declares io_uring_enable_rings but does not export it.
  long enable() const {
    return ::syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  }
  int table_place(const FolderFile& file);
  void prepare(std::uint32_t index);
  bool ended(std::uint32_t index, std::int64_t result, BlockEnd& end);

  const std::uint32_t depth_;
  const std::size_t buffer_bytes_;
  Arena buffers_;
  io_uring ring_{};
  bool running_ = false, fixed_buffers_ = false, fixed_files_ = false;
  bool starts_disabled_ = false;  // the first thread that uses the ring enables and owns it
  std::uint64_t owner_ = 0;       // number of the ring's thread; 0: none yet
  std::vector<Flight> flights_;
  std::vector<std::uint32_t> free_;
  std::vector<BlockEnd> refused_;  // ended without a start
  std::size_t in_flight_ = 0;      // operations in the ring
  std::array<TableFile, kMaxRegisteredFiles> table_{};
  std::uint64_t uses_ = 0;
};

void UringQueue::begin_ring(const std::function<void(const char*)>& before) {
  const auto entries = static_cast<unsigned>(flights_.size());
  before("ring");
  int error = -EINVAL;
  for (const unsigned flags : {kSingleThreadFlags | IORING_SETUP_R_DISABLED, unsigned{0}}) {
    io_uring_params parameters{};
    parameters.flags = flags;
    error = io_uring_queue_init_params(entries, &ring_, &parameters);
    starts_disabled_ = flags != 0;
    if (error != -EINVAL) break;
  }
  if (error < 0) return;
  running_ = true;
  try {
    if (!knows_operations()) return end_ring();
    before("registered buffers");
    std::vector<iovec> pieces;
    for (std::uint32_t i = 0; i < depth_; ++i) pieces.push_back({buffer(i).data(), buffer_bytes_});
    fixed_buffers_ = io_uring_register_buffers(&ring_, pieces.data(), depth_) == 0;
    before("registered files");
    fixed_files_ = io_uring_register_files_sparse(&ring_, kMaxRegisteredFiles) == 0;
  } catch (...) {
    end_ring();
    throw;
  }
}

bool UringQueue::knows_operations() {
  io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
  if (probe == nullptr) return false;
  bool all = true;
  for (const int operation :
       {IORING_OP_READ, IORING_OP_WRITE, IORING_OP_READ_FIXED, IORING_OP_WRITE_FIXED, IORING_OP_FSYNC}) {
    all = all && io_uring_opcode_supported(probe, operation) != 0;
  }
  io_uring_free_probe(probe);
  return all;
}

void UringQueue::end_ring() {
  std::vector<BlockEnd> ends;
  while (running_ && in_flight_ > 0) wait(ends);
  if (!running_) return;
  // The kernel frees a ring later, and the locked memory counts until then. Only the ring's thread can free it at once.
  if (fixed_buffers_) io_uring_unregister_buffers(&ring_);
  io_uring_queue_exit(&ring_);
  running_ = false;
}

// A ring of one thread cannot change its thread: another thread gets a new ring. Returns whether this thread may use
// the ring.
bool UringQueue::change_thread() {
  const std::uint64_t me = number_of_this_thread();
  if (running_ && (owner_ == me || !starts_disabled_)) return true;
  if (!running_ || owner_ != 0) {
    end_ring();
    fixed_buffers_ = fixed_files_ = false;
    table_ = {};
    begin_ring([](const char*) {});
    if (!running_) return false;
  }
  if (starts_disabled_ && enable() != 0) {
    end_ring();
    return false;
  }
  owner_ = me;
  return true;
}

// Returns -1 if the table has no place for the file.
int UringQueue::table_place(const FolderFile& file) {
  if (!fixed_files_) return -1;
  TableFile* place = std::ranges::find(table_, file.serial(), &TableFile::serial);
  if (place == table_.end()) {
    // Finds the least recently used place without users.
    for (TableFile& it : table_) {
      if (it.users == 0 && (place == table_.end() || it.last_use < place->last_use)) place = &it;
    }
    if (place == table_.end()) return -1;
    const int descriptor = file.descriptor();
    const auto at = static_cast<unsigned>(place - table_.begin());
    place->serial = 0;
    if (io_uring_register_files_update(&ring_, at, &descriptor, 1) != 1) return -1;
    place->serial = file.serial();
  }
  ++place->users;
  place->last_use = ++uses_;
  return static_cast<int>(place - table_.begin());
}

void UringQueue::submit(const BlockOperation& operation) {
  if ((in_flight_ == 0 && !change_thread()) || free_.empty()) {
    refused_.push_back({operation.tag, -EAGAIN});
    return;
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  const auto& file = *static_cast<FolderFile*>(operation.file);
  flights_[index] = {operation, 0, 0, table_place(file)};
  ++in_flight_;
  prepare(index);
}

void UringQueue::prepare(std::uint32_t index) {
  const Flight& flight = flights_[index];
  const BlockOperation& it = flight.operation;
  io_uring_sqe* entry = io_uring_get_sqe(&ring_);  // never null: the ring has one entry per flight
  const int file = flight.file >= 0 ? flight.file : static_cast<FolderFile*>(it.file)->descriptor();
  if (it.kind == BlockOperation::Kind::sync) {
    const bool folder = static_cast<FolderFile*>(it.file)->is_folder();
    io_uring_prep_fsync(entry, file, folder ? 0U : IORING_FSYNC_DATASYNC);
  } else {
    std::byte* data = buffer(it.buffer).data() + flight.done;
    const auto bytes = static_cast<unsigned>(it.bytes - flight.done);
    const Bytes at = it.offset + flight.done;
    const auto number = static_cast<int>(it.buffer);
    if (it.kind == BlockOperation::Kind::read) {
      if (fixed_buffers_)
        io_uring_prep_read_fixed(entry, file, data, bytes, at, number);
      else
        io_uring_prep_read(entry, file, data, bytes, at);
    } else {
      if (fixed_buffers_)
        io_uring_prep_write_fixed(entry, file, data, bytes, at, number);
      else
        io_uring_prep_write(entry, file, data, bytes, at);
    }
  }
  if (flight.file >= 0) entry->flags |= IOSQE_FIXED_FILE;
  io_uring_sqe_set_data64(entry, index);
}

// Submits the prepared entries. The next wait submits the entries that the kernel does not take now.
void UringQueue::flush() {
  for (int i = 0; i < kMaxRingRetries && io_uring_sq_ready(&ring_) > 0; ++i) {
    const int taken = io_uring_submit(&ring_);
    if (taken < 0 && taken != -EINTR) return;
  }
}

void UringQueue::wait(std::vector<BlockEnd>& ends) {
  const std::size_t before = ends.size();
  ends.insert(ends.end(), refused_.begin(), refused_.end());
  refused_.clear();
  while (in_flight_ > 0) {
    // Errors other than "again" come only from a broken ring. The thread then stays here, as with a disk that never
    // ends.
    if (ends.size() == before && io_uring_submit_and_wait(&ring_, 1) < 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    io_uring_cqe* entry = nullptr;
    while (io_uring_peek_cqe(&ring_, &entry) == 0 && entry != nullptr) {
      const auto index = static_cast<std::uint32_t>(io_uring_cqe_get_data64(entry));
      const std::int64_t result = entry->res;
      io_uring_cqe_seen(&ring_, entry);
      BlockEnd end;
      if (ended(index, result, end)) ends.push_back(end);
    }
    flush();
    if (ends.size() > before) return;
  }
}

// Returns false if the operation continues.
bool UringQueue::ended(std::uint32_t index, std::int64_t result, BlockEnd& end) {
  Flight& flight = flights_[index];
  const BlockOperation& it = flight.operation;
  const bool moves = it.kind != BlockOperation::Kind::sync;
  bool again = false;
  if (result == -EINTR || result == -EAGAIN) {
    again = true;
  } else if (result > 0 && moves) {
    const Bytes whole = flight.done + static_cast<Bytes>(result);
    again = whole < it.bytes;
    // Continues after a partial result at a whole block, because direct I/O can only start there.
    flight.done = again ? whole / kBlockBytes * kBlockBytes : whole;
  }
  if (again && ++flight.retries < kMaxRingRetries) {
    prepare(index);
    return false;
  }
  end = {it.tag, result < 0 ? result : static_cast<std::int64_t>(flight.done)};
  if (flight.file >= 0) --table_[static_cast<std::size_t>(flight.file)].users;
  free_.push_back(index);
  --in_flight_;
  return true;
}

}  // namespace

std::unique_ptr<BlockQueue> make_uring_queue(std::uint32_t depth, std::size_t buffer_bytes,
                                             const std::function<void(const char*)>& before) {
  auto queue = std::make_unique<UringQueue>(depth, buffer_bytes, before);
  if (!queue->usable()) return nullptr;
  return queue;
}

}  // namespace kvtwin
