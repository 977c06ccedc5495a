// Keys that a mode doesn't support yet: the help marks them, and a run prints a note.
#include <gtest/gtest.h>

#include <string>

#include "tests/real_run.hpp"

namespace kvtwin::test {
namespace {

// Returns the line of the key in --help-keys.
std::string help_of(const std::string& key) {
  const std::string help = "\n" + run({"simulate", "--help-keys"}).out;
  const std::size_t at = help.find("\n" + key + " ");
  return at == std::string::npos ? "" : help.substr(at + 1, help.find('\n', at + 1) - at - 1);
}

TEST(ServedKeys, HelpMarksThoseThatAreNotServedYet) {
  for (const char* key : {"cluster.prefill", "cluster.decode"}) {
    EXPECT_NE(help_of(key).find("not served yet"), std::string::npos) << help_of(key);
  }
  EXPECT_NE(help_of("cache.split_kv").find("kvtwin run stores one object per page"), std::string::npos);
}

#if KVTWIN_TEST_REAL

TEST(ServedKeys, ARunSaysThatRealStorageHasOneObjectAPage) {
  const Folder folder;
  const auto notes = [&](const Settings& more, const std::string& out) {
    const Settings work = {"workload.generate.kind=returning",
                           "workload.generate.prompt_tokens=256",
                           "workload.generate.working_set_tokens=1024",
                           "workload.generate.visits=2",
                           "cache.page_tokens=16",
                           "tiers.device.tokens=4096",
                           "tiers.host.tokens=16384"};
    return run_for_real(folder, small_model(folder) + work + more, out).report.at("notes").dump();
  };
  const Settings disk{"tiers.disk.tokens=65536", "tiers.disk.path=" + (folder / "disk")};
  const std::string honoured = "change nothing in real storage";
  const std::string layers = notes(disk + Settings{"cache.layout=layer_first"}, "layers");
  EXPECT_NE(layers.find("cache.layout = layer_first"), std::string::npos) << layers;
  EXPECT_NE(layers.find("kvtwin simulate charges 4 objects a page"), std::string::npos) << layers;
  EXPECT_NE(notes(disk + Settings{"cache.split_kv=true"}, "split").find("charges 2 objects a page"), std::string::npos);
  EXPECT_EQ(notes(disk, "whole").find(honoured), std::string::npos) << "one object in both";
  EXPECT_EQ(notes({"cache.layout=layer_first"}, "none").find(honoured), std::string::npos) << "nothing is stored";
}

#endif

}  // namespace
}  // namespace kvtwin::test
