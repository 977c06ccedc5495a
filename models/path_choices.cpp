#include "models/path_choices.hpp"

#include <cmath>
#include <cstdint>
#include <string_view>
#include <vector>

#include "models/hardware.hpp"
#include "models/presets.hpp"
#include "models/roofline.hpp"
#include "policy/transfer/plan.hpp"

namespace kvtwin {
namespace {

constexpr Pages kPages = 64;
constexpr std::uint32_t kPageTokens = 64;
constexpr Pages kPoolPages = 16384;

struct Shape {
  const char* model;
  std::uint32_t tp;
};
constexpr Shape kShapes[] = {{"llama-3.1-8b", 1}, {"llama-3.1-70b", 8}, {"deepseek-v3", 1}};

constexpr Layout kLayouts[] = {Layout::layer_first, Layout::page_first, Layout::page_first_direct, Layout::page_head};

struct Case {
  const char* title;
  Direction direction;
  bool busy;
};
constexpr Case kCases[] = {{"load beside a pass", Direction::host_to_device, true},
                           {"load, GPU idle", Direction::host_to_device, false},
                           {"backup", Direction::device_to_host, false}};

std::string choice(const Shape& shape, Layout layout, const HardwareSpec& hardware, const Case& one) {
  const ModelGeometry model = model_preset(shape.model);
  PoolPair pools{model.shape(shape.tp, kPageTokens), layout, kPoolPages, kPoolPages};
  std::vector<PageRun> runs;
  for (std::uint32_t i = 0; i < kPages; ++i) runs.push_back({2 * i, 2 * i, 1});
  const Plan plan = plan_transfer(runs, one.direction, pools, IoBackend::automatic, planner_limits(hardware), one.busy);
  const TransferCost cost = RooflineCost(model, hardware, shape.tp).transfer(plan);
  // 0: only the link limits the rate.
  const double link = one.direction == Direction::host_to_device ? hardware.host_to_device : hardware.device_to_host;
  const double limit = cost.bytes_per_second == 0 ? link : static_cast<double>(cost.bytes_per_second);
  const double seconds = static_cast<double>(cost.latency_ns) * 1e-9 + static_cast<double>(cost.bytes) / limit;
  const double rate = static_cast<double>(plan.bytes) / seconds * 1e-9;
  return std::string(name_of(plan.path)) + " " + std::to_string(std::lround(rate));
}

}  // namespace

std::string path_choices_text() {
  std::string text;
  for (const Case& one : kCases) {
    text += std::string(text.empty() ? "" : "\n") + "| " + one.title + ", GB/s |";
    std::string rule = "\n|---|";
    std::vector<HardwareSpec> gpus;
    for (const std::string& name : hardware_preset_names()) {
      if (name == "cpu-host") continue;
      gpus.push_back(hardware_preset(name));
      text += " " + name + " |";
      rule += "---|";
    }
    text += rule + "\n";
    for (const Shape& shape : kShapes) {
      const std::uint64_t row = model_preset(shape.model).shape(shape.tp, kPageTokens).row_bytes();
      for (const Layout layout : kLayouts) {
        text += "| " + std::string(shape.model) + (shape.tp > 1 ? ", tp " + std::to_string(shape.tp) : "") +
                " (rows of " + std::to_string(row) + " B), " + std::string(name_of(layout)) + " |";
        for (const HardwareSpec& gpu : gpus) text += " " + choice(shape, layout, gpu, one) + " |";
        text += "\n";
      }
    }
  }
  return text;
}

}  // namespace kvtwin
