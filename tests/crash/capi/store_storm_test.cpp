// kill -9, restarts and damage, 200 times, over each store of the C interface that lives on a disk. See
// store_storm.hpp.
#include "tests/store_storm.hpp"

#include "kvtwin/store.h"

namespace kvtwin::test {
namespace {

class CStore final : public StormStore {
 public:
  explicit CStore(kvtwin_store* store) : store_(store) {}

  std::vector<End> put(std::span<const std::uint32_t> pages, std::span<const unsigned char> bytes) override {
    return call(pages, const_cast<unsigned char*>(bytes.data()),
                [](auto... arguments) { return kvtwin_store_put(arguments...); });
  }
  std::vector<End> get(std::span<const std::uint32_t> pages, std::span<unsigned char> bytes) override {
    return call(pages, bytes.data(), [](auto... arguments) { return kvtwin_store_get(arguments...); });
  }
  std::vector<End> remove(std::span<const std::uint32_t> pages) override {
    return call(pages, nullptr, [](auto* store, auto* keys, auto count, auto, auto, auto, auto* status) {
      return kvtwin_store_remove(store, keys, count, status);
    });
  }
  std::size_t page_bytes() const override { return kvtwin_store_page_bytes(store_); }
  void finish() override { kvtwin_store_close(std::exchange(store_, nullptr)); }

 private:
  template <typename Call>
  std::vector<End> call(std::span<const std::uint32_t> pages, unsigned char* bytes, Call call) {
    std::vector<kvtwin_key> keys(pages.size());
    std::vector<void*> addresses(pages.size());
    const std::vector<std::size_t> lengths(pages.size(), page_bytes());
    std::vector<std::uint8_t> statuses(pages.size(), 255);
    for (std::size_t i = 0; i < pages.size(); ++i) {
      const std::uint64_t word = mix(pages[i]);
      std::memcpy(keys[i].bytes, &word, sizeof word);
      addresses[i] = bytes + i * page_bytes();
    }
    if (call(store_, keys.data(), keys.size(), addresses.data(), lengths.data(), std::size_t{1}, statuses.data()) !=
        KVTWIN_OK) {
      _exit(4);
    }
    std::vector<End> ends;
    for (const std::uint8_t status : statuses) {
      const bool absent = status == KVTWIN_MISSING || status == KVTWIN_CORRUPT;
      ends.push_back(status == KVTWIN_OK ? End::ok : absent ? End::absent : End::other);
    }
    return ends;
  }

  kvtwin_store* store_;
};

// Stores of one folder: two namespaces of a form, and another form.
std::unique_ptr<StormStore> open_store(const char* kind, const std::string& folder, std::uint32_t store,
                                       Splitmix& rng) {
  kvtwin_store_config config{};
  config.struct_size = sizeof config;
  config.kind = kind;
  config.location = folder.c_str();
  config.form = {sizeof config.form, store == 2 ? 3U : 2U, 2, 1, 64, 8, "page_first"};
  config.identity = {sizeof config.identity, "storm", "1", "bfloat16", 1, 1, 0, store == 1 ? "other" : nullptr};
  config.capacity_pages = rng.chance(50) ? 32 : rng.chance(50) ? 16 : 100;
  kvtwin_store* opened = nullptr;
  char text[512] = "";
  if (kvtwin_store_open(&config, &opened, {text, sizeof text}) == KVTWIN_OK) return std::make_unique<CStore>(opened);
  std::fprintf(stderr, "%s\n", text);
  return nullptr;
}

StormTerms terms_of(const char* kind, bool returns_after_a_kill) {
  StormTerms terms;
  terms.stores = 3;
  terms.returns_after_a_kill = returns_after_a_kill;
  terms.open = [kind](const std::string& folder, std::uint32_t store, Splitmix& rng) {
    return open_store(kind, folder, store, rng);
  };
  return terms;
}

TEST(StoreStorm, disk) { expect_storm_to_pass(terms_of("disk", true)); }
TEST(StoreStorm, shared_fs) { expect_storm_to_pass(terms_of("shared_fs", false)); }

}  // namespace
}  // namespace kvtwin::test
