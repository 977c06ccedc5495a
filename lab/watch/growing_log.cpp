#include "lab/watch/growing_log.hpp"

#include <fcntl.h>
#include <sys/stat.h>
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
constexpr TimeNs kReleaseAfter = 10 * kNsPerSecond;  // a request, by the log's times

}  // namespace

// Waits at the end of the file for more, until the log is over. If the path names another file, or the file is shorter
// than before, its server has begun a new one: the stream goes on with it.
class GrowingLog::Stream final : public ByteStream {
 public:
  Stream(std::string path, int file, GrowingLog& log) : path_(std::move(path)), file_(file), log_(log) {}
  ~Stream() override { close(file_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  std::size_t read(std::span<char> into) override {
    for (bool was_over = false;;) {
      const ssize_t got = ::read(file_, into.data(), into.size());
      if (got > 0) return taken(into.first(static_cast<std::size_t>(got)));
      if (got < 0 && errno != EINTR && errno != EAGAIN) {
        throw ByteStreamError(std::string("cannot be read: ") + std::strerror(errno));
      }
      if (has_new_file()) {
        if (last_ == '\n') continue;
        into[0] = last_ = '\n';  // ends what the old file has of a line
        return 1;
      }
      if (was_over) {
        is_silent_ = false;
        return 0;
      }
      const bool is_quiet = may_be_silent_ && Clock::now() - heard_ >= log_.silence_;
      was_over = is_quiet ? log_.is_over() : log_.is_over_after_a_wait();  // and one more look
      if (is_quiet && !was_over) {
        is_silent_ = true;
        return 0;
      }
    }
  }
  double fraction_read() const override { return 0; }
  bool is_silent() const override { return is_silent_; }
  // Before, the beginning of the log is waited for.
  void let_be_silent() { may_be_silent_ = true; }

 private:
  using Clock = std::chrono::steady_clock;

  std::size_t taken(std::span<const char> bytes) {
    last_ = bytes.back();
    read_ += static_cast<off_t>(bytes.size());
    is_silent_ = false;
    heard_ = Clock::now();
    return bytes.size();
  }
  // At the end of the file: returns whether the next bytes are those of a new one.
  bool has_new_file() {
    struct stat at_path {};
    struct stat own {};
    if (stat(path_.c_str(), &at_path) != 0 || fstat(file_, &own) != 0 || !S_ISREG(own.st_mode)) return false;
    const bool is_other = at_path.st_dev != own.st_dev || at_path.st_ino != own.st_ino;
    if (is_other ? at_path.st_size == 0 : own.st_size >= read_) return false;
    if (is_other) {
      const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
      if (file < 0 || own.st_size > read_) {  // or the old file has more
        if (file >= 0) close(file);
        return false;
      }
      close(std::exchange(file_, file));
    } else if (lseek(file_, 0, SEEK_SET) != 0) {
      return false;
    }
    read_ = 0;
    log_.tell_new_file();
    return true;
  }

  const std::string path_;
  int file_;
  GrowingLog& log_;
  bool may_be_silent_ = false, is_silent_ = false;
  Clock::time_point heard_ = Clock::now();
  char last_ = '\n';
  off_t read_ = 0;  // bytes of the file
};

// Another program writes the file, and tells nobody: so it is looked at again and again.
bool GrowingLog::is_over_after_a_wait() {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, kBetweenLooks, [this] { return is_over_; });
}

bool GrowingLog::is_over() {
  const std::scoped_lock lock(mutex_);
  return is_over_;
}

void GrowingLog::tell_new_file() {
  const std::scoped_lock lock(mutex_);
  ++new_files_;
}

GrowingLog::GrowingLog(const std::string& path, Tokens block_tokens, std::chrono::milliseconds silence)
    : block_tokens_(block_tokens), silence_(silence) {
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
    options.release_after = kReleaseAfter;
    auto bytes = std::make_unique<Stream>(path, file, *this);
    Stream& stream = *bytes;
    TraceReader reader(path, std::move(bytes), options);
    stream.let_be_silent();
    for (TraceRequest request;;) {
      if (!reader.next(request)) {
        if (!stream.is_silent()) break;
        is_over_after_a_wait();
        continue;
      }
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
  read.new_files = new_files_;
  read.requests.assign(std::move_iterator(waiting_.begin()), std::move_iterator(waiting_.end()));
  waiting_.clear();
  changed_.notify_all();
  read.fault = fault_;
  return read;
}

}  // namespace kvtwin
