// The power is cut at any step of a history of operations. Afterwards each page must be either absent or correct, and
// every page that was synced and not removed must be present.
//   KVTWIN_DEEP=1 build/tests/crash_impl --gtest_filter='PowerLoss*'     100,000 random histories
//   KVTWIN_SEED=n build/tests/crash_impl --gtest_filter='*Random*'       only the history of seed n
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <set>
#include <string>

#include "impl/disk/segment_store.hpp"
#include "tests/power_loss_files.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

const PageForm kForm = small_form();

struct Action {
  enum class Kind : std::uint8_t { set, remove, sync } kind;
  std::uint64_t page = 0;
};

struct Shape {
  Pages capacity = 0;
  Bytes slots = 0;  // in a segment
  std::uint32_t depth = 1;
};

// A store on a disk that may lose power, from open to close, with the set of pages that it has reported as durable.
class Life {
 public:
  Life(std::shared_ptr<PowerLossFiles> files, const Shape& shape) : files_(std::move(files)) {
    SegmentStoreConfig config;
    config.capacity_pages = shape.capacity;
    config.form = kForm;
    config.depth = shape.depth;
    config.segment_bytes = shape.slots * 8192;
    config.files = files_;
    store_ = std::make_unique<SegmentStore>(config);
  }

  void act(const std::vector<Action>& together) {
    ListedWork work(kForm);
    for (const Action& it : together) {
      if (it.kind == Action::Kind::sync) {
        // If the power is cut during the sync, the store has not reported the pages as durable.
        if (store_->sync() && !files_->is_cut()) durable = stored;
        return;
      }
      const bool sets = it.kind == Action::Kind::set;
      if (!sets) {
        stored.erase(it.page);
        durable.erase(it.page);
      }
      pages.insert(it.page);
      work.add(sets ? StorageVerb::set : StorageVerb::remove, numbered_key(it.page));
    }
    store_->write(work);
    for (std::size_t i = 0; i < together.size(); ++i) {
      if (together[i].kind == Action::Kind::set && work.cause(i) == Cause::none) stored.insert(together[i].page);
    }
  }

  // Checks that each page of `all` is absent or correct, and that the pages of `there` are present. Returns the error,
  // or "" if none.
  std::string check(const std::set<std::uint64_t>& all, const std::set<std::uint64_t>& there) {
    ListedWork work(kForm);
    for (const std::uint64_t page : all) work.add(StorageVerb::get, numbered_key(page));
    store_->read(work);
    if (work.wrong_bytes > 0) return "wrong bytes were given";
    std::size_t task = 0;
    for (const std::uint64_t page : all) {
      const Cause cause = work.cause(task++);
      if (there.contains(page) && cause != Cause::none) {
        return "page " + std::to_string(page) + " should be there: " + std::string(name_of(cause));
      }
    }
    store_->check_invariants();
    return "";
  }

  std::set<std::uint64_t> stored, durable, pages;

 private:
  std::shared_ptr<PowerLossFiles> files_;
  std::unique_ptr<SegmentStore> store_;
};

// ---- all short histories -----------------------------------------------------------------------------

using History = std::vector<Action>;

// Runs the history with a power cut at step `cut`, and returns the number of steps that it did. Sets `error` to what is
// wrong with the disk content afterwards ("" if nothing is).
std::uint64_t run(const History& history, const Shape& shape, bool second_life, std::uint64_t cut, CutMode mode,
                  std::string& error) {
  const auto files = std::make_shared<PowerLossFiles>(cut);
  std::set<std::uint64_t> pages = {0, 1, 2}, durable;
  if (second_life) {
    Life first(files, shape);
    first.act({{Action::Kind::set, 0}, {Action::Kind::set, 1}});
    files->restart(CutMode::tear_4096);
  }
  files->cut_at(cut);
  std::uint64_t steps = 0;
  {
    Life life(files, shape);
    for (const Action& it : history) {
      if (!files->is_cut()) life.act({it});
    }
    durable = life.durable;
    steps = files->steps();
  }
  files->restart(mode);
  Life after(files, shape);
  error = after.check(pages, durable);
  return steps;
}

std::string text_of_history(const History& history) {
  std::string text;
  for (const Action& it : history) {
    text += it.kind == Action::Kind::sync
                ? "sync "
                : (it.kind == Action::Kind::set ? "set " : "remove ") + std::to_string(it.page) + " ";
  }
  return text;
}

void try_all(const History& history, const Shape& shape, bool second_life, std::uint64_t& runs) {
  std::string error;
  const std::uint64_t steps = run(history, shape, second_life, PowerLossFiles::kNever, CutMode::keep, error);
  for (std::uint64_t cut = 0; cut <= steps; ++cut) {
    for (std::size_t mode = 0; mode < kCutModes; ++mode) {
      run(history, shape, second_life, cut, static_cast<CutMode>(mode), error);
      ++runs;
      if (!error.empty()) {
        FAIL() << error << " after: " << text_of_history(history) << "cut at step " << cut << ", mode " << mode
               << ", capacity " << shape.capacity << ", slots " << shape.slots << ", second life " << second_life;
      }
    }
  }
}

