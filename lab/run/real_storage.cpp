#include "lab/run/real_storage.hpp"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>

#include "impl/disk/hicache_files.hpp"
#include "impl/disk/segment_store.hpp"
#include "impl/disk/shared_files.hpp"
#include "impl/remote/peer_store.hpp"
#include "impl/remote/remote_backend.hpp"
#include "impl/runtime/arena.hpp"
#include "impl/storage/failing_nodes.hpp"
#include "lab/error.hpp"

namespace kvtwin {
namespace {

// Buffers for reads from the disk, and as many for writes; at least four pages each, or two of a large object.
constexpr Bytes kMaxStagingBytes = Bytes{64} << 20;

// The arguments for opening the back end of one part of a tier's pages.
struct OpenTerms {
  const Experiment& experiment;
  const Setup& setup;
  Pages pages = 0;
  PageMemory& memory;
  std::uint32_t objects = 1;  // of a page in this part
  std::size_t pool = 0;       // StorageOperation::pool
  bool draft = false;         // the part of the draft model
  bool stores = true;         // false: this rank only reads, because another rank stores for all
  const PageSeal* seal = nullptr;
  const StorageSecrets& secrets;
  RealRanks* everyone = nullptr;
  std::vector<std::string>& notes;

  PageForm form() const { return object_form(memory.form(), objects); }
  // The draft's objects, and those of each further pool, lie in a folder of their own, because they have another form.
  std::string part() const { return draft ? "draft" : pool != 0 ? "pool" + std::to_string(pool) : ""; }
  bool is_state() const { return pool != 0 && setup.engine.pools[pool - 1].closure == Closure::point; }
  bool shares_room() const { return !setup.engine.pools.empty(); }
  // Objects of one writer that fit into the tier. Pages, windows and states share its bytes.
  Pages objects_that_fit() const {
    if (pool == 0) return pages * objects;
    const EngineConfig& engine = setup.engine;
    const Bytes bytes = pages * engine.page_bytes() * engine.storage_writers;
    return std::max<Pages>(1, bytes / (form().bytes() * (is_state() ? engine.ranks : engine.storage_writers)));
  }
};

// Returns the folder of this rank, and creates its parent folders. The store creates and locks the folder itself.
std::filesystem::path disk_folder(const OpenTerms& terms) {
  const Experiment& experiment = terms.experiment;
  const Setup& setup = terms.setup;
  if (experiment.text("tiers.disk.path").empty()) {
    throw InputError(experiment.where("tiers.disk.path") +
                     ": is empty; a real run keeps its disk tier in a folder, e.g. --set tiers.disk.path=/nvme/kvtwin");
  }
  std::filesystem::path folder = experiment.path("tiers.disk.path").lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // the path ended in '/'
  if (setup.world.engines > 1) folder /= "engine" + std::to_string(setup.engine_number);
  // HiCache files have the rank in the name, so all ranks share a folder. Segments need one folder per rank.
  if (setup.engine.ranks != 1 && !setup.hardware.file_a_page) folder /= "rank" + std::to_string(setup.rank);
  if (!terms.part().empty()) folder /= terms.part();
  const std::filesystem::path parent = folder.parent_path();
  std::error_code error;
  if (!parent.empty()) std::filesystem::create_directories(parent, error);
  if (error) {
    throw InputError(experiment.where("tiers.disk.path") + ": making the folder " + parent.string() + ": " +
                     error.message());
  }
  return folder;
}

std::unique_ptr<StorageBackend> open_disk(const OpenTerms& terms) {
  const Experiment& experiment = terms.experiment;
  const Setup& setup = terms.setup;
  const PageSeal* const seal = terms.seal;
  const PageForm form = terms.form();
  if (seal != nullptr && setup.hardware.file_a_page) {
    throw InputError(
        experiment.where("tiers.disk.format") +
        ": hicache_files has no place for the check that KVTWIN_PAGE_KEY asks for; take segments, or leave "
        "KVTWIN_PAGE_KEY out");
  }
  if (terms.shares_room() && setup.hardware.file_a_page) {
    throw InputError(experiment.where("tiers.disk.format") + ": hicache_files has names for pages only, and " +
                     setup.model.name + " has windows or states beside them; take segments");
  }
  const std::filesystem::path folder = disk_folder(terms);
  try {
    if (setup.hardware.file_a_page) {
      HiCacheFilesConfig files;
      files.folder = folder;
      const std::filesystem::path config = experiment.text("model.config");
      files.model = config.empty() ? setup.model.name : config.stem().string();
      files.tp_rank = static_cast<std::uint32_t>(setup.rank);
      files.tp_size = setup.engine.ranks;
      files.space = setup.engine_of(0).storage_space;
      files.capacity = terms.pages;
      files.stores = terms.stores;
      return make_hicache_files(files, form);
    }
    SegmentStoreConfig segments;
    segments.folder = folder;
    segments.capacity_pages = terms.objects_that_fit();
    segments.shares_room = terms.shares_room();
    segments.form = form;
    const Bytes least = form.bytes() > kMaxStagingBytes / 4 ? 2 : 4;  // states may be large
    segments.depth =
        static_cast<std::uint32_t>(std::clamp<Bytes>(kMaxStagingBytes / form.bytes(), least, segments.depth));
    segments.direct = seal == nullptr && terms.objects == 1 ? terms.memory.direct() : nullptr;
    segments.seal = seal;
    return std::make_unique<SegmentStore>(segments);
  } catch (const std::runtime_error& error) {  // also errors of the operating system
    throw InputError(experiment.where("tiers.disk.path") + ": " + error.what());
  }
}

std::unique_ptr<StorageBackend> open_shared_fs(const OpenTerms& terms) {
  const std::string where = terms.experiment.where("tiers.shared_fs.path");
  if (terms.experiment.text("tiers.shared_fs.path").empty()) {
    throw InputError(where +
                     ": is empty; a real run keeps its pages there in a folder, e.g. --set "
                     "tiers.shared_fs.path=/lustre/kvtwin");
  }
  std::filesystem::path folder = terms.experiment.path("tiers.shared_fs.path").lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // the path ended in '/'
  try {
    if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path());
    // Each rank that stores has one file per object. Windows and states lie in the folder of the pages.
    if (terms.draft) folder /= terms.part();
    const KvShape shape = terms.draft ? terms.memory.form().shape : terms.setup.engine.shape;
    const Bytes page_bytes = shape.page_bytes() + objects_of(terms.experiment, shape) * kPageHeaderBytes;
    const Bytes capacity = terms.pages * terms.setup.engine.storage_writers * page_bytes;
    return make_shared_files({folder, capacity, terms.stores, terms.seal}, terms.form());
  } catch (const std::runtime_error& error) {  // also errors of the operating system
    throw InputError(where + ": " + error.what());
  }
}

std::string place_of_remote(const Experiment& experiment) {
  const bool tokens = experiment.integer("tiers.remote.tokens") != 0;
  return experiment.where(tokens ? "tiers.remote.tokens" : "tiers.remote.gib");
}

std::unique_ptr<StorageBackend> open_remote(const OpenTerms& terms) {
  const Experiment& experiment = terms.experiment;
  const std::string where = experiment.where("tiers.remote.url");
  RemoteTerms remote;
  remote.url = experiment.text("tiers.remote.url");
  if (remote.url.empty()) {
    throw InputError(where +
                     ": is empty; a real run needs servers for its remote tier, e.g. --set "
                     "tiers.remote.url=redis://127.0.0.1:6379");
  }
  const bool in_bucket = remote.url.starts_with("nixl+obj://");
  remote.password = in_bucket ? terms.secrets.s3_keys : terms.secrets.redis_password;
  remote.seal = terms.seal;
  remote.pool_name = terms.part();
  if (!experiment.text("tiers.remote.tls_ca").empty()) {
    if (!remote.url.starts_with("rediss://")) {
      throw InputError(experiment.where("tiers.remote.tls_ca") + ": is for TLS, and " + where +
                       " is without; begin that with rediss://, or leave this empty");
    }
    remote.tls_ca_file = experiment.path("tiers.remote.tls_ca").string();
  }
  remote.timeout = static_cast<TimeNs>(experiment.number("tiers.remote.timeout_s") * 1e9);
  if (terms.everyone != nullptr) {
    RankGroup& group = terms.everyone->group();
    const std::size_t processes = group.size();
    // Each kind has an equal part of the bytes that the processes lend.
    const std::size_t writers = terms.is_state() ? terms.setup.engine.ranks : terms.setup.engine.storage_writers;
    const Pages parts = terms.objects_that_fit() * writers / (1 + terms.setup.engine.pools.size());
    remote.pool = PoolMember{
        (terms.part().empty() ? "process" : terms.part() + "-") + std::to_string(terms.everyone->rank()), processes,
        (parts + processes - 1) / processes, [&group](const std::string& own) { return group.share(own); }};
    const std::optional<Bytes> available = memory_available();
    const Bytes lent = lent_bytes(remote.pool->pages, terms.form()) * group.size_here();
    if (remote.url.starts_with("nixl+ucx://") && available && lent > *available / 10 * 9) {
      throw InputError(place_of_remote(experiment) + ": this machine's processes would lend " +
                       std::to_string(lent >> 20) + " MiB to the pool, and " + std::to_string(*available >> 20) +
                       " MiB are free; make it smaller");
    }
    // The processes exchange messages, and first touch what they lend, when all of them have come so far.
    if (remote.url.starts_with("nixl+ucx://")) terms.everyone->meet();
  }
  std::variant<RemoteBackend, std::string> opened;
  try {
    opened = open_remote_backend(remote, terms.form());
  } catch (const std::runtime_error& error) {
    throw InputError(where + ": " + error.what());
  }
  if (const auto* wrong = std::get_if<std::string>(&opened)) throw InputError(where + ": " + *wrong);
  auto& tier = std::get<RemoteBackend>(opened);
  const std::string silent = terms.part().empty() ? tier.check() : "";
  if (!silent.empty()) terms.notes.push_back("Remote tier: " + silent + " Its pages are misses until that changes.");
  return std::move(tier.backend);
}

constexpr PerTier<std::unique_ptr<StorageBackend> (*)(const OpenTerms&)> kBackends{{
    nullptr,  // device
    nullptr,  // host
    open_disk,
    open_shared_fs,
    open_remote,
}};
static_assert(has_all_storage_tiers(kBackends, [](auto* open) { return open != nullptr; }));

// HiCache's names have no place for the number of an object.
std::uint32_t objects_in(const OpenTerms& terms, Tier tier, const KvShape& shape) {
  return spec_of(tier).owned && terms.setup.hardware.file_a_page ? 1 : objects_of(terms.experiment, shape);
}

void add_notes(const Experiment& experiment, const Setup& setup, const PageMemory& memory, bool direct, bool sealed,
               std::vector<std::string>& notes) {
  if (setup.hardware.file_a_page && objects_of(experiment, memory.form().shape) != 1) {
    notes.push_back(
        "Disk tier: cache.layout = " + experiment.text("cache.layout") +
        " and cache.split_kv = " + experiment.as_toml("cache.split_kv") +
        " change nothing in hicache_files, where a page is one file as in HiCache; kvtwin simulate charges " +
        std::to_string(setup.engine.storage_objects) + " objects a page" +
        (setup.engine.ranks == 1 ? "" : " and rank"));
  }
  if (direct && sealed) {
    notes.push_back("Disk tier: pages go through host memory, as no GPU makes the check of KVTWIN_PAGE_KEY.");
  } else if (direct && objects_of(experiment, memory.form().shape) != 1) {
    notes.push_back("Disk tier: pages go through host memory, as a GPU takes only pages that are one object.");
  }
}

// A part of the pages, or a pool beside them, in the device.
struct PartMemory {
  PageMemory* memory = nullptr;
  std::size_t pool = 0;
  bool draft = false;
};

std::vector<PartMemory> memories_of(const Setup& setup, Device& device) {
  std::vector<PartMemory> list{{&device.memory()}};
  if (device.draft_memory() != nullptr) list.push_back({device.draft_memory(), 0, true});
  for (std::size_t pool = 1; pool <= setup.engine.pools.size(); ++pool) {
    list.push_back({&device.pool_memory(pool), pool});
  }
  return list;
}

// Opens the back end of a part. `first_object`: of pool 0, the number of objects that earlier parts of a page have.
StorePart open_part(const OpenTerms& terms, Tier tier, const PartMemory& of, std::uint32_t first_object,
                    std::vector<std::string>& notes) {
  const Setup& setup = terms.setup;
  StorePart part{kBackends[tier](terms), of.memory, terms.objects, 0, of.pool};
  if (tier == Tier::remote && !setup.world.node_downs.empty()) {
    part.backend = make_failing_nodes(std::move(part.backend), setup.world.network.nodes, setup.world.node_downs);
  }
  const std::string description = part.backend->description();
  if (!description.empty() && terms.part().empty()) notes.push_back(description);
  const bool has_own_names = spec_of(tier).owned && setup.hardware.file_a_page;
  if (of.pool == 0) {
    part.first_object = has_own_names ? 0 : first_object;
  } else if (terms.is_state() && setup.engine.storage_writers < setup.engine.ranks) {
    // All ranks have the space of the one that writes the pages, and each has a state of its own.
    part.of_rank = true;
    part.first_object = 1 + static_cast<std::uint32_t>(setup.rank);
  }
  return part;
}

}  // namespace

