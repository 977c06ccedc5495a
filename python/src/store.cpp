// kvtwin._core.Store: a store of KV pages (include/kvtwin/store.h). python/kvtwin/store.py is its public face.
#include "kvtwin/store.h"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <cstdint>
#include <mutex>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "python/src/parts.hpp"

namespace nb = nanobind;

namespace kvtwin::python {
namespace {

static_assert(sizeof(std::size_t) == sizeof(std::uint64_t) && sizeof(void*) == sizeof(std::uint64_t));
using Numbers = nb::ndarray<const std::uint64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// Calls hold the lock shared, and without the GIL. close() waits for them.
class Store {
  // Returns what `call` returns; without the GIL.
  template <class Call>
  auto call(Call call) {
    if (getpid() != owner_) {
      raise("WorkError", "the store was opened before fork(); open a store of its own in the child process");
    }
    std::shared_lock lock(in_use_, std::defer_lock);
    {
      const nb::gil_scoped_release unlocked;
      lock.lock();
      if (store_ != nullptr) return call(store_);
    }
    raise("InputError", "the store is closed; open it again");
  }

 public:
  explicit Store(const kvtwin_store_config& config) {
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
  ~Store() { close(); }

  // After fork(), the threads of the store are not in the child: the child must neither use nor close it.
  void close() {
    if (getpid() != owner_) return;
    const nb::gil_scoped_release unlocked;
    const std::unique_lock lock(in_use_);
    kvtwin_store_close(std::exchange(store_, nullptr));
  }
  bool closed() const { return store_ == nullptr; }

  std::uint64_t page_bytes() {
    return call([](kvtwin_store* store) { return kvtwin_store_page_bytes(store); });
  }
  // Returns the status, and the number of leading pages that are certainly there.
  std::pair<int, std::size_t> look_up(const nb::bytes& keys) {
    std::size_t pages = 0;
    const std::span<const kvtwin_key> names = keys_of(keys);
    const kvtwin_status status =
        call([&](kvtwin_store* store) { return kvtwin_store_look_up(store, names.data(), names.size(), &pages); });
    return {status, pages};
  }
  // Returns one status per page.
  nb::bytes put(const nb::bytes& keys, const Numbers& addresses, const Numbers& lengths) {
    return move(keys, addresses, lengths, [](auto... arguments) { return kvtwin_store_put(arguments...); });
  }
  nb::bytes get(const nb::bytes& keys, const Numbers& addresses, const Numbers& lengths) {
    return move(keys, addresses, lengths, [](auto... arguments) { return kvtwin_store_get(arguments...); });
  }
  nb::bytes remove(const nb::bytes& keys) {
    const std::span<const kvtwin_key> names = keys_of(keys);
    std::vector<std::uint8_t> status(names.size());
    check(call(
        [&](kvtwin_store* store) { return kvtwin_store_remove(store, names.data(), names.size(), status.data()); }));
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
      raise("InputError", "the pieces of a page are wrong: their lengths must sum to the " +
                              std::to_string(page_bytes()) + " bytes of a page, and no address may be 0");
    }
    raise("WorkError", std::string("the store could not do the call: ") + kvtwin_status_name(status));
  }

  template <class Move>
  nb::bytes move(const nb::bytes& keys, const Numbers& addresses, const Numbers& lengths, Move move) {
    const std::span<const kvtwin_key> names = keys_of(keys);
    std::vector<std::uint8_t> status(names.size());
    if (names.empty()) return nb::bytes(status.data(), 0);
    if (addresses.size() != lengths.size() || addresses.size() % names.size() != 0 || addresses.size() == 0) {
      raise("InputError", std::to_string(addresses.size()) + " addresses and " + std::to_string(lengths.size()) +
                              " lengths for " + std::to_string(names.size()) +
                              " keys; give the same number of pieces, at least one, for each key");
    }
    std::vector<void*> memory(addresses.size());
    for (std::size_t i = 0; i < memory.size(); ++i) {
      memory[i] = reinterpret_cast<void*>(addresses.data()[i]);  // NOLINT(performance-no-int-to-ptr): of the caller
    }
    check(call([&](kvtwin_store* store) {
      return move(store, names.data(), names.size(), memory.data(), lengths.data(), memory.size() / names.size(),
                  status.data());
    }));
    return nb::bytes(status.data(), status.size());
  }

  const pid_t owner_ = getpid();
  kvtwin_store* store_ = nullptr;
  std::shared_mutex in_use_;
};

const char* text_or_null(const std::optional<std::string>& text) { return text ? text->c_str() : nullptr; }

}  // namespace

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
             const std::optional<std::string>& eviction) {
            kvtwin_store_config config{};
            config.struct_size = sizeof config;
            config.kind = kind.c_str();
            config.location = location.c_str();
            config.form = {sizeof config.form, layers, planes, heads, head_bytes, page_tokens, layout.c_str()};
            config.identity = {sizeof config.identity, model.c_str(), revision.c_str(), kv_dtype.c_str(), tp, pp, rank,
                               name_space.c_str()};
            config.capacity_pages = capacity_pages;
            config.secret = text_or_null(secret);
            config.password = text_or_null(password);
            config.timeout_ms = timeout_ms;
            config.eviction = text_or_null(eviction);
            new (store) Store(config);
          },
          nb::kw_only(), nb::arg("kind"), nb::arg("location"), nb::arg("layers"), nb::arg("planes"), nb::arg("heads"),
          nb::arg("head_bytes"), nb::arg("page_tokens"), nb::arg("layout"), nb::arg("model"), nb::arg("revision"),
          nb::arg("kv_dtype"), nb::arg("tp"), nb::arg("pp"), nb::arg("rank"), nb::arg("name_space"),
          nb::arg("capacity_pages"), nb::arg("secret").none(), nb::arg("password").none(), nb::arg("timeout_ms"),
          nb::arg("eviction").none())
      .def("close", &Store::close)
      .def_prop_ro("closed", &Store::closed)
      .def_prop_ro("page_bytes", &Store::page_bytes)
      .def("look_up",
           [](Store& store, const nb::bytes& keys) {
             const auto [status, pages] = store.look_up(keys);
             return nb::make_tuple(status, pages);
           })
      .def("put", &Store::put)
      .def("get", &Store::get)
      .def("remove", &Store::remove)
      .def("stats", &Store::stats);
  module.def("status_name", &kvtwin_status_name);
}

}  // namespace kvtwin::python
