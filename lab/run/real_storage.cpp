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

// Buffers for reads from the disk, and as many for writes; at least four pages each.
constexpr Bytes kMaxStagingBytes = Bytes{64} << 20;

// The arguments for opening the back end of one part of a tier's pages.
struct OpenTerms {
  const Experiment& experiment;
  const Setup& setup;
  Pages pages = 0;
  PageMemory& memory;
  std::uint32_t objects = 1;  // of a page in this part
  bool draft = false;         // the part of the draft model
  bool stores = true;         // false: this rank only reads, because another rank stores for all
  const PageSeal* seal = nullptr;
  const StorageSecrets& secrets;
  RealRanks* everyone = nullptr;
  std::vector<std::string>& notes;

  PageForm form() const { return object_form(memory.form(), objects); }
  // The draft's objects lie in a folder of their own, because they have another form.
  std::filesystem::path of_part(const std::filesystem::path& folder) const { return draft ? folder / "draft" : folder; }
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
  folder = terms.of_part(folder);
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
    segments.capacity_pages = terms.pages * terms.objects;
    segments.form = form;
    segments.depth = static_cast<std::uint32_t>(std::clamp<Bytes>(kMaxStagingBytes / form.bytes(), 4, segments.depth));
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
    // Each rank that stores has one file per object.
    const Pages files = terms.pages * terms.setup.engine.storage_writers * terms.objects;
    return make_shared_files({terms.of_part(folder), files, terms.stores, terms.seal}, terms.form());
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
    const Pages parts = terms.pages * terms.setup.engine.storage_writers * terms.objects;
    remote.pool =
        PoolMember{(terms.draft ? "draft" : "process") + std::to_string(terms.everyone->rank()), processes,
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
  const std::string silent = terms.draft ? "" : tier.check();
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

}  // namespace

RealStorage open_storage(const Experiment& experiment, const Setup& setup, PageMemory& memory, PageMemory* draft,
                         double slow_factor, const StorageSecrets& secrets, RealRanks* everyone) {
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
    for (PageMemory* part : {&memory, draft}) {
      if (part == nullptr) continue;
      OpenTerms terms{experiment, setup,   tier.pages, *part,        1, part == draft, stores,
                      seal,       secrets, everyone,   storage.notes};
      terms.objects = objects_in(terms, tier.tier, part->form().shape);
      std::unique_ptr<StorageBackend> backend = kBackends[tier.tier](terms);
      if (tier.tier == Tier::remote && !setup.world.node_downs.empty()) {
        backend = make_failing_nodes(std::move(backend), setup.world.network.nodes, setup.world.node_downs);
      }
      const std::string description = backend->description();
      if (!description.empty() && !terms.draft) storage.notes.push_back(description);
      const bool has_own_names = spec_of(tier.tier).owned && setup.hardware.file_a_page;
      parts.push_back({std::move(backend), part, terms.objects, has_own_names ? 0 : first_object});
      first_object += terms.objects;
    }
    if (spec_of(tier.tier).owned) {
      add_notes(experiment, setup, memory, memory.direct() != nullptr, seal != nullptr, storage.notes);
    }
    std::vector<SlowSpan> slow = tier.tier == Tier::disk ? setup.world.slow_drives : std::vector<SlowSpan>{};
    storage.tiers.push_back(
        std::make_unique<TierQueues>(tier.tier, std::move(parts), stores, slow_factor, std::move(slow)));
  }
  return storage;
}

}  // namespace kvtwin
