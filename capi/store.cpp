#include "kvtwin/store.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "capi/store_setup.hpp"
#include "models/json.hpp"
#include "models/weights.hpp"

namespace kvtwin::capi {

// Versions 1.0, 1.1 and this one, on 64-bit machines.
template <>
constexpr bool has_had_size<kvtwin_store_config>(std::size_t size) {
  return size == 144 || size == 152 || size == sizeof(kvtwin_store_config);
}

namespace {

static_assert(sizeof(kvtwin_key) == sizeof(PageKey));
static_assert(offsetof(kvtwin_store_config, eviction) == 144 && offsetof(kvtwin_store_config, pools) == 152);

PageKey page_key_of(const kvtwin_key& key) {
  PageKey result;
  std::memcpy(result.words.data(), key.bytes, sizeof key.bytes);
  return result;
}

kvtwin_status status_of(Cause cause) {
  switch (cause) {
    case Cause::none: return KVTWIN_OK;
    case Cause::missing:
    case Cause::lease: return KVTWIN_MISSING;
    case Cause::corrupt: return KVTWIN_CORRUPT;
    case Cause::io_error: return KVTWIN_IO_ERROR;
    case Cause::unreachable: return KVTWIN_UNREACHABLE;
    case Cause::full: return KVTWIN_FULL;
  }
  return KVTWIN_FAILED;
}

constexpr std::size_t kStatuses = KVTWIN_FULL + 1;

// ---- pages of one call

// The pages of one put, get or remove.
class PageList final : public PageWork {
 public:
  PageList(const PageForm& form, const PageSeal* seal, const PageKey& space, StorageVerb verb,
           std::span<const kvtwin_key> keys, std::span<std::uint8_t> status)
      : PageWork(form, seal), space_(space), verb_(verb), keys_(keys), status_(status) {
    std::ranges::fill(status_, static_cast<std::uint8_t>(KVTWIN_NO_MEMORY));  // stays if the back end throws
  }
  // Page i has pieces_per_page pieces, from i * pieces_per_page on.
  void set_pieces(void* const* addresses, const std::size_t* lengths, std::size_t pieces_per_page) {
    addresses_ = addresses;
    lengths_ = lengths;
    pieces_per_page_ = pieces_per_page;
  }

  bool next(PageTask& task) override {
    if (begun_ == keys_.size()) return false;
    task = {verb_, space_, page_key_of(keys_[begun_]), begun_};
    ++begun_;
    return true;
  }
  bool pieces(const PageTask& task, Pieces& pieces) override {
    const std::size_t first = static_cast<std::size_t>(task.ticket) * pieces_per_page_;
    for (std::size_t i = first; i < first + pieces_per_page_; ++i) {
      pieces.emplace_back(static_cast<std::byte*>(addresses_[i]), lengths_[i]);
    }
    return true;
  }
  void end(const PageTask& task, Cause cause) override {
    status_[task.ticket] = static_cast<std::uint8_t>(status_of(cause));
  }

 private:
  const PageKey space_;
  const StorageVerb verb_;
  const std::span<const kvtwin_key> keys_;
  const std::span<std::uint8_t> status_;
  std::size_t begun_ = 0, pieces_per_page_ = 0;
  void* const* addresses_ = nullptr;
  const std::size_t* lengths_ = nullptr;
};

void check_pieces(const PageForm& form, std::size_t count, const void* const* addresses, const std::size_t* lengths,
                  std::size_t pieces_per_page) {
  if (addresses == nullptr || lengths == nullptr || pieces_per_page == 0) {
    throw BadArgument("addresses, lengths or pieces_per_page is missing; pass at least one piece for each page");
  }
  if (pieces_per_page > form.bytes()) throw BadArgument("pieces_per_page is larger than the bytes of a page");
  for (std::size_t page = 0; page < count; ++page) {
    Bytes left = form.bytes();
    for (std::size_t i = page * pieces_per_page; i < (page + 1) * pieces_per_page; ++i) {
      if (addresses[i] == nullptr) throw BadArgument("addresses[" + std::to_string(i) + "] is NULL");
      if (lengths[i] > left) left = ~Bytes{0};
      if (left == ~Bytes{0}) break;
      left -= lengths[i];
    }
    if (left != 0) {
      throw BadArgument("the lengths of page " + std::to_string(page) + " do not sum to the " +
                        std::to_string(form.bytes()) + " bytes of a page");
    }
  }
}

// ---- counters

struct CallCounters {
  std::atomic<std::uint64_t> calls = 0, pages = 0, found = 0, nanoseconds = 0;
  std::array<std::atomic<std::uint64_t>, kStatuses> by_status{};

