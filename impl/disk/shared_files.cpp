#include "impl/disk/shared_files.hpp"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "impl/disk/own_folder.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kSharedSuffix = ".page";
constexpr std::string_view kSharedUnfinished = ".kvtwin-unfinished-";
// Marks the folder as this tier's. Its time of change shows the clock of the file system.
constexpr const char* kSharedMark = ".kvtwin-shared";
constexpr std::size_t kSharedDigits = 32;
constexpr std::int64_t kUnfinishedSeconds = 3600;  // age at which a temporary file has no writer any more
constexpr std::int64_t kTouchSeconds = 60;         // a used page gets a new time of use at most this often
constexpr Bytes kEvictionParts = 16;               // one of these parts of the capacity is freed at once

[[noreturn]] void refuse_folder(const std::string& what) {
  throw std::system_error(errno, std::generic_category(), what);
}

bool is_shared_page(std::string_view name) {
  return name.size() > kSharedDigits && name.ends_with(kSharedSuffix) &&
         name.find_first_not_of("0123456789abcdef") >= kSharedDigits;
}

class SharedFiles final : public StorageBackend {
 public:
  SharedFiles(const SharedFilesConfig& config, const PageForm& form);

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override;
  void read(PageWork& work) override;
  void write(PageWork& work) override;
  // The file system decides how durable pages are; this call asks for durability once, at the end.
  void finish() override { ::syncfs(folder_.get()); }
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override {
    return {{"got_pages", got_},
            {"set_pages", set_},
            {"set_pages_there_already", there_},
            {"corrupt_pages", corrupt_},
            {"full_pages", full_},
            {"found_pages", found_},
            {"evicted_pages", evicted_},
            {"too_many_open_files", file_limit_}};
  }
  const PageSeal* seal() const override { return config_.seal; }
  std::string description() const override {
    return "Shared file system: a file a page in " + config_.folder.string() + ", which other runs may use too" +
           (found_ > 0 ? "; " + std::to_string(found_) + " pages were there" : "");
  }

 private:
  struct Listed {
    std::int64_t used = 0;  // ns
    std::string name;
    Bytes bytes = 0;
    auto operator<=>(const Listed&) const = default;
  };

  std::string name_of_page(const PageKey& space, const PageKey& key) const {
    return shared_file_name(stored_page_key(form_, space, key), id_of(config_.seal));
  }
  std::int64_t clock_of_files() const;
  std::vector<Listed> list_pages();
  void make_room();
  bool make_room_on_full_medium();
  void evict(std::vector<Listed>& pages, Bytes stay);
  // What is freed at once: a part of the capacity, in whole files of this form.
  Bytes part() const { return std::max<Bytes>(1, config_.capacity / file_bytes() / kEvictionParts) * file_bytes(); }
  bool is_there(const std::string& name) const;
  Cause get(const PageTask& task, PageWork& work);
  Cause set(const PageTask& task, PageWork& work);
  Cause remove(const PageTask& task);
  Cause discard(const std::string& name);
  int store(const std::string& name, const Pieces& content);
  Cause cause_of_errno(int error);
  Bytes file_bytes() const { return shared_file_bytes(form_); }

  const SharedFilesConfig config_;
  const PageForm form_;
  const Descriptor folder_;
  std::string own_name_;          // prefix of this run's temporary files
  std::uint64_t unfinished_ = 0;  // number of temporary names given out
  Bytes stored_since_listed_ = 0;
  Bytes bytes_ = 0;  // writing thread: of all files, as far as this run knows
  std::vector<std::byte> read_page_,
      written_page_;  // one thread each; for pages without pieces, empty before the first
  std::atomic<std::uint64_t> got_ = 0, set_ = 0, there_ = 0, corrupt_ = 0, full_ = 0, found_ = 0, evicted_ = 0;
  std::atomic<std::uint64_t> file_limit_ = 0;
};

// A folder with content but without the mark is refused: its name is probably wrong.
Descriptor open_shared_folder(const std::filesystem::path& folder) {
  Descriptor opened = open_own_folder(folder, "shared file system");
  int error = 0;
  const std::vector<std::string> names = names_in(opened.get(), error);
  if (error != 0) {
    errno = -error;
    refuse_folder("listing the folder " + folder.string());
  }
  const bool ours = names.empty() || std::ranges::find(names, kSharedMark) != names.end();
  if (!ours) {
    throw std::runtime_error("The folder " + folder.string() + " holds files (" + *std::ranges::min_element(names) +
                             (names.size() > 1 ? ", ..." : "") +
                             ") and no mark of a shared tier of kvtwin's; name one of those, an empty or a new "
                             "folder, such as " +
                             (folder / "kvtwin").string() + ".");
  }
  const Descriptor mark(::openat(opened.get(), kSharedMark, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (mark.get() < 0) refuse_folder("marking the folder " + folder.string());
  return opened;
}

SharedFiles::SharedFiles(const SharedFilesConfig& config, const PageForm& form)
    : config_(config), form_(form), folder_(open_shared_folder(config.folder)) {
  if (!config_.stores) return;
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != static_cast<ssize_t>(sizeof random)) refuse_folder("drawing a name");
  std::array<char, 24> digits{};
  std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(random));
  own_name_ = std::string(kSharedUnfinished) + digits.data() + "-";
  found_ = list_pages().size();
}

