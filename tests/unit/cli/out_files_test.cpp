// The files that the program writes: their permissions, and the errors if a file cannot be written.
#include "lab/out_files.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>

#include "tests/paths.hpp"
#include "tests/program.hpp"

namespace kvtwin::test {
namespace {

const std::string kQuickstart = in_source("experiments/quickstart.toml");

std::vector<std::string> simulate(const std::string& out) {
  return {"simulate", kQuickstart, "--world", "events", "--set", "workload.generate.requests=3", "--out", out};
}

TEST(OutFiles, FoldersAreTheirOwners) {
  const mode_t before = ::umask(0);
  const Folder folder;
  std::error_code error;
  make_out_folder(folder / "a/b/c/", error);
  EXPECT_FALSE(error);
  EXPECT_EQ(fs::status(folder / "a/b/c").permissions(), fs::perms::owner_all);
  EXPECT_EQ(fs::status(folder / "a/b").permissions(), fs::perms::all) << "as the user's umask says";
  make_out_folder(folder / "a/b", error);
  EXPECT_FALSE(error);
  EXPECT_EQ(fs::status(folder / "a/b").permissions(), fs::perms::all) << "it was there";
  write_text(folder / "file", "");
  make_out_folder(folder / "file", error);
  EXPECT_TRUE(error);
  make_out_folder(folder / "file/below", error);
  EXPECT_TRUE(error);
  ::umask(022);
  EXPECT_EQ(run(simulate(folder / "run")).exit_code, 0);
  EXPECT_EQ(fs::status(folder / "run").permissions(), fs::perms::owner_all);
  const std::vector<std::string> sweep = {
      "compare", "--cells", kQuickstart, "--set",         "workload.generate.requests=3",
      "--vary",  "seed=1",  "--out",     folder / "sweep"};
  EXPECT_EQ(run(sweep).exit_code, 0);
  EXPECT_EQ(fs::status(folder / "sweep").permissions(), fs::perms::owner_all);
  ::umask(before);
}

TEST(OutFiles, AFileAppearsWhole) {
  const Folder folder;
  write_whole(folder / "a.json", "one");
  write_whole(folder / "a.json", "two");
  EXPECT_EQ(text_of(folder / "a.json"), "two");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
  EXPECT_THROW(write_whole(folder / "absent/a.json", "one"), WorkError);
}

TEST(OutFiles, ErrorsAreSaidAsWhatTheyAre) {
  const auto said = [](int error) { return std::string(cannot_write("x/y", error).what()); };
  EXPECT_EQ(said(0), "x/y: can't be written; is the disk full?");
  EXPECT_EQ(said(ENOSPC), said(0));
  EXPECT_EQ(said(EACCES), "x/y: can't be written: Permission denied");
  EXPECT_TRUE(said(EMFILE).starts_with("x/y: can't be written: too many files are open; a process may have "));
  EXPECT_TRUE(said(EMFILE).ends_with(" here (ulimit -n)")) << said(EMFILE);
  EXPECT_TRUE(said(EFBIG).starts_with("x/y: can't be written: a file may have ")) << said(EFBIG);
  EXPECT_TRUE(said(EFBIG).ends_with(" bytes here (ulimit -f)")) << said(EFBIG);
}

TEST(OutFiles, TooManyOpenFilesIsNoFullDisk) {
  int said = 0;
  for (int limit = 4; limit < 12; ++limit) {
    const Folder folder;
    Surroundings around;
    around.wrapper = {"bash", "-c", "ulimit -n " + std::to_string(limit) + " && exec \"$@\"", "bash"};
    const Outcome outcome = run(simulate(folder / "run"), around);
    if (outcome.err.find("can't be written") == std::string::npos) continue;
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_NE(outcome.err.find("too many files are open; a process may have " + std::to_string(limit) + " here"),
              std::string::npos)
        << outcome.err;
    ++said;
  }
  EXPECT_GT(said, 0);
}

// The program reports the limit as an error instead of being killed by SIGXFSZ.
TEST(OutFiles, ALimitOnTheSizeOfFilesIsAnError) {
  const Folder folder;
  Surroundings around;
  around.wrapper = {"bash", "-c", "ulimit -f 1 && exec \"$@\"", "bash"};
  const Outcome outcome = run(simulate(folder / "run"), around);
  EXPECT_EQ(outcome.exit_code, 1) << outcome.signal;
  EXPECT_NE(outcome.err.find("can't be written: a file may have 1024 bytes here (ulimit -f)"), std::string::npos)
      << outcome.err;
}

}  // namespace
}  // namespace kvtwin::test
