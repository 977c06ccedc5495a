// Which folders a disk tier accepts, and which files in its folder it does not touch.
#include "impl/disk/own_folder.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <functional>
#include <map>
#include <set>
#include <system_error>

#include "impl/disk/hicache_files.hpp"
#include "impl/disk/segment_store.hpp"
#include "tests/program.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form();
constexpr const char* kLedger = "0000000000000000";

class DiskTrust : public testing::Test {
 protected:
  SegmentStoreConfig config(Pages capacity = 64) const {
    SegmentStoreConfig config;
    config.folder = tier();
    config.capacity_pages = capacity;
    config.form = kForm;
    config.depth = 4;
    return config;
  }
  HiCacheFilesConfig files() const { return {.folder = tier(), .model = "m", .space = some_space(), .capacity = 64}; }
  fs::path tier() const { return folder_.path() / "tier"; }
  void fill(std::uint64_t pages = 24) const {
    SegmentStore store(config());
    for (std::uint64_t i = 0; i < pages; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  }
  std::map<std::string, std::string> content(const fs::path& folder) const {
    std::map<std::string, std::string> texts;
    for (const auto& entry : fs::directory_iterator(folder)) {
      texts[entry.path().filename().string()] = text_of(entry.path());
    }
    return texts;
  }
  // Expects that the folder is refused (in both storage formats if `hicache`), with an error text that has all `parts`.
  void expect_refused(const fs::path& folder, const std::vector<std::string>& parts, bool hicache = true) const {
    std::vector<std::function<void()>> ways = {[&] {
      SegmentStoreConfig one = config();
      one.folder = folder;
      SegmentStore store(one);
    }};
    if (hicache) {
      ways.emplace_back([&] {
        HiCacheFilesConfig one = files();
        one.folder = folder;
        make_hicache_files(one, kForm);
      });
    }
    for (const auto& open : ways) {
      try {
        open();
        ADD_FAILURE() << "taken: " << folder;
      } catch (const std::runtime_error& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find(folder.string()), std::string::npos) << text;
        for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << text;
      }
    }
  }
  Folder folder_;
};

TEST_F(DiskTrust, AnothersFolderIsRefused) {
  constexpr uid_t kNobody = 60'177;
  fs::path others = "/usr";  // belongs to root; used if another user runs this test
  if (geteuid() == 0) {
    others = folder_.path() / "others";
    fs::create_directory(others);
    ASSERT_EQ(::chown(others.c_str(), kNobody, kNobody), 0);
  }
  expect_refused(others, {"belongs to user " + std::to_string(geteuid() == 0 ? kNobody : 0),
                          "runs as user " + std::to_string(geteuid()), "chown -R"});
}

TEST_F(DiskTrust, AFolderThatOthersMayWriteToIsRefused) {
  fs::create_directory(tier());
  for (const mode_t mode : {0777U, 0720U, 0702U, 01777U}) {
    ASSERT_EQ(::chmod(tier().c_str(), mode), 0);
    expect_refused(tier(), {"may be written to by others", "chmod go-w"});
    EXPECT_TRUE(fs::is_empty(tier()));
  }
  ASSERT_EQ(::chmod(tier().c_str(), 0755), 0);
  SegmentStore store(config());
}

TEST_F(DiskTrust, AFolderWithOtherContentIsRefused) {
  for (const char* name : {"deadbeefdeadbeef", "notes.txt", kLedger}) {
    SCOPED_TRACE(name);
    fs::create_directory(tier());
    ASSERT_EQ(::chmod(tier().c_str(), 0700), 0);
    write_text(tier() / name, std::string(5000, 'x'));
    const auto before = content(tier());
    expect_refused(tier(), {std::string("holds files (") + name + ")", "name an", (tier() / "kvtwin").string()}, false);
    EXPECT_THROW(make_hicache_files(files(), kForm), std::runtime_error);
    EXPECT_EQ(content(tier()), before);
    fs::remove_all(tier());
  }
}

