#include "lab/run/machine.hpp"

#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Returns the text behind "KEY...:" in a file; empty if there is no such file or line.
std::string line_after(const fs::path& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string gpu_name() {
  std::error_code error;
  for (const auto& gpu : fs::directory_iterator("/proc/driver/nvidia/gpus", error)) {
    const std::string name = line_after(gpu.path() / "information", "Model");
    if (!name.empty()) return name;
  }
  return "cuda";
}

}  // namespace

MeasuredMachine this_machine(bool cuda) {
  MeasuredMachine machine;
  machine.cpu = line_after("/proc/cpuinfo", "model name");
  if (machine.cpu.empty()) machine.cpu = "unknown processor";
  utsname names{};
  if (uname(&names) == 0) machine.kernel = std::string(names.sysname) + " " + names.release;
  machine.cores = static_cast<std::uint64_t>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  machine.device = cuda ? gpu_name() : "host";
  return machine;
}

std::optional<ProcessorTimes> processor_times(std::string_view stat) {
  std::istringstream in{std::string(stat.substr(0, stat.find('\n')))};
  std::string name;
  in >> name;
  if (name != "cpu") return std::nullopt;
  // user nice system idle iowait irq softirq steal. The later fields (guests) are part of user and nice.
  constexpr int kFields = 8, kSteal = 7;
  ProcessorTimes times;
  for (int field = 0; field < kFields; ++field) {
    std::uint64_t ticks = 0;
    if (!(in >> ticks)) return std::nullopt;
    times.all += ticks;
    if (field == kSteal) times.stolen = ticks;
  }
  return times;
}

std::optional<double> load_average(std::string_view loadavg) {
  std::istringstream in{std::string(loadavg)};
  double minute = 0;
  if (!(in >> minute)) return std::nullopt;
  return minute;
}

LoadWatch::LoadWatch()
    : before_(load_average(text_of("/proc/loadavg"))), times_(processor_times(text_of("/proc/stat"))) {}

std::optional<MachineLoad> LoadWatch::load() const {
  const std::optional<double> now = load_average(text_of("/proc/loadavg"));
  const std::optional<ProcessorTimes> times = processor_times(text_of("/proc/stat"));
  if (!before_ || !now || !times_ || !times) return std::nullopt;
  const double all = static_cast<double>(std::max<std::uint64_t>(1, times->all - times_->all));
  return MachineLoad{*before_, *now, static_cast<double>(times->stolen - times_->stolen) / all};
}

}  // namespace kvtwin
