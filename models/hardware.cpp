#include "models/hardware.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <span>

#include "models/config_reader.hpp"
#include "models/json.hpp"
#include "models/names.hpp"
#include "models/number_fields.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"

namespace kvtwin {

namespace {

using Field = FieldOf<HardwareSpec>;
using D = Dimension;
using H = HardwareSpec;
constexpr std::array<Field, 45> kFields{{
    {"memory_bytes", D::bytes, &H::memory_bytes, 4e12, "4,000 GB"},
    {"memory_bandwidth", D::rate, &H::memory_bandwidth, 20e12, "20 TB/s"},
    {"memory_fraction", D::fraction, &H::memory_fraction, 1, "1"},
    {"peak_bf16", D::flops, &H::peak_bf16, 10e15, "10 PFLOP/s"},
    {"peak_fp8", D::flops, &H::peak_fp8, 20e15, "20 PFLOP/s", false},
    {"peak_fp4", D::flops, &H::peak_fp4, 50e15, "50 PFLOP/s", false},
    {"gemm_fraction", D::fraction, &H::gemm_fraction, 1, "1"},
    {"attention_fraction", D::fraction, &H::attention_fraction, 1, "1"},
    {"attention_serial", D::fraction, &H::attention_serial, 1, "1", false},
    {"attention_query_tokens", D::count, &H::attention_query_tokens, 65536, "65,536", false},
    {"pass_overhead", D::time, &H::pass_overhead, 1, "1 s"},
    {"peer_bandwidth", D::rate, &H::peer_bandwidth, 4e12, "4,000 GB/s"},
    {"peer_latency", D::time, &H::peer_latency, 0.1, "100 ms"},
    {"domain_ranks", D::count, &H::domain_ranks, 1024, "1024", false},
    {"host_to_device", D::rate, &H::host_to_device, 1e12, "1,000 GB/s"},
    {"device_to_host", D::rate, &H::device_to_host, 1e12, "1,000 GB/s"},
    {"bidirectional_factor", D::fraction, &H::bidirectional_factor, 1, "1"},
    {"link_latency", D::time, &H::link_latency, 0.1, "100 ms"},
    {"copy_call", D::time, &H::copy_call, 0.1, "100 ms"},
    {"descriptor_gap", D::time, &H::descriptor_gap, 0.1, "100 ms", false},
    {"descriptor_h2d", D::time, &H::descriptor_h2d, 0.1, "100 ms"},
    {"descriptor_d2h", D::time, &H::descriptor_d2h, 0.1, "100 ms"},
    {"inline_limit", D::bytes, &H::inline_limit, 1e9, "1 GB", false},
    {"inline_rate", D::rate, &H::inline_rate, 1e12, "1,000 GB/s", false},
    {"kernel_launch", D::time, &H::kernel_launch, 0.1, "100 ms"},
    {"kernel_block_rate", D::rate, &H::kernel_block_rate, 1e12, "1,000 GB/s"},
    {"kernel_blocks", D::count, &H::kernel_blocks, 1024, "1,024"},
    {"kernel_read", D::rate, &H::kernel_read, 1e12, "1,000 GB/s"},
    {"kernel_write", D::rate, &H::kernel_write, 1e12, "1,000 GB/s"},
    {"scatter_rate", D::rate, &H::scatter_rate, 20e12, "20 TB/s"},
    {"staging_bytes", D::bytes, &H::staging_bytes, 16e9, "16 GB"},
    {"box_row", D::time, &H::box_row, 0.1, "100 ms", false},
    {"bulk_copies", D::count, &H::bulk_copies, 1, "1", false},
    {"ring_rate", D::rate, &H::ring_rate, 1e12, "1,000 GB/s", false},
    {"ring_blocks", D::count, &H::ring_blocks, 1024, "1,024", false},
    {"ring_stages", D::count, &H::ring_stages, 4, "4", false},
    {"copy_engine_min_h2d", D::bytes, &H::copy_engine_min_h2d, 1e9, "1 GB", false},
    {"copy_engine_min_d2h", D::bytes, &H::copy_engine_min_d2h, 1e9, "1 GB", false},
    {"box_min", D::bytes, &H::box_min, 1e9, "1 GB", false},
    {"box_min_busy", D::bytes, &H::box_min_busy, 1e9, "1 GB", false},
    {"kernel_min_pieces", D::count, &H::kernel_min_pieces, 1e9, "1,000,000,000", false},
    {"window_h2d", D::bytes, &H::window_h2d, 1e12, "1,000 GB", false},
    {"layer_group_min", D::bytes, &H::layer_group_min, 1e12, "1,000 GB", false},
    {"dram_bandwidth", D::rate, &H::dram_bandwidth, 5e12, "5 TB/s"},
    {"dram_bytes", D::bytes, &H::dram_bytes, 64e12, "64,000 GB", false},
}};
constexpr Field kSharing{"accelerators_per_socket", D::count, &H::accelerators_per_socket, 64, "64"};
// Each array has the figures of one device: a machine has all of them or none.
constexpr std::array<Field, 13> kDrives{{
    {"drive_count", D::count, &H::drive_count, 64, "64", false},
    {"drive_read_bandwidth", D::rate, &H::drive_read_bandwidth, 32e9, "32 GB/s", false},
    {"drive_write_bandwidth", D::rate, &H::drive_write_bandwidth, 32e9, "32 GB/s", false},
    {"drive_read_iops", D::frequency, &H::drive_read_iops, 20e6, "20 MIOPS", false},
    {"drive_write_iops", D::frequency, &H::drive_write_iops, 20e6, "20 MIOPS", false},
    {"drive_read_latency", D::time, &H::drive_read_latency, 0.1, "100 ms", false},
    {"drive_write_latency", D::time, &H::drive_write_latency, 0.1, "100 ms", false},
    {"drive_queue_depth", D::count, &H::drive_queue_depth, 65536, "65,536", false},
    {"disk_look_up", D::time, &H::disk_look_up, 1, "1 s", false},
    {"file_read_overhead", D::time, &H::file_read_overhead, 1, "1 s", false},
    {"file_write_overhead", D::time, &H::file_write_overhead, 1, "1 s", false},
    {"file_read_bandwidth", D::rate, &H::file_read_bandwidth, 32e9, "32 GB/s", false},
    {"file_write_bandwidth", D::rate, &H::file_write_bandwidth, 32e9, "32 GB/s", false},
}};
constexpr std::array<Field, 7> kNetwork{{
    {"nic_count", D::count, &H::nic_count, 64, "64", false},
    {"nic_bandwidth", D::rate, &H::nic_bandwidth, 200e9, "200 GB/s", false},
    {"nic_latency", D::time, &H::nic_latency, 0.1, "100 ms", false},
    {"nic_object", D::time, &H::nic_object, 0.1, "100 ms", false},
    {"pool_bandwidth", D::rate, &H::pool_bandwidth, 100e12, "100 TB/s", false},
    {"pool_latency", D::time, &H::pool_latency, 1, "1 s", false},
    {"pool_look_up", D::time, &H::pool_look_up, 1, "1 s", false},
}};
constexpr std::array<Field, 4> kSharedFs{{
    {"shared_fs_read_bandwidth", D::rate, &H::shared_fs_read_bandwidth, 100e12, "100 TB/s", false},
    {"shared_fs_write_bandwidth", D::rate, &H::shared_fs_write_bandwidth, 100e12, "100 TB/s", false},
    {"shared_fs_latency", D::time, &H::shared_fs_latency, 1, "1 s", false},
    {"shared_fs_file", D::time, &H::shared_fs_file, 1, "1 s", false},
}};
constexpr std::array<Field, 2> kGpuDirect{{
    {"gpudirect_bandwidth", D::rate, &H::gpudirect_bandwidth, 1e12, "1,000 GB/s", false},
    {"gpudirect_object", D::time, &H::gpudirect_object, 0.1, "100 ms", false},
}};
constexpr Field kRoot{"pcie_root_bandwidth", D::rate, &H::pcie_root_bandwidth, 4e12, "4,000 GB/s", false};

std::vector<Field> fields() {
  std::vector<Field> all(kFields.begin(), kFields.end());
  all.push_back(kSharing);
  all.insert(all.end(), kDrives.begin(), kDrives.end());
  all.insert(all.end(), kNetwork.begin(), kNetwork.end());
  all.insert(all.end(), kSharedFs.begin(), kSharedFs.end());
  all.insert(all.end(), kGpuDirect.begin(), kGpuDirect.end());
  all.push_back(kRoot);
  return all;
}

constexpr std::size_t kMaxGpuName = 40;
bool in_gpu_name(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_'; }

// A device has all of its figures or none.
void check_device(const HardwareSpec& spec, std::span<const Field> device, const ConfigReader& numbers) {
  const auto given = [&](const Field& field) { return spec.*field.member > 0; };
  const auto first = std::ranges::find_if(device, given);
  if (first == device.end()) return;
  for (const Field& field : device) {
    if (!given(field)) numbers.fail(field.key, "given, as " + std::string(first->key) + " is");
  }
}

}  // namespace

std::span<const HardwareField> hardware_fields() {
  static const std::vector<HardwareField> all = [] {
    std::vector<HardwareField> list;
    for (const Field& field : fields()) {
      const bool exact = field.dimension == Dimension::bytes || field.dimension == Dimension::count;
      const bool whole = field.dimension == Dimension::count;
      const auto* const unit = std::ranges::find_if(
          kUnits, [&](const NumberUnit& one) { return one.dimension == field.dimension && one.factor == 1; });
      const bool plain = whole || field.dimension == Dimension::fraction;
      list.push_back({field.key, field.member, lower_bound_of(field.dimension).si, field.most, !exact, whole,
                      plain ? std::string_view() : unit->name});
    }
    return list;
  }();
  return all;
}

std::string_view incomplete_device(const HardwareSpec& hardware, std::string_view figure) {
  const std::pair<std::string_view, std::span<const Field>> kDevices[] = {
      {"drives", kDrives}, {"remote pool", kNetwork}, {"shared file system", kSharedFs}, {"GPUDirect", kGpuDirect}};
  for (const auto& [name, device] : kDevices) {
    if (std::ranges::find(device, figure, &Field::key) == device.end()) continue;
    const bool complete = std::ranges::all_of(device, [&](const Field& field) { return hardware.*field.member > 0; });
    return complete ? std::string_view() : name;
  }
  return {};
}

HardwareSpec parse_hardware(std::string_view json, const std::string& file) {
  const Json object = parse_object(json, file);
  const ConfigReader config(object, file);
  HardwareSpec spec;
  spec.name = file;
  spec.description = config.text("description", "");
  const Json* numbers = config.find("numbers");
  if (numbers == nullptr || !numbers->is_object()) {
    config.fail("numbers", "an object of numbers, each with value, unit, source and date");
  }
  config.only({"description", "gpu", "numbers", "calibration", "capture"});
  const std::string gpu = config.text("gpu", "");
  if (gpu.size() > kMaxGpuName || !std::ranges::all_of(gpu, in_gpu_name)) {
    config.fail("gpu", "a GPU's name of small letters, digits, - and _, for example h100-sxm");
  }
  spec.gpu = gpu_name(gpu);
  const std::vector<Field> known = fields();
  for (const auto& [key, value] : numbers->items()) {
    const Field& field = find_field(std::span<const Field>(known), key, file);
    if (!value.is_object()) ConfigReader(*numbers, file).fail(key, "an object with value, unit, source and date");
    spec.numbers.push_back(read_number(spec, field, value, file));
  }
  for (const Field& field : known) {
    if (field.required && !(spec.*field.member > 0)) ConfigReader(*numbers, file).fail(field.key, "given");
  }
  if (spec.inline_limit > 0 && !(spec.inline_rate > 0)) {
    ConfigReader(*numbers, file).fail("inline_rate", "given, as inline_limit is");
  }
  check_device(spec, kDrives, ConfigReader(*numbers, file));
  check_device(spec, kNetwork, ConfigReader(*numbers, file));
  check_device(spec, kSharedFs, ConfigReader(*numbers, file));
  check_device(spec, kGpuDirect, ConfigReader(*numbers, file));
  return spec;
}

PlannerLimits planner_limits(const HardwareSpec& hardware) {
  PlannerLimits limits;
  const auto set = [](auto& limit, double given) {
    if (given > 0) limit = static_cast<std::uint64_t>(given + 0.5);
  };
  set(limits.copy_engine_min_h2d, hardware.copy_engine_min_h2d);
  set(limits.copy_engine_min_d2h, hardware.copy_engine_min_d2h);
  set(limits.box_min, hardware.box_min);
  set(limits.box_min_busy, hardware.box_min_busy);
  set(limits.kernel_min_pieces, hardware.kernel_min_pieces);
  set(limits.window_h2d, hardware.window_h2d);
  set(limits.layer_group_min, hardware.layer_group_min);
  limits.bulk_copies = hardware.bulk_copies > 0;
  return limits;
}

HardwareSpec hardware_from_file(const std::string& path) {
  return parse_hardware(read_text_file(path, "give a hardware description (JSON)"), path);
}

// Each preset is parsed once: an experiment looks up its GPU after each change.
HardwareSpec hardware_preset(std::string_view name) {
  static std::mutex mutex;
  static std::map<std::string, HardwareSpec> read;
  const std::string preset(hardware_preset_name(name));
  const std::lock_guard lock(mutex);
  auto at = read.find(preset);
  if (at == read.end()) at = read.emplace(preset, parse_hardware(hardware_preset_text(name), preset)).first;
  return at->second;
}

bool is_amd(const HardwareSpec& hardware) {
  return hardware.gpu.starts_with("mi") || hardware.description.starts_with("AMD");
}

double exchange_rate(const HardwareSpec& hardware, std::uint32_t ranks) {
  constexpr double kRanksOfABoard = 8;
  const double domain = hardware.domain_ranks > 0 ? hardware.domain_ranks : kRanksOfABoard;
  if (ranks <= domain || !hardware.has_pool()) return hardware.peer_bandwidth;
  const double of_one = hardware.nic_bandwidth * hardware.nic_count / hardware.accelerators_per_socket;
  return std::min(hardware.peer_bandwidth, domain * of_one);
}

}  // namespace kvtwin
