#include "impl/disk/hicache_files.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <optional>
#include <set>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <unordered_map>

#include "policy/byte_order.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kHexDigits = 64;
constexpr std::size_t kLongestModel = 128;  // a file's name has 255 characters at most
constexpr std::string_view kNameCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
constexpr std::string_view kUnfinished = ".kvtwin_tmp";

// All of a file's name after the key's digits.
std::string suffix_of(const HiCacheFilesConfig& config, const PageForm& form) {
  std::string model = config.model;
  std::ranges::replace(model, '/', '-');
  if (model.empty() || model.size() > kLongestModel || model.find_first_not_of(kNameCharacters) != std::string::npos) {
    throw std::runtime_error(
        "HiCache's files carry the model's name, which must be of letters, digits, '.', '_', '-' and '/' for that.");
  }
  std::string suffix = "_" + model;
  const bool same_on_all_ranks = form.shape.planes == 1;
  if (!same_on_all_ranks) suffix += "_" + std::to_string(config.tp_rank) + "_" + std::to_string(config.tp_size);
  return suffix + ".bin";
}

std::string digits_of(const PageKey& key) {
  constexpr std::string_view kDigits = "0123456789abcdef";
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

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  int get() const { return number_; }

 private:
  int number_;
};

[[noreturn]] void fail(const std::string& what) { throw std::system_error(errno, std::generic_category(), what); }

int open_folder(const std::filesystem::path& folder) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) fail("making the folder " + folder.string());
  const int number = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (number < 0) fail("opening the folder " + folder.string());
  return number;
}

// Which files there are, by name: claimed ones were stored in this life, the others found.
class FileIndex {
 public:
  using Age = std::tuple<std::int64_t, std::int64_t, std::string>;  // seconds, nanoseconds, name

  void find(Age age) {
    const std::string name = std::get<2>(age);
    found_.insert(age);
    files_.insert_or_assign(name, std::move(age));
  }
  void claim(const std::string& name) {
    forget(name);
    files_.emplace(name, std::nullopt);
    ++claimed_;
  }
  void forget(const std::string& name) {
    const auto at = files_.find(name);
    if (at == files_.end()) return;
    if (at->second) {
      found_.erase(*at->second);
    } else {
      --claimed_;
    }
    files_.erase(at);
  }
  bool is_claimed(const std::string& name) const {
    const auto at = files_.find(name);
    return at != files_.end() && !at->second;
  }
  Pages size() const { return files_.size(); }
  Pages claimed() const { return claimed_; }
  std::optional<std::string> oldest_found() const {
    if (found_.empty()) return std::nullopt;
    return std::get<2>(*found_.begin());
  }

 private:
  std::unordered_map<std::string, std::optional<Age>> files_;
  std::set<Age> found_;
  Pages claimed_ = 0;
};

class HiCacheFiles final : public StorageBackend {
 public:
  HiCacheFiles(const HiCacheFilesConfig& config, const PageForm& form);

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override;
  void read(PageWork& work) override;
  void write(PageWork& work) override;
  // HiCache's files are as durable as the system makes them; at the end that is asked for once.
  void finish() override { ::syncfs(folder_.get()); }
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override {
    return {{"got_pages", got_},
            {"set_pages", set_},
            {"set_pages_there_already", there_},
            {"corrupt_pages", corrupt_},
            {"full_pages", full_},
            {"found_pages", found_},
            {"found_pages_removed", cleared_}};
  }

 private:
  std::string name_of_page(const PageKey& key) const { return digits_of(key) + suffix_; }
  int open_lock() const;
  void scan();
  void refuse_another_space() const;
  bool is_there(const std::string& name) const;
  bool make_room();
  Cause get(const PageTask& task, PageWork& work);
  Cause set(const PageTask& task, PageWork& work);
  Cause remove(const PageTask& task);
  Cause store(const std::string& name);
  Cause discard(const std::string& name);