  void add(std::size_t count, std::chrono::steady_clock::time_point begin) {
    const auto time = std::chrono::steady_clock::now() - begin;
    ++calls;
    pages += count;
    nanoseconds += static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
  }
  Json json() const {
    return {{"calls", calls.load()}, {"pages", pages.load()}, {"seconds", static_cast<double>(nanoseconds) * 1e-9}};
  }
  Json json_with_statuses(Bytes page_bytes) const {
    Json result = json();
    result["bytes"] = by_status[KVTWIN_OK] * page_bytes;
    for (std::size_t i = 0; i < kStatuses; ++i) {
      result[kvtwin_status_name(static_cast<int>(i))] = by_status[i].load();
    }
    return result;
  }
};

struct PoolCounters {
  CallCounters gets, puts, removes;

  CallCounters& of(StorageVerb verb) {
    return verb == StorageVerb::get ? gets : verb == StorageVerb::set ? puts : removes;
  }
  // Appends them, and those of the medium. Requires: no call is in progress.
  void add_to(Json& json, const StoredPool& pool) const {
    const Bytes bytes = pool.form.bytes();
    json["gets"] = gets.json_with_statuses(bytes);
    json["puts"] = puts.json_with_statuses(bytes);
    json["removes"] = removes.json_with_statuses(0);
    json["medium"] = Json::object();
    for (const auto& [name, count] : pool.backend->counters()) json["medium"][name] = count;
  }
};

// ---- usable lengths

// Sets `longest` of the needs, and `usable`. Requires: all `pages` are there. Returns `none`, or why a pool could not
// be looked up.
Cause find_usable(const std::deque<StoredPool>& pools, std::span<const PageKey> pages, std::span<kvtwin_need> needs,
                  std::uint8_t* usable) {
  Cause failure = Cause::none;
  std::vector<StorageOperation::Need> all;
  std::vector<std::vector<bool>> there(pools.size());
  for (kvtwin_need& need : needs) {
    StorageOperation::Need one{need.pool, need.trailing, need.from_start != 0};
    if (need.trailing == 0) one = {need.pool, ~Pages{0}, true};
    if (there[need.pool].empty() && !pages.empty()) {
      const StoredPool& pool = pools[need.pool];
      const Cause cause = pool.backend->find(pool.space, pages, there[need.pool]);
      if (cause != Cause::none) failure = cause;
    }
    all.push_back(one);
  }
  const auto has = [&](std::size_t pool, Pages page) { return there[pool][page]; };
  for (std::size_t i = 0; i < needs.size(); ++i) {
    const std::vector<Pages> lengths = usable_lengths(std::span(all).subspan(i, 1), pages.size(), has);
    needs[i].longest = lengths.empty() ? 0 : lengths.back();
  }
  if (usable != nullptr) {
    for (const Pages length : usable_lengths(all, pages.size(), has)) usable[length - 1] = 1;
  }
  return failure;
}

}  // namespace
}  // namespace kvtwin::capi

struct kvtwin_store {
  explicit kvtwin_store(const kvtwin_store_config& config)
      : setup(kvtwin::capi::open_store(config)), counters(setup.pools.size()) {}

  // A child of fork() has copies of this object, of its files and sockets, and none of its threads.
  bool is_forked_copy() const { return getpid() != owner; }

  kvtwin_status run(kvtwin::StorageVerb verb, std::size_t pool, const kvtwin_key* keys, std::size_t count,
                    void* const* addresses, const std::size_t* lengths, std::size_t pieces_per_page,
                    std::uint8_t* status) {
    using namespace kvtwin;
    if (is_forked_copy()) return KVTWIN_FAILED;
    if (pool >= setup.pools.size()) throw capi::BadArgument("the store has no such pool");
    if (count == 0) return KVTWIN_OK;
    if (keys == nullptr || status == nullptr) throw capi::BadArgument("keys or status is NULL");
    const capi::StoredPool& of = setup.pools[pool];
    if (verb != StorageVerb::remove) capi::check_pieces(of.form, count, addresses, lengths, pieces_per_page);
    const auto begin = std::chrono::steady_clock::now();
    capi::PageList pages(of.form, of.backend->seal(), of.space, verb, {keys, count}, {status, count});
    if (verb != StorageVerb::remove) pages.set_pieces(addresses, lengths, pieces_per_page);
    if (verb == StorageVerb::get) {
      const std::lock_guard lock(reading);
      of.backend->read(pages);
    } else {
      const std::lock_guard lock(writing);
      if (verb == StorageVerb::set && setup.disk) setup.disk->make_room(pool, absent(of, {keys, count}));
      of.backend->write(pages);
      if (setup.disk) setup.disk->fit(std::ranges::find(status, status + count, KVTWIN_FULL) != status + count);
    }
    capi::CallCounters& calls = counters[pool].of(verb);
    calls.add(count, begin);
    for (std::size_t i = 0; i < count; ++i) ++calls.by_status.at(status[i]);
    return KVTWIN_OK;
  }

