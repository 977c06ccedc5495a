#include "capi/store_setup.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <utility>
#include <variant>

#include "impl/disk/shared_files.hpp"
#include "impl/disk/slot_format.hpp"
#include "impl/remote/remote_backend.hpp"
#include "policy/eviction.hpp"

namespace kvtwin::capi {

std::string required_text(const char* text, const char* name, const char* example) {
  if (text == nullptr || *text == '\0') {
    throw BadArgument(std::string(name) + " is empty; set it, for example to " + example);
  }
  return text;
}

namespace {

// Programs that were compiled with version 1.0 pass structures of these sizes (64-bit machines).
static_assert(sizeof(kvtwin_page_form) == 32 && sizeof(kvtwin_identity) == 56);

// Pages outlive the process, and with them the weights that they were computed with.
constexpr const char* kRevisionExample =
    "the commit or the fingerprint of the weights, or to \"fixed\" if the weights of this model name never change";
constexpr Bytes kMaxPageBytes = Bytes{1} << 30;
constexpr Bytes kMaxObjectBytes = Bytes{2047} << 20;  // what the kernel moves in one operation
constexpr std::size_t kMaxPools = 31;
constexpr std::size_t kMaxPoolName = 48;

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
  const std::array<std::pair<const char*, std::uint32_t>, 5> counts{{{"layers", form.layers},
                                                                     {"planes", form.planes},
                                                                     {"heads", form.heads},
                                                                     {"head_bytes", form.head_bytes},
                                                                     {"page_tokens", form.page_tokens}}};
  Bytes bytes = 1;
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

std::string pool_name(const char* text) {
  std::string name = required_text(text, "the name of a pool", "\"window\"");
  if (name.size() > kMaxPoolName ||
      name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_-") != std::string::npos) {
    throw BadArgument("a pool is named \"" + name.substr(0, kMaxPoolName) +
                      "\"; a name has 1 to 48 of a-z, 0-9, _ and -");
  }
  return name;
}

// Without a back end.
StoredPool pool_of(const kvtwin_pool& pool) {
  StoredPool result{pool_name(pool.name), std::string(text_or_empty(pool.identity)), {}, {}, nullptr};
  const std::string which = "pool \"" + result.name + "\": ";
  if ((pool.form.struct_size != 0) == (pool.object_bytes != 0)) {
    throw BadArgument(which + "give a form, or object_bytes, and not both");
  }
  if (pool.object_bytes > kMaxObjectBytes) {
    throw BadArgument(which + "object_bytes is " + std::to_string(pool.object_bytes) + "; at most 2047 MiB");
  }
  if (pool.object_bytes != 0) {
    result.form = {{1, 1, 1, static_cast<std::uint32_t>(pool.object_bytes), 1}, Layout::page_first};
    return result;
  }
  try {
    result.form = form_of(pool.form);
  } catch (const BadArgument& wrong) {
    throw BadArgument(which + wrong.what());
  }
  return result;
}

// The pages, and the pools, without back ends.
std::deque<StoredPool> pools_of(const kvtwin_store_config& config) {
  std::deque<StoredPool> pools;
  pools.push_back({"", "", form_of(config.form), {}, nullptr});
  if (config.pool_count > kMaxPools) throw BadArgument("pool_count is above 31");
  if (config.pool_count != 0 && config.pools == nullptr) throw BadArgument("pools is NULL, and pool_count is not 0");
  for (std::size_t i = 0; i < config.pool_count; ++i) {
    StoredPool pool = pool_of(sized_element(config.pools, i, "pools[0]"));
    if (std::ranges::find(pools, pool.name, &StoredPool::name) != pools.end()) {
      throw BadArgument("two pools are named \"" + pool.name + "\"; give each a name of its own");
    }
    pools.push_back(std::move(pool));
  }
  return pools;
}

PageKey space_of(const kvtwin_identity& given, const StoredPool& pool) {
  const PageForm& form = pool.form;
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
                        .name_space = text_or_empty(identity.name_space),
                        .pool = pool.identity.empty() ? pool.name : pool.name + ":" + pool.identity});
}

// ---- back ends

