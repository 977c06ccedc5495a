// Store libraries that throw, hang, lie, or are none.
#include "impl/remote/store_library.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>

#include "impl/remote/remote_backend.hpp"
#include "impl/runtime/shared_library.hpp"
#include "tests/folder.hpp"
#include "tests/paths.hpp"
#include "tests/store_rig.hpp"

namespace kvtwin::test {
namespace {

std::string library(const std::string& name) { return std::string(kBuildFolder) + "/store_library/" + name + ".so"; }

class StoreLibrary : public testing::Test {
 protected:
  StoreLibrary() : library_("the hostile store", {library("hostile_store")}, "build it") {
    library_.find<void (*)()>("hostile_reset")();
  }
  // No store stays open, whatever its calls did.
  ~StoreLibrary() override {
    release();
    while (open_stores() > leaked_) std::this_thread::yield();
  }
  void release() { library_.find<void (*)()>("hostile_release")(); }
  int open_stores() { return library_.find<int (*)()>("hostile_open_stores")(); }

  std::unique_ptr<StagedBackend> open(const std::string& words) {
    StoreLibraryConfig config;
    config.library = library("hostile_store");
    config.text = words;
    config.timeout = timeout_;
    config.close_timeout = timeout_;
    config.now = [this] { return now_ += 100 * kNsPerSecond; };  // no back-off lasts
    return make_library_backend(config, kSmallForm);
  }

