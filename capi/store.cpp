#include "kvtwin/store.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <variant>

#include "capi/guard.hpp"
#include "impl/disk/segment_store.hpp"
#include "impl/disk/shared_files.hpp"
#include "impl/remote/remote_backend.hpp"
#include "models/json.hpp"
#include "models/weights.hpp"
#include "policy/eviction.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin::capi {

template <>
constexpr std::size_t kFirstSize<kvtwin_store_config> = 144;

namespace {

static_assert(sizeof(kvtwin_key) == sizeof(PageKey));
// Programs that were compiled with version 1.0 pass structures of these sizes (64-bit machines).
static_assert(sizeof(kvtwin_page_form) == 32 && sizeof(kvtwin_identity) == 56);
static_assert(offsetof(kvtwin_store_config, eviction) == kFirstSize<kvtwin_store_config>);

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

// ---- the configuration

// Pages outlive the process, and with them the weights that they were computed with.
constexpr const char* kRevisionExample =
    "the commit or the fingerprint of the weights, or to \"fixed\" if the weights of this model name never change";

std::string required_text(const char* text, const char* name, const char* example) {
  if (text == nullptr || *text == '\0') {
    throw BadArgument(std::string(name) + " is empty; set it, for example to " + example);
  }
  return text;
}

Layout layout_of(const char* text) {
  const std::string name = required_text(text, "form.layout", "\"page_first\"");
  for (const Layout layout : {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head}) {
    if (name_of(layout) == name) return layout;
  }
  throw BadArgument("form.layout is \"" + name +
                    "\"; the layouts are layer_first, page_first, page_first_direct and page_head");
}

PageForm form_of(const kvtwin_page_form& given) {
  const auto form = sized_copy(&given, "form");
  constexpr std::uint64_t kMaxPageBytes = std::uint64_t{1} << 30;
  const std::array<std::pair<const char*, std::uint32_t>, 5> counts{{{"layers", form.layers},
                                                                     {"planes", form.planes},
                                                                     {"heads", form.heads},
                                                                     {"head_bytes", form.head_bytes},
                                                                     {"page_tokens", form.page_tokens}}};
  std::uint64_t bytes = 1;
  for (const auto& [name, count] : counts) {
    if (count == 0) throw BadArgument(std::string("form.") + name + " is 0; it must be at least 1");
    if (count > kMaxPageBytes / bytes) {
      throw BadArgument("a page of this form has more than 1 GiB; make the page smaller");
    }
    bytes *= count;
  }
  if (form.planes > 2) {
    throw BadArgument("form.planes is " + std::to_string(form.planes) + "; it is 2 for K and V, 1 for MLA");
  }
  return {{form.layers, form.planes, form.heads, form.head_bytes, form.page_tokens}, layout_of(form.layout)};
}

PageKey space_of(const kvtwin_identity& given, const PageForm& form) {
  const auto identity = sized_copy(&given, "identity");
  if (identity.tp == 0 || identity.pp == 0) {
    throw BadArgument("identity.tp and identity.pp are at least 1; 1 means that a page is not cut");
  }
  if (identity.rank >= std::uint64_t{identity.tp} * identity.pp) {
    throw BadArgument("identity.rank is " + std::to_string(identity.rank) + "; it must be below tp * pp");
  }
  return storage_space({.model = required_text(identity.model, "identity.model", "\"llama-3.1-8b\""),
                        .revision = required_text(identity.revision, "identity.revision", kRevisionExample),
                        .kv_dtype = required_text(identity.kv_dtype, "identity.kv_dtype", "\"bfloat16\""),
                        .page_tokens = form.shape.page_tokens,
                        .layout = name_of(form.layout),
                        .tp = identity.tp,
                        .pp = identity.pp,
                        .rank = identity.rank,
                        .name_space = text_or_empty(identity.name_space)});
}

std::unique_ptr<StorageBackend> open_disk(const kvtwin_store_config& config, const PageForm& form,
                                          const PageSeal* seal) {
  constexpr Bytes kMaxStagingBytes = Bytes{64} << 20;
  constexpr Bytes kMaxDepth = 32;
  SegmentStoreConfig segments;
  segments.folder = required_text(config.location, "location", "\"/nvme/kvtwin\"");
  segments.capacity_pages = config.capacity_pages;
  segments.form = form;
  segments.depth = static_cast<std::uint32_t>(std::clamp<Bytes>(kMaxStagingBytes / form.bytes(), 4, kMaxDepth));
  segments.seal = seal;
  segments.eviction = config.eviction == nullptr ? "lru" : config.eviction;
  if (make_eviction(segments.eviction) == nullptr) {
    throw BadArgument("eviction is \"" + segments.eviction + "\"; kvtwin_policy_names() lists the policies");
  }
  return std::make_unique<SegmentStore>(std::move(segments));
}

std::unique_ptr<StorageBackend> open_shared_fs(const kvtwin_store_config& config, const PageForm& form,
                                               const PageSeal* seal) {
  const std::string folder = required_text(config.location, "location", "\"/lustre/kvtwin\"");
  return make_shared_files({folder, config.capacity_pages * shared_file_bytes(form), true, seal}, form);
}

std::unique_ptr<StorageBackend> open_remote(const kvtwin_store_config& config, const PageForm& form,
                                            const PageSeal* seal) {
  const std::string url = required_text(config.location, "location", "\"redis://127.0.0.1:6379\"");
  const RemoteTerms terms{url, std::string(text_or_empty(config.password)), "", TimeNs{config.timeout_ms} * 1'000'000,
                          seal};
  auto opened = open_remote_backend(terms, form);
  if (const auto* wrong = std::get_if<std::string>(&opened)) throw BadArgument("location: " + *wrong);
  return std::move(std::get<RemoteBackend>(opened).backend);
}

struct Kind {
  std::string_view name;
  std::unique_ptr<StorageBackend> (*open)(const kvtwin_store_config&, const PageForm&, const PageSeal*);
  bool sized;  // has a capacity of its own
};
constexpr std::array kKinds{Kind{"disk", open_disk, true}, Kind{"shared_fs", open_shared_fs, true},
                            Kind{"remote", open_remote, false}};

const Kind& kind_of(const char* text) {
  const std::string name = required_text(text, "kind", "\"disk\"");
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  throw BadArgument("kind is \"" + name + "\"; the kinds are disk, shared_fs and remote");
}

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

}  // namespace
}  // namespace kvtwin::capi

