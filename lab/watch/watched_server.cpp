#include "lab/watch/watched_server.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "lab/engine_commands.hpp"
#include "lab/error.hpp"
#include "lab/prices/price_list.hpp"
#include "lab/units.hpp"
#include "models/roofline.hpp"

namespace kvtwin {

std::unique_ptr<WatchedServer> WatchedServer::make(const ServerDescription& description) {
  const EngineArguments& flags = description.flags;
  const bool has_flags =
      !flags.sglang_flags.empty() || flags.sglang_server_info || flags.vllm_flags || flags.server_log;
  if (description.experiment.empty() && !has_flags) {
    if (description.sets.empty()) return nullptr;
    throw InputError("--set " + description.sets.front() +
                     ": there is no description of the server; give --experiment, --from-vllm-flags or "
                     "--from-sglang-flags too");
  }
  Experiment experiment = description.experiment.empty() ? Experiment::from_text("", "watch")
                                                         : Experiment::from_file(description.experiment);
  apply_engine_arguments(flags, description.sets, experiment);
  for (const std::string& set : description.sets) experiment.set(set);
  return std::unique_ptr<WatchedServer>(new WatchedServer(std::move(experiment)));
}

WatchedServer::WatchedServer(Experiment experiment)
    : experiment_(std::move(experiment)), setup_(make_setup(experiment_)) {}

double WatchedServer::block_bytes() const {
  return static_cast<double>(setup_.model.kv_bytes_per_token) * static_cast<double>(block_tokens());
}

double WatchedServer::drive_endurance() const {
  const bool is_own = !experiment_.text("prices.file").empty();
  const PriceList prices = is_own ? PriceList::from_file(experiment_.path("prices.file")) : PriceList::built_in();
  constexpr double kDaysPerYear = 365;
  return prices.get("drive.tb").value * 1e12 * prices.get("drive.dwpd").value *
         prices.get("drive.warranty_years").value * kDaysPerYear;
}

PrefillTime WatchedServer::prefill_time() const {
  return [cost = setup_.cost.get()](Tokens tokens) {
    ForwardShape shape;
    shape.prefill_tokens = tokens;
    shape.prefill_pairs = tokens * (tokens + 1) / 2;
    shape.prefill_sequences = 1;
    return tokens == 0 ? TimeNs{0} : cost->forward_ns(shape, 1);
  };
}

WatchedServer::WithHost WatchedServer::with_host(Pages host_blocks) const {
  Experiment changed = experiment_;
  changed.set("tiers.host.gib=" + plain_number(static_cast<double>(host_blocks) * block_bytes() / kGib),
              "the recommendation");
  WithHost with;
  const Setup setup = make_setup(changed);
  if (setup.bill && setup_.bill) {
    const double engines = std::max(1U, setup_.machines());
    with.per_month = (setup.bill->per_month - setup_.bill->per_month) / engines;
  }
  if (!is_vllm() && !is_sglang()) return with;
  for (const EngineCommand& command : engine_commands(changed)) {
    if (experiment_.text("engine").starts_with(command.engine)) with.command = command.line.line;
  }
  return with;
}

std::optional<EngineConfig> WatchedServer::engine_of(Pages blocks) const {
  EngineConfig engine = setup_.engine;
  const bool has_kinds = !setup_.host_pools.empty() || setup_.device_pools.pools.size() > 1;
  if (has_kinds || !engine.block_groups.groups.empty()) {
    if (engine.host_pages > 0) return std::nullopt;
    // Of vLLM's pool, one request can't have the block that holds nothing, and the windows of the other groups.
    const Pages pool = blocks + std::max<Pages>(engine.block_groups.blocks, engine.device_pages) - engine.device_pages;
    for (const Pages tried : {blocks, pool, pool + 1, std::max<Pages>(2, pool) - 1}) {
      auto other = engine_with("tiers.device.tokens=" + std::to_string(tried * block_tokens()));
      if (other && other->device_pages == blocks) return other;
    }
    return std::nullopt;
  }
  if (blocks <= engine.device_pages) {
    engine.device_pages = blocks;
    engine.host_pages = 0;
    engine.block_offload = {};
    return engine;
  }
  if (engine.host_pages > 0 && engine.block_offload.host.chunks == 0) {
    engine.host_pages = blocks;
    return engine;
  }
  return engine_with("tiers.host.gib=" + plain_number(static_cast<double>(blocks) * block_bytes() / kGib));
}

std::optional<EngineConfig> WatchedServer::engine_with(const std::string& set) const {
  try {
    Experiment changed = experiment_;
    changed.set(set, "another size");
    return make_setup(changed).engine;
  } catch (const InputError&) {
    return std::nullopt;
  }
}

std::optional<double> WatchedServer::engine_second_price() const {
  if (!setup_.bill) return std::nullopt;
  for (const BillPart& part : setup_.bill->parts) {
    if (!part.name.starts_with("GPU ") || part.count <= 0) continue;
    return part.per_month / part.count * setup_.engine_gpus() / (kHoursPerMonth * 3600);
  }
  return std::nullopt;
}

namespace {

// Of an engine, for a page that a tier holds, and for a node of its index: tests/bench/watch_bench.cpp, TwinMemory. A
// request adds a node, and may cut another one in two.
constexpr Pages kBytesPerPage = 45, kBytesPerNode = 300, kNodesPerRequest = 2;

EngineConfig without_storage(EngineConfig engine) {
  engine.storage.clear();
  return engine;
}

TraceInputOptions full_pages(Tokens tokens) {
  TraceInputOptions options;
  options.page_tokens = tokens;
  return options;
}

}  // namespace

EngineTwin::EngineTwin(const EngineConfig& engine, Tokens block_tokens)
    : config_(without_storage(engine)), maker_(block_tokens, full_pages(block_tokens)), engine_(config_) {}

EngineTwin::Hits EngineTwin::serve(const TraceRequest& request) {
  now_ = std::max(now_, request.arrival);
  Input input;
  input.now = now_;
  maker_.make(request, served_++, input);
  const RequestRecord& record = engine_.serve(std::get<Arrival>(input.what), now_);
  const Tokens hits = record.hit[Tier::device] + record.hit[Tier::host];
  const Tokens page = config_.shape.page_tokens;
  computed_ += (request.input - std::min(hits, request.input) + request.output + page - 1) / page;
  return {record.hit[Tier::device], record.hit[Tier::host], record.rejected != Reason::none, record.without_window,
          record.without_state};
}

std::size_t EngineTwin::memory_bytes() const {
  const auto bytes_of = [this](Pages size) {
    const Pages used = std::min(size, computed_);
    const Pages nodes = std::min(used, used * kNodesPerRequest * served_ / std::max<Pages>(1, computed_));
    return static_cast<std::size_t>(kBytesPerPage * used + kBytesPerNode * nodes);
  };
  return bytes_of(config_.device_pages) + bytes_of(config_.host_pages);
}

}  // namespace kvtwin