  SharedLibrary library_;
  std::atomic<TimeNs> now_ = 0;
  TimeNs timeout_ = 60 * kNsPerSecond;  // a test machine may be slow
  int leaked_ = 0;
};

TEST_F(StoreLibrary, GivesBackWhatWasPut) {
  StoreRig rig(open(""));
  const std::vector<PageKey> keys = keys_of(5);
  EXPECT_EQ(rig.look_up(keys), 0U);
  EXPECT_EQ(rig.set(keys).pages, 5U);
  EXPECT_EQ(rig.get(keys).pages, 5U);
  EXPECT_EQ(rig.remove({keys[2]}).pages, 1U);
  EXPECT_EQ(rig.look_up(keys), 2U);
}

// Bytes that are not the page: the get ends as corrupt, the page is removed, and the rest of the run goes on.
TEST_F(StoreLibrary, WrongBytesAreNeverServed) {
  for (const char* lie : {"flip", "garbage", "empty", "swap", "other"}) {
    const std::vector<PageKey> keys = keys_of(4, static_cast<std::uint64_t>(lie[0]));
    {
      StoreRig rig(open(""));
      EXPECT_EQ(rig.set(keys).pages, 4U);
    }
    StoreRig rig(open(lie));
    const Completion got = rig.get(keys);
    EXPECT_EQ(got.pages, 0U) << lie;
    EXPECT_EQ(name_of(got.cause), name_of(Cause::corrupt)) << lie;
    rig.finish();
    EXPECT_EQ(rig.counter("corrupt_pages"), 4U) << lie;
    EXPECT_EQ(rig.counter("got_pages"), 0U) << lie;
  }
}

// Half of the bytes, into memory that has another page's, or the same page's from before.
TEST_F(StoreLibrary, ShortReadsAreNeverServed) {
  const std::vector<PageKey> keys = keys_of(4);
  {
    StoreRig rig(open(""));
    EXPECT_EQ(rig.set(keys).pages, 4U);
  }
  StoreRig rig(open("short"));
  for (const PageKey& key : keys) EXPECT_EQ(rig.get({key}).pages, 0U);
}

TEST_F(StoreLibrary, APageThatIsClaimedAndNotThereIsAMiss) {
  StoreRig rig(open("claim_all"));
  const std::vector<PageKey> keys = keys_of(3);
  EXPECT_EQ(rig.look_up(keys), 3U);
  EXPECT_EQ(rig.get(keys).pages, 0U);
  StoreRig drops(open("drop"));
  EXPECT_EQ(drops.set(keys).pages, 3U);
  EXPECT_EQ(drops.get(keys).pages, 0U);
}

// A value of another length is no page, and does not keep the page from being stored.
TEST_F(StoreLibrary, AValueOfAnotherLengthIsReplaced) {
  const std::vector<PageKey> keys = keys_of(3);
  {
    StoreRig rig(open("keep_half"));
    EXPECT_EQ(rig.set(keys).pages, 3U);
  }
  StoreRig rig(open(""));
  const Completion found = rig.answer(rig.begin(StorageVerb::look_up, keys));
  EXPECT_EQ(found.pages, 0U);
  EXPECT_EQ(found.status, Status::done);
  EXPECT_EQ(rig.set(keys).pages, 3U);
  EXPECT_EQ(rig.look_up(keys), 3U);
  EXPECT_EQ(rig.get(keys).pages, 3U);
}

TEST_F(StoreLibrary, AFullStoreIsFull) {
  StoreRig rig(open("full"));
  const Completion set = rig.set(keys_of(3));
  EXPECT_EQ(set.pages, 0U);
  EXPECT_EQ(name_of(set.cause), name_of(Cause::full));
}

TEST_F(StoreLibrary, ExceptionsAndUnknownAnswersAreUnreachable) {
  for (const char* words : {"throw_look_up,throw_get,throw_put,throw_remove", "answer_77",
                            "throw_number_look_up,throw_number_get,throw_number_put,throw_number_remove"}) {
    StoreRig rig(open(words));
    const std::vector<PageKey> keys = keys_of(3);
    EXPECT_EQ(rig.look_up(keys), 0U) << words;
    EXPECT_EQ(name_of(rig.get(keys).cause), name_of(Cause::unreachable)) << words;
    EXPECT_EQ(name_of(rig.set(keys).cause), name_of(Cause::unreachable)) << words;
    rig.finish();
    EXPECT_GT(rig.counter("unreachable_failed"), 0U) << words;
  }
}

TEST_F(StoreLibrary, AStoreThatIsNotOpenedIsUnreachable) {
  for (const char* words : {"refuse_open", "throw_open", "throw_number_open"}) {
    StoreRig rig(open(words));
    EXPECT_EQ(name_of(rig.get(keys_of(2)).cause), name_of(Cause::unreachable)) << words;
  }
  EXPECT_NE(open("refuse_open")->check().find("opens no store: xxx"), std::string::npos);
}

TEST_F(StoreLibrary, ClosingMayThrow) {
  StoreRig rig(open("throw_close,throw_number_close"));
  EXPECT_EQ(rig.set(keys_of(2)).pages, 2U);
  leaked_ = 1;  // it said so
}

// A call that never returns costs a timeout. Look-ups go on in their own thread.
TEST_F(StoreLibrary, ACallThatHangsIsLate) {
  const std::vector<PageKey> keys = keys_of(3);
  {
    StoreRig rig(open(""));
    EXPECT_EQ(rig.set(keys).pages, 3U);
  }
  timeout_ = kNsPerSecond;
  StoreRig rig(open("hang_get"));
  EXPECT_EQ(rig.look_up(keys), 3U);
  EXPECT_EQ(name_of(rig.get(keys).cause), name_of(Cause::unreachable));
  EXPECT_EQ(name_of(rig.get(keys).cause), name_of(Cause::unreachable)) << "at once: the first call is in progress";
  EXPECT_EQ(rig.look_up(keys), 3U);
  rig.finish();
  EXPECT_EQ(rig.counter("unreachable_slow"), 1U);
  release();
}

TEST_F(StoreLibrary, AHangingOpenIsLate) {
  timeout_ = kNsPerSecond;
  StoreRig rig(open("hang_open"));
  EXPECT_EQ(name_of(rig.get(keys_of(2)).cause), name_of(Cause::unreachable));
  release();
}

// The thread of the call is gone, and with it all later calls of its sort.
TEST_F(StoreLibrary, ALibraryThatEndsItsThreadIsLateForGood) {
  timeout_ = kNsPerSecond;
  StoreRig rig(open("end_thread_get"));
  EXPECT_EQ(rig.set(keys_of(2)).pages, 2U);
  EXPECT_EQ(name_of(rig.get(keys_of(2)).cause), name_of(Cause::unreachable));
  EXPECT_EQ(rig.look_up(keys_of(2)), 2U);
}

TEST(StoreLibraryUrl, HasAFileAndAText) {
  const auto parsed = std::get<StoreLibraryConfig>(parse_library_url("library:/a b/mine.so?x=1?y"));
  EXPECT_EQ(parsed.library, "/a b/mine.so");
  EXPECT_EQ(parsed.text, "x=1?y");
  EXPECT_EQ(std::get<StoreLibraryConfig>(parse_library_url("library:mine.so")).text, "");
  for (const char* wrong : {"library:", "library:?x", "library:a\nb", "librar"}) {
    EXPECT_NE(std::get<std::string>(parse_library_url(wrong)).find("is library:FILE[?TEXT]"), std::string::npos);
  }
}

TEST(StoreLibraryFile, OthersAreRefusedWithASentence) {
  const Folder folder;
  std::ofstream(folder / "text.so") << "no library";
  struct Bad {
    std::string path;
    const char* text;
  };
  for (const Bad& bad : {Bad{"/nowhere/mine.so", "there is no such file; give the path of a store library"},
                         Bad{folder / "text.so", "can't be loaded"},
                         Bad{built("libmooncake_stand_in.so"), "is no store library: it has no kvtwin_store_library"},
                         Bad{library("other_version"), "its version is 2, that of this program 1"},
                         Bad{library("no_functions"), "lacks a function"}}) {
    RemoteTerms terms;
    terms.url = "library:" + bad.path;
    std::string said;
    try {
      open_remote_backend(terms, kSmallForm);
    } catch (const std::runtime_error& error) {
      said = error.what();
    }
    EXPECT_NE(said.find(bad.text), std::string::npos) << bad.path << ": " << said;
  }
}

}  // namespace
}  // namespace kvtwin::test