// Returns seconds by the clock that stamps the files, or 0 on failure.
std::int64_t SharedFiles::clock_of_files() const {
  struct stat facts;
  if (::utimensat(folder_.get(), kSharedMark, nullptr, AT_SYMLINK_NOFOLLOW) != 0) return 0;
  return ::fstatat(folder_.get(), kSharedMark, &facts, AT_SYMLINK_NOFOLLOW) == 0 ? facts.st_mtim.tv_sec : 0;
}

// Returns all pages in the folder, and counts them. Removes old temporary files on the way.
std::vector<SharedFiles::Listed> SharedFiles::list_pages() {
  std::vector<Listed> pages;
  int error = 0;
  const std::int64_t now = clock_of_files();
  bytes_ = 0;
  for (std::string& name : names_in(folder_.get(), error)) {
    const bool unfinished = name.starts_with(kSharedUnfinished);
    struct stat facts;
    if (!unfinished && !is_shared_page(name)) continue;
    if (::fstatat(folder_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(facts.st_mode)) continue;
    if (!unfinished) {
      pages.push_back({facts.st_mtim.tv_sec * std::int64_t{1'000'000'000} + facts.st_mtim.tv_nsec, std::move(name),
                       static_cast<Bytes>(facts.st_size)});
      bytes_ += pages.back().bytes;
    } else if (facts.st_mtim.tv_sec + kUnfinishedSeconds < now) {
      ::unlinkat(folder_.get(), name.c_str(), 0);
    }
  }
  stored_since_listed_ = 0;
  return pages;
}

// Other runs may have stored or removed pages, so this run lists the folder before it removes any page.
void SharedFiles::make_room() {
  const bool fits = bytes_ + file_bytes() <= config_.capacity;
  if (fits && stored_since_listed_ < part()) return;
  std::vector<Listed> pages = list_pages();
  if (bytes_ + file_bytes() > config_.capacity) evict(pages, config_.capacity - std::min(config_.capacity, part()));
}

// The file system has less room than the capacity. Returns false if there is nothing to remove.
bool SharedFiles::make_room_on_full_medium() {
  std::vector<Listed> pages = list_pages();
  if (pages.empty()) return false;
  evict(pages, bytes_ - std::min(bytes_, std::max(file_bytes(), bytes_ / kEvictionParts)));
  return true;
}

// Removes the pages that were used longest ago, until so many bytes stay at most.
void SharedFiles::evict(std::vector<Listed>& pages, Bytes stay) {
  std::ranges::sort(pages);
  for (std::size_t i = 0; i < pages.size() && bytes_ > stay; ++i) {
    if (::unlinkat(folder_.get(), pages[i].name.c_str(), 0) == 0) ++evicted_;
    bytes_ -= pages[i].bytes;
  }
}

bool SharedFiles::is_there(const std::string& name) const {
  struct stat facts;
  return ::fstatat(folder_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(facts.st_mode) &&
         static_cast<Bytes>(facts.st_size) == file_bytes();
}

LookedUp SharedFiles::look_up(const PageKey& space, std::span<const PageKey> keys) {
  LookedUp found;
  for (const PageKey& key : keys) {
    if (!is_there(name_of_page(space, key))) return {found.pages, Cause::missing};
    ++found.pages;
  }
  return found;
}

Cause SharedFiles::cause_of_errno(int error) {
  if (is_file_limit(error)) ++file_limit_;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) return Cause::full;
  const bool unreachable = error == ESTALE || error == ETIMEDOUT || error == ENOTCONN || error == EHOSTDOWN;
  return unreachable ? Cause::unreachable : Cause::io_error;
}

// ---- gets

void SharedFiles::read(PageWork& work) {
  PageTask task;
  while (work.next(task)) {
    const Cause cause = get(task, work);
    if (cause == Cause::none) ++got_;
    work.end(task, cause);
  }
}

Cause SharedFiles::get(const PageTask& task, PageWork& work) {
  const std::string name = name_of_page(task.space, task.key);
  // O_NONBLOCK: opening does not wait, whatever kind of file has this name.
  const Descriptor file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) return errno == ENOENT ? Cause::missing : cause_of_errno(errno);
  struct stat facts;
  if (::fstat(file.get(), &facts) != 0) return cause_of_errno(errno);
  if (!S_ISREG(facts.st_mode) || static_cast<Bytes>(facts.st_size) != file_bytes()) return discard(name);
  // Without a copy, if the page has pieces.
  PageHeader header;
  Pieces pieces, content{header};
  const bool in_place = work.pieces(task, pieces);
  if (in_place) {
    content.insert(content.end(), pieces.begin(), pieces.end());
  } else {
    read_page_.resize(form_.bytes());
    content.emplace_back(read_page_);
  }
  const int error = read_whole(file.get(), content);
  if (error == ENODATA) return discard(name);  // the file was cut in the meantime
  if (error != 0) return cause_of_errno(error);
  const Cause cause = in_place ? work.give(task, header, pieces) : work.give(task, header, read_page_);
  if (cause == Cause::corrupt) return discard(name);
  struct timespec now {};
  ::clock_gettime(CLOCK_REALTIME, &now);
  if (facts.st_mtim.tv_sec + kTouchSeconds < now.tv_sec) ::futimens(file.get(), nullptr);
  return cause;
}

// If a right page has replaced the file in the meantime, its removal only causes one more miss.
Cause SharedFiles::discard(const std::string& name) {
  ++corrupt_;
  ::unlinkat(folder_.get(), name.c_str(), 0);
  return Cause::corrupt;
}

// ---- sets and removes

void SharedFiles::write(PageWork& work) {
  PageTask task;
  while (work.next(task)) {
    const Cause cause = task.verb == StorageVerb::set ? set(task, work) : remove(task);
    if (cause == Cause::full) ++full_;
    work.end(task, cause);
  }
}

Cause SharedFiles::set(const PageTask& task, PageWork& work) {
  const std::string name = name_of_page(task.space, task.key);
  if (is_there(name)) {
    ++there_;
    return Cause::none;
  }
  make_room();
  PageHeader header;
  Pieces content;
  if (work.pieces(task, content)) {
    work.take(task, header, content);
  } else {
    written_page_.resize(form_.bytes());
    work.take(task, header, written_page_);
    content.emplace_back(written_page_);
  }
  content.insert(content.begin(), header);
  int error = store(name, content);
  if ((error == ENOSPC || error == EDQUOT) && make_room_on_full_medium()) error = store(name, content);
  if (error != 0) return cause_of_errno(error);
  ++set_;
  bytes_ += file_bytes();
  stored_since_listed_ += file_bytes();
  return Cause::none;
}

// Returns 0 or errno.
int SharedFiles::store(const std::string& name, const Pieces& content) {
  const std::string unfinished = own_name_ + std::to_string(++unfinished_);
  Descriptor file(::openat(folder_.get(), unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) return errno;
  int error = write_whole(file.get(), content);
  // A network file system may report a full disk only here.
  if (::close(file.release()) != 0 && error == 0) error = errno;
  if (error == 0 && ::renameat(folder_.get(), unfinished.c_str(), folder_.get(), name.c_str()) != 0) error = errno;
  if (error != 0) ::unlinkat(folder_.get(), unfinished.c_str(), 0);
  return error;
}

Cause SharedFiles::remove(const PageTask& task) {
  if (!config_.stores) return Cause::none;
  const std::string name = name_of_page(task.space, task.key);
  if (::unlinkat(folder_.get(), name.c_str(), 0) == 0) {
    bytes_ -= std::min(bytes_, file_bytes());
    return Cause::none;
  }
  return errno == ENOENT ? Cause::none : cause_of_errno(errno);
}

}  // namespace

std::string shared_file_name(const PageKey& stored_as, std::uint32_t secret) {
  std::array<char, 64> name{};
  const auto word = [&](std::size_t i) { return static_cast<unsigned long long>(stored_as.words[i]); };
  std::snprintf(name.data(), name.size(), "%016llx%016llx", word(0), word(1));
  std::string text = name.data();
  if (secret != 0) {
    std::snprintf(name.data(), name.size(), "-%08x", secret);
    text += name.data();
  }
  return text + std::string(kSharedSuffix);
}

std::unique_ptr<StorageBackend> make_shared_files(const SharedFilesConfig& config, const PageForm& form) {
  return std::make_unique<SharedFiles>(config, form);
}

}  // namespace kvtwin
