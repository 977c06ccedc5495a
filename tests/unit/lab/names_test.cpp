// Names of enumerators: each enumerator has a different name, and a value without a name never reads past the end of an
// array.
#include "lab/names.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "lab/experiment/setup.hpp"
#include "lab/sweep/sweep_words.hpp"
#include "models/geometry.hpp"

namespace kvtwin {
namespace {

// Returns the names of all 256 values that the type can have.
template <typename Enum>
std::set<std::string> names_of(std::size_t count) {
  std::set<std::string> names;
  for (std::size_t value = 0; value < 256; ++value) {
    const std::string name(name_of(static_cast<Enum>(value)));
    EXPECT_EQ(name == "unknown", value >= count) << value << " " << name;
    if (value < count) {
      EXPECT_TRUE(names.insert(name).second) << name;
    }
  }
  return names;
}

TEST(Names, EveryEnumeratorHasOne) {
  EXPECT_EQ(names_of<Tier>(kTiers), (std::set<std::string>{"device", "host", "disk", "shared_fs", "remote"}));
  EXPECT_EQ(names_of<Slower>(5), (std::set<std::string>{"nowhere", "everywhere", "below", "above", "not compared"}));
  EXPECT_EQ(names_of<AttentionKind>(9), (std::set<std::string>{"none", "full", "window", "latent", "sparse_latent",
                                                               "state", "sparse", "compressed", "full_state"}));
}

// The key for a kind of policy, or for the trace format, accepts the name of every file in the folder of this kind.
TEST(Names, OfChoicesAreThoseThatTheirKeysTake) {
  std::size_t keys = 0;
  for (const ExperimentKey& key : experiment_keys()) {
    keys += key.chooses_file;
    for (const std::string_view name : key.choices) {
      if (!key.chooses_file) continue;
      Experiment experiment = Experiment::from_text("", "x.toml");
      experiment.set(std::string(key.name) + "=" + std::string(name));
      EXPECT_NO_THROW(make_setup(experiment)) << key.name;
    }
  }
  EXPECT_EQ(keys, 12U);
}

}  // namespace
}  // namespace kvtwin
