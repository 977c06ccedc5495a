#include "lab/experiment/setup_parts.hpp"

#include <algorithm>
#include <optional>
#include <vector>

#include "lab/error.hpp"
#include "lab/names.hpp"
#include "models/operator_cost.hpp"
#include "models/operator_table.hpp"
#include "models/presets.hpp"
#include "models/serving_times.hpp"
#include "policy/base/names.hpp"
#include "policy/base/wide.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {
namespace {

// Rounds to whole picoseconds. Times are at most 9e18 ps, to fit into the type.
std::uint64_t picoseconds(double ps) { return static_cast<std::uint64_t>(std::min(ps, 9.0e18) + 0.5); }

// Returns the time to load one token from the host, for one rank (all ranks load in parallel), in a load of up to 128
// neighbouring pages.
std::uint64_t load_token_ps(const Setup& setup) {
  const EngineConfig& engine = setup.engine;
  if (engine.host_pages == 0) return 0;
  const PageRun run{0, 0,
                    static_cast<std::uint32_t>(std::min<Pages>(128, std::min(engine.device_pages, engine.host_pages)))};
  const PoolPair pools{engine.shape, engine.host_layout, engine.device_pages, engine.host_pages};
  const Plan plan = plan_transfer(std::span(&run, 1), Direction::host_to_device, pools, engine.io, engine.planner);
  const TransferCost cost = setup.cost->transfer(plan);
  double rate = setup.hardware.host_to_device;
  if (cost.bytes_per_second != 0) rate = std::min(rate, static_cast<double>(cost.bytes_per_second));
  const double bytes = static_cast<double>(engine.page_bytes());
  return picoseconds(bytes * 1e12 / rate / engine.shape.page_tokens);
}

// Refuses a table of another GPU. A hardware file without a GPU's name takes any table, and a note says so.
void check_gpu(const Experiment& e, const char* key, const OperatorTable& table, Setup& setup) {
  if (e.flag("hardware.operators_of_another_gpu")) return;
  const std::string of_table = gpu_name(table.gpu), gpu = hardware_of(e).gpu;
  if (of_table == gpu) return;
  if (gpu.empty()) {
    setup.notes.push_back(e.where("hardware.file") + " names no GPU, so nothing says whether the times of " +
                          table.name + " are its own; if they are, add \"gpu\": \"" + of_table + "\" to it");
    return;
  }
  const std::string hardware = e.where(e.text("hardware.file").empty() ? "hardware.name" : "hardware.file");
  std::string own;
  for (const std::string& name : operators_preset_names()) {
    if (name.starts_with(gpu + "/")) own += (own.empty() ? "" : ", ") + name;
  }
  throw InputError(
      e.where(key) + ": the times of " + table.name + " were measured on " + of_table + ", and " + hardware + " is " +
      gpu + "; " +
      (own.empty() ? "there is no table of " + gpu + ": set hardware.operators to none" : "take " + own + " or none") +
      ", or set hardware.operators_of_another_gpu to true");
}

std::string percent(std::uint64_t share_x2_32) { return std::to_string((share_x2_32 * 100) >> 32) + " %"; }

constexpr Tokens kTypicalChunk = 2048, kTypicalContext = 4096;

constexpr std::uint32_t kTypicalSequences = 32;

ForwardShape typical_decode() {
  ForwardShape decode;
  decode.decode_sequences = kTypicalSequences;
  decode.decode_context_tokens = kTypicalSequences * kTypicalContext;
  return decode;
}

}  // namespace

void price(Setup& setup) {
  EngineConfig& engine = setup.engine;
  constexpr Tokens kStepTokens = 4096, kNearTokens = 4096, kFarTokens = 65'536;
  const auto slope_ps = [&](Tokens from) {
    const auto prefill = [&](Tokens tokens) {
      ForwardShape shape;
      shape.prefill_tokens = tokens;
      shape.prefill_pairs = tokens * (tokens + 1) / 2;
      shape.prefill_sequences = 1;
      return setup.cost->forward_ns(shape, 1);
    };
    return Wide{prefill(from + kStepTokens) - prefill(from)} * 1000 / Wide{kStepTokens};
  };
  const Wide near = slope_ps(kNearTokens), far = slope_ps(kFarTokens);
  const Wide first =
      std::max<Wide>(1, near - (far - near) * Wide{kNearTokens + kStepTokens / 2} / Wide{kFarTokens - kNearTokens});
  constexpr Tokens kNeverDoubles = Tokens{1} << 40;  // the cost does not depend on the depth
  engine.cost_token_ps = static_cast<std::uint64_t>(first);
  engine.cost_doubling_tokens =
      far <= near ? kNeverDoubles
                  : static_cast<Tokens>(std::max<Wide>(1, first * Wide{kFarTokens - kNearTokens} / (far - near)));
  engine.load_token_ps = load_token_ps(setup);
  for (StorageTierConfig& tier : engine.storage) {
    StorageWork work;
    work.verb = StorageVerb::get;
    work.tier = tier.tier;
    work.pages = engine.storage_batch_pages;
    work.page_bytes = setup.page_bytes();
    work.objects = engine.storage_objects;
    work.ranks = engine.ranks;
    const TransferCost cost = setup.cost->storage(work);
    const double ps = static_cast<double>(cost.latency_ns) * 1e3 +
                      (cost.bytes_per_second == 0
                           ? 0.0
                           : static_cast<double>(cost.bytes) * 1e12 / static_cast<double>(cost.bytes_per_second));
    tier.read_token_ps = picoseconds(ps / static_cast<double>(work.pages * engine.shape.page_tokens));
  }
}