struct kvtwin_store {
  explicit kvtwin_store(const kvtwin_store_config& config)
      : kind(&kvtwin::capi::kind_of(config.kind)),
        form(kvtwin::capi::form_of(config.form)),
        space(kvtwin::capi::space_of(config.identity, form)) {
    using kvtwin::capi::BadArgument;
    if (kind->sized && config.capacity_pages == 0) {
      throw BadArgument("capacity_pages is 0; set it to the pages that the store may hold");
    }
    if (!kind->sized && config.capacity_pages != 0) {
      throw BadArgument("capacity_pages is set, and a remote store has the limit of its server; set 0");
    }
    if (kind->name != "disk" && config.eviction != nullptr) {
      throw BadArgument("eviction is set, and only a store of kind disk has a choice; set NULL");
    }
    if (config.secret != nullptr) {
      if (std::strlen(config.secret) < kvtwin::kMinSecretBytes) {
        throw BadArgument("secret has fewer than " + std::to_string(kvtwin::kMinSecretBytes) + " bytes");
      }
      seal.emplace(config.secret);
    }
    backend = kind->open(config, form, seal ? &*seal : nullptr);
  }

  // A child of fork() has copies of this object, of its files and sockets, and none of its threads.
  bool is_forked_copy() const { return getpid() != owner; }

  kvtwin_status run(kvtwin::StorageVerb verb, const kvtwin_key* keys, std::size_t count, void* const* addresses,
                    const std::size_t* lengths, std::size_t pieces_per_page, std::uint8_t* status,
                    kvtwin::capi::CallCounters& counters) {
    using namespace kvtwin;
    if (is_forked_copy()) return KVTWIN_FAILED;
    if (count == 0) return KVTWIN_OK;
    if (keys == nullptr || status == nullptr) throw capi::BadArgument("keys or status is NULL");
    if (verb != StorageVerb::remove) capi::check_pieces(form, count, addresses, lengths, pieces_per_page);
    const auto begin = std::chrono::steady_clock::now();
    capi::PageList pages(form, backend->seal(), space, verb, {keys, count}, {status, count});
    if (verb != StorageVerb::remove) pages.set_pieces(addresses, lengths, pieces_per_page);
    {
      const std::lock_guard lock(verb == StorageVerb::get ? reading : writing);
      verb == StorageVerb::get ? backend->read(pages) : backend->write(pages);
    }
    counters.add(count, begin);
    for (std::size_t i = 0; i < count; ++i) ++counters.by_status.at(status[i]);
    return KVTWIN_OK;
  }