SegmentStoreConfig segments_of(const StoredPool& pool, Pages capacity) {
  constexpr Bytes kStagingBytes = Bytes{64} << 20, kMostStagingBytes = 4 * kStagingBytes;
  constexpr Bytes kMaxDepth = 32, kMinDepth = 4;
  constexpr Bytes kSegmentBytes = Bytes{256} << 20, kMinSlots = 8;
  const Bytes bytes = pool.form.bytes();
  SegmentStoreConfig segments;
  segments.capacity_pages = capacity;
  segments.form = pool.form;
  // Large objects fill the disk with a few operations, and their buffers the memory.
  const Bytes least = std::clamp<Bytes>(kMostStagingBytes / bytes, 1, kMinDepth);
  segments.depth = static_cast<std::uint32_t>(std::clamp(kStagingBytes / bytes, least, kMaxDepth));
  if (bytes > kSegmentBytes / kMinSlots) segments.segment_bytes = std::max(kSegmentBytes, bytes + 2 * kBlockBytes);
  return segments;
}

Bytes room_on_disk(const PageForm& form) { return slot_bytes(form); }
Bytes room_of_file(const PageForm& form) { return shared_file_bytes(form); }

void open_disk(const kvtwin_store_config& config, StoreSetup& setup) {
  const std::filesystem::path folder = required_text(config.location, "location", "\"/nvme/kvtwin\"");
  std::vector<SegmentStore*> stores;
  std::vector<Bytes> bytes;
  for (StoredPool& pool : setup.pools) {
    const Bytes size = room_on_disk(pool.form);
    SegmentStoreConfig segments =
        segments_of(pool, config.capacity_bytes != 0 ? config.capacity_bytes / size : config.capacity_pages);
    segments.folder = pool.name.empty() ? folder : folder / ("pool-" + pool.name);
    segments.seal = setup.seal.get();
    segments.eviction = config.eviction == nullptr ? "lru" : config.eviction;
    if (make_eviction(segments.eviction) == nullptr) {
      throw BadArgument("eviction is \"" + segments.eviction + "\"; kvtwin_policy_names() lists the policies");
    }
    auto store = std::make_unique<SegmentStore>(std::move(segments));
    stores.push_back(store.get());
    bytes.push_back(size);
    pool.backend = std::move(store);
  }
  if (stores.size() > 1) setup.disk.emplace(config.capacity_bytes, bytes, std::move(stores));
}

void open_shared_fs(const kvtwin_store_config& config, StoreSetup& setup) {
  SharedFilesConfig files;
  files.folder = required_text(config.location, "location", "\"/lustre/kvtwin\"");
  const Bytes page = room_of_file(setup.pools[0].form);
  const Pages pages = std::min(config.capacity_pages, std::numeric_limits<Bytes>::max() / page);
  files.capacity = config.capacity_bytes != 0 ? config.capacity_bytes : pages * page;
  files.seal = setup.seal.get();
  for (StoredPool& pool : setup.pools) pool.backend = make_shared_files(files, pool.form);
}

void open_remote(const kvtwin_store_config& config, StoreSetup& setup) {
  const std::string url = required_text(config.location, "location", "\"redis://127.0.0.1:6379\"");
  RemoteTerms terms{url, std::string(text_or_empty(config.password)), "", TimeNs{config.timeout_ms} * 1'000'000,
                    setup.seal.get()};
  for (StoredPool& pool : setup.pools) {
    terms.pool_name = pool.name;
    auto opened = open_remote_backend(terms, pool.form);
    if (const auto* wrong = std::get_if<std::string>(&opened)) throw BadArgument("location: " + *wrong);
    pool.backend = std::move(std::get<RemoteBackend>(opened).backend);
  }
}

struct Kind {
  std::string_view name;
  void (*open)(const kvtwin_store_config&, StoreSetup&);
  Bytes (*room)(const PageForm&);  // of an object; null: the kind has no capacity of its own
};
constexpr std::array kKinds{Kind{"disk", open_disk, room_on_disk}, Kind{"shared_fs", open_shared_fs, room_of_file},
                            Kind{"remote", open_remote, nullptr}};

const Kind& kind_of(const char* text) {
  const std::string name = required_text(text, "kind", "\"disk\"");
  for (const Kind& kind : kKinds) {
    if (kind.name == name) return kind;
  }
  throw BadArgument("kind is \"" + name + "\"; the kinds are disk, shared_fs and remote");
}

