#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "impl/disk/files.hpp"
#include "impl/disk/folder_file.hpp"
#include "impl/disk/own_folder.hpp"
#include "impl/disk/thread_queue.hpp"
#include "policy/base/byte_order.hpp"
#if KVTWIN_HAVE_URING
#include "impl/disk/uring_queue.hpp"
#endif

namespace kvtwin {
namespace {

constexpr std::size_t kNameDigits = 16;
// The ledger marks the folder as a disk tier's, holds the lock, and holds the largest number given out. Without it, the
// number of a file that was removed before a crash could be reused after the crash.
constexpr FileNumber kLedger = 0;
constexpr std::uint64_t kLedgerMagic = 0x72656764656C766Bu;  // "kvledger"
// The ledger may lack the latest numbers after a crash or on a full disk. A file whose number is further ahead is not
// the tier's, and its number is ignored. So no foreign file can use up the numbers.
constexpr FileNumber kMaxUnrecordedNumbers = FileNumber{1} << 20;
constexpr FileNumber kMaxNumber = FileNumber{1} << 62;

std::string name_of(FileNumber number) {
  std::string name(kNameDigits, '0');
  for (std::size_t i = kNameDigits; i-- > 0; number >>= 4) name[i] = "0123456789abcdef"[number & 15];
  return name;
}

// Returns false if `name` is not a name of this tier.
bool number_of(std::string_view name, FileNumber& number) {
  if (name.size() != kNameDigits) return false;
  number = 0;
  for (const char c : name) {
    const std::size_t digit = std::string_view("0123456789abcdef").find(c);
    if (digit == std::string_view::npos) return false;
    number = number << 4 | digit;
  }
  return true;
}

template <typename Call>
auto retry_if_interrupted(Call call) {
  for (;;) {
    const auto result = call();
    if (result >= 0 || errno != EINTR) return result;
  }
}

struct alignas(kBlockBytes) AlignedBlock {
  std::array<std::byte, kBlockBytes> bytes{};
};

int write_block(int descriptor, const AlignedBlock& block) {
  const ssize_t written =
      retry_if_interrupted([&] { return ::pwrite(descriptor, block.bytes.data(), kBlockBytes, 0); });
  if (written == static_cast<ssize_t>(kBlockBytes)) return 0;
  return written < 0 ? -errno : -ENOSPC;
}

class FolderFiles final : public Files {
 public:
  FolderFiles(const std::filesystem::path& folder, const FolderOptions& options) : options_(options) {
    if (!options_.before) options_.before = [](const char*) {};
    options_.before("folder");
    folder_ = std::make_unique<FolderFile>(open_own_folder(folder).release(), true);
    read_ledger(folder);  // refuses a wrong folder before it changes anything there
    lock(folder);
    try_direct(folder, read_ledger(folder));
    refuse_shared_files(folder);
  }

  std::vector<FileNumber> list(int& error) override;
  FileNumber next_number() override;
  OpenedFile create(FileNumber number, Bytes bytes, std::span<const std::byte, kBlockBytes> first) override;
  OpenedFile open(FileNumber number) override;
  int shrink(BlockFile& file, Bytes bytes) override {
    const int descriptor = static_cast<FolderFile&>(file).descriptor();
    return retry_if_interrupted([&] { return ::ftruncate(descriptor, static_cast<off_t>(bytes)); }) < 0 ? -errno : 0;
  }
  int remove(FileNumber number, BlockFile* open) override {
    if (::unlinkat(folder_->descriptor(), name_of(number).c_str(), 0) < 0) return -errno;
    if (open != nullptr) static_cast<FolderFile*>(open)->set_removed();
    return 0;
  }
  int sync(BlockFile& file) override {
    const auto& it = static_cast<FolderFile&>(file);
    const auto call = it.is_folder() ? ::fsync : ::fdatasync;
    return retry_if_interrupted([&] { return call(it.descriptor()); }) < 0 ? -errno : 0;
  }
  BlockFile& folder() override { return *folder_; }
  std::unique_ptr<BlockQueue> queue(std::uint32_t depth, std::size_t buffer_bytes) override {
#if KVTWIN_HAVE_URING
    if (!options_.force_threads) {
      auto queue = make_uring_queue(depth, buffer_bytes, options_.before);
      if (queue) return queue;
    }
#endif
    return make_thread_queue(depth, buffer_bytes, options_.before);
  }
  std::string description() const override { return direct_ ? "direct" : "buffered (the file system takes no direct)"; }

