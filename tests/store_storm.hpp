// A storm over a store that lives on a disk: rounds of random puts, removes and gets in a child process, which is
// killed (SIGKILL) or ends regularly; then damage to the files; then the next round. An oracle knows for each page
// which versions may be read. It checks each page that the child reads:
//   never any other bytes than a version that was put under this key
//   in a run, and after a regular end: no version that was removed, or that a read has shown to be gone
//   after a kill: at most a version since the last regular end (Storm::returns_after_a_kill), or the present one
// A miss is always allowed, because damage and evictions cause misses. Storm::hits counts the pages that were read.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "tests/folder.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

// The store under test. A page is numbered; the numbers of a store's pages are `first` to `first + count - 1`, so that
// several stores (namespaces, forms) of one folder have pages of their own.
class StormStore {
 public:
  enum class End : std::uint8_t { ok, absent, other };  // absent: the page is now a miss
  virtual ~StormStore() = default;                      // without a regular end
  // Puts or gets pages of page_bytes() bytes each, one after another in `bytes`.
  virtual std::vector<End> put(std::span<const std::uint32_t> pages, std::span<const unsigned char> bytes) = 0;
  virtual std::vector<End> get(std::span<const std::uint32_t> pages, std::span<unsigned char> bytes) = 0;
  virtual std::vector<End> remove(std::span<const std::uint32_t> pages) = 0;
  virtual std::size_t page_bytes() const = 0;
  virtual void finish() = 0;
};

struct StormTerms {
  std::uint32_t pages = 48;           // of each store
  std::uint32_t stores = 1;           // that open the folder in turn
  bool returns_after_a_kill = false;  // what was removed since the last regular end may be found again after a kill
  bool checks_bytes = true;           // false: flipped bytes are not detected, so that files are cut and removed only
  std::function<std::unique_ptr<StormStore>(const std::string& folder, std::uint32_t store, Splitmix& rng)> open;
};

class Storm {
 public:
  explicit Storm(StormTerms terms, std::uint64_t seed = 1) : terms_(std::move(terms)), rng_(seed) {}

  void run(std::uint64_t rounds) {
    for (std::uint64_t round = 0; round < rounds && !testing::Test::HasFailure(); ++round) {
      SCOPED_TRACE("round " + std::to_string(round));
      run_child(round);
      if (rng_.chance(60)) damage();
    }
  }
  std::uint64_t hits = 0, kills = 0, regular_ends = 0, damages = 0, older = 0;

 private:
  enum class What : std::uint32_t { put_begins, put_ends, removed, got };
  struct Event {
    What what{};
    std::uint32_t page = 0;
    std::uint32_t version = 0;  // 0: other bytes than were ever put
    StormStore::End end{};
  };
  struct Page {
    std::set<std::uint32_t> now;        // versions that a get may give
    std::set<std::uint32_t> since_end;  // versions that may be in the files since the last regular end
    std::set<std::uint32_t> writing;
  };

  // ---- the child

  static void fill(std::uint32_t page, std::uint32_t version, std::span<unsigned char> bytes) {
    for (std::size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const std::uint64_t word = i == 0 ? version : mix((std::uint64_t{page} << 32 | version) + i);
      std::memcpy(bytes.data() + i, &word, 8);
    }
  }
  static std::uint32_t version_in(std::uint32_t page, std::span<const unsigned char> bytes) {
    std::uint64_t version = 0;
    std::memcpy(&version, bytes.data(), 8);
    std::vector<unsigned char> right(bytes.size());
    fill(page, static_cast<std::uint32_t>(version), right);
    return std::memcmp(right.data(), bytes.data(), bytes.size()) == 0 ? static_cast<std::uint32_t>(version) : 0;
  }

  struct Child {
    int pipe;
    StormStore& store;
    std::vector<std::uint32_t> pages{};
    std::vector<unsigned char> bytes{};

