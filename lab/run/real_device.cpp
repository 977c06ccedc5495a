#include "lab/run/real_device.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "impl/device/host_device.hpp"
#include "impl/runtime/arena.hpp"
#include "lab/error.hpp"
#include "lab/experiment/faults.hpp"
#include "lab/run/cuda_devices.hpp"

namespace kvtwin {
namespace {

// Returns the factor on the time of this rank's copies and storage operations; 1 without a fault of the rank.
double slow_factor(const Experiment& experiment, const Setup& setup) {
  double factor = 1;
  for (const Fault& fault : faults_of(experiment, "rank")) {
    const auto rank = static_cast<std::size_t>(fault.number("index"));
    if (rank >= setup.engine.ranks) {
      throw InputError(where_of(experiment, fault) + ": the ranks are 0 to " + std::to_string(setup.engine.ranks - 1) +
                       " (" + experiment.where("parallel.tp") + "); give one of them");
    }
    if (rank == setup.rank) factor = fault.decimal("factor");
  }
  return factor;
}

DeviceConfig::Flip flip_of(const Experiment& experiment, const Setup& setup) {
  const std::vector<Fault> flips = faults_of(experiment, "flip");
  if (flips.empty()) return DeviceConfig::Flip::none;
  // The wrong page would be stored with a valid check, and later runs would read it.
  if (!setup.engine.storage.empty()) {
    throw InputError(where_of(experiment, flips.front()) + ": would leave a wrong page in the " +
                     std::string(spec_of(setup.engine.storage.front().tier).name) +
                     " tier, where other runs find it; leave it out, or leave storage tiers out");
  }
  return flips.front().word("place") == "device" ? DeviceConfig::Flip::device : DeviceConfig::Flip::host;
}

DeviceConfig common_config(const Experiment& experiment, const Setup& setup, RankGroup* ranks) {
  DeviceConfig config;
  config.ranks = ranks;
  config.slow_factor = slow_factor(experiment, setup);
  config.shape = setup.engine.shape;
  config.host_layout = setup.engine.host_layout;
  config.device_pages = setup.engine.device_slots();
  config.host_pages = setup.engine.host_pages;
  config.seed = static_cast<std::uint64_t>(experiment.integer("seed"));
  config.flip = flip_of(experiment, setup);
  return config;
}

// Returns the pools of a draft model beside the target's. A packed draft's layers are the target's last ones, unless
// they stay on the device: then they lie in a pool of their own, too.
std::optional<DeviceConfig> draft_pools(const Setup& setup, const DeviceConfig& target) {
  if (!setup.draft || (setup.draft->packed && setup.draft->restored)) return std::nullopt;
  DeviceConfig config = target;
  config.kind = KvKind::draft;
  config.shape = setup.draft->shape;
  config.flip = DeviceConfig::Flip::none;
  config.stays = !setup.draft->restored;
  config.handed = setup.engine.hand_over.to.draft.has_value();
  if (config.stays) config.host_pages = 0;
  return config;
}

// Returns the pools of windows and states. They do no arithmetic: that of all layers is done beside the pages of full
// attention.
std::vector<DeviceConfig> pools_beside(const Setup& setup, const DeviceConfig& target) {
  std::vector<DeviceConfig> pools;
  for (const PoolConfig& pool : setup.engine.pools) {
    DeviceConfig config = target;
    config.kind = pool.closure == Closure::point ? KvKind::states : KvKind::windows;
    config.pool = pools.size() + 1;
    config.shape = pool.shape;
    config.device_pages = pool.device_slots;
    config.host_pages = pool.host_slots;
    config.flip = DeviceConfig::Flip::none;
    // Another rank's window or state is a wrong one.
    const bool same_on_all_ranks = pool.closure == Closure::tail && is_latent(pool.shape);
    if (!same_on_all_ranks) config.mark = setup.rank;
    pools.push_back(config);
  }
  return pools;
}

HostDeviceConfig host_config(const ModelGeometry& model, const DeviceConfig& common) {
  HostDeviceConfig config;
  static_cast<DeviceConfig&>(config) = common;
  // Matrix products with as many multiply-adds per token and layer as the model has weights.
  const std::uint64_t head = model.head_parameters;
  const std::uint64_t linear = model.active_parameters - std::min(head, model.active_parameters);
  // Layers with windows or states lie in other pools: those here do their arithmetic too.
  const std::uint64_t layers = model.without_pages.empty() ? model.layers.size() : common.shape.layers;
  config.hidden = model.hidden;
  config.width = static_cast<std::uint32_t>(std::max<std::uint64_t>(1, linear / layers / std::max(1U, model.hidden)));
  // Converts FLOP of the model to multiply-adds per layer.
  const auto multiply_adds_per_layer = [&](std::uint64_t flops) { return flops / 2 / layers; };
  config.pair_work = static_cast<std::uint32_t>(multiply_adds_per_layer(model.full_attention.prefill_pair_flops));
  config.decode_work = multiply_adds_per_layer(model.full_attention.decode_token_flops);
  config.context_work = multiply_adds_per_layer(model.context_projection_flops);
  config.head_work = head;
  return config;
}

std::size_t ranks_here(const DeviceConfig& common) { return common.ranks == nullptr ? 1 : common.ranks->size_here(); }

// A staged load stays in the area until the pass that waits for it reaches its last layers, so the area has many
// chunks.
constexpr Bytes kAreaChunks = 32;

// Larger batches make their graphs in their first steps. Each number of tokens takes two decode steps at the start.
constexpr std::uint32_t kMaxWarmTokens = 32;

// Returns the configuration of this rank's GPU. Ranks take the GPUs of the machine in turn.
CudaDeviceConfig cuda_config(const Experiment& experiment, const Setup& setup, const ModelGeometry& model,
                             const DeviceConfig& common, int gpus) {
  CudaDeviceConfig config;
  static_cast<DeviceConfig&>(config) = common;
  config.ordinal = common.ranks == nullptr ? 0 : static_cast<int>(common.ranks->rank_here()) % gpus;
  config.transformer = transformer_sizes(model, static_cast<std::uint32_t>(setup.engine.ranks));
  config.blas_library = experiment.text("real.cublas");
  const bool all = common.flip != DeviceConfig::Flip::none;
  config.check_every = all ? 1 : static_cast<std::uint32_t>(experiment.integer("real.check_every"));
  config.warm_tokens = std::min(kMaxWarmTokens, setup.engine.max_running);
  // As the simulation charges them.
  const HardwareSpec& hardware = setup.hardware;
  config.copy_ctas = static_cast<std::uint32_t>(std::lround(hardware.kernel_blocks));
  config.ring_ctas = config.copy_ctas;
  if (hardware.ring_blocks > 0) config.ring_ctas = static_cast<std::uint32_t>(std::lround(hardware.ring_blocks));
  if (hardware.ring_stages > 0) {
    config.ring_stages = std::max(2U, static_cast<std::uint32_t>(std::lround(hardware.ring_stages)));
  }
  config.staging_bytes = static_cast<Bytes>(std::llround(hardware.staging_bytes));
  config.staging_area = kAreaChunks * config.staging_bytes;
  return config;
}

// GPU memory for pages that are read from the disk; at least four pages.
constexpr Bytes kMaxDirectBytes = Bytes{64} << 20;

enum class UseCuFile : std::uint8_t { automatic, on, off };

UseCuFile use_of_cufile(const Experiment& experiment, const Setup& setup) {
  const std::string& use = experiment.text("real.cufile");
  const bool segments =
      !setup.hardware.file_a_page &&
      std::ranges::any_of(setup.engine.storage, [](const StorageTierConfig& it) { return it.tier == Tier::disk; });
  if (use == "on" && !segments) {
    throw InputError(experiment.where("real.cufile") +
                     ": is on, and there is no disk tier in segments to read from; set it to auto, or give the "
                     "experiment one (tiers.disk, with format segments)");
  }
  const bool past_host = setup.engine.path != CachePath::via_host;
  if (use == "on" && !past_host) {
    throw InputError(experiment.where("real.cufile") +
                     ": is on, and all pages go through host memory; set it to auto, or cache.path to direct or auto");
  }
  return use == "off" || !segments || !past_host ? UseCuFile::off : use == "on" ? UseCuFile::on : UseCuFile::automatic;
}

void use_cufile(const Experiment& experiment, const Setup& setup, CudaDeviceConfig& config,
                std::vector<std::string>& notes) {
  const UseCuFile use = use_of_cufile(experiment, setup);
  if (use == UseCuFile::off) return;
  std::string why_not;
  try {
    config.cufile = cuda_devices().load_cufile(experiment.text("real.cufile_library"));
    // In its compatible mode cuFile also copies through host memory. The usual path is as short, and needs no checksums
    // of its own.
    if (use == UseCuFile::automatic && config.cufile->mode() == CuFile::Mode::compatible) {
      why_not = "there is " + config.cufile->description();
      config.cufile.reset();
    }
  } catch (const std::runtime_error& error) {
    if (use == UseCuFile::on) throw InputError(experiment.where("real.cufile") + ": is on, and " + error.what());
    why_not = error.what();
  }
  if (!config.cufile) notes.push_back("Disk tier: its pages reach the GPU through host memory: " + why_not + ".");
  config.direct_buffers =
      static_cast<std::uint32_t>(std::clamp<Bytes>(kMaxDirectBytes / config.shape.page_bytes(), 4, 16));
}

std::string gib(Bytes bytes) {
  char text[40];
  std::snprintf(text, sizeof text, "%.2f GiB", static_cast<double>(bytes) / 1073741824.0);
  return text;
}

// Errors: always InputError. `bytes`: per rank. `ranks` ranks share `available` bytes of `where`.
[[noreturn]] void refuse_size(const Experiment& experiment, Bytes bytes, std::size_t ranks, Bytes available,
                              const char* where, const std::vector<std::string>& tiers) {
  const auto key = [&](const std::string& tier) {
    const std::string name = "tiers." + tier;
    if (tier == "host" && experiment.number("tiers.host.ratio") != 0) return experiment.where("tiers.host.ratio");
    return experiment.where(name + (experiment.integer(name + ".tokens") != 0 ? ".tokens" : ".gib"));
  };
  std::string sizes;
  for (const std::string& tier : tiers) sizes += (sizes.empty() ? "" : " or ") + key(tier);
  throw InputError("this experiment takes " + gib(ranks * bytes) + " for " +
                   (ranks == 1 ? "its" : "its " + std::to_string(ranks) + " ranks'") + " pools and weights, and " +
                   where + " has " + gib(available) + " free; make " + sizes +
                   " smaller, or take a smaller model, e.g. model.name = \"tiny\"");
}

// Counts all ranks on this machine, because no rank has allocated its memory yet.
void check_host_memory(const Experiment& experiment, const DeviceConfig& config, Bytes bytes) {
  const std::size_t ranks = config.ranks == nullptr ? 1 : config.ranks->size_here();
  const std::optional<Bytes> available = memory_available();
  if (!available || ranks * bytes <= *available / 10 * 9) return;
  refuse_size(experiment, bytes, ranks, *available, "this machine", {"device", "host"});
}

RealDevice choose_host(const Experiment& experiment, const Setup& setup, const DeviceConfig& common) {
  HostDeviceConfig config = host_config(setup.model, common);
  if (const std::optional<DeviceConfig> draft = draft_pools(setup, common)) {
    config.beside.push_back(host_config(setup.draft->model, *draft));
  }
  for (const DeviceConfig& pool : pools_beside(setup, common)) {
    config.beside.emplace_back();
    static_cast<DeviceConfig&>(config.beside.back()) = pool;
  }
  check_host_memory(experiment, common, host_device_bytes(config));
  if (use_of_cufile(experiment, setup) == UseCuFile::on) {
    throw InputError(experiment.where("real.cufile") +
                     ": is on, and the host device has no GPU memory to read into; set it to auto, or take cuda");
  }
  return {"host", common, [config] { return make_host_device(config); }, {}};
}

RealDevice choose_cuda(const Experiment& experiment, const Setup& setup, const DeviceConfig& common, int gpus) {
  CudaDeviceConfig config = cuda_config(experiment, setup, setup.model, common, gpus);
  if (const std::optional<DeviceConfig> draft = draft_pools(setup, common)) {
    config.beside.push_back(cuda_config(experiment, setup, setup.draft->model, *draft, gpus));
  }
  for (const DeviceConfig& pool : pools_beside(setup, common)) {
    config.beside.push_back(cuda_config(experiment, setup, setup.model, pool, gpus));
    config.beside.back().transformer = {};
  }
  std::vector<std::string> notes;
  use_cufile(experiment, setup, config, notes);
  const CudaDeviceBytes bytes = cuda_devices().bytes(config);
  check_host_memory(experiment, common, bytes.host);
  const std::size_t here = ranks_here(common);
  const std::size_t sharing = (here + static_cast<std::size_t>(gpus) - 1) / static_cast<std::size_t>(gpus);
  const Bytes available = cuda_devices().bytes_free(config.ordinal);
  if (sharing * bytes.gpu > available) refuse_size(experiment, bytes.gpu, sharing, available, "the GPU", {"device"});
  return {"cuda", common, [config] { return cuda_devices().make(config); }, std::move(notes)};
}

}  // namespace

RealDevice choose_device(const Experiment& experiment, const Setup& setup, RankGroup* ranks) {
  const std::string& name = experiment.text("real.device");
  const DeviceConfig common = common_config(experiment, setup, ranks);
  if (name == "host") return choose_host(experiment, setup, common);
  const CudaPresence cuda = cuda_at_hand(ranks_here(common));
  if (cuda.gpus > 0) return choose_cuda(experiment, setup, common, cuda.gpus);
  if (name == "auto") return choose_host(experiment, setup, common);
  throw InputError(experiment.where("real.device") + ": cuda can't be served: " + cuda.why_none +
                   "; take host, or auto");
}

}  // namespace kvtwin