  const pid_t owner = getpid();
  const kvtwin::capi::Kind* kind;
  const kvtwin::PageForm form;
  const kvtwin::PageKey space;
  std::optional<kvtwin::PageSeal> seal;
  std::unique_ptr<kvtwin::StorageBackend> backend;
  std::mutex looking, reading, writing;
  kvtwin::capi::CallCounters look_ups, gets, puts, removes;
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
    store->backend->finish();
    return KVTWIN_OK;
  });
  delete store;
}

uint64_t kvtwin_store_page_bytes(const kvtwin_store* store) { return store == nullptr ? 0 : store->form.bytes(); }

kvtwin_status kvtwin_store_look_up(kvtwin_store* store, const kvtwin_key* keys, size_t count, size_t* pages) {
  return guarded({}, [&] {
    if (store == nullptr || pages == nullptr || (keys == nullptr && count > 0)) return KVTWIN_BAD_ARGUMENT;
    *pages = 0;
    if (store->is_forked_copy()) return KVTWIN_FAILED;
    if (count == 0) return KVTWIN_OK;
    const auto begin = std::chrono::steady_clock::now();
    std::vector<kvtwin::PageKey> names(count);
    std::ranges::transform(std::span(keys, count), names.begin(), kvtwin::capi::page_key_of);
    kvtwin::LookedUp found;
    {
      const std::lock_guard lock(store->looking);
      found = store->backend->look_up(store->space, names);
    }
    *pages = found.pages;
    store->look_ups.add(count, begin);
    store->look_ups.found += found.pages;
    return found.cause == kvtwin::Cause::missing ? KVTWIN_OK : kvtwin::capi::status_of(found.cause);
  });
}

kvtwin_status kvtwin_store_put(kvtwin_store* store, const kvtwin_key* keys, size_t count, const void* const* addresses,
                               const size_t* lengths, size_t pieces_per_page, uint8_t* status) {
  return guarded({}, [&] {
    if (store == nullptr) return KVTWIN_BAD_ARGUMENT;
    // A put only reads the memory.
    return store->run(kvtwin::StorageVerb::set, keys, count, const_cast<void* const*>(addresses), lengths,
                      pieces_per_page, status, store->puts);
  });
}

kvtwin_status kvtwin_store_get(kvtwin_store* store, const kvtwin_key* keys, size_t count, void* const* addresses,
                               const size_t* lengths, size_t pieces_per_page, uint8_t* status) {
  return guarded({}, [&] {
    if (store == nullptr) return KVTWIN_BAD_ARGUMENT;
    return store->run(kvtwin::StorageVerb::get, keys, count, addresses, lengths, pieces_per_page, status, store->gets);
  });
}

kvtwin_status kvtwin_store_remove(kvtwin_store* store, const kvtwin_key* keys, size_t count, uint8_t* status) {
  return guarded({}, [&] {
    if (store == nullptr) return KVTWIN_BAD_ARGUMENT;
    return store->run(kvtwin::StorageVerb::remove, keys, count, nullptr, nullptr, 0, status, store->removes);
  });
}

kvtwin_status kvtwin_store_stats(kvtwin_store* store, char* text, size_t size, size_t* needed) {
  return guarded({}, [&] {
    if (store == nullptr || needed == nullptr || (text == nullptr && size > 0)) return KVTWIN_BAD_ARGUMENT;
    if (store->is_forked_copy()) return KVTWIN_FAILED;
    const kvtwin::Bytes bytes = store->form.bytes();
    kvtwin::Json stats{{"kind", store->kind->name}, {"look_ups", store->look_ups.json()}};
    stats["look_ups"]["found"] = store->look_ups.found.load();
    stats["gets"] = store->gets.json_with_statuses(bytes);
    stats["puts"] = store->puts.json_with_statuses(bytes);
    stats["removes"] = store->removes.json_with_statuses(0);
    stats["medium"] = kvtwin::Json::object();
    {
      const std::scoped_lock no_calls(store->looking, store->reading, store->writing);
      for (const auto& [name, count] : store->backend->counters()) stats["medium"][name] = count;
    }
    const std::string line = stats.dump();
    *needed = line.size() + 1;
    kvtwin::capi::write_text(line, text, size);
    return KVTWIN_OK;
  });
}

}  // extern "C"
