// kvtwin._core.Store: a store of KV pages (include/kvtwin/store.h). python/kvtwin/store.py is its public face.
#include "kvtwin/store.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "python/src/parts.hpp"
#include "python/src/transfers.hpp"

namespace nb = nanobind;

namespace kvtwin::python {
namespace {

static_assert(sizeof(std::size_t) == sizeof(std::uint64_t) && sizeof(void*) == sizeof(std::uint64_t));
using Numbers = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Counts the calls in progress. After close() no call begins, and close() returns when the last one has ended.
class CallGate {
 public:
  // Returns false if the store is closing or closed.
  bool enter() {
    const std::lock_guard lock(mutex_);
    if (closing_) return false;
    ++calls_;
    return true;
  }
  void leave() {
    const std::lock_guard lock(mutex_);
    if (--calls_ == 0) idle_.notify_all();
  }
  // Returns true to the first caller only. All callers wait for the calls in progress.
  bool close() {
    std::unique_lock lock(mutex_);
    const bool first = !std::exchange(closing_, true);
    idle_.wait(lock, [this] { return calls_ == 0; });
    return first;
  }
  bool closing() {
    const std::lock_guard lock(mutex_);
    return closing_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable idle_;
  std::uint64_t calls_ = 0;
  bool closing_ = false;
};

// Calls run without the GIL, inside the gate.
class Store {
  struct Leave {
    CallGate& gate;
    ~Leave() { gate.leave(); }
  };

  // Returns what `call` returns; without the GIL.
  template <class Call>
  auto call(Call call) {
    if (getpid() != owner_) {
      raise("WorkError", "the store was opened before fork(); open a store of its own in the child process");
    }
    if (!gate_.enter()) raise("InputError", "the store is closed; open it again");
    const nb::gil_scoped_release unlocked;
    const Leave leave{gate_};
    return call(store_);
  }

 public:
  Store(const kvtwin_store_config& config, std::size_t pools) : pools_(pools) {
    std::string sentence(1024, '\0');
    kvtwin_status status = KVTWIN_OK;
    {
      const nb::gil_scoped_release unlocked;
      status = kvtwin_store_open(&config, &store_, {sentence.data(), sentence.size()});
    }
    sentence.resize(sentence.find('\0'));
    if (status == KVTWIN_NO_MEMORY) throw std::bad_alloc();
    if (status != KVTWIN_OK) raise(status == KVTWIN_BAD_ARGUMENT ? "InputError" : "WorkError", sentence);
  }
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  ~Store() {
    close();
    if (getpid() == owner_) return;
    for (auto& thread : transfers_) static_cast<void>(thread.release());  // it is not in this process
  }

  // After fork(), the threads of the store are not in the child: the child must neither use nor close it.
  void close() {
    if (getpid() != owner_) return;
    const nb::gil_scoped_release unlocked;
    const bool first = gate_.close();
    for (const auto& thread : transfers_) thread->stop();  // what waits fails at the gate
    if (first) kvtwin_store_close(store_);
  }
  bool closed() { return gate_.closing(); }

