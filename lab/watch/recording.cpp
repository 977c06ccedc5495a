#include "lab/watch/recording.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>
#include <vector>

#include "lab/error.hpp"
#include "lab/formatted.hpp"
#include "traces/block_events.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr TimeNs kNsPerMillisecond = 1'000'000;
constexpr const char* kEventsFile = "kv_events.jsonl";
constexpr std::string_view kRequests = "requests-";

std::string text_of_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in && !in.eof()) throw InputError(path.string() + ": can't be read");
  return text;
}

// Says where the event or request is that `deliver` does not take.
template <typename Deliver>
void deliver_from(const std::string& path, std::uint64_t line, Deliver deliver) {
  try {
    deliver();
  } catch (const OtherBlockSize& error) {
    throw InputError(path + ", line " + std::to_string(line) + ": " + error.what());
  }
}

class RecordedEvents final : public WatchedRecording {
 public:
  explicit RecordedEvents(const std::string& path) : path_(path), file_(path) {}

  std::optional<TimeNs> next_time() override {
    while (!has_event_ && (has_event_ = file_.next(event_))) {
      // Lines about messages have no time, and belong to the events before them, or to the first one.
      const bool has_time = event_.kind == BlockEvent::Kind::stored || event_.kind == BlockEvent::Kind::removed;
      if (has_time) time_ = std::max(time_.value_or(event_.time), event_.time);
      if (time_) break;
      if (event_.kind != BlockEvent::Kind::other) begin_.push_back(event_);
      has_event_ = false;
    }
    return has_event_ ? time_ : std::nullopt;
  }
  void deliver(Watch& watch, std::size_t source) override {
    for (const BlockEvent& event : std::exchange(begin_, {})) watch.take(source, event);
    has_event_ = false;
    deliver_from(path_, file_.line(), [&] { watch.take(source, event_); });
  }

 private:
  const std::string path_;
  BlockEventFile file_;
  BlockEvent event_;
  bool has_event_ = false;
  std::optional<TimeNs> time_;
  std::vector<BlockEvent> begin_;  // before the first one with a time
};

// Requests of a trace, or of the files of a folder.
class RecordedRequests final : public WatchedRecording {
 public:
  RecordedRequests(const std::string& path, Tokens block_tokens) : path_(path) {
    TraceOptions options;
    options.block_tokens = block_tokens;
    reader_ = std::make_unique<TraceReader>(path, options);
  }
  explicit RecordedRequests(std::vector<fs::path> files) : files_(std::move(files)) { open_next(); }

  std::optional<TimeNs> next_time() override {
    while (!has_request_ && reader_ != nullptr) {
      has_request_ = reader_->next(request_);
      if (has_request_) {
        request_.arrival += begin_;
      } else {
        reader_.reset();
        open_next();
      }
    }
    return has_request_ ? std::optional(request_.arrival) : std::nullopt;
  }
  void deliver(Watch& watch, std::size_t source) override {
    has_request_ = false;
    deliver_from(path_, reader_->line(), [&] { watch.take(source, request_, reader_->block_tokens()); });
  }
  bool has_own_block_size() const override { return !files_.empty(); }
  void deliver_kept(Watch& watch, std::size_t source) override {
    has_request_ = false;
    watch.take_kept(source, request_, reader_->block_tokens());
  }

 private:
  void open_next() {
    if (at_ == files_.size()) return;
    const fs::path& file = files_[at_++];
    const auto name = RequestFileName::parse(file.filename().string());
    // A watch that was killed leaves a part of a line at the end.
    path_ = file.string();
    bytes_ = text_of_file(file);
    bytes_.resize(bytes_.rfind('\n') + 1);
    if (bytes_.empty()) return open_next();
    TraceOptions options;
    options.block_tokens = name->block_tokens;
    reader_ = std::make_unique<TraceReader>(file.string(), bytes_, options);
    begin_ = name->begin;
  }

  std::vector<fs::path> files_;
  std::size_t at_ = 0;
  std::string path_;
  std::string bytes_;
  std::unique_ptr<TraceReader> reader_;
  TraceRequest request_;
  bool has_request_ = false;
  TimeNs begin_ = 0;
};

bool is_recording_of_events(const std::string& path) {
  TraceReader reader(path);
  return reader.format() == "kv_events";
}

}  // namespace

std::string RequestFileName::text() const {
  return std::string(kRequests) + std::to_string(block_tokens) +
         formatted("t-%015lld.jsonl", static_cast<long long>(begin / kNsPerMillisecond));
}

std::optional<RequestFileName> RequestFileName::parse(const std::string& name) {
  if (!name.starts_with(kRequests) || !name.ends_with(".jsonl")) return std::nullopt;
  RequestFileName parsed;
  const char* const end = name.data() + name.size();
  const auto block = std::from_chars(name.data() + kRequests.size(), end, parsed.block_tokens);
  if (block.ec != std::errc() || parsed.block_tokens == 0 || parsed.block_tokens > (1U << 31)) return std::nullopt;
  if (!std::string_view(block.ptr, end).starts_with("t-")) return std::nullopt;
  const auto begin = std::from_chars(block.ptr + 2, end, parsed.begin);
  constexpr TimeNs kLast = 9'000'000'000'000;
  if (begin.ec != std::errc() || std::string_view(begin.ptr, end) != ".jsonl" || parsed.begin < 0 ||
      parsed.begin > kLast) {
    return std::nullopt;
  }
  parsed.begin *= kNsPerMillisecond;
  return parsed;
}

std::vector<fs::path> request_files(const fs::path& folder) {
  std::vector<std::pair<TimeNs, fs::path>> found;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    const auto name = RequestFileName::parse(entry.path().filename().string());
    if (name && entry.file_size(error) > 0) found.emplace_back(name->begin, entry.path());
  }
  std::ranges::sort(found);
  std::vector<fs::path> files;
  for (auto& [begin, path] : found) files.push_back(std::move(path));
  return files;
}

std::vector<fs::path> engine_folders(const fs::path& folder) {
  std::vector<fs::path> folders;
  std::error_code error;
  for (std::size_t engine = 0;; ++engine) {
    fs::path path = folder / ("engine-" + std::to_string(engine));
    if (!fs::is_directory(path, error)) return folders;
    folders.push_back(std::move(path));
  }
}

std::unique_ptr<WatchedRecording> open_recording(const std::string& path, Tokens block_tokens) {
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    if (is_recording_of_events(path)) return std::make_unique<RecordedEvents>(path);
    return std::make_unique<RecordedRequests>(path, block_tokens);
  }
  const fs::path events = fs::path(path) / kEventsFile;
  if (fs::exists(events, error)) return std::make_unique<RecordedEvents>(events.string());
  std::vector<fs::path> files = request_files(path);
  if (files.empty()) {
    throw InputError(path +
                     ": holds no recording; give a folder that `kvtwin record --out` or `kvtwin watch --out` "
                     "wrote");
  }
  return std::make_unique<RecordedRequests>(std::move(files));
}

}  // namespace kvtwin
