#include "lab/watch/growing_log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <system_error>

#include "lab/error.hpp"
#include "traces/byte_stream.hpp"

namespace kvtwin {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr std::size_t kSortWindow = 512;  // a server with more requests at once writes its log further out of order

}  // namespace

// Waits at the end of the file for more, until the log is over.
class GrowingLog::Stream final : public ByteStream {
 public:
  Stream(int file, GrowingLog& log) : file_(file), log_(log) {}
  ~Stream() override { close(file_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::size_t read(std::span<char> into) override {
    for (bool was_over = false;;) {
      const ssize_t got = ::read(file_, into.data(), into.size());
      if (got > 0) return static_cast<std::size_t>(got);
      if (got < 0 && errno != EINTR && errno != EAGAIN) {
        throw ByteStreamError(std::string("cannot be read: ") + std::strerror(errno));
      }
      if (was_over) return 0;
      was_over = log_.is_over_after_a_wait();  // and one more look
    }
  }
  double fraction_read() const override { return 0; }

 private:
  const int file_;
  GrowingLog& log_;
};

// Another program writes the file, and tells nobody: so it is looked at again and again.
bool GrowingLog::is_over_after_a_wait() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kBetweenLooks, [this] { return is_over_; });
}

GrowingLog::GrowingLog(const std::string& path, Tokens block_tokens) : block_tokens_(block_tokens) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) {
    throw InputError("--request-log " + path + ": can't be read: " + std::generic_category().message(errno));
  }
  thread_ = std::thread([this, path, file] { run(path, file); });
}

GrowingLog::~GrowingLog() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = is_dropped_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GrowingLog::end() {
  {
    const std::scoped_lock lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  // The reader may wait for take() to make room, so this does not wait for it.
}

void GrowingLog::run(const std::string& path, int file) {
  std::string fault = "has ended";
  try {
    TraceOptions options;
    options.block_tokens = block_tokens_;
    options.sort_window = kSortWindow;
    TraceReader reader(path, std::make_unique<Stream>(file, *this), options);
    for (TraceRequest request; reader.next(request);) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_dropped_ || waiting_.size() < kMaxWaiting; });
      if (is_dropped_) break;
      read_block_tokens_ = reader.block_tokens();
      begin_ = reader.begin();
      waiting_.push_back(std::move(request));
    }
  } catch (const std::exception& error) {
    fault = error.what();
  }
  const std::scoped_lock lock(mutex_);
  fault_ = fault;
}

GrowingLog::Read GrowingLog::take() {
  const std::scoped_lock lock(mutex_);
  Read read;
  read.block_tokens = read_block_tokens_;
  read.begin = begin_;
  read.requests.assign(std::move_iterator(waiting_.begin()), std::move_iterator(waiting_.end()));
  waiting_.clear();
  changed_.notify_all();
  read.fault = fault_;
  return read;
}

}  // namespace kvtwin