 private:
  bool read_ledger(const std::filesystem::path& folder);
  void lock(const std::filesystem::path& folder);
  void try_direct(const std::filesystem::path& folder, bool marked);
  void refuse_shared_files(const std::filesystem::path& folder);
  int write_ledger() const;
  int open_at(FileNumber number, int flags) const {
    const int direct = direct_ ? O_DIRECT : 0;
    const std::string name = name_of(number);
    return retry_if_interrupted([&] {
      return ::openat(folder_->descriptor(), name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC | direct | flags, 0600);
    });
  }
  FolderOptions options_;
  std::unique_ptr<FolderFile> folder_;
  Descriptor lock_, ledger_;
  bool direct_ = false;
  std::mutex mutex_;
  FileNumber largest_ = kLedger;                   // largest number given out
  FileNumber max_number_ = kMaxUnrecordedNumbers;  // files with larger numbers are ignored
};

[[noreturn]] void refuse(const std::filesystem::path& folder, const char* what) {
  throw std::system_error(errno, std::generic_category(),
                          std::string(what) + " the disk tier's folder " + folder.string());
}

std::vector<FileNumber> FolderFiles::list(int& error) {
  std::vector<FileNumber> numbers;
  for (const std::string& name : names_in(folder_->descriptor(), error)) {
    FileNumber number = 0;
    if (number_of(name, number) && number != kLedger && number <= max_number_) numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

// Returns true if the folder has the tier's mark, false if the folder is new. Throws for a folder with other content.
bool FolderFiles::read_ledger(const std::filesystem::path& folder) {
  options_.before("mark");
  int error = 0;
  std::vector<std::string> names = names_in(folder_->descriptor(), error);
  if (error != 0) {
    errno = -error;
    refuse(folder, "listing");
  }
  const Descriptor ledger(
      ::openat(folder_->descriptor(), name_of(kLedger).c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (ledger.get() < 0 && errno != ENOENT && errno != ELOOP) refuse(folder, "opening the ledger of");
  AlignedBlock block;
  const ssize_t got = ledger.get() < 0 ? -1 : ::pread(ledger.get(), block.bytes.data(), kBlockBytes, 0);
  const std::byte* at = block.bytes.data();
  if (got == static_cast<ssize_t>(kBlockBytes) && load_le64(at) == kLedgerMagic &&
      load_le64(at + 16) == XXH3_64bits(at, 16) && load_le64(at + 8) <= kMaxNumber) {
    largest_ = load_le64(at + 8);
    return true;
  }
  if (got == static_cast<ssize_t>(kBlockBytes) && load_le64(at) == kLedgerMagic) {
    throw std::runtime_error("In the folder " + folder.string() + ", the ledger " + name_of(kLedger) +
                             " of the disk tier is damaged, so the numbers of its files are not known; remove this "
                             "folder's files, whose pages are lost then, or name an empty or a new folder.");
  }
  // A process that was killed at its very start leaves a ledger that was never written, and no other file.
  const bool never_written =
      got >= 0 && std::ranges::all_of(block.bytes, [](std::byte b) { return b == std::byte{0}; });
  std::erase_if(names, [&](const std::string& name) { return never_written && name == name_of(kLedger); });
  if (names.empty()) return false;
  throw std::runtime_error("The folder " + folder.string() + " holds files (" + *std::ranges::min_element(names) +
                           (names.size() > 1 ? ", ..." : "") +
                           ") and is not marked as a disk tier's, which would remove files there; name an empty or a "
                           "new folder, such as " +
                           (folder / "kvtwin").string() + ".");
}

void FolderFiles::lock(const std::filesystem::path& folder) {
  options_.before("lock");
  lock_ = Descriptor(open_at(kLedger, O_CREAT));
  if (lock_.get() < 0) refuse(folder, "locking");
  if (retry_if_interrupted([this] { return ::flock(lock_.get(), LOCK_EX | LOCK_NB); }) == 0) return;
  if (errno != EWOULDBLOCK) refuse(folder, "locking");
  throw std::runtime_error("The disk tier's folder " + folder.string() + " is in use by another run.");
}

// Writes the ledger, with O_DIRECT if the file system supports it. (Some file systems refuse the flag, others the I/O.)
// The first ledger of a folder is durable before any segment is.
void FolderFiles::try_direct(const std::filesystem::path& folder, bool marked) {
  options_.before("ledger");
  max_number_ = largest_ + kMaxUnrecordedNumbers;
  int error = 0;
  const std::vector<FileNumber> there = list(error);
  if (error != 0) {
    errno = -error;
    refuse(folder, "listing");
  }
  if (!there.empty()) largest_ = std::max(largest_, there.back());
  direct_ = !options_.force_buffered;
  const auto reopen_and_write = [this] {
    ledger_ = Descriptor(open_at(kLedger, 0));
    return ledger_.get() < 0 ? -errno : write_ledger();
  };
  error = reopen_and_write();
  if (direct_ && error == -EINVAL) {
    direct_ = false;
    error = reopen_and_write();
  }
  // On a full disk, an existing ledger can still be used.
  if (ledger_.get() < 0 || (error != 0 && !marked)) {
    errno = -error;
    refuse(folder, "writing the ledger of");
  }
  if (marked) return;
  ::fdatasync(ledger_.get());
  sync_folder();
}

// A file with another hard link (cp -al) is refused: writes, cuts and removals here would change the other folder's
// file.
void FolderFiles::refuse_shared_files(const std::filesystem::path& folder) {
  int error = 0;
  std::vector<FileNumber> numbers = list(error);
  numbers.push_back(kLedger);
  for (const FileNumber number : numbers) {
    struct stat facts {};
    const std::string name = name_of(number);
    if (::fstatat(folder_->descriptor(), name.c_str(), &facts, AT_SYMLINK_NOFOLLOW) != 0) continue;
    if (!S_ISREG(facts.st_mode) || facts.st_nlink < 2) continue;
    throw std::runtime_error("The disk tier's file " + (folder / name).string() +
                             " has another hard link, as cp -al makes them, whose content would change with it; make "
                             "copies with cp -a, or name another folder.");
  }
}

// Not synced. A number can then be reused only if power fails after the removal of the youngest file; this does no
// harm, because the blocks of a new file read as zeros. If the ledger cannot be written (full disk), a number is lost
// only if its file is removed before the next number is given out.
int FolderFiles::write_ledger() const {
  AlignedBlock block;
  std::byte* at = block.bytes.data();
  store_le64(at, kLedgerMagic);
  store_le64(at + 8, largest_);
  store_le64(at + 16, XXH3_64bits(at, 16));
  return write_block(ledger_.get(), block);
}

FileNumber FolderFiles::next_number() {
  const std::lock_guard lock(mutex_);
  ++largest_;
  write_ledger();
  return largest_;
}

OpenedFile FolderFiles::create(FileNumber number, Bytes bytes, std::span<const std::byte, kBlockBytes> first) {
  const int descriptor = open_at(number, O_CREAT | O_EXCL);
  if (descriptor < 0) return {nullptr, 0, -errno};
  auto file = std::make_shared<FolderFile>(descriptor, false);
  const auto size = static_cast<off_t>(bytes);
  int error = 0;
  // Allocates the room now, so that a full disk fails here and not in the middle of a segment.
  if (retry_if_interrupted([&] { return ::fallocate(descriptor, 0, 0, size); }) < 0) {
    error = -errno;
    if (error == -EOPNOTSUPP) error = ::ftruncate(descriptor, size) < 0 ? -errno : 0;
  }
  if (error == 0) {
    AlignedBlock block;
    std::ranges::copy(first, block.bytes.begin());
    error = write_block(descriptor, block);
  }
  if (error == 0) return {std::move(file), bytes, 0};
  remove(number, file.get());
  return {nullptr, 0, error};
}

OpenedFile FolderFiles::open(FileNumber number) {
  const int descriptor = open_at(number, O_NONBLOCK);
  if (descriptor < 0) return {nullptr, 0, -errno};
  auto file = std::make_shared<FolderFile>(descriptor, false);
  struct stat status {};
  if (::fstat(descriptor, &status) < 0) return {nullptr, 0, -errno};
  if (!S_ISREG(status.st_mode)) return {nullptr, 0, -EINVAL};
  return {std::move(file), static_cast<Bytes>(status.st_size), 0};
}

std::uint64_t next_serial() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

}  // namespace

FolderFile::FolderFile(int descriptor, bool is_folder)
    : descriptor_(descriptor), is_folder_(is_folder), serial_(next_serial()) {}

FolderFile::~FolderFile() {
  registration.reset();
  // A ring's table of files may keep the file open as long as the ring exists, so the room is freed here. If the file
  // has got another hard link, it belongs to somebody else and is kept.
  struct stat facts {};
  if (removed_ && ::fstat(descriptor_, &facts) == 0 && facts.st_nlink == 0) [[maybe_unused]]
    const int ignored = ::ftruncate(descriptor_, 0);
  ::close(descriptor_);
}

std::unique_ptr<Files> make_folder_files(const std::filesystem::path& folder, const FolderOptions& options) {
  return std::make_unique<FolderFiles>(folder, options);
}

}  // namespace kvtwin