    void tell(const Event& event) const {
      if (write(pipe, &event, sizeof event) != sizeof event) _exit(3);
    }
    std::span<unsigned char> page(std::size_t i) {
      return std::span(bytes).subspan(i * store.page_bytes(), store.page_bytes());
    }
    void put(std::uint32_t& version) {
      for (std::size_t i = 0; i < pages.size(); ++i) {
        fill(pages[i], version + static_cast<std::uint32_t>(i), page(i));
        tell({What::put_begins, pages[i], version + static_cast<std::uint32_t>(i), {}});
      }
      const std::vector<StormStore::End> ends = store.put(pages, bytes);
      for (std::size_t i = 0; i < pages.size(); ++i) tell({What::put_ends, pages[i], version++, ends[i]});
    }
    void get() {
      const std::vector<StormStore::End> ends = store.get(pages, bytes);
      for (std::size_t i = 0; i < pages.size(); ++i) {
        const bool ok = ends[i] == StormStore::End::ok;
        tell({What::got, pages[i], ok ? version_in(pages[i], page(i)) : 0, ends[i]});
      }
    }
    void remove() {
      const std::vector<StormStore::End> ends = store.remove(pages);
      for (std::size_t i = 0; i < pages.size(); ++i) tell({What::removed, pages[i], 0, ends[i]});
    }
  };

  // Calls the store until the process is killed, or `calls` times. Begins with a get of each page.
  [[noreturn]] void be_the_child(std::uint32_t which, std::uint64_t seed, std::uint64_t calls, std::uint32_t version,
                                 int pipe) {
    Splitmix rng(seed);
    const std::unique_ptr<StormStore> store = terms_.open(folder_ / "store", which, rng);
    if (!store) _exit(2);
    Child child{pipe, *store};
    const std::uint32_t first = which * terms_.pages;
    for (std::uint64_t call = 0; call < calls; ++call) {
      const std::size_t count = call == 0 ? terms_.pages : rng.between(1, 6);
      std::set<std::uint32_t> drawn;
      while (drawn.size() < count) {
        drawn.insert(first + static_cast<std::uint32_t>(call == 0 ? drawn.size() : rng.below(terms_.pages)));
      }
      child.pages.assign(drawn.begin(), drawn.end());
      child.bytes.resize(count * store->page_bytes());
      const std::uint64_t draw = call == 0 ? 99 : rng.below(100);
      if (draw < 50) {
        child.put(version);
      } else if (draw < 75) {
        child.remove();
      } else {
        child.get();
      }
    }
    store->finish();
    _exit(0);
  }

  // ---- the parent