  std::uint64_t object_bytes(std::size_t pool) {
    return call([pool](kvtwin_store* store) { return kvtwin_store_object_bytes(store, pool); });
  }
  // Returns the status, and the number of leading pages that are certainly there.
  std::pair<int, std::size_t> look_up(const nb::bytes& keys) {
    std::size_t pages = 0;
    const std::span<const kvtwin_key> names = keys_of(keys);
    const kvtwin_status status =
        call([&](kvtwin_store* store) { return kvtwin_store_look_up(store, names.data(), names.size(), &pages); });
    return {status, pages};
  }
  // `needs`: (pool, trailing, from_start). Returns the status, the number of leading pages, a byte for each key that
  // says whether the prefix up to it is usable, and the longest prefix that meets each need.
  nb::tuple look_up_usable(const nb::bytes& keys,
                           const std::vector<std::tuple<std::uint32_t, std::uint64_t, bool>>& needs) {
    const std::span<const kvtwin_key> names = keys_of(keys);
    std::vector<kvtwin_need> list;
    for (const auto& [pool, trailing, from_start] : needs) {
      list.push_back({sizeof(kvtwin_need), pool, trailing, from_start ? 1U : 0U, 0});
    }
    std::size_t pages = 0;
    std::vector<std::uint8_t> usable(names.size());
    const kvtwin_status status = call([&](kvtwin_store* store) {
      return kvtwin_store_look_up_usable(store, names.data(), names.size(), list.data(), list.size(), usable.data(),
                                         &pages);
    });
    if (status == KVTWIN_NO_MEMORY) throw std::bad_alloc();
    nb::list longest;
    for (const kvtwin_need& need : list) longest.append(need.longest);
    return nb::make_tuple(static_cast<int>(status), pages, nb::bytes(usable.data(), usable.size()), longest);
  }
  // Returns one status per page.
  nb::bytes put(std::size_t pool, const nb::bytes& keys, const Numbers& addresses, const Numbers& lengths) {
    return move(pool, keys, addresses, lengths,
                [](auto... arguments) { return kvtwin_store_put_objects(arguments...); });
  }
  nb::bytes get(std::size_t pool, const nb::bytes& keys, const Numbers& addresses, const Numbers& lengths) {
    return move(pool, keys, addresses, lengths,
                [](auto... arguments) { return kvtwin_store_get_objects(arguments...); });
  }
  // Starts a put (`verb` 0) or a get (1), which ended() returns later. `memory` must stay valid until then.
  void start(int verb, std::size_t pool, std::uint64_t job, const nb::bytes& keys, const Numbers& addresses,
             const Numbers& lengths) {
    if (getpid() != owner_) {
      raise("WorkError", "the store was opened before fork(); open a store of its own in the child process");
    }
    const std::span<const kvtwin_key> names = keys_of(keys);
    Transfer transfer{job,
                      pool,
                      {names.begin(), names.end()},
                      memory_of(names.size(), addresses, lengths),
                      {lengths.data(), lengths.data() + lengths.size()}};
    if (gate_.closing() || !transfers_[static_cast<std::size_t>(verb)]->add(std::move(transfer))) {
      raise("InputError", "the store is closed; open it again");
    }
  }
  // Returns (job, statuses or None, seconds) of the transfers that have ended since the last call.
  nb::list ended() {
    std::vector<EndedTransfer> ended;
    for (const auto& thread : transfers_) thread->take_ended(ended);
    nb::list result;
    for (const EndedTransfer& one : ended) {
      nb::object pages = nb::none();
      if (!one.failed) pages = nb::bytes(one.pages.data(), one.pages.size());
      result.append(nb::make_tuple(one.job, pages, one.seconds));
    }
    return result;
  }
  void wait() {
    if (getpid() != owner_) return;
    const nb::gil_scoped_release unlocked;
    for (const auto& thread : transfers_) thread->wait();
  }
  nb::bytes remove(std::size_t pool, const nb::bytes& keys) {
    const std::span<const kvtwin_key> names = keys_of(keys);
    std::vector<std::uint8_t> status(names.size());
    check(call([&](kvtwin_store* store) {
      return kvtwin_store_remove_objects(store, pool, names.data(), names.size(), status.data());
    }));
    return nb::bytes(status.data(), status.size());
  }
  std::string stats() {
    std::string text(1 << 12, '\0');
    std::size_t needed = 0;
    for (;;) {
      check(call([&](kvtwin_store* store) { return kvtwin_store_stats(store, text.data(), text.size(), &needed); }));
      if (needed <= text.size()) break;
      text.resize(needed);
    }
    text.resize(needed - 1);
    return text;
  }

 private:
  // Requires the GIL. Valid as long as `keys`.
  static std::span<const kvtwin_key> keys_of(const nb::bytes& keys) {
    return {static_cast<const kvtwin_key*>(static_cast<const void*>(keys.data())), keys.size() / sizeof(kvtwin_key)};
  }

