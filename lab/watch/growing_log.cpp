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
#include "traces/format.hpp"

namespace kvtwin {
namespace {

constexpr std::chrono::milliseconds kBetweenLooks{50};
constexpr TimeNs kReleaseAfter = 10 * kNsPerSecond;  // a request, by the log's times
// Broken lines, before the first request, of a file that is no request log. The larger number leaves no request that is
// still being sorted.
constexpr std::uint64_t kManyBadLines = 100, kMostBadLines = 2 * kSortWindowRequests;

// These formats are recognized by what only one program writes, the others by less.
bool is_log(std::string_view format) { return format == "sglang" || format == "vllm" || format == "lmcache"; }

// This is no request log.
struct RefusedLog : TraceError {
  using TraceError::TraceError;
};

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
      const bool is_quiet = Clock::now() - heard_ >= log_.silence_;
      if (is_quiet && !may_be_silent_) log_.tell_waiting(true);
      was_over = is_quiet && may_be_silent_ ? log_.is_over() : log_.is_over_after_a_wait();  // and one more look
      if (is_quiet && may_be_silent_ && !was_over) {
        is_silent_ = true;
        return 0;
      }
    }
  }
  double fraction_read() const override { return 0; }
  bool is_silent() const override { return is_silent_; }
  // Before, the beginning of the log is waited for.
  void let_be_silent() {
    may_be_silent_ = true;
    log_.tell_waiting(false);
  }

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

void GrowingLog::tell_waiting(bool is_waiting) {
  const std::scoped_lock lock(mutex_);
  is_waiting_ = is_waiting;
}

void GrowingLog::tell_new_file() {
  const std::scoped_lock lock(mutex_);
  ++new_files_;
}

GrowingLog::GrowingLog(const std::string& path, Tokens block_tokens, std::chrono::milliseconds silence, TimeNs zone)
    : block_tokens_(block_tokens), silence_(silence), zone_(zone) {
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
  std::string fault = kHasEnded;
  bool is_refused = false;
  try {
    read_all(path, file);
  } catch (const RefusedLog& error) {
    fault = error.what();
    is_refused = true;
  } catch (const std::exception& error) {
    fault = error.what();
  }
  const std::scoped_lock lock(mutex_);
  fault_ = fault;
  is_refused_ = is_refused;
}

void GrowingLog::read_all(const std::string& path, int file) {
  TraceOptions options;
  options.block_tokens = block_tokens_;
  options.release_after = kReleaseAfter;
  options.zone = zone_;
  auto bytes = std::make_unique<Stream>(path, file, *this);
  Stream& stream = *bytes;
  const auto opened = [&] {
    try {
      return std::make_unique<TraceReader>(path, std::move(bytes), options);
    } catch (const TraceError& error) {
      throw RefusedLog(error.what());
    }
  }();
  TraceReader& reader = *opened;
  stream.let_be_silent();
  for (TraceRequest request;;) {
    try {
      if (!reader.next(request)) {
        if (!stream.is_silent()) return;
        refuse_if_all_is_bad();
        is_over_after_a_wait();
        continue;
      }
    } catch (const TraceLineError& error) {
      count_bad(reader, error);
      continue;
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_dropped_ || waiting_.size() < kMaxWaiting; });
    if (is_dropped_) return;
    has_request_ = true;
    read_block_tokens_ = reader.block_tokens();
    begin_ = reader.begin();
    has_local_dates_ = reader.has_local_dates();
    waiting_.push_back(std::move(request));
  }
}

// The log is silent, so that no request is still being sorted.
void GrowingLog::refuse_if_all_is_bad() {
  const std::scoped_lock lock(mutex_);
  if (!has_request_ && bad_lines_ >= kManyBadLines) throw RefusedLog(first_bad_line_);
}

// Errors: throws `error` if the reader can't pass the line over, or the file is no request log.
void GrowingLog::count_bad(const TraceReader& reader, const TraceLineError& error) {
  const std::scoped_lock lock(mutex_);
  if (last_error_ == error.what()) throw error;
  last_error_ = error.what();
  if (bad_lines_++ == 0) {
    first_bad_line_ = error.what();
    if (new_files_ > 0) first_bad_line_ += " Lines are counted from the first file of this log on.";
  }
  if (!has_request_ && (!is_log(reader.format()) || bad_lines_ == kMostBadLines)) throw RefusedLog(first_bad_line_);
}

GrowingLog::Read GrowingLog::take() {
  const std::scoped_lock lock(mutex_);
  Read read;
  read.block_tokens = read_block_tokens_;
  read.begin = begin_;
  read.has_local_dates = has_local_dates_;
  read.new_files = new_files_;
  read.requests.assign(std::move_iterator(waiting_.begin()), std::move_iterator(waiting_.end()));
  waiting_.clear();
  changed_.notify_all();
  read.bad_lines = bad_lines_;
  read.first_bad_line = first_bad_line_;
  read.is_waiting = is_waiting_;
  read.fault = fault_;
  read.is_refused = is_refused_;
  return read;
}

}  // namespace kvtwin