void check_capacity(const kvtwin_store_config& config, const Kind& kind, const std::deque<StoredPool>& pools) {
  if (kind.room == nullptr) {
    if (config.capacity_pages != 0) {
      throw BadArgument("capacity_pages is set, and a remote store has the limit of its server; set 0");
    }
    if (config.capacity_bytes != 0) {
      throw BadArgument("capacity_bytes is set, and a remote store has the limit of its server; set 0");
    }
    return;
  }
  if (config.capacity_pages != 0 && config.capacity_bytes != 0) {
    throw BadArgument("capacity_pages and capacity_bytes are set; set one of them");
  }
  if (pools.size() > 1 && config.capacity_bytes == 0) {
    throw BadArgument("capacity_bytes is 0; set it to the bytes that the pages and pools may hold together");
  }
  if (config.capacity_pages == 0 && config.capacity_bytes == 0) {
    throw BadArgument("capacity_pages is 0; set it to the pages that the store may hold");
  }
  if (config.capacity_bytes == 0) return;
  for (const StoredPool& pool : pools) {
    if (kind.room(pool.form) > config.capacity_bytes) {
      throw BadArgument("capacity_bytes is " + std::to_string(config.capacity_bytes) + ", less than " +
                        (pool.name.empty() ? std::string("a page") : "an object of pool \"" + pool.name + "\"") +
                        " with its header, " + std::to_string(kind.room(pool.form)));
    }
  }
}

}  // namespace

StoreSetup open_store(const kvtwin_store_config& config) {
  const Kind& kind = kind_of(config.kind);
  StoreSetup setup{std::string(kind.name), nullptr, pools_of(config), std::nullopt};
  for (StoredPool& pool : setup.pools) pool.space = space_of(config.identity, pool);
  check_capacity(config, kind, setup.pools);
  if (kind.name != "disk" && config.eviction != nullptr) {
    throw BadArgument("eviction is set, and only a store of kind disk has a choice; set NULL");
  }
  if (config.secret != nullptr) {
    if (std::string_view(config.secret).size() < kMinSecretBytes) {
      throw BadArgument("secret has fewer than " + std::to_string(kMinSecretBytes) + " bytes");
    }
    setup.seal = std::make_unique<PageSeal>(config.secret);
  }
  kind.open(config, setup);
  return setup;
}

// ---- the room of disks

SharedDisk::SharedDisk(Bytes capacity, const std::vector<Bytes>& object_bytes, std::vector<SegmentStore*> stores)
    : stores_(std::move(stores)), room_(capacity, object_bytes) {
  const std::vector<Pages> there = used();
  room_.adopt(there);
  for (std::size_t pool = 0; pool < stores_.size(); ++pool) {
    if (room_.part(pool) < there[pool]) stores_[pool]->resize(room_.part(pool));
  }
}

void SharedDisk::make_room(std::size_t pool, Pages objects) {
  const std::vector<Pages> before = parts();
  room_.make_room(pool, objects, used());
  resize(before);
}

void SharedDisk::fit(bool full) {
  for (std::size_t pool = 0; pool < stores_.size(); ++pool) full |= stores_[pool]->capacity() < room_.part(pool);
  if (!full) return;
  const std::vector<Pages> before = parts();
  room_.limit_to(used());
  resize(before);
}

std::vector<Pages> SharedDisk::used() const {
  std::vector<Pages> used;
  for (const SegmentStore* store : stores_) used.push_back(store->used());
  return used;
}

std::vector<Pages> SharedDisk::parts() const {
  std::vector<Pages> parts;
  for (std::size_t pool = 0; pool < stores_.size(); ++pool) parts.push_back(room_.part(pool));
  return parts;
}

// First those that give room, so that the medium has it for the others.
void SharedDisk::resize(const std::vector<Pages>& before) {
  for (const bool gives : {true, false}) {
    for (std::size_t pool = 0; pool < stores_.size(); ++pool) {
      const Pages part = room_.part(pool);
      if (part != before[pool] && (part < before[pool]) == gives) stores_[pool]->resize(part);
    }
  }
}

}  // namespace kvtwin::capi