  void check(kvtwin_status status) {
    if (status == KVTWIN_OK) return;
    if (status == KVTWIN_NO_MEMORY) throw std::bad_alloc();
    if (status == KVTWIN_BAD_ARGUMENT) {
      std::string sizes = std::to_string(object_bytes(0)) + " bytes of a page";
      for (std::size_t pool = 1; pool <= pools_; ++pool) sizes += ", " + std::to_string(object_bytes(pool));
      raise("InputError", "the pieces of a page are wrong: their lengths must sum to the " + sizes +
                              (pools_ == 0 ? "" : " of an object of the pools") + ", and no address may be 0");
    }
    raise("WorkError", std::string("the store could not do the call: ") + kvtwin_status_name(status));
  }

  // Returns the addresses of the pieces of `pages` pages.
  static std::vector<void*> memory_of(std::size_t pages, const Numbers& addresses, const Numbers& lengths) {
    if (addresses.size() != lengths.size() || (pages > 0 && addresses.size() % pages != 0) ||
        (addresses.size() == 0) != (pages == 0)) {
      raise("InputError", std::to_string(addresses.size()) + " addresses and " + std::to_string(lengths.size()) +
                              " lengths for " + std::to_string(pages) +
                              " keys; give the same number of pieces, at least one, for each key");
    }
    std::vector<void*> memory(addresses.size());
    for (std::size_t i = 0; i < memory.size(); ++i) {
      memory[i] = reinterpret_cast<void*>(addresses.data()[i]);  // NOLINT(performance-no-int-to-ptr): of the caller
    }
    return memory;
  }

  template <class Move>
  nb::bytes move(std::size_t pool, const nb::bytes& keys, const Numbers& addresses, const Numbers& lengths, Move move) {
    const std::span<const kvtwin_key> names = keys_of(keys);
    std::vector<std::uint8_t> status(names.size());
    if (names.empty()) return nb::bytes(status.data(), 0);
    const std::vector<void*> memory = memory_of(names.size(), addresses, lengths);
    check(call([&](kvtwin_store* store) {
      return move(store, pool, names.data(), names.size(), memory.data(), lengths.data(), memory.size() / names.size(),
                  status.data());
    }));
    return nb::bytes(status.data(), status.size());
  }

  // Of the threads of transfers: without Python.
  template <class Move>
  EndedTransfer run(const Transfer& transfer, Move move) {
    EndedTransfer ended{transfer.job, false, std::vector<std::uint8_t>(transfer.keys.size()), 0};
    if (transfer.keys.empty()) return ended;
    if (!gate_.enter()) {
      ended.failed = true;
      return ended;
    }
    const Leave leave{gate_};
    const auto begin = std::chrono::steady_clock::now();
    const kvtwin_status status =
        move(store_, transfer.pool, transfer.keys.data(), transfer.keys.size(), transfer.memory.data(),
             transfer.lengths.data(), transfer.memory.size() / transfer.keys.size(), ended.pages.data());
    ended.failed = status != KVTWIN_OK;
    ended.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return ended;
  }
  template <class Move>
  std::unique_ptr<TransferThread> thread_of(Move move) {
    return std::make_unique<TransferThread>([this, move](const Transfer& transfer) { return run(transfer, move); });
  }

