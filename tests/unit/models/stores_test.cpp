#include "models/stores.hpp"

#include <gtest/gtest.h>

#include <set>

#include "models/json.hpp"
#include "models/presets.hpp"
#include "models/roofline.hpp"

namespace kvtwin {
namespace {

Json redis() { return Json::parse(store_preset_text("redis")); }

std::string error_of(const Json& object) {
  try {
    parse_store(object.dump(), "store.json");
  } catch (const ModelError& error) {
    return error.what();
  }
  return "no error";
}

// The cost of a storage operation in the remote tier of an H100 with this store.
RooflineCost cost_with(const StoreFigures& figures, double nodes = 0) {
  HardwareSpec hardware = hardware_preset("h100-sxm");
  hardware.store = figures;
  hardware.pool_nodes = nodes;
  return RooflineCost(model_preset("llama-3.1-8b"), hardware, 1);
}

StorageWork work_of(StorageVerb verb, Pages pages, std::uint32_t objects = 1, std::uint32_t ranks = 1) {
  StorageWork work;
  work.verb = verb;
  work.tier = Tier::remote;
  work.pages = pages;
  work.page_bytes = 1'048'576;
  work.objects = objects;
  work.ranks = ranks;
  return work;
}

double seconds_of(const TransferCost& cost) {
  return static_cast<double>(cost.latency_ns) * 1e-9 +
         (cost.bytes == 0 ? 0 : static_cast<double>(cost.bytes) / static_cast<double>(cost.bytes_per_second));
}

TEST(Stores, PresetsLoadAndEachFigureHasASource) {
  const std::set<std::string> expected{"aibrix", "eic", "mooncake",  "mooncake_tcp", "nixl_posix",
                                       "redis",  "s3",  "seaweedfs", "simm",         "valkey"};
  const std::vector<std::string> names = store_preset_names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), expected);
  std::set<std::string> costs;
  for (const std::string& name : names) {
    const StoreSpec spec = store_preset(name);
    EXPECT_EQ(spec.name, name);
    EXPECT_FALSE(spec.description.empty());
    EXPECT_TRUE(spec.figures.given());
    for (const HardwareNumber& number : spec.numbers) {
      EXPECT_GT(number.source.size(), 8U) << name << " " << number.key;
      EXPECT_GE(number.date.size(), 4U) << name << " " << number.key;
    }
    costs.insert(to_string(cost_with(spec.figures).coefficients()));
  }
  EXPECT_EQ(costs.size(), names.size()) << "two stores cost the same";
}

TEST(Stores, OneStreamTakesTheSumOfItsObjects) {
  StoreFigures f;
  f.look_up_call = 200e-6;
  f.look_up_key = 2e-6;
  f.get_call = 100e-6;
  f.set_call = 300e-6;
  f.get_object = 30e-6;
  f.stream_read_bandwidth = 2e9;
  f.stream_write_bandwidth = 1e9;
  const RooflineCost cost = cost_with(f);
  EXPECT_EQ(cost.storage(work_of(StorageVerb::look_up, 16, 4)).latency_ns, 200'000 + 16 * 4 * 2'000);
  for (const Pages pages : {1U, 7U, 64U}) {
    for (const std::uint32_t objects : {1U, 8U}) {
      const double bytes = static_cast<double>(pages) * 1'048'576;
      const double get = 100e-6 + static_cast<double>(pages * objects) * 30e-6 + bytes / 2e9;
      EXPECT_NEAR(seconds_of(cost.storage(work_of(StorageVerb::get, pages, objects))), get, get * 1e-6);
      const double set = 300e-6 + bytes / 1e9;
      EXPECT_NEAR(seconds_of(cost.storage(work_of(StorageVerb::set, pages, objects))), set, set * 1e-6);
    }
  }
  // Each rank has a stream of its own.
  const double one = seconds_of(cost.storage(work_of(StorageVerb::get, 16)));
  EXPECT_NEAR(seconds_of(cost.storage(work_of(StorageVerb::get, 16, 1, 4))), one, one * 1e-6);
}

TEST(Stores, ServersLimitObjectsAndBytes) {
  StoreFigures f;
  f.look_up_call = f.get_call = f.set_call = 1e-3;
  f.node_bandwidth = 1e9;
  f.node_get_object = 1e-3;
  // 64 objects of 1 MiB: by objects 64 ms, by bytes 67 ms; four servers take a quarter.
  const double bytes = 64.0 * 1'048'576;
  const double latency = 1e-3 + 2.2e-6;  // the call, and the NIC's latency
  EXPECT_NEAR(seconds_of(cost_with(f).storage(work_of(StorageVerb::get, 64))), latency + bytes / 1e9, 1e-5);
  EXPECT_NEAR(seconds_of(cost_with(f, 4).storage(work_of(StorageVerb::get, 64))), latency + bytes / 4e9, 1e-5);
  EXPECT_NEAR(seconds_of(cost_with(f, 4).storage(work_of(StorageVerb::get, 64, 8))), latency + 64 * 8 * 1e-3 / 4, 1e-4);
}

TEST(Stores, WithoutAStoreThePoolCostsAsBefore) {
  const RooflineCost plain(model_preset("llama-3.1-8b"), hardware_preset("h100-sxm"), 1);
  EXPECT_EQ(cost_with(StoreFigures{}).coefficients(), plain.coefficients());
}

TEST(Stores, BadFilesAreRefusedInASentence) {
  Json object = redis();
  object["numbers"]["look_up_kee"] = object["numbers"]["look_up_key"];
  EXPECT_NE(error_of(object).find("did you mean \"look_up_key\""), std::string::npos) << error_of(object);
  object = redis();
  object["numbers"]["get_call"]["unit"] = "GB/s";
  EXPECT_NE(error_of(object).find("one of s, ms, us, ns"), std::string::npos) << error_of(object);
  object = redis();
  object["numbers"].erase("set_call");
  EXPECT_NE(error_of(object).find("set_call"), std::string::npos) << error_of(object);
  object = redis();
  object.erase("numbers");
  EXPECT_NE(error_of(object).find("numbers"), std::string::npos) << error_of(object);
  object = redis();
  object["numbers"].erase("stream_read_bandwidth");
  object["numbers"]["get_object"] = {{"value", 3}, {"unit", "us"}, {"source", "here"}, {"date", "today"}};
  EXPECT_NE(error_of(object).find("given, as get_object is"), std::string::npos) << error_of(object);
  object = redis();
  object["numbers"]["lease"] = {{"value", -3}, {"unit", "s"}, {"source", "here"}, {"date", "today"}};
  EXPECT_NE(error_of(object).find("at least"), std::string::npos) << error_of(object);
  object = redis();
  object["evict"] = false;
  EXPECT_NE(error_of(object).find("did you mean \"evicts\""), std::string::npos) << error_of(object);
  EXPECT_EQ(error_of(redis()), "no error");
  EXPECT_THROW(static_cast<void>(store_preset("rediss")), ModelError);
  EXPECT_THROW(static_cast<void>(store_from_file("/nowhere/store.json")), ModelError);
}

}  // namespace
}  // namespace kvtwin
