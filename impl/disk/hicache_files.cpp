#include "impl/disk/hicache_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <unordered_map>

#include "impl/disk/own_folder.hpp"
#include "policy/base/byte_order.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kHexDigits = 64;
constexpr std::size_t kMaxModelCharacters = 128;  // a file name has at most 255 characters
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
constexpr std::string_view kUnfinished = ".kvtwin_tmp";
constexpr std::string_view kDigits = "0123456789abcdef";

// Returns the part of a file name after the digits of the key.
std::string suffix_of(const HiCacheFilesConfig& config, const PageForm& form) {
  std::string model = config.model;
  std::ranges::replace(model, '/', '-');
  if (model.empty() || model.size() > kMaxModelCharacters ||
      model.find_first_not_of(kNameCharacters) != std::string::npos) {
    throw std::runtime_error(
        "HiCache's files carry the model's name, which must be of letters, digits, '.', '_', '-' and '/' for that.");
  }
  std::string suffix = "_" + model;
  const bool same_on_all_ranks = form.shape.planes == 1;
  if (!same_on_all_ranks) suffix += "_" + std::to_string(config.tp_rank) + "_" + std::to_string(config.tp_size);
  return suffix + ".bin";
}

std::string digits_of(const PageKey& key) {
  std::string digits;
  for (const std::uint64_t word : key.words) {
    std::byte bytes[8];
    store_le64(bytes, word);
    for (const std::byte byte : bytes) {
      digits += kDigits[std::to_integer<std::size_t>(byte >> 4)];
      digits += kDigits[std::to_integer<std::size_t>(byte & std::byte{15})];
    }
  }
  return digits;
}

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

// Returns a line of the list of pages. It starts with the line break, so that a line cut off by a full disk does not
// spoil the next one.
std::string line_of(const std::string& digits) { return "\n" + digits; }

// HiCache's folders have no mark, but all file names in them begin with a page key.
bool looks_like_hicache(const std::string& name) {
  return name.starts_with(".kvtwin") || (name.size() > kHexDigits && name.find_first_not_of(kDigits) == kHexDigits);
}

// A folder in which no file looks like HiCache's or kvtwin's is refused: its name is probably wrong.
Descriptor open_folder(const std::filesystem::path& folder) {
  Descriptor opened = open_own_folder(folder);
  int error = 0;
  const std::vector<std::string> names = names_in(opened.get(), error);
  if (error != 0) {
    errno = -error;
    fail("listing the folder " + folder.string());
  }
  if (names.empty() || std::ranges::any_of(names, looks_like_hicache)) return opened;
  throw std::runtime_error(
      "The folder " + folder.string() + " holds files (" + *std::ranges::min_element(names) +
      (names.size() > 1 ? ", ..." : "") +
      ") and none of HiCache's or kvtwin's; name one of theirs, an empty or a new folder, such as " +
      (folder / "kvtwin").string() + ".");
}

// The files that kvtwin stored, in this or an earlier run, and the files of HiCache that a set of this run relies on.
class FileIndex {
 public:
  using Age = std::tuple<std::int64_t, std::int64_t, std::string>;  // seconds, nanoseconds, name

  // Adds a file that kvtwin stored in an earlier run.
  void find(Age age) {
    const std::string name = std::get<2>(age);
    found_.insert(age);
    files_.insert_or_assign(name, Entry{std::move(age), true});
  }
  // A set of this run relies on the file. `ours`: kvtwin stored the file.
  void claim(const std::string& name, bool ours) {
    forget(name);
    files_.emplace(name, Entry{std::nullopt, ours});
    ++claimed_;
  }
  void forget(const std::string& name) {
    const auto at = files_.find(name);
    if (at == files_.end()) return;
    if (at->second.age) {
      found_.erase(*at->second.age);
    } else {
      --claimed_;
    }
    files_.erase(at);
  }
  bool is_claimed(const std::string& name) const {
    const auto at = files_.find(name);
    return at != files_.end() && !at->second.age;
  }
  bool is_ours(const std::string& name) const {
    const auto at = files_.find(name);
    return at != files_.end() && at->second.ours;
  }
  Pages size() const { return files_.size(); }
  Pages claimed() const { return claimed_; }
  std::optional<std::string> oldest_found() const {
    if (found_.empty()) return std::nullopt;
    return std::get<2>(*found_.begin());
  }

 private:
  struct Entry {
    std::optional<Age> age;  // none = claimed
    bool ours = false;
  };
  std::unordered_map<std::string, Entry> files_;
  std::set<Age> found_;
  Pages claimed_ = 0;
};

