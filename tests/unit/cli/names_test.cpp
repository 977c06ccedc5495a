// Names of enumerators: every one has its own, and a value beyond them is never read from behind an array.
#include "lab/names.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

#include "lab/experiment/choices.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/sweep/sweep_words.hpp"
#include "models/geometry.hpp"

namespace kvtwin {
namespace {

// Of all values that the type can have.
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
  EXPECT_EQ(names_of<Tier>(kTiers), (std::set<std::string>{"device", "host", "disk", "remote"}));
  EXPECT_EQ(names_of<Slower>(5), (std::set<std::string>{"nowhere", "everywhere", "below", "above", "not compared"}));
  EXPECT_EQ(names_of<AttentionKind>(6),
            (std::set<std::string>{"none", "full", "window", "latent", "sparse_latent", "state"}));
}

// A key of a policy or a trace format takes every name of its folder, and its help names each once.
TEST(Names, OfChoicesAreThoseThatTheirKeysTake) {
  for (const NamedChoice& choice : named_choices()) {
    const auto key = std::ranges::find(Experiment::keys(), choice.key, &Experiment::Key::name);
    for (const std::string_view name : choice.names()) {
      EXPECT_NE(key->help.find(name), std::string_view::npos) << key->name;
      Experiment experiment = Experiment::from_text("", "x.toml");
      experiment.set(std::string(choice.key) + "=" + std::string(name));
      EXPECT_NO_THROW(make_setup(experiment)) << choice.key;
    }
  }
}

TEST(Names, ThatAHelpDoesNotMentionAreAddedToIt) {
  constexpr std::string_view kNames[] = {"write", "write_back", "back", "2q"};
  EXPECT_EQ(with_other_names("write_back, or 2q: later", kNames), "write_back, or 2q: later; also write, back");
  EXPECT_EQ(with_other_names("write, write_back, back or 2q", kNames), "write, write_back, back or 2q");
}

}  // namespace
}  // namespace kvtwin