// An empty or zeroed ledger file does not mark a folder as a disk tier's. If it is the only file, the folder is
// accepted all the same: a program that created it was killed at the start.
TEST_F(DiskTrust, ALedgerThatIsNoneMarksNoFolder) {
  fill();
  write_text(tier() / kLedger, std::string(4096, '\0'));
  const auto before = content(tier());
  expect_refused(tier(), {"is not marked as a disk tier's"}, false);
  EXPECT_EQ(content(tier()), before);
  fs::remove_all(tier());
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{4096}}) {
    fs::create_directory(tier());
    ASSERT_EQ(::chmod(tier().c_str(), 0700), 0);
    write_text(tier() / kLedger, std::string(bytes, '\0'));
    fill(3);
    fs::remove_all(tier());
  }
}

// The folder is a disk tier's, but the numbers of its files are not known.
TEST_F(DiskTrust, ADamagedLedgerIsNamed) {
  fill();
  std::string ledger = text_of(tier() / kLedger);
  ledger[9] ^= 1;
  write_text(tier() / kLedger, ledger);
  const auto before = content(tier());
  expect_refused(tier(), {"the ledger 0000000000000000 of the disk tier is damaged", "remove"}, false);
  EXPECT_EQ(content(tier()), before);
}

TEST_F(DiskTrust, TheFolderIsMarkedFromTheStart) {
  for (const bool buffered : {false, true}) {
    FolderOptions options;
    options.force_buffered = buffered;
    SegmentStoreConfig it = config();
    {
      it.files = make_folder_files(it.folder, options);
      SegmentStore store(it);
    }
    it.files = nullptr;
    write_text(tier() / "deadbeefdeadbeef", "mine");
    it.files = make_folder_files(it.folder, options);
    { SegmentStore store(it); }
    it.files = nullptr;
    EXPECT_EQ(text_of(tier() / "deadbeefdeadbeef"), "mine");
    fs::remove_all(tier());
  }
}