void extend(History& history, std::size_t sets, const Shape& shape, bool second_life, std::uint64_t& runs) {
  constexpr std::size_t kLongest = 4;
  using Kind = Action::Kind;
  if (!history.empty()) try_all(history, shape, second_life, runs);
  if (history.size() == kLongest || testing::Test::HasFailure()) return;
  for (const Action& next : {Action{Kind::set, 0}, Action{Kind::set, 1}, Action{Kind::set, 2}, Action{Kind::remove, 0},
                             Action{Kind::sync, 0}}) {
    if (next.kind == Kind::set && sets == 3) continue;
    history.push_back(next);
    extend(history, sets + (next.kind == Kind::set ? 1 : 0), shape, second_life, runs);
    history.pop_back();
  }
}

TEST(PowerLoss, AfterAnyShortHistoryPagesAreAbsentOrRight) {
  std::uint64_t runs = 0;
  for (const Shape& shape : {Shape{3, 2, 2}, Shape{2, 1, 1}}) {
    for (const bool second_life : {false, true}) {
      History history;
      extend(history, 0, shape, second_life, runs);
    }
  }
  RecordProperty("runs", std::to_string(runs));
  EXPECT_GT(runs, 50'000U);
}

// ---- random histories --------------------------------------------------------------------------------

struct RandomHistory {
  explicit RandomHistory(std::uint64_t seed)
      : rng(mix(seed)),
        files(std::make_shared<PowerLossFiles>(seed)),
        shape{rng.between(3, 8), rng.between(1, 4), static_cast<std::uint32_t>(rng.between(1, 6))} {}

  std::vector<Action> actions() {
    const std::uint64_t pick = rng.below(10);
    if (pick == 0) return {{Action::Kind::sync}};
    const Action::Kind kind = pick < 3 ? Action::Kind::remove : Action::Kind::set;
    std::vector<Action> together;
    for (std::uint64_t i = rng.between(1, 4); i > 0; --i) together.push_back({kind, rng.below(12)});
    return together;
  }
  std::string run() {
    std::uint64_t operations = 50;
    std::set<std::uint64_t> pages;
    while (operations > 0) {
      Life life(files, shape);
      files->cut_at(files->steps() + rng.below(120));
      for (; operations > 0 && !files->is_cut(); --operations) {
        life.act(actions());
        if (rng.chance(4)) break;  // only the process ends here; the power stays on
      }
      pages.insert(life.pages.begin(), life.pages.end());
      const bool power_lost = files->is_cut() || rng.chance(50);
      if (power_lost) {
        ++cuts;
        files->restart(static_cast<CutMode>(rng.below(kCutModes)));
      }
      files->cut_at(PowerLossFiles::kNever);
      Life after(files, shape);
      const std::string error = after.check(pages, power_lost ? life.durable : life.stored);
      if (!error.empty()) return error;
    }
    return "";
  }

  Splitmix rng;
  std::shared_ptr<PowerLossFiles> files;
  Shape shape;
  std::uint64_t cuts = 0;
};

TEST(PowerLoss, AfterRandomHistoriesPagesAreAbsentOrRight) {
  const char* only = std::getenv("KVTWIN_SEED");
  const bool deep = std::getenv("KVTWIN_DEEP") != nullptr;
  const std::uint64_t first = only != nullptr ? std::strtoull(only, nullptr, 10) : 0;
  const std::uint64_t histories = only != nullptr ? 1 : deep ? 100'000 : 3'000;
  std::uint64_t cuts = 0;
  for (std::uint64_t seed = first; seed < first + histories; ++seed) {
    RandomHistory history(seed);
    const std::string error = history.run();
    cuts += history.cuts;
    ASSERT_EQ(error, "") << "KVTWIN_SEED=" << seed << " build/tests/crash_impl --gtest_filter='*Random*'";
  }
  RecordProperty("cuts", std::to_string(cuts));
  EXPECT_GE(cuts, histories / 2);
}

// After a sync that fails, nothing is durable, and the pages that it should have made durable leave the index at once.
TEST(PowerLoss, AFailedSyncLosesWhatItShouldHaveSaved) {
  const auto files = std::make_shared<PowerLossFiles>();
  SegmentStoreConfig config;
  config.capacity_pages = 8;
  config.form = kForm;
  config.segment_bytes = 4 * 8192;
  config.files = files;
  SegmentStore store(config);
  ASSERT_EQ(set_page(store, kForm, 0), Cause::none);
  EXPECT_TRUE(store.sync());
  ASSERT_EQ(set_page(store, kForm, 1), Cause::none);
  files->fault = [](PowerLossFiles::Step step) { return step == PowerLossFiles::Step::sync ? -EIO : 0; };
  EXPECT_FALSE(store.sync());
  EXPECT_EQ(get_page(store, kForm, 0), Cause::none);
  EXPECT_EQ(get_page(store, kForm, 1), Cause::missing);
  EXPECT_EQ(counter(store, "failed_syncs"), 1U);
  EXPECT_EQ(counter(store, "pages_lost"), 1U);
  files->fault = [](PowerLossFiles::Step) { return 0; };
  EXPECT_EQ(set_page(store, kForm, 1), Cause::none);
  EXPECT_TRUE(store.sync());
  store.check_invariants();
}

}  // namespace
}  // namespace kvtwin::test