  const HiCacheFilesConfig config_;
  const PageForm form_;
  const std::string suffix_;
  const Descriptor folder_, lock_;
  std::mutex mutex_;  // index_, and changes of the folder that it must agree with
  FileIndex index_;
  std::vector<std::byte> read_page_, written_page_;  // of one thread each
  std::atomic<std::uint64_t> got_ = 0, set_ = 0, there_ = 0, corrupt_ = 0, full_ = 0, found_ = 0, cleared_ = 0;
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

int HiCacheFiles::open_lock() const {
  if (!config_.stores) return -1;
  const std::string name = ".kvtwin" + suffix_ + ".lock";
  const int number = ::openat(folder_.get(), name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (number < 0) fail("opening a lock in " + config_.folder.string());
  if (::flock(number, LOCK_EX | LOCK_NB) == 0) return number;
  ::close(number);
  throw std::runtime_error("Another process stores pages of this rank in " + config_.folder.string() + ".");
}

// What is there of this model and rank. Whatever goes wrong with a file: it isn't there.
void HiCacheFiles::scan() {
  for (const auto& entry : std::filesystem::directory_iterator(config_.folder)) {
    const std::string name = entry.path().filename().string();
    if (name.size() < kHexDigits) continue;
    const std::string_view rest = std::string_view(name).substr(kHexDigits);
    const bool of_a_page = name.find_first_not_of("0123456789abcdef") == kHexDigits && rest.starts_with(suffix_);
    if (of_a_page && rest == suffix_ + std::string(kUnfinished)) ::unlinkat(folder_.get(), name.c_str(), 0);
    struct stat facts;
    if (!of_a_page || rest != suffix_) continue;
    if (::fstatat(folder_.get(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(facts.st_mode)) continue;
    index_.find({facts.st_mtim.tv_sec, facts.st_mtim.tv_nsec, name});
  }
  refuse_another_space();
  found_ = index_.size();
  while (index_.size() > config_.capacity) {
    if (!make_room()) break;
  }
}

// The lock holds the space of the pages that were stored under it; an empty one, where there was no room, any.
void HiCacheFiles::refuse_another_space() const {
  const std::string ours = digits_of(config_.space);
  std::string stored(kHexDigits, '\0');
  const ssize_t got = ::pread(lock_.get(), stored.data(), stored.size(), 0);
  if (got < 0) fail("reading the lock in " + config_.folder.string());
  stored.resize(static_cast<std::size_t>(got));
  if (stored == ours) return;
  if (!stored.empty() && index_.size() > 0) {
    throw std::runtime_error("The pages in " + config_.folder.string() +
                             " are of another revision, type, page size, layout, rank or namespace, which their names "
                             "don't tell; take another folder, or empty this one.");
  }
  const bool whole = ::ftruncate(lock_.get(), 0) == 0 &&
                     ::pwrite(lock_.get(), ours.data(), ours.size(), 0) == static_cast<ssize_t>(ours.size()) &&
                     ::fdatasync(lock_.get()) == 0;
  if (!whole && ::ftruncate(lock_.get(), 0) != 0) fail("emptying the lock in " + config_.folder.string());
}

// Removes the oldest page that was found. False: there is none left.
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
  // O_NONBLOCK: whatever has that name, opening it doesn't wait.
  const Descriptor file(::openat(folder_.get(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    if (errno != ENOENT) return Cause::io_error;
    const std::lock_guard lock(mutex_);
    if (!is_there(name)) index_.forget(name);
    return Cause::missing;
  }
  struct stat facts;
  if (::fstat(file.get(), &facts) != 0) return Cause::io_error;
  if (!S_ISREG(facts.st_mode) || static_cast<Bytes>(facts.st_size) != form_.bytes()) return discard(name);
  for (std::size_t at = 0; at < read_page_.size();) {
    const ssize_t got = ::read(file.get(), read_page_.data() + at, read_page_.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Cause::io_error;
    if (got == 0) return discard(name);  // it has just been cut
    at += static_cast<std::size_t>(got);
  }
  return work.give_bare(task, read_page_);
}

// A file that is no page; unless a right one has taken its place since.
Cause HiCacheFiles::discard(const std::string& name) {
  const std::lock_guard lock(mutex_);
  ++corrupt_;
  if (config_.stores && !is_there(name)) {
    ::unlinkat(folder_.get(), name.c_str(), 0);
    index_.forget(name);
  }
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

Cause HiCacheFiles::set(const PageTask& task, PageWork& work) {
  if (task.space != config_.space || !config_.stores) return Cause::io_error;
  const std::string name = name_of_page(task.key);
  {
    const std::lock_guard lock(mutex_);
    if (is_there(name)) {
      ++there_;
      if (!index_.is_claimed(name) && index_.claimed() < config_.capacity) index_.claim(name);
      return Cause::none;
    }
    index_.forget(name);
    if (index_.claimed() >= config_.capacity) return Cause::full;
    while (index_.size() >= config_.capacity) {
      if (!make_room()) break;
    }
  }
  work.take_bare(task, written_page_);
  const Cause cause = store(name);
  if (cause == Cause::none) ++set_;
  return cause;
}

// Beside its place first, so that it is never there in part.
Cause HiCacheFiles::store(const std::string& name) {
  const std::string unfinished = name + std::string(kUnfinished);
  const auto give_up = [&](int error) {
    ::unlinkat(folder_.get(), unfinished.c_str(), 0);
    return error == ENOSPC || error == EDQUOT ? Cause::full : Cause::io_error;
  };
  {
    const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
    const Descriptor file(::openat(folder_.get(), unfinished.c_str(), flags, 0600));
    if (file.get() < 0) return give_up(errno);
    for (std::size_t at = 0; at < written_page_.size();) {
      const ssize_t put = ::write(file.get(), written_page_.data() + at, written_page_.size() - at);
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return give_up(put == 0 ? ENOSPC : errno);
      at += static_cast<std::size_t>(put);
    }
  }
  const std::lock_guard lock(mutex_);
  if (::renameat(folder_.get(), unfinished.c_str(), folder_.get(), name.c_str()) != 0) return give_up(errno);
  index_.claim(name);
  return Cause::none;
}

Cause HiCacheFiles::remove(const PageTask& task) {
  if (task.space != config_.space) return Cause::none;
  const std::string name = name_of_page(task.key);
  const std::lock_guard lock(mutex_);
  if (::unlinkat(folder_.get(), name.c_str(), 0) != 0 && errno != ENOENT) return Cause::io_error;
  index_.forget(name);
  return Cause::none;
}

}  // namespace

std::string hicache_file_name(const HiCacheFilesConfig& config, const PageForm& form, const PageKey& key) {
  return digits_of(key) + suffix_of(config, form);
}

std::unique_ptr<StorageBackend> make_hicache_files(const HiCacheFilesConfig& config, const PageForm& form) {
  return std::make_unique<HiCacheFiles>(config, form);
}

}  // namespace kvtwin
