// Tests the HiCache format of a disk tier: file names, bytes, and files that other programs wrote.
#include "impl/disk/hicache_files.hpp"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>

#include "policy/index/page_key.hpp"
#include "tests/folder.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

namespace fs = std::filesystem;

class HiCacheFilesTest : public testing::Test {
 protected:
  std::unique_ptr<StorageBackend> open() const { return make_hicache_files(config_, kSmallForm); }
  fs::path file(const PageKey& key) const { return config_.folder / hicache_file_name(config_, kSmallForm, key); }
  void write(const fs::path& path, std::span<const std::byte> bytes) const {
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  }
  // Writes a file as HiCache would have written it `age` seconds ago.
  void leave(const PageKey& key, int age = 0) const {
    write(file(key), page_bytes(kSmallForm, kSpace, key));
    fs::last_write_time(file(key), fs::file_time_type::clock::now() - std::chrono::seconds(age));
  }
  std::set<std::string> names() const {
    std::set<std::string> result;
    for (const auto& entry : fs::directory_iterator(config_.folder)) {
      const std::string name = entry.path().filename().string();
      if (!name.starts_with(".kvtwin")) result.insert(name);
    }
    return result;
  }
  static unsigned mode(const fs::path& path) {
    struct stat facts {};
    EXPECT_EQ(::stat(path.c_str(), &facts), 0) << path;
    return facts.st_mode & 0777;
  }

  Folder folder_;
  HiCacheFilesConfig config_{.folder = folder_.path() / "hicache",
                             .model = "org/model-1.5",
                             .tp_rank = 1,
                             .tp_size = 2,
                             .space = kSpace,
                             .capacity = 4};
};

TEST_F(HiCacheFilesTest, names_are_hicaches) {
  const PageKey key{{0x0807060504030201, 0x100f0e0d0c0b0a09, 0xfedcba9876543210, 0}};
  const std::string digits = "0102030405060708090a0b0c0d0e0f101032547698badcfe0000000000000000";
  EXPECT_EQ(hicache_file_name(config_, kSmallForm, key), digits + "_org-model-1.5_1_2.bin");
  PageForm latent = kSmallForm;
  latent.shape.planes = 1;
  EXPECT_EQ(hicache_file_name(config_, latent, key), digits + "_org-model-1.5.bin");
  // The digits are those of the SHA-256 chain: the expected value is from HiCache for the tokens 1, 2.
  const std::uint32_t tokens[] = {1, 2};
  EXPECT_EQ(hicache_file_name(config_, latent, token_page_key(nullptr, tokens)).substr(0, 16), "34fb5c825de7ca4a");
}

TEST_F(HiCacheFilesTest, models_that_are_no_names_are_refused) {
  for (const std::string& model : {std::string(), std::string("a b"), std::string("a\nb"), std::string("a\\b"),
                                   std::string("\xc3\xa4"), std::string(200, 'a'), std::string("a\0b", 3)}) {
    config_.model = model;
    EXPECT_THROW(open(), std::runtime_error) << model;
    EXPECT_FALSE(fs::exists(config_.folder));
  }
}