class HiCacheFiles final : public StorageBackend {
 public:
  HiCacheFiles(const HiCacheFilesConfig& config, const PageForm& form);

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override;
  void read(PageWork& work) override;
  void write(PageWork& work) override;
  // HiCache leaves durability to the system; this call asks for it once, at the end.
  void finish() override { ::syncfs(folder_.get()); }
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override {
    return {{"got_pages", got_},
            {"set_pages", set_},
            {"set_pages_there_already", there_},
            {"corrupt_pages", corrupt_},
            {"full_pages", full_},
            {"found_pages", found_},
            {"found_pages_removed", cleared_},
            {"others_pages", others_},
            {"others_pages_kept", kept_},
            {"too_many_open_files", file_limit_}};
  }
  std::string description() const override;

 private:
  std::string name_of_page(const PageKey& key) const { return digits_of(key) + suffix_; }
  std::string list_name() const { return ".kvtwin" + suffix_ + ".pages"; }
  Descriptor open_lock() const;
  void scan();
  void refuse_another_space() const;
  std::set<std::string> read_list() const;
  void write_list(const std::set<std::string>& digits);
  bool is_there(const std::string& name) const;
  bool make_room();
  Cause get(const PageTask& task, PageWork& work);
  Cause set(const PageTask& task, PageWork& work);
  Cause remove(const PageTask& task);
  Cause store(const std::string& name, const Pieces& page);
  Cause discard(const std::string& name);
  bool unlink_ours(const std::string& name);

  const HiCacheFilesConfig config_;
  const PageForm form_;
  const std::string suffix_;
  const Descriptor folder_, lock_;
  Descriptor list_;
  std::mutex mutex_;  // guards index_, and changes of the folder that must match it
  FileIndex index_;
  std::vector<std::byte> read_page_, written_page_;  // one thread each; for pages without pieces
  std::atomic<std::uint64_t> got_ = 0, set_ = 0, there_ = 0, corrupt_ = 0, full_ = 0, found_ = 0, cleared_ = 0;
  std::atomic<std::uint64_t> others_ = 0, kept_ = 0, file_limit_ = 0;
};

HiCacheFiles::HiCacheFiles(const HiCacheFilesConfig& config, const PageForm& form)
    : config_(config),
      form_(form),
      suffix_(suffix_of(config, form)),
      folder_(open_folder(config.folder)),
      lock_(open_lock()),
      read_page_(form.bytes()),
      written_page_(form.bytes()) {
  if (config_.stores) scan();
}