  // Returns how many of the pages are not there.
  static kvtwin::Pages absent(const kvtwin::capi::StoredPool& of, std::span<const kvtwin_key> keys) {
    std::vector<kvtwin::PageKey> names;
    for (const kvtwin_key& key : keys) names.push_back(kvtwin::capi::page_key_of(key));
    std::vector<bool> there;
    of.backend->find(of.space, names, there);
    return static_cast<kvtwin::Pages>(std::ranges::count(there, false));
  }

  // Looks up the pages, and with needs the lengths that are usable. `usable`: one byte for each key, or null.
  kvtwin_status look_up(std::span<const kvtwin_key> keys, std::span<kvtwin_need> needs, std::uint8_t* usable,
                        std::size_t& pages) {
    using namespace kvtwin;
    pages = 0;
    if (usable != nullptr) std::fill_n(usable, keys.size(), std::uint8_t{0});
    if (is_forked_copy()) return KVTWIN_FAILED;
    if (keys.empty()) return KVTWIN_OK;
    const auto begin = std::chrono::steady_clock::now();
    std::vector<PageKey> names(keys.size());
    std::ranges::transform(keys, names.begin(), capi::page_key_of);
    LookedUp found;
    Cause failure = Cause::none;
    {
      const std::lock_guard lock(looking);
      found = setup.pools[0].backend->look_up(setup.pools[0].space, names);
      names.resize(found.pages);
      failure = capi::find_usable(setup.pools, names, needs, usable);
    }
    pages = found.pages;
    looks.add(keys.size(), begin);
    looks.found += found.pages;
    if (found.cause != Cause::none && found.cause != Cause::missing) failure = found.cause;
    return failure == Cause::none ? KVTWIN_OK : capi::status_of(failure);
  }

  const pid_t owner = getpid();
  kvtwin::capi::StoreSetup setup;
  std::mutex looking, reading, writing;
  kvtwin::capi::CallCounters looks;
  std::deque<kvtwin::capi::PoolCounters> counters;  // by pool
};

using kvtwin::capi::guarded;