  const std::size_t pools_;  // beside the pages
  const pid_t owner_ = getpid();
  kvtwin_store* store_ = nullptr;
  CallGate gate_;
  // Of puts and of gets, which do not wait for each other.
  std::array<std::unique_ptr<TransferThread>, 2> transfers_{
      thread_of([](auto... arguments) { return kvtwin_store_put_objects(arguments...); }),
      thread_of([](auto... arguments) { return kvtwin_store_get_objects(arguments...); })};
};

const char* text_or_null(const std::optional<std::string>& text, const char* name) {
  return text ? c_text(*text, name) : nullptr;
}

}  // namespace

// Name; layers, planes, heads, head_bytes, page_tokens, layout; object_bytes; identity.
using FormArguments =
    std::tuple<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::string>;
using PoolArguments = std::tuple<std::string, std::optional<FormArguments>, std::uint64_t, std::string>;

void add_store(nb::module_& module) {
  nb::class_<Store>(module, "Store")
      .def(
          "__init__",
          [](Store* store, const std::string& kind, const std::string& location, std::uint32_t layers,
             std::uint32_t planes, std::uint32_t heads, std::uint32_t head_bytes, std::uint32_t page_tokens,
             const std::string& layout, const std::string& model, const std::string& revision,
             const std::string& kv_dtype, std::uint32_t tp, std::uint32_t pp, std::uint32_t rank,
             const std::string& name_space, std::uint64_t capacity_pages, const std::optional<std::string>& secret,
             const std::optional<std::string>& password, std::uint32_t timeout_ms,
             const std::optional<std::string>& eviction, const std::vector<PoolArguments>& pools,
             std::uint64_t capacity_bytes) {
            kvtwin_store_config config{};
            config.struct_size = sizeof config;
            config.kind = c_text(kind, "kind");
            config.location = c_text(location, "location");
            config.form = {sizeof config.form,      layers, planes, heads, head_bytes, page_tokens,
                           c_text(layout, "layout")};
            config.identity = {sizeof config.identity,
                               c_text(model, "model"),
                               c_text(revision, "revision"),
                               c_text(kv_dtype, "kv_dtype"),
                               tp,
                               pp,
                               rank,
                               c_text(name_space, "name_space")};
            config.capacity_pages = capacity_pages;
            config.secret = text_or_null(secret, "secret");
            config.password = text_or_null(password, "password");
            config.timeout_ms = timeout_ms;
            config.eviction = text_or_null(eviction, "eviction");
            std::vector<kvtwin_pool> list;
            for (const auto& [name, form, object_bytes, pool_identity] : pools) {
              kvtwin_pool pool{sizeof(kvtwin_pool),
                               c_text(name, "name of a pool"),
                               {},
                               object_bytes,
                               c_text(pool_identity, "identity of a pool")};
              if (form) {
                const auto& [l, p, h, b, t, order] = *form;
                pool.form = {sizeof pool.form, l, p, h, b, t, c_text(order, "layout")};
              }
              list.push_back(pool);
            }
            config.pools = list.data();
            config.pool_count = list.size();
            config.capacity_bytes = capacity_bytes;
            new (store) Store(config, list.size());
          },
          nb::kw_only(), nb::arg("kind"), nb::arg("location"), nb::arg("layers"), nb::arg("planes"), nb::arg("heads"),
          nb::arg("head_bytes"), nb::arg("page_tokens"), nb::arg("layout"), nb::arg("model"), nb::arg("revision"),
          nb::arg("kv_dtype"), nb::arg("tp"), nb::arg("pp"), nb::arg("rank"), nb::arg("name_space"),
          nb::arg("capacity_pages"), nb::arg("secret").none(), nb::arg("password").none(), nb::arg("timeout_ms"),
          nb::arg("eviction").none(), nb::arg("pools"), nb::arg("capacity_bytes"))
      .def("close", &Store::close)
      .def_prop_ro("closed", &Store::closed)
      .def("object_bytes", &Store::object_bytes)
      .def("look_up",
           [](Store& store, const nb::bytes& keys) {
             const auto [status, pages] = store.look_up(keys);
             return nb::make_tuple(status, pages);
           })
      .def("look_up_usable", &Store::look_up_usable)
      .def("put", &Store::put)
      .def("get", &Store::get)
      .def("start", &Store::start)
      .def("ended", &Store::ended)
      .def("wait", &Store::wait)
      .def("remove", &Store::remove)
      .def("stats", &Store::stats);
  module.def("status_name", &kvtwin_status_name);
  module.def("weights_fingerprint", [](const std::string& checkpoint) {
    std::array<char, 64> text{};
    std::array<char, 1024> sentence{};
    kvtwin_status status = KVTWIN_OK;
    const char* const place = c_text(checkpoint, "checkpoint");
    {
      const nb::gil_scoped_release unlocked;
      status = kvtwin_weights_fingerprint(place, text.data(), text.size(), {sentence.data(), sentence.size()});
    }
    if (status == KVTWIN_NO_MEMORY) throw std::bad_alloc();
    if (status != KVTWIN_OK) raise(status == KVTWIN_BAD_ARGUMENT ? "InputError" : "WorkError", sentence.data());
    return std::string(text.data());
  });
}

}  // namespace kvtwin::python