// Such files stay even if their name could be a segment number, and also when the tier needs space.
TEST_F(DiskTrust, FilesThatAreNoSegmentsStay) {
  fill(8);
  const std::map<std::string, std::string> mine = {{"0000000000000007", "short"},
                                                   {"0000000000000008", std::string(100'000, 'x')},
                                                   {"ffffffffffffffff", "far ahead"},
                                                   {"000000000000000g", "no number"}};
  for (const auto& [name, text] : mine) write_text(tier() / name, text);
  fs::create_directory(tier() / "0000000000000009");
  SegmentStore store(config());
  EXPECT_EQ(counter(store, "strange_files"), 3U);  // those with the name of a segment
  EXPECT_NE(store.description().find("3 files that are no segments, left alone"), std::string::npos)
      << store.description();
  for (std::uint64_t i = 0; i < 300; ++i) {
    set_page(store, kForm, 1000 + i);
    remove_page(store, kForm, 1000 + i);
  }
  for (const auto& [name, text] : mine) EXPECT_EQ(text_of(tier() / name), text) << name;
  EXPECT_TRUE(fs::is_directory(tier() / "0000000000000009"));
  store.check_invariants();
}

// After the largest file number, the next one would wrap around to 0, which is the number of the ledger.
TEST_F(DiskTrust, APlantedNumberDoesNotUseTheNumbersUp) {
  fill(8);
  for (const char* name : {"ffffffffffffffff", "3fffffffffffffff", "00000000f0000000"}) {
    write_text(tier() / name, "planted");
    {
      SegmentStore store(config());
      for (std::uint64_t i = 0; i < 40; ++i)
        ASSERT_EQ(set_page(store, kForm, 100 + i), Cause::none) << name << " " << i;
      EXPECT_EQ(counter(store, "io_errors"), 0U);
    }
    SegmentStore store(config());
    for (std::uint64_t i = 0; i < 40; ++i) ASSERT_EQ(get_page(store, kForm, 100 + i), Cause::none) << name << " " << i;
    for (const auto& entry : fs::directory_iterator(tier())) {
      const std::string it = entry.path().filename().string();
      EXPECT_TRUE(it == name || it < "0000000000000100") << it;
    }
    fs::remove(tier() / name);
  }
}

TEST_F(DiskTrust, HardLinkedCopiesAreRefusedAndStayAsTheyAre) {
  fill();
  const fs::path copy = folder_.path() / "copy";
  fs::create_directory(copy);
  ASSERT_EQ(::chmod(copy.c_str(), 0700), 0);
  const auto before = content(tier());
  for (const auto& [name, text] : before) fs::create_hard_link(tier() / name, copy / name);
  expect_refused(tier(), {"has another hard link", "cp -a"}, false);
  // Hard links to the segments alone are refused, too.
  fs::remove(copy / kLedger);
  expect_refused(tier(), {"has another hard link"}, false);
  EXPECT_EQ(content(tier()), before);
  fs::remove_all(copy);
  fill();
}

// The hard link is made while the tier is open. When the tier removes the segment, the linked file keeps its content.
TEST_F(DiskTrust, ACopyLinkedMeanwhileIsNotCut) {
  SegmentStore store(config());
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  const fs::path first = tier() / "0000000000000001", link = folder_.path() / "link";
  fs::create_hard_link(first, link);
  const std::string before = text_of(link);
  for (std::uint64_t i = 0; i < 8; ++i) ASSERT_EQ(remove_page(store, kForm, i), Cause::none);
  for (std::uint64_t i = 0; i < 300; ++i) {
    ASSERT_EQ(set_page(store, kForm, 100 + i), Cause::none);
    ASSERT_EQ(remove_page(store, kForm, 100 + i), Cause::none);
  }
  EXPECT_FALSE(fs::exists(first));
  EXPECT_TRUE(text_of(link) == before);
}

// ---- too many open files -----------------------------------------------------------------------------

// While an object of this class exists, the process cannot open further files.
class NoMoreFiles {
 public:
  NoMoreFiles() {
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(next);
    ::getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit less{static_cast<rlim_t>(next), before_.rlim_max};
    ::setrlimit(RLIMIT_NOFILE, &less);
  }
  ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  NoMoreFiles(const NoMoreFiles&) = delete;
  NoMoreFiles& operator=(const NoMoreFiles&) = delete;

 private:
  rlimit before_{};
};

TEST_F(DiskTrust, AShortFileIsNotReadAsAWhole) {
  fs::create_directory(tier());
  const fs::path path = tier() / "short";
  write_text(path, "0123456789");
  const Descriptor file(::open(path.c_str(), O_RDONLY));
  std::array<std::byte, 16> bytes{};
  const std::span<std::byte> whole(bytes);
  EXPECT_EQ(read_whole(file.get(), Pieces{whole.first(4), whole.subspan(4, 6)}), 0);
  EXPECT_EQ(read_whole(file.get(), Pieces{whole.first(4), whole.subspan(4, 7)}), ENODATA);
}

// A link in the folder may lead to a segment or a ledger that another store has written.
TEST_F(DiskTrust, LinksToSegmentsAndLedgersAreNotFollowed) {
  fill(4);
  for (const auto& [name, text] : content(tier())) {
    if (name == kLedger) continue;
    fs::rename(tier() / name, folder_.path() / name);
    fs::create_symlink(folder_.path() / name, tier() / name);
  }
  {
    SegmentStore store(config());
    EXPECT_EQ(counter(store, "pages_found"), 0U);
    EXPECT_EQ(get_page(store, kForm, 1), Cause::missing);
  }
  fs::rename(tier() / kLedger, folder_.path() / "ledger");
  fs::create_symlink(folder_.path() / "ledger", tier() / kLedger);
  EXPECT_THROW(SegmentStore{config()}, std::runtime_error);
}

// HiCache's files are read and written by name.
TEST_F(DiskTrust, LinksToFilesOfHiCacheAreNotFollowed) {
  const auto store = make_hicache_files(files(), kForm);
  ASSERT_EQ(set_page(*store, kForm, 1), Cause::none);
  const std::string name = hicache_file_name(files(), kForm, numbered_key(1));
  fs::rename(tier() / name, folder_.path() / name);
  fs::create_symlink(folder_.path() / name, tier() / name);
  EXPECT_FALSE(looks_up(*store, 1));
  EXPECT_NE(get_page(*store, kForm, 1), Cause::none);
  EXPECT_TRUE(fs::exists(folder_.path() / name));
}

TEST_F(DiskTrust, TooManyOpenFilesIsNoFullDisk) {
  {
    SegmentStore store(config());
    ASSERT_EQ(set_page(store, kForm, 0), Cause::none);
    for (std::uint64_t i = 1; i < 8; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
    {
      const NoMoreFiles limit;
      EXPECT_EQ(set_page(store, kForm, 8), Cause::io_error);
      EXPECT_EQ(get_page(store, kForm, 0), Cause::none);
    }
    EXPECT_EQ(counter(store, "too_many_open_files"), 1U);
    EXPECT_EQ(counter(store, "full"), 0U);
    EXPECT_EQ(set_page(store, kForm, 8), Cause::none);
    for (std::uint64_t i = 9; i < 32; ++i) ASSERT_EQ(set_page(store, kForm, i), Cause::none);
  }
  const auto before = content(tier());
  SegmentStoreConfig it = config();
  it.files = make_folder_files(it.folder, {});
  try {
    std::unique_ptr<NoMoreFiles> limit;
    it.before = [](const char*) {};
    // The limit is set after the folder is listed: the folder's I/O queue opens files before that, the segments are
    // opened after it.
    class Limited final : public Files {
     public:
      Limited(std::shared_ptr<Files> files, std::unique_ptr<NoMoreFiles>& l) : files_(std::move(files)), limit_(l) {}
      std::vector<FileNumber> list(int& error) override {
        auto numbers = files_->list(error);
        limit_ = std::make_unique<NoMoreFiles>();
        return numbers;
      }
      FileNumber next_number() override { return files_->next_number(); }
      OpenedFile create(FileNumber n, Bytes b, std::span<const std::byte, kBlockBytes> f) override {
        return files_->create(n, b, f);
      }
      OpenedFile open(FileNumber number) override { return files_->open(number); }
      int shrink(BlockFile& file, Bytes bytes) override { return files_->shrink(file, bytes); }
      int remove(FileNumber number, BlockFile* open) override { return files_->remove(number, open); }
      int sync(BlockFile& file) override { return files_->sync(file); }
      BlockFile& folder() override { return files_->folder(); }
      std::unique_ptr<BlockQueue> queue(std::uint32_t d, std::size_t b) override { return files_->queue(d, b); }
      std::string description() const override { return files_->description(); }

     private:
      std::shared_ptr<Files> files_;
      std::unique_ptr<NoMoreFiles>& limit_;
    };
    it.files = std::make_shared<Limited>(it.files, limit);
    SegmentStore store(it);
    ADD_FAILURE() << "opened";
  } catch (const std::system_error& error) {
    EXPECT_EQ(error.code().value(), EMFILE);
    const std::string text = error.what();
    EXPECT_NE(text.find("opening the disk tier's 4 segments, which stay open, where a process may have "),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("(ulimit -n)"), std::string::npos) << text;
  }
  it.files = nullptr;
  EXPECT_EQ(content(tier()), before);
  SegmentStore store(it);
  for (std::uint64_t i = 0; i < 32; ++i) EXPECT_EQ(get_page(store, kForm, i), Cause::none) << i;
}

}  // namespace
}  // namespace kvtwin::test