extern "C" {

kvtwin_status kvtwin_weights_fingerprint(const char* checkpoint, char* text, size_t size, kvtwin_error error) {
  return guarded(error, [&] {
    using kvtwin::capi::BadArgument;
    const std::string place = kvtwin::capi::required_text(checkpoint, "checkpoint", "\"/models/llama-3.1-8b\"");
    const std::optional<std::string> name = kvtwin::weights_fingerprint(place);
    if (!name) throw BadArgument(place + " has no weights; give the folder of a checkpoint, with *.safetensors files");
    if (text == nullptr || size <= name->size()) {
      throw BadArgument("text has no room for the fingerprint; give " + std::to_string(name->size() + 1) + " bytes");
    }
    kvtwin::capi::write_text(*name, text, size);
    return KVTWIN_OK;
  });
}

kvtwin_status kvtwin_store_open(const kvtwin_store_config* config, kvtwin_store** store, kvtwin_error error) {
  return guarded(error, [&] {
    if (store == nullptr) throw kvtwin::capi::BadArgument("store is NULL; pass the address of a pointer");
    *store = nullptr;
    *store = new kvtwin_store(kvtwin::capi::sized_copy(config, "config"));
    return KVTWIN_OK;
  });
}

void kvtwin_store_close(kvtwin_store* store) {
  if (store == nullptr || store->is_forked_copy()) return;
  guarded({}, [&] {
    for (const auto& pool : store->setup.pools) pool.backend->finish();
    return KVTWIN_OK;
  });
  delete store;
}

uint64_t kvtwin_store_page_bytes(const kvtwin_store* store) { return kvtwin_store_object_bytes(store, 0); }

uint64_t kvtwin_store_object_bytes(const kvtwin_store* store, size_t pool) {
  return store == nullptr || pool >= store->setup.pools.size() ? 0 : store->setup.pools[pool].form.bytes();
}

kvtwin_status kvtwin_store_look_up(kvtwin_store* store, const kvtwin_key* keys, size_t count, size_t* pages) {
  return guarded({}, [&] {
    if (store == nullptr || pages == nullptr || (keys == nullptr && count > 0)) return KVTWIN_BAD_ARGUMENT;
    return store->look_up({keys, count}, {}, nullptr, *pages);
  });
}

kvtwin_status kvtwin_store_look_up_usable(kvtwin_store* store, const kvtwin_key* keys, size_t count, kvtwin_need* needs,
                                          size_t need_count, uint8_t* usable, size_t* pages) {
  return guarded({}, [&] {
    using namespace kvtwin::capi;
    if (store == nullptr || pages == nullptr || (keys == nullptr && count > 0) || (usable == nullptr && count > 0) ||
        (needs == nullptr && need_count > 0)) {
      return KVTWIN_BAD_ARGUMENT;
    }
    *pages = 0;
    std::vector<kvtwin_need> list;
    for (std::size_t i = 0; i < need_count; ++i) {
      list.push_back(sized_element(needs, i, "needs[0]"));
      list.back().longest = 0;
      if (list.back().pool == 0 || list.back().pool >= store->setup.pools.size()) {
        throw BadArgument("a need names no pool of the store");
      }
    }
    const kvtwin_status status = store->look_up({keys, count}, list, usable, *pages);
    for (std::size_t i = 0; i < need_count; ++i) element_of(needs, i)->longest = list[i].longest;
    return status;
  });
}

kvtwin_status kvtwin_store_put_objects(kvtwin_store* store, size_t pool, const kvtwin_key* keys, size_t count,
                                       const void* const* addresses, const size_t* lengths, size_t pieces_per_object,
                                       uint8_t* status) {
  return guarded({}, [&] {
    if (store == nullptr) return KVTWIN_BAD_ARGUMENT;
    // A put only reads the memory.
    return store->run(kvtwin::StorageVerb::set, pool, keys, count, const_cast<void* const*>(addresses), lengths,
                      pieces_per_object, status);
  });
}

kvtwin_status kvtwin_store_get_objects(kvtwin_store* store, size_t pool, const kvtwin_key* keys, size_t count,
                                       void* const* addresses, const size_t* lengths, size_t pieces_per_object,
                                       uint8_t* status) {
  return guarded({}, [&] {
    if (store == nullptr) return KVTWIN_BAD_ARGUMENT;
    return store->run(kvtwin::StorageVerb::get, pool, keys, count, addresses, lengths, pieces_per_object, status);
  });
}

kvtwin_status kvtwin_store_remove_objects(kvtwin_store* store, size_t pool, const kvtwin_key* keys, size_t count,
                                          uint8_t* status) {
  return guarded({}, [&] {
    if (store == nullptr) return KVTWIN_BAD_ARGUMENT;
    return store->run(kvtwin::StorageVerb::remove, pool, keys, count, nullptr, nullptr, 0, status);
  });
}

kvtwin_status kvtwin_store_put(kvtwin_store* store, const kvtwin_key* keys, size_t count, const void* const* addresses,
                               const size_t* lengths, size_t pieces_per_page, uint8_t* status) {
  return kvtwin_store_put_objects(store, 0, keys, count, addresses, lengths, pieces_per_page, status);
}

kvtwin_status kvtwin_store_get(kvtwin_store* store, const kvtwin_key* keys, size_t count, void* const* addresses,
                               const size_t* lengths, size_t pieces_per_page, uint8_t* status) {
  return kvtwin_store_get_objects(store, 0, keys, count, addresses, lengths, pieces_per_page, status);
}

kvtwin_status kvtwin_store_remove(kvtwin_store* store, const kvtwin_key* keys, size_t count, uint8_t* status) {
  return kvtwin_store_remove_objects(store, 0, keys, count, status);
}

kvtwin_status kvtwin_store_stats(kvtwin_store* store, char* text, size_t size, size_t* needed) {
  return guarded({}, [&] {
    using kvtwin::Json;
    if (store == nullptr || needed == nullptr || (text == nullptr && size > 0)) return KVTWIN_BAD_ARGUMENT;
    if (store->is_forked_copy()) return KVTWIN_FAILED;
    const auto& pools = store->setup.pools;
    Json stats{{"kind", store->setup.kind}, {"look_ups", store->looks.json()}};
    stats["look_ups"]["found"] = store->looks.found.load();
    {
      const std::scoped_lock no_calls(store->looking, store->reading, store->writing);
      store->counters[0].add_to(stats, pools[0]);
      for (std::size_t pool = 1; pool < pools.size(); ++pool) {
        Json one{{"name", pools[pool].name}, {"object_bytes", pools[pool].form.bytes()}};
        store->counters[pool].add_to(one, pools[pool]);
        stats["pools"].push_back(std::move(one));
      }
    }
    const std::string line = stats.dump();
    *needed = line.size() + 1;
    kvtwin::capi::write_text(line, text, size);
    return KVTWIN_OK;
  });
}

}  // extern "C"
