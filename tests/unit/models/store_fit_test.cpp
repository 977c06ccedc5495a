#include "models/store_fit.hpp"

#include <gtest/gtest.h>

#include "tests/splitmix.hpp"

namespace kvtwin {
namespace {

// The figures of a made-up store.
struct Truth {
  double look_up_call = 150e-6, look_up_key = 2e-6;
  double get_call = 80e-6, get_object = 12e-6, read = 1.5e9;
  double set_call = 120e-6, set_object = 0, write = 0.7e9;
};

// Three times each operation; every third one takes twice as long. `noise`: most that the others are off.
Measurements measured(const Truth& t, double noise = 0) {
  test::Splitmix rng(3);
  Measurements all;
  for (const Bytes page : {Bytes{65'536}, Bytes{1'048'576}}) {
    for (const Pages pages : {Pages{1}, Pages{4}, Pages{16}, Pages{64}}) {
      for (int i = 0; i < 3; ++i) {
        const double n = static_cast<double>(pages), bytes = n * static_cast<double>(page);
        for (const auto& [verb, seconds] : {std::pair{StorageVerb::look_up, t.look_up_call + n * t.look_up_key},
                                            {StorageVerb::get, t.get_call + n * t.get_object + bytes / t.read},
                                            {StorageVerb::set, t.set_call + n * t.set_object + bytes / t.write}}) {
          Measurement one;
          one.what = Measured::storage;
          one.work.verb = verb;
          one.work.tier = Tier::remote;
          one.work.pages = pages;
          one.work.page_bytes = page;
          const double off = 1 + noise * (static_cast<double>(rng.below(2001)) / 1000 - 1);
          one.seconds = i == 2 ? 2 * seconds : seconds * off;
          all.list.push_back(one);
        }
      }
    }
  }
  return all;
}

StoreSpec fitted(const Measurements& all, const char* url = "redis://127.0.0.1:6379") {
  StoreFitTerms terms = store_kind(url);
  terms.source = "measured: a test";
  terms.date = "2026-11-26";
  return parse_store(fitted_store(all, terms), "store.json");
}

TEST(StoreFit, FindsTheFiguresThatMadeTheTimes) {
  const Truth t;
  const StoreFigures f = fitted(measured(t)).figures;
  EXPECT_NEAR(f.look_up_call, t.look_up_call, 1e-3 * t.look_up_call);
  EXPECT_NEAR(f.look_up_key, t.look_up_key, 1e-3 * t.look_up_key);
  EXPECT_NEAR(f.get_call, t.get_call, 1e-3 * t.get_call);
  EXPECT_NEAR(f.get_object, t.get_object, 1e-3 * t.get_object);
  EXPECT_NEAR(f.stream_read_bandwidth, t.read, 1e-3 * t.read);
  EXPECT_NEAR(f.set_call, t.set_call, 1e-3 * t.set_call);
  EXPECT_NEAR(f.set_object, 0, 1e-8);
  EXPECT_NEAR(f.stream_write_bandwidth, t.write, 1e-3 * t.write);
}

TEST(StoreFit, NoiseMovesTheFiguresALittle) {
  const Truth t;
  const StoreFigures f = fitted(measured(t, 0.05)).figures;
  EXPECT_NEAR(f.stream_read_bandwidth, t.read, 0.1 * t.read);
  EXPECT_NEAR(f.stream_write_bandwidth, t.write, 0.1 * t.write);
  EXPECT_NEAR(f.look_up_call, t.look_up_call, 0.1 * t.look_up_call);
}

// Pages that take no longer when they are larger, and calls that take no time.
TEST(StoreFit, NoFigureIsNegative) {
  Truth t;
  t.get_call = 0;
  t.read = 1e15;
  t.look_up_key = 0;
  const StoreSpec spec = fitted(measured(t));
  EXPECT_GT(spec.figures.get_call, 0);
  EXPECT_NEAR(spec.figures.get_object, t.get_object, 1e-2 * t.get_object);
  EXPECT_GE(spec.figures.stream_read_bandwidth, 9e11);
}

TEST(StoreFit, UnmeasuredFiguresAreThoseOfTheNearestPreset) {
  const StoreSpec mooncake = fitted(measured({}), "mooncake://127.0.0.1:50051?protocol=tcp");
  EXPECT_EQ(mooncake.figures.lease, 5);
  EXPECT_TRUE(mooncake.evicts);
  const StoreSpec files = fitted(measured({}), "nixl+posix:///pages");
  EXPECT_FALSE(files.evicts);
  EXPECT_EQ(files.figures.lease, 0);
  const StoreSpec bucket = fitted(measured({}), "nixl+obj://pages?endpoint=http://127.0.0.1:8333");
  EXPECT_FALSE(bucket.evicts);
  EXPECT_EQ(bucket.figures.node_bandwidth, 0);
  EXPECT_EQ(store_kind("rediss://host:1").kind, "redis");
  EXPECT_EQ(store_kind("mooncake://host:1?protocol=rdma").preset, "mooncake");
  // A server moves at least the stream that was measured.
  Truth fast;
  fast.read = 20e9;
  EXPECT_NEAR(fitted(measured(fast)).figures.node_bandwidth, 20e9, 2e8);
}

TEST(StoreFit, MissingMeasurementsAreNamed) {
  Measurements all = measured({});
  std::erase_if(all.list, [](const Measurement& one) { return one.work.verb == StorageVerb::get; });
  try {
    fitted(all);
    ADD_FAILURE() << "not refused";
  } catch (const ModelError& error) {
    EXPECT_NE(std::string(error.what()).find("no get of the remote tier"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace kvtwin