RealStorage open_storage(const Experiment& experiment, const Setup& setup, Device& device, double slow_factor,
                         const StorageSecrets& secrets, RealRanks* everyone) {
  RealStorage storage;
  if (!secrets.page_key.empty()) {
    try {
      storage.seal = std::make_unique<PageSeal>(secrets.page_key);
    } catch (const std::runtime_error& error) {
      throw InputError(std::string("KVTWIN_PAGE_KEY: ") + error.what());
    }
  }
  const PageSeal* seal = storage.seal.get();
  for (const StorageTierConfig& tier : setup.engine.storage) {
    // If a page is the same on all ranks, one rank writes the page for all ranks; but not in segments, which only their
    // own rank can read.
    const bool one_rank_only = spec_of(tier.tier).owned && !setup.hardware.file_a_page;
    const bool stores = one_rank_only || setup.engine.storage_writers == setup.engine.ranks || setup.rank == 0;
    std::vector<StorePart> parts;
    std::uint32_t first_object = 0;
    for (const PartMemory& it : memories_of(setup, device)) {
      OpenTerms terms{experiment, setup,  tier.pages, *it.memory, 1,        it.pool,
                      it.draft,   stores, seal,       secrets,    everyone, storage.notes};
      if (!terms.is_state()) terms.objects = objects_in(terms, tier.tier, it.memory->form().shape);
      terms.stores |= terms.is_state();
      parts.push_back(open_part(terms, tier.tier, it, first_object, storage.notes));
      first_object += terms.objects;
    }
    if (spec_of(tier.tier).owned) {
      PageMemory& pages = device.memory();
      add_notes(experiment, setup, pages, pages.direct() != nullptr, seal != nullptr, storage.notes);
    }
    std::vector<SlowSpan> slow = tier.tier == Tier::disk ? setup.world.slow_drives : std::vector<SlowSpan>{};
    storage.tiers.push_back(
        std::make_unique<TierQueues>(tier.tier, std::move(parts), stores, slow_factor, std::move(slow)));
  }
  return storage;
}

}  // namespace kvtwin