  void run_child(std::uint64_t round) {
    const bool killed = rng_.chance(50);
    const auto store = static_cast<std::uint32_t>(rng_.below(terms_.stores));
    const std::uint64_t seed = rng_.next(), events = rng_.between(1, 600), calls = rng_.between(1, 80);
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(ends[0]);
      be_the_child(store, seed, killed ? 1'000'000 : calls, static_cast<std::uint32_t>(1 + round * 10'000), ends[1]);
    }
    close(ends[1]);
    std::uint64_t told = 0;
    for (Event event; read(ends[0], &event, sizeof event) == sizeof event;) {
      handle(event);
      if (killed && ++told == events) kill(child, SIGKILL);
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (killed) {
      ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "status " << status;
    } else {
      ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    }
    for (auto& [number, page] : pages_) {
      if (number / terms_.pages != store) continue;
      if (!killed) {
        page.since_end = page.now;
      } else if (terms_.returns_after_a_kill) {
        page.now = page.since_end;
      } else {
        page.now.merge(page.writing);
      }
      page.writing.clear();
    }
    ++(killed ? kills : regular_ends);
  }

  void handle(const Event& event) {
    Page& page = pages_[event.page];
    const auto number = [&] {
      return "page " + std::to_string(event.page) + ", version " + std::to_string(event.version);
    };
    switch (event.what) {
      case What::put_begins:
        page.since_end.insert(event.version);
        page.writing.insert(event.version);
        break;
      case What::put_ends:
        page.writing.erase(event.version);
        if (event.end == StormStore::End::ok) page.now.insert(event.version);
        break;
      case What::removed:
        if (event.end == StormStore::End::ok) page.now.clear();
        break;
      case What::got:
        if (event.end == StormStore::End::other) break;
        if (event.end == StormStore::End::ok) {
          ++hits;
          older += !page.now.empty() && event.version < *page.now.rbegin();
          if (event.version == 0) ADD_FAILURE() << "wrong bytes of page " << event.page;
          if (!page.now.contains(event.version)) ADD_FAILURE() << number() << " was removed or overwritten";
          page.now = {event.version};
        } else {
          page.now.clear();
        }
        break;
    }
  }

  // ---- damage

  void damage() {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_ / "store")) {
      const std::string name = entry.path().filename().string();
      // The mark, the lock and the list of a folder say what the folder is; without them, the store refuses it.
      const bool facts = name.starts_with(".kvtwin") || name == std::string(16, '0');
      if (entry.is_regular_file() && entry.file_size() > 0 && !facts) files.push_back(entry.path());
    }
    std::ranges::sort(files);
    if (files.empty()) return;
    for (std::uint64_t i = rng_.between(1, 4); i > 0; --i) {
      ++damages;
      const fs::path& file = files[rng_.below(files.size())];
      if (!fs::exists(file)) continue;
      switch (terms_.checks_bytes ? rng_.below(6) : 4 + rng_.below(2)) {
        case 0:
        case 1: overwrite(file, 1); break;                                                        // flips a byte
        case 2: overwrite(file, 512 * rng_.between(1, 16)); break;                                // a torn write
        case 3: overwrite(file, 4096, 4096 * rng_.below(1 + fs::file_size(file) / 4096)); break;  // a lost block
        case 4: fs::resize_file(file, rng_.below(fs::file_size(file) + 1)); break;
        default: fs::remove(file);
      }
    }
  }
  void overwrite(const fs::path& file, std::uint64_t bytes, std::optional<std::uint64_t> place = {}) {
    const std::uint64_t size = fs::file_size(file);
    if (size == 0) return;
    const std::uint64_t at = place.value_or(rng_.below(size));
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    for (std::uint64_t i = at; i < std::min(size, at + bytes); ++i) {
      stream.seekg(static_cast<std::streamoff>(i));
      const int byte = stream.get();
      stream.seekp(static_cast<std::streamoff>(i));
      stream.put(static_cast<char>(bytes == 4096 ? 0 : byte ^ static_cast<int>(rng_.between(1, 255))));
    }
  }

  const StormTerms terms_;
  Splitmix rng_;
  const Folder folder_;
  std::map<std::uint32_t, Page> pages_;
};

// 12 rounds, or 200 with KVTWIN_DEEP=1. KVTWIN_SEED=n draws other ones.
inline void expect_storm_to_pass(const StormTerms& terms) {
  const char* seed = std::getenv("KVTWIN_SEED");
  const std::uint64_t rounds = std::getenv("KVTWIN_DEEP") != nullptr ? 200 : 12;
  Storm storm(terms, seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10));
  storm.run(rounds);
  testing::Test::RecordProperty("hits", std::to_string(storm.hits));
  std::printf("%llu kills, %llu ends, %llu damages, %llu pages read, %llu of them not the last version\n",
              static_cast<unsigned long long>(storm.kills), static_cast<unsigned long long>(storm.regular_ends),
              static_cast<unsigned long long>(storm.damages), static_cast<unsigned long long>(storm.hits),
              static_cast<unsigned long long>(storm.older));
  EXPECT_GT(storm.hits, rounds);
  EXPECT_GT(storm.kills, 0U);
  EXPECT_GT(storm.regular_ends, 0U);
}

}  // namespace kvtwin::test