TEST_F(HiCacheFilesTest, files_hold_the_bytes_alone_and_are_their_owners) {
  const PageKey key = keys_of(1)[0];
  StoreRig rig(open());
  EXPECT_EQ(rig.set({key}).pages, 1u);
  EXPECT_EQ(names(), std::set{hicache_file_name(config_, kSmallForm, key)});
  std::ifstream in(file(key), std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const std::vector<std::byte> bytes = page_bytes(kSmallForm, kSpace, key);
  EXPECT_TRUE(std::ranges::equal(std::as_bytes(std::span(text)), bytes));
  EXPECT_EQ(mode(file(key)), 0600u);
  EXPECT_EQ(mode(config_.folder), 0700u);
}

TEST_F(HiCacheFilesTest, what_hicache_left_is_read) {
  const std::vector<PageKey> keys = keys_of(3);
  fs::create_directory(config_.folder);
  for (const PageKey& key : keys) leave(key);
  fs::permissions(file(keys[1]), fs::perms(0644));
  StoreRig rig(open());
  EXPECT_EQ(rig.look_up(keys), 3u);
  EXPECT_EQ(rig.get(keys).status, Status::done);
  // A file that appears while the back end is open is found too.
  const PageKey later = keys_of(1, 9)[0];
  leave(later);
  EXPECT_EQ(rig.get({later}).status, Status::done);
}

TEST_F(HiCacheFilesTest, a_file_of_another_length_is_removed) {
  const std::vector<PageKey> keys = keys_of(4);
  StoreRig rig(open());
  EXPECT_EQ(rig.set(keys).pages, 4u);
  const std::vector<std::byte> bytes(1000);
  for (const std::size_t length : {0U, 1U, 159U, 161U, 1000U}) {
    write(file(keys[2]), std::span(bytes).first(length));
    EXPECT_EQ(rig.look_up(keys), 2u);
    const Completion got = rig.get(keys);
    EXPECT_EQ(got.pages, 2u);
    EXPECT_EQ(got.cause, Cause::corrupt);
    EXPECT_FALSE(fs::exists(file(keys[2])));
    EXPECT_EQ(rig.set(keys).status, Status::done);
    EXPECT_EQ(rig.get(keys).status, Status::done);
    // A set also repairs the page.
    write(file(keys[2]), std::span(bytes).first(length));
    EXPECT_EQ(rig.set(keys).status, Status::done);
    EXPECT_EQ(rig.get(keys).status, Status::done);
  }
  rig.finish();
  EXPECT_EQ(rig.counter("corrupt_pages"), 5u);
}

// Pages found at the start are evicted to make room, the oldest first. Stored pages are never evicted.
TEST_F(HiCacheFilesTest, found_pages_make_room_for_stored_ones) {
  const std::vector<PageKey> found = keys_of(6, 1), fresh = keys_of(6, 2);
  config_.capacity = 6;
  { EXPECT_EQ(StoreRig(open()).set(found).status, Status::done); }
  config_.capacity = 4;
  for (std::size_t i = 0; i < found.size(); ++i) leave(found[i], 100 - static_cast<int>(i));
  StoreRig rig(open());
  const auto left = [&] {
    std::string result;
    for (const PageKey& key : found) result += fs::exists(file(key)) ? 'x' : '-';
    return result;
  };
  EXPECT_EQ(left(), "--xxxx");
  EXPECT_EQ(rig.set({fresh[0]}).status, Status::done);
  EXPECT_EQ(left(), "---xxx");
  EXPECT_EQ(rig.set({found[3]}).status, Status::done);  // exists already, and counts as stored from now on
  EXPECT_EQ(rig.set({fresh[1], fresh[2]}).status, Status::done);
  EXPECT_EQ(left(), "---x--");
  EXPECT_EQ(rig.set({fresh[3]}).cause, Cause::full);
  EXPECT_EQ(left(), "---x--");
  rig.finish();
  EXPECT_EQ(rig.counter("found_pages"), 6u);
  EXPECT_EQ(rig.counter("found_pages_removed"), 5u);
}

// Files of HiCache stay, even if room is needed, if their length is wrong, or if a page is removed.
TEST_F(HiCacheFilesTest, what_hicache_left_is_never_removed) {
  const std::vector<PageKey> left = keys_of(6, 1), fresh = keys_of(5, 2);
  fs::create_directory(config_.folder);
  for (const PageKey& key : left) leave(key);
  const std::vector<std::byte> half(80, std::byte{7});
  write(file(left[5]), half);
  for (int life = 0; life < 2; ++life) {
    StoreRig rig(open());
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(rig.set({fresh[i]}).status, Status::done) << "they take no room";
    EXPECT_EQ(rig.set({fresh[4]}).cause, Cause::full);
    EXPECT_EQ(rig.get({left[0], left[1]}).status, Status::done);
    EXPECT_EQ(rig.get({left[5]}).cause, Cause::corrupt);
    EXPECT_EQ(rig.set({left[5]}).cause, Cause::io_error);
    EXPECT_EQ(rig.remove({fresh[0], left[0], left[5]}).status, Status::done);
    EXPECT_FALSE(fs::exists(file(fresh[0])));
    EXPECT_EQ(rig.set({left[0]}).status, Status::done) << "there already, which takes room now";
    EXPECT_EQ(rig.set({fresh[0]}).cause, Cause::full);
    EXPECT_EQ(rig.remove({left[0]}).status, Status::done);
    EXPECT_EQ(rig.set({fresh[0]}).status, Status::done);
    rig.finish();
    for (const PageKey& key : left) EXPECT_TRUE(fs::exists(file(key)));
    EXPECT_EQ(fs::file_size(file(left[5])), 80u);
    EXPECT_EQ(rig.counter("others_pages"), 6u);
    EXPECT_EQ(rig.counter("found_pages"), life == 0 ? 0u : 4u);
    EXPECT_EQ(rig.counter("others_pages_kept"), 5u);
  }
  // Also if the capacity is less than the number of files.
  config_.capacity = 1;
  const auto backend = open();
  for (const PageKey& key : left) EXPECT_TRUE(fs::exists(file(key)));
  EXPECT_EQ(names().size(), left.size() + 1);
  EXPECT_NE(backend->description().find("4 pages of earlier runs, which make room for new ones (3 removed); 6 pages "
                                        "that kvtwin didn't store are read and left alone"),
            std::string::npos)
      << backend->description();
}

// A list that ends in the middle of a line because the disk was full, and a list whose pages no longer exist.
TEST_F(HiCacheFilesTest, the_list_of_stored_pages_may_be_cut_short) {
  const std::vector<PageKey> keys = keys_of(3);
  { EXPECT_EQ(StoreRig(open()).set(keys).status, Status::done); }
  const fs::path list = config_.folder / ".kvtwin_org-model-1.5_1_2.bin.pages";
  ASSERT_EQ(fs::file_size(list), 3u * 65);
  fs::resize_file(list, 3 * 65 - 10);
  fs::remove(file(keys[0]));
  {
    StoreRig rig(open());
    EXPECT_EQ(rig.get({keys[1], keys[2]}).status, Status::done);
    EXPECT_EQ(rig.remove({keys[1], keys[2]}).status, Status::done);
    EXPECT_FALSE(fs::exists(file(keys[1])));
    EXPECT_TRUE(fs::exists(file(keys[2]))) << "nothing says that it is ours";
    EXPECT_EQ(rig.counter("others_pages"), 1u);
  }
  EXPECT_EQ(StoreRig(open()).counter("found_pages"), 0u);
  EXPECT_EQ(fs::file_size(list), 0u);
}

TEST_F(HiCacheFilesTest, a_hard_linked_lock_is_refused) {
  { EXPECT_EQ(StoreRig(open()).set(keys_of(1)).status, Status::done); }
  fs::create_hard_link(config_.folder / ".kvtwin_org-model-1.5_1_2.bin.lock", folder_.path() / "link");
  EXPECT_THROW(open(), std::runtime_error);
}

TEST_F(HiCacheFilesTest, other_files_are_left_alone) {
  fs::create_directory(config_.folder);
  HiCacheFilesConfig other = config_;
  other.tp_rank = 0;
  std::set<std::string> others = {"readme.txt", std::string(64, 'g') + "_org-model-1.5_1_2.bin",
                                  std::string(63, 'a') + "_org-model-1.5_1_2.bin"};
  for (const PageKey& key : keys_of(9)) others.insert(hicache_file_name(other, kSmallForm, key));
  for (const std::string& name : others) write(config_.folder / name, {});
  const std::string unfinished = hicache_file_name(config_, kSmallForm, keys_of(1)[0]) + ".kvtwin_tmp";
  write(config_.folder / unfinished, {});
  EXPECT_EQ(names().size(), others.size() + 1);
  StoreRig rig(open());
  EXPECT_EQ(names(), others) << "but for what was being written when somebody stopped";
  EXPECT_EQ(rig.set(keys_of(4, 3)).status, Status::done);
  EXPECT_EQ(names().size(), others.size() + 4);
}

TEST_F(HiCacheFilesTest, what_has_a_pages_name_and_is_no_file_is_no_page) {
  const std::vector<PageKey> keys = keys_of(3);
  StoreRig rig(open());
  EXPECT_EQ(rig.set({keys[0]}).status, Status::done);
  fs::create_symlink(file(keys[0]), file(keys[1]));
  ASSERT_EQ(::mkfifo(file(keys[2]).c_str(), 0600), 0);
  EXPECT_EQ(rig.look_up({keys[1]}), 0u);
  EXPECT_EQ(rig.get({keys[1]}).pages, 0u);
  EXPECT_EQ(rig.get({keys[2]}).pages, 0u);
  EXPECT_EQ(rig.set({keys[1]}).cause, Cause::io_error) << "they aren't ours to replace";
  EXPECT_EQ(rig.set({keys[2]}).cause, Cause::io_error);
  EXPECT_TRUE(fs::is_symlink(file(keys[1])));
  EXPECT_TRUE(fs::is_fifo(file(keys[2])));
  EXPECT_EQ(rig.get({keys[0]}).status, Status::done);
}

TEST_F(HiCacheFilesTest, a_folder_is_for_one_space) {
  StoreRig rig(open());
  const std::vector<PageKey> keys = keys_of(2);
  EXPECT_EQ(rig.set(keys).status, Status::done);
  EXPECT_EQ(rig.look_up(keys, kOtherSpace), 0u);
  EXPECT_EQ(rig.get(keys, kOtherSpace).cause, Cause::missing);
  EXPECT_EQ(rig.set(keys, kOtherSpace).status, Status::failed);
  EXPECT_EQ(rig.remove(keys, kOtherSpace).status, Status::done);
  EXPECT_EQ(rig.get(keys).status, Status::done);
}

// Names and lengths are the same in all spaces. So without this check, pages of another space would be served.
TEST_F(HiCacheFilesTest, pages_of_another_space_are_refused) {
  const std::vector<PageKey> keys = keys_of(2);
  { EXPECT_EQ(StoreRig(open()).set(keys).status, Status::done); }
  config_.space = kOtherSpace;
  EXPECT_THROW(open(), std::runtime_error);
  config_.space = kSpace;
  {
    StoreRig again(open());
    EXPECT_EQ(again.get(keys).status, Status::done);
    EXPECT_EQ(again.remove(keys).status, Status::done);
  }
  config_.space = kOtherSpace;
  { EXPECT_EQ(StoreRig(open()).look_up(keys, kOtherSpace), 0u); }  // the folder is empty now
  for (const PageKey& key : keys) leave(key);
  config_.space = kSpace;
  EXPECT_THROW(open(), std::runtime_error);
}

TEST_F(HiCacheFilesTest, ranks_share_a_folder_and_their_pages_do_not_mix) {
  HiCacheFilesConfig other = config_;
  other.tp_rank = 0;
  StoreRig first(open()), second(make_hicache_files(other, kSmallForm));
  EXPECT_EQ(first.set(keys_of(4)).status, Status::done);
  EXPECT_EQ(second.look_up(keys_of(4)), 0u);
  EXPECT_THROW(open(), std::runtime_error);
  // A rank that only reads the pages that another rank stores.
  HiCacheFilesConfig reader = config_;
  reader.stores = false;
  StoreRig third(make_hicache_files(reader, kSmallForm), {.stores = false});
  EXPECT_EQ(third.get(keys_of(4)).status, Status::done);
  EXPECT_EQ(third.set(keys_of(9)).status, Status::done);
  EXPECT_EQ(first.look_up(keys_of(9)), 4u);
}

TEST_F(HiCacheFilesTest, a_folder_that_cannot_be_used_is_refused) {
  write(folder_.path() / "file", {});
  config_.folder = folder_.path() / "file";
  EXPECT_THROW(open(), std::system_error);
  config_.folder = folder_.path() / "none" / "of" / "these";
  EXPECT_THROW(open(), std::system_error);
}

}  // namespace
}  // namespace kvtwin::test
