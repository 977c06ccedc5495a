// Keys that a mode does not support: a run prints a note.
#include <gtest/gtest.h>

#include <string>

#include "tests/real_run.hpp"

namespace kvtwin::test {
namespace {

#if KVTWIN_TEST_REAL

// The files of HiCache hold whole pages. A note says so if the layout has more objects; other stores have no such note.
TEST(ServedKeys, ARunSaysThatHiCachesFilesHoldWholePages) {
  const Folder folder;
  const auto run_with = [&](const Settings& more, const std::string& out) {
    const Settings work = {"workload.generate.kind=returning",
                           "workload.generate.prompt_tokens=256",
                           "workload.generate.working_set_tokens=1024",
                           "workload.generate.visits=2",
                           "cache.page_tokens=16",
                           "tiers.device.tokens=4096",
                           "tiers.host.tokens=16384"};
    return run_for_real(folder, small_model(folder) + work + more, out).report;
  };
  const auto disk = [&](const std::string& name, const std::string& format) {
    return Settings{"tiers.disk.tokens=65536", "tiers.disk.path=" + (folder / name), "tiers.disk.format=" + format};
  };
  const std::string said = "change nothing in hicache_files";
  const Json layers = run_with(disk("files", "hicache_files") + Settings{"cache.layout=layer_first"}, "layers");
  const std::string notes = layers.at("notes").dump();
  EXPECT_NE(notes.find("cache.layout = layer_first"), std::string::npos) << notes;
  EXPECT_NE(notes.find("kvtwin simulate charges 4 objects a page"), std::string::npos) << notes;
  EXPECT_EQ(layers.at("real").at("storage").at("disk").at("objects_per_page"), 1);
  for (const auto& [setting, objects] : {std::pair{"cache.layout=layer_first", 4}, std::pair{"cache.split_kv=true", 2},
                                         std::pair{"cache.split_kv=false", 1}}) {
    const std::string out = "objects" + std::to_string(objects);
    const Json report = run_with(disk(out + "-disk", "segments") + Settings{setting}, out);
    EXPECT_EQ(report.at("notes").dump().find(said), std::string::npos) << setting;
    EXPECT_EQ(report.at("real").at("storage").at("disk").at("objects_per_page"), objects);
  }
}

#endif

}  // namespace
}  // namespace kvtwin::test