const OperatorTable* operators_of(const Experiment& e, Setup& setup, OperatorTable& read) {
  const bool is_file = !e.text("hardware.operators_file").empty();
  const std::string& name = e.text("hardware.operators");
  if (!is_file && (name.empty() || name == "none")) return nullptr;
  const char* const key = is_file ? "hardware.operators_file" : "hardware.operators";
  const OperatorTable* const table = with_key(e, key, [&] {
    if (!is_file) return &operators_preset(name);
    read = operators_from_file(e.path(key).string());
    return static_cast<const OperatorTable*>(&read);
  });
  check_gpu(e, key, *table, setup);
  return table;
}

std::string operators_note(const OperatorTable& table, const RooflineCost& cost) {
  ForwardShape prefill;
  prefill.prefill_tokens = kTypicalChunk;
  prefill.prefill_pairs = kTypicalChunk * (kTypicalChunk + 1) / 2;
  prefill.prefill_sequences = 1;
  std::string note = "hardware.operators: times of " + table.name + " (" + table.gpu + ", " + table.engine + ", " +
                     table.source + ", " + table.date + "); measured are " + percent(cost.measured_x2_32(prefill)) +
                     " of a prefill of " + std::to_string(kTypicalChunk) + " tokens and " +
                     percent(cost.measured_x2_32(typical_decode())) + " of a decode step of " +
                     std::to_string(kTypicalSequences) + " sequences with " + std::to_string(kTypicalContext) +
                     " tokens each; the rest is the roofline";
  const std::vector<std::string>& missing = cost.operators()->missing();
  for (std::size_t i = 0; i < missing.size(); ++i) note += (i == 0 ? "; the table lacks " : ", ") + missing[i];
  return note;
}

void configure_host_link(const Experiment& e, Setup& setup) {
  const double given = e.number("serving.host_link_share");
  const ServingEngine engine = *value_named<ServingEngine>(e.text("serving.engine"));
  if (engine == ServingEngine::none) return;
  const double share = given > 0 ? given : host_link_share(engine);
  setup.hardware.host_to_device *= share;
  setup.hardware.kernel_read *= share;
}

void configure_serving(const Experiment& e, Setup& setup) {
  const ServingEngine engine = *value_named<ServingEngine>(e.text("serving.engine"));
  if (engine == ServingEngine::none) return;
  ServingTimes& times = setup.serving;
  times = serving_times(engine);
  const OperatorCost* const operators = setup.cost->operators();
  if (operators != nullptr && operators->launch_ns() != 0) times.launch_ns = operators->launch_ns();
  const auto take = [&](const char* key, std::uint64_t& value, double unit) {
    const double given = e.number(key);
    if (given >= 0) value = static_cast<std::uint64_t>(given * unit + 0.5);
  };
  take("serving.request_us", times.request_ns, 1e3);
  take("serving.token_ns", times.token_ps, 1e3);
  take("serving.schedule_us", times.schedule_ns, 1e3);
  take("serving.step_us", times.step_ns, 1e3);
  take("serving.sequence_us", times.sequence_ns, 1e3);
  take("serving.kernel_us", times.kernel_ns, 1e3);
  take("serving.launch_us", times.launch_ns, 1e3);
  take("serving.prefix_factor", times.prefix_x1024, 1024);
  take("serving.prefill_factor", times.prefill_x1024, 1024);
  times.graphs = e.flag("serving.cuda_graphs");
  times.overlap = e.flag("serving.overlap");
  setup.cost->serve_with(times, setup.model, setup.hardware, static_cast<std::uint32_t>(e.integer("parallel.tp")));
}

std::optional<double> measured_decode_share(const Setup& setup) {
  if (setup.cost->operators() == nullptr) return std::nullopt;
  return static_cast<double>(setup.cost->measured_x2_32(typical_decode())) / 4294967296.0;
}

}  // namespace kvtwin