Descriptor HiCacheFiles::open_lock() const {
  if (!config_.stores) return Descriptor();
  const std::string name = ".kvtwin" + suffix_ + ".lock";
  Descriptor lock(::openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  struct stat facts {};
  if (lock.get() < 0 || ::fstat(lock.get(), &facts) != 0) fail("opening a lock in " + config_.folder.string());
  if (facts.st_nlink > 1) {
    throw std::runtime_error("The file " + (config_.folder / name).string() +
                             " has another hard link, as cp -al makes them, whose content would change with it; make "
                             "copies with cp -a, or name another folder.");
  }
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  throw std::runtime_error("Another process stores pages of this rank in " + config_.folder.string() + ".");
}

// The list has one line per page that kvtwin stored: the digits of the key. The line is written before the page, so
// that after a crash no page of kvtwin is taken for HiCache's. The list is rewritten at each start, without the removed
// pages.
std::set<std::string> HiCacheFiles::read_list() const {
  const std::string name = list_name();
  const Descriptor file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  std::set<std::string> digits;
  if (file.get() < 0) {
    if (errno != ENOENT) fail("opening " + (config_.folder / name).string());
    return digits;
  }
  std::string line;
  std::array<char, 1 << 16> piece;
  for (ssize_t got = 0; (got = ::read(file.get(), piece.data(), piece.size())) != 0;) {
    if (got < 0 && errno != EINTR) fail("reading " + (config_.folder / name).string());
    for (ssize_t i = 0; i < got; ++i) {
      if (piece[static_cast<std::size_t>(i)] != '\n') {
        line += piece[static_cast<std::size_t>(i)];
        continue;
      }
      if (line.size() == kHexDigits) digits.insert(line);
      line.clear();
    }
  }
  if (line.size() == kHexDigits) digits.insert(line);
  return digits;
}

// If there is no room for a new list, the old one stays in use. It also names removed pages, which does no harm.
void HiCacheFiles::write_list(const std::set<std::string>& digits) {
  const std::string name = list_name(), unfinished = name + std::string(kUnfinished);
  std::string text;
  for (const std::string& one : digits) text += line_of(one);
  ::unlinkat(folder_.get(), unfinished.c_str(), 0);
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  list_ = Descriptor(::openat(folder_.get(), unfinished.c_str(), kFlags | O_EXCL, 0600));
  if (list_.get() >= 0 && write_whole(list_.get(), std::as_bytes(std::span(text))) == 0 &&
      ::renameat(folder_.get(), unfinished.c_str(), folder_.get(), name.c_str()) == 0) {
    return;
  }
  ::unlinkat(folder_.get(), unfinished.c_str(), 0);
  list_ = Descriptor(::openat(folder_.get(), name.c_str(), kFlags, 0600));
  if (list_.get() < 0) fail("opening " + (config_.folder / name).string());
}

// Finds the pages of this model and rank. A file with any error counts as absent.
void HiCacheFiles::scan() {
  int error = 0;
  const std::vector<std::string> names = names_in(folder_.get(), error);
  if (error != 0) {
    errno = -error;
    fail("listing the folder " + config_.folder.string());
  }
  const std::set<std::string> listed = read_list();
  std::set<std::string> stored;
  for (const std::string& name : names) {
    if (name.size() < kHexDigits) continue;
    const std::string_view rest = std::string_view(name).substr(kHexDigits);
    const bool of_a_page = name.find_first_not_of(kDigits) == kHexDigits && rest.starts_with(suffix_);
    if (of_a_page && rest == suffix_ + std::string(kUnfinished)) ::unlinkat(folder_.get(), name.c_str(), 0);
    struct stat facts;
    if (!of_a_page || rest != suffix_) continue;
    if (::fstatat(folder_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(facts.st_mode)) continue;
    const std::string digits = name.substr(0, kHexDigits);
    if (!listed.contains(digits)) {
      ++others_;
      continue;
    }
    stored.insert(digits);
    index_.find({facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec, name});
  }
  refuse_another_space();
  write_list(stored);
  found_ = index_.size();
  while (index_.size() > config_.capacity) {
    if (!make_room()) break;
  }
}

// The lock file contains the space of the stored pages. If it is empty, because the disk was full, any space is
// accepted.
void HiCacheFiles::refuse_another_space() const {
  const std::string ours = digits_of(config_.space);
  std::string stored(kHexDigits, '\0');
  const ssize_t got = ::pread(lock_.get(), stored.data(), stored.size(), 0);
  if (got < 0) fail("reading the lock in " + config_.folder.string());
  stored.resize(static_cast<std::size_t>(got));
  if (stored == ours) return;
  if (!stored.empty() && index_.size() + others_ > 0) {
    throw std::runtime_error("The pages in " + config_.folder.string() +
                             " are of another revision, type, page size, layout, rank or namespace, which their names "
                             "don't tell; take another folder, or empty this one.");
  }
  const bool whole = ::ftruncate(lock_.get(), 0) == 0 &&
                     ::pwrite(lock_.get(), ours.data(), ours.size(), 0) == static_cast<ssize_t>(ours.size()) &&
                     ::fdatasync(lock_.get()) == 0;
  if (!whole && ::ftruncate(lock_.get(), 0) != 0) fail("emptying the lock in " + config_.folder.string());
}

// Removes the oldest page of earlier runs. Returns false if there is none.
bool HiCacheFiles::make_room() {
  const std::optional<std::string> name = index_.oldest_found();
  if (!name) return false;
  ::unlinkat(folder_.get(), name->c_str(), 0);
  index_.forget(*name);
  ++cleared_;
  return true;
}

bool HiCacheFiles::is_there(const std::string& name) const {
  struct stat facts;
  return ::fstatat(folder_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(facts.st_mode) &&
         static_cast<Bytes>(facts.st_size) == form_.bytes();
}

LookedUp HiCacheFiles::look_up(const PageKey& space, std::span<const PageKey> keys) {
  LookedUp found;
  for (const PageKey& key : keys) {
    if (space != config_.space || !is_there(name_of_page(key))) return {found.pages, Cause::missing};
    ++found.pages;
  }
  return found;
}

void HiCacheFiles::read(PageWork& work) {
  PageTask task;
  while (work.next(task)) {
    const Cause cause = get(task, work);
    if (cause == Cause::none) ++got_;
    work.end(task, cause);
  }
}

Cause HiCacheFiles::get(const PageTask& task, PageWork& work) {
  if (task.space != config_.space) return Cause::missing;
  const std::string name = name_of_page(task.key);
  // O_NONBLOCK: opening does not wait, whatever kind of file has this name.
  const Descriptor file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (is_file_limit(errno)) ++file_limit_;
    if (errno != ENOENT) return Cause::io_error;
    const std::lock_guard lock(mutex_);
    if (!is_there(name)) index_.forget(name);
    return Cause::missing;
  }
  struct stat facts;
  if (::fstat(file.get(), &facts) != 0) return Cause::io_error;
  if (!S_ISREG(facts.st_mode) || static_cast<Bytes>(facts.st_size) != form_.bytes()) return discard(name);
  Pieces pieces;
  const bool in_place = work.pieces(task, pieces);
  if (!in_place) pieces.emplace_back(read_page_);
  const int error = read_whole(file.get(), pieces);
  if (error == ENODATA) return discard(name);  // the file was cut in the meantime
  if (error != 0) return Cause::io_error;
  if (!in_place) return work.give_bare(task, read_page_);
  work.landed(task);
  return Cause::none;
}

// Handles a file that is not a page of this tier, unless a right page has replaced it. Removes only files of kvtwin.
Cause HiCacheFiles::discard(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++corrupt_;
  if (!is_there(name)) unlink_ours(name);
  return Cause::corrupt;
}

void HiCacheFiles::write(PageWork& work) {
  PageTask task;
  while (work.next(task)) {
    const Cause cause = task.verb == StorageVerb::set ? set(task, work) : remove(task);
    if (cause == Cause::full) ++full_;
    work.end(task, cause);
  }
}

// Returns true if no file has this name now. False: the file is not kvtwin's and stays, or could not be removed.
bool HiCacheFiles::unlink_ours(const std::string& name) {
  const bool ours = index_.is_ours(name);
  struct stat facts;
  const bool there = ::fstatat(folder_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) == 0;
  if (there && ours && ::unlinkat(folder_.get(), name.c_str(), 0) != 0 && errno != ENOENT) return false;
  index_.forget(name);
  if (there && !ours) ++kept_;
  return !there || ours;
}

Cause HiCacheFiles::set(const PageTask& task, PageWork& work) {
  if (task.space != config_.space || !config_.stores) return Cause::io_error;
  const std::string name = name_of_page(task.key);
  {
    const std::lock_guard lock(mutex_);
    if (is_there(name)) {
      ++there_;
      if (!index_.is_claimed(name) && index_.claimed() < config_.capacity) index_.claim(name, index_.is_ours(name));
      return Cause::none;
    }
    if (!unlink_ours(name)) return Cause::io_error;
    if (index_.claimed() >= config_.capacity) return Cause::full;
    while (index_.size() >= config_.capacity) {
      if (!make_room()) break;
    }
  }
  Pieces pieces;
  if (!work.pieces(task, pieces)) {
    work.take_bare(task, written_page_);
    pieces.emplace_back(written_page_);
  }
  const Cause cause = store(name, pieces);
  if (cause == Cause::none) ++set_;
  return cause;
}

// Writes a temporary file first, so that a page is never there in part.
Cause HiCacheFiles::store(const std::string& name, const Pieces& page) {
  const std::string unfinished = name + std::string(kUnfinished);
  const auto give_up = [&](int error) {
    ::unlinkat(folder_.get(), unfinished.c_str(), 0);
    if (is_file_limit(error)) ++file_limit_;
    return error == ENOSPC || error == EDQUOT || error == EFBIG ? Cause::full : Cause::io_error;
  };
  {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
    Descriptor file(::openat(folder_.get(), unfinished.c_str(), flags, 0600));
    if (file.get() < 0) return give_up(errno);
    if (const int error = write_whole(file.get(), page); error != 0) return give_up(error);
    if (::close(file.release()) != 0) return give_up(errno);  // a network file system may report a full disk only here
  }
  const std::string line = line_of(name.substr(0, kHexDigits));
  if (const int error = write_whole(list_.get(), std::as_bytes(std::span(line))); error != 0) return give_up(error);
  const std::lock_guard lock(mutex_);
  if (::renameat(folder_.get(), unfinished.c_str(), folder_.get(), name.c_str()) != 0) return give_up(errno);
  index_.claim(name, true);
  return Cause::none;
}

Cause HiCacheFiles::remove(const PageTask& task) {
  if (task.space != config_.space || !config_.stores) return Cause::none;
  const std::string name = name_of_page(task.key);
  const std::lock_guard lock(mutex_);
  const bool ours = index_.is_ours(name);
  return unlink_ours(name) || !ours ? Cause::none : Cause::io_error;
}

std::string HiCacheFiles::description() const {
  std::string text =
      "Disk tier: a file a page in " + config_.folder.string() + ", as HiCache's; nothing vouches for their contents";
  if (found_ > 0) text += "; " + std::to_string(found_) + " pages of earlier runs, which make room for new ones";
  if (cleared_ > 0) text += " (" + std::to_string(cleared_) + " removed)";
  if (others_ > 0) text += "; " + std::to_string(others_) + " pages that kvtwin didn't store are read and left alone";
  return text;
}

}  // namespace

std::string hicache_file_name(const HiCacheFilesConfig& config, const PageForm& form, const PageKey& key) {
  return digits_of(key) + suffix_of(config, form);
}

std::unique_ptr<StorageBackend> make_hicache_files(const HiCacheFilesConfig& config, const PageForm& form) {
  return std::make_unique<HiCacheFiles>(config, form);
}

}  // namespace kvtwin
