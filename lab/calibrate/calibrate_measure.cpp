#include "lab/calibrate/calibrate_measure.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "impl/device/host_device.hpp"
#include "impl/world.hpp"
#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/run/cuda_devices.hpp"
#include "lab/run/real_device.hpp"
#include "lab/run/real_storage.hpp"
#include "models/presets.hpp"

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;

// ---- submitting operations to a world --------------------------------------------------------------------

// An operation, and the arrays that its spans refer to.
struct Part {
  std::vector<PageRun> runs;
  std::vector<PageMove> moves;
  std::vector<StoragePage> stored;
  std::vector<std::vector<SlotId>> slots;
  std::vector<std::vector<PageKey>> keys;
  std::vector<SequenceWork> sequences;
  Operation operation;
};

// Operations that are submitted together. The next step begins when all operations have ended. If all were done,
// `on_done` is called with the time of each operation on its lane, in the order of submission.
struct Step {
  std::vector<Part> parts;
  std::function<void(std::span<const LaneSpan> spans)> on_done;
};

// The world needs an input to start with. The arrival has no other effect.
class OneArrival final : public InputSource {
 public:
  bool next(Input& input) override {
    input = Input{0, Arrival{.request = 0, .prompt_tokens = 1, .output_tokens = 1, .keys = {}}};
    return !std::exchange(over_, true);
  }

 private:
  bool over_ = false;
};

class Player final : public InputHandler, public LaneObserver {
 public:
  // `next` returns the next step, or nothing at the end.
  Player(World& world, std::function<std::optional<Step>()> next) : world_(world), next_(std::move(next)) {
    world.watch_lanes(this);
  }
  void play() {
    OneArrival start;
    world_.run(start, *this);
  }
  void handle(const Input& input) override {
    if (const auto* done = std::get_if<Completion>(&input.what)) {
      const auto at = static_cast<std::size_t>(std::ranges::find(ids_, done->id) - ids_.begin());
      whole_ = whole_ && done->status == Status::done;
      // A look-up occupies no lane. Its time is from the submission to the answer.
      if (spans_[at].id == OperationId::none) spans_[at] = {.begin = begun_, .end = input.now};
      if (--open_ > 0) return;
      if (whole_ && step_->on_done) step_->on_done(spans_);
    }
    begin_next();
  }
  void on_lane(const LaneSpan& span) override {
    const auto at = std::ranges::find(ids_, span.id);
    if (at != ids_.end()) spans_[static_cast<std::size_t>(at - ids_.begin())] = span;
  }

 private:
  void begin_next() {
    step_ = next_();
    if (!step_) return;
    whole_ = true;
    ids_.clear();
    begun_ = world_.substrate().now();
    spans_.assign(step_->parts.size(), LaneSpan{});
    open_ = step_->parts.size();
    for (const Part& part : step_->parts) ids_.push_back(world_.substrate().submit(part.operation));
  }

  World& world_;
  std::function<std::optional<Step>()> next_;
  std::optional<Step> step_;
  std::vector<OperationId> ids_;
  std::vector<LaneSpan> spans_;
  std::size_t open_ = 0;
  TimeNs begun_ = 0;
  bool whole_ = true;
};

double seconds_of(TimeNs ns) { return static_cast<double>(std::max<TimeNs>(1, ns)) * 1e-9; }
double seconds_of(const LaneSpan& span) { return seconds_of(span.end - span.begin - span.stalled_ns); }

Clock::time_point after(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Plays all steps once as warm-up, then all steps again until `seconds` have passed or `rounds` are complete, at least
// once. After 1.5 times `seconds` a slow machine stops within a round.
void play_rounds(World& world, std::size_t steps, double seconds, std::size_t rounds,
                 const std::function<Step(std::size_t number, bool counts)>& make) {
  std::size_t at = 0;
  const Clock::time_point end = after(seconds), latest = after(1.5 * seconds);
  Player player(world, [&]() -> std::optional<Step> {
    const Clock::time_point time = Clock::now();
    const bool enough = (at >= 2 * steps && time > end) || (at > steps && time > latest);
    if (at == steps * (rounds + 1) || enough) return std::nullopt;
    const std::size_t now = at++;
    return make(now % steps, now >= steps);
  });
  player.play();
}

PageKey key_of(std::uint64_t a, std::uint64_t b) { return PageKey{{a * 0x9e3779b97f4a7c15U + 1, b, a, 7}}; }

// ---- copies ------------------------------------------------------------------------------------------------

// Returns whether the GPU is measured. Errors: InputError if a GPU is wanted and there is none.
bool measures_cuda(const MeasureTerms& terms) {
  const CudaPresence cuda = cuda_at_hand(1);
  if (terms.device == "cuda" && cuda.gpus == 0) {
    throw InputError("--device cuda: can't be served: " + cuda.why_none + "; take host, or auto");
  }
  return terms.device != "host" && cuda.gpus > 0;
}

struct Bench {
  const MeasureTerms& terms;
  bool cuda = false;
  Measurements& found;

  Bytes pool_bytes() const { return cuda ? Bytes{1} << 30 : Bytes{48} << 20; }
  // A CPU needs a second for a pass that takes a GPU a millisecond, so the passes of a quick run are shorter.
  bool quick() const { return terms.seconds < 30; }
  Tokens longest_context() const { return cuda ? 8192 : quick() ? 512 : 2048; }
  std::uint32_t max_sequences() const { return !cuda && quick() ? 4 : 16; }
};

const char* default_model(const Bench& bench) { return bench.cuda ? "llama-3.1-8b" : "tiny"; }

std::unique_ptr<Device> bare_device(const Bench& bench, const KvShape& shape, Layout layout, Pages device_pages,
                                    Pages host_pages) {
  DeviceConfig config;
  config.shape = shape;
  config.host_layout = layout;
  config.device_pages = device_pages;
  config.host_pages = host_pages;
  if (bench.cuda) {
    CudaDeviceConfig of_cuda;
    static_cast<DeviceConfig&>(of_cuda) = config;
    return cuda_devices().make(of_cuda);
  }
  HostDeviceConfig of_host;
  static_cast<DeviceConfig&>(of_host) = config;
  return make_host_device(of_host);
}

// Returns a copy of `pages` pages in runs of eight pages, which is typical of a cache in use.
Part copy(const PoolPair& pools, Direction direction, IoBackend io, Pages pages, const PlannerLimits& limits) {
  Part part;
  const auto most = static_cast<SlotId>(std::min(pools.device_pages, pools.host_pages));
  for (SlotId i = 0; i < pages; i += 8) {
    const auto length = static_cast<std::uint32_t>(std::min<Pages>(8, pages - i));
    const SlotId target = (most - i - length);
    part.runs.push_back({i, target, length});
    for (SlotId j = 0; j < length; ++j) part.moves.push_back({key_of(1, i + j), i + j, target + j});
  }
  TransferOperation operation;
  operation.lane = direction == Direction::host_to_device ? Lane::h2d : Lane::d2h;
  operation.plan = plan_transfer(part.runs, direction, pools, io, limits);
  operation.pages = part.moves;
  part.operation = operation;
  return part;
}

const Plan& plan_of(const Part& part) { return std::get<TransferOperation>(part.operation).plan; }

Measurement transfer_measurement(Measured what, const Part& part, double seconds) {
  Measurement one;
  one.what = what;
  one.plan = plan_of(part);
  one.plan.runs = {};
  one.seconds = seconds;
  return one;
}

struct CopyCase {
  Direction direction = Direction::host_to_device;
  IoBackend io = IoBackend::kernel;
  Pages pages = 0;
};

// Measures copies of 1, 8, 64 and half of all pages, in each direction and with each back end.
void measure_copies_of(Bench& bench, const KvShape& shape, Layout layout, double seconds) {
  const auto pages = static_cast<Pages>(bench.pool_bytes() / shape.page_bytes());
  const PoolPair pools{shape, layout, pages, pages};
  const PlannerLimits limits = planner_limits(hardware_preset(bench.cuda ? "h200-sxm" : "cpu-host"));
  std::vector<CopyCase> cases;
  for (const Pages count : {Pages{1}, Pages{8}, Pages{64}, pages / 2}) {
    if (count > pages / 2) continue;
    for (const Direction direction : {Direction::host_to_device, Direction::device_to_host}) {
      for (const IoBackend io : {IoBackend::direct, IoBackend::kernel, IoBackend::automatic}) {
        cases.push_back({direction, io, count});
      }
    }
  }
  const auto world = make_real_world(bare_device(bench, shape, layout, pages, pages));
  play_rounds(*world, cases.size(), seconds, 40, [&](std::size_t number, bool counts) {
    const CopyCase& it = cases[number];
    Step step;
    step.parts.push_back(copy(pools, it.direction, it.io, it.pages, limits));
    const Measurement blank = transfer_measurement(Measured::transfer, step.parts[0], 1);
    if (counts) {
      step.on_done = [&bench, blank](std::span<const LaneSpan> spans) {
        bench.found.list.push_back(blank);
        bench.found.list.back().seconds = seconds_of(spans[0]);
      };
    }
    return step;
  });
}

// Returns the bytes that moved on `lane` between `begin` and `end`, if each transfer has a constant rate.
double bytes_within(std::span<const LaneSpan> spans, Lane lane, TimeNs begin, TimeNs end) {
  double bytes = 0;
  for (const LaneSpan& span : spans) {
    if (span.lane != lane || span.end <= span.begin) continue;
    const auto inside = static_cast<double>(std::max<TimeNs>(0, std::min(end, span.end) - std::max(begin, span.begin)));
    bytes += static_cast<double>(span.bytes) * inside / static_cast<double>(span.end - span.begin);
  }
  return bytes;
}

// Records the rate of both directions together, while transfers of both directions were running.
void record_both_ways(Bench& bench, const Measurement& blank, std::span<const LaneSpan> spans) {
  std::array<TimeNs, 2> begin{INT64_MAX, INT64_MAX}, end{0, 0};
  for (const LaneSpan& span : spans) {
    const std::size_t way = span.lane == Lane::h2d ? 0 : 1;
    begin[way] = std::min(begin[way], span.begin);
    end[way] = std::max(end[way], span.end);
  }
  const TimeNs from = std::max(begin[0], begin[1]), to = std::min(end[0], end[1]);
  if (to <= from) return;
  const double bytes = bytes_within(spans, Lane::h2d, from, to) + bytes_within(spans, Lane::d2h, from, to);
  // The time in which the plan's bytes move in each direction, at this rate.
  Measurement one = blank;
  one.seconds = seconds_of(to - from) * 2 * static_cast<double>(blank.plan.bytes) / bytes;
  bench.found.list.push_back(one);
}

void measure_both_ways(Bench& bench, const KvShape& shape, double seconds) {
  const auto pages = static_cast<Pages>(bench.pool_bytes() / shape.page_bytes());
  const PoolPair pools{shape, Layout::page_first_direct, pages, pages};
  const PlannerLimits limits = planner_limits(hardware_preset(bench.cuda ? "h200-sxm" : "cpu-host"));
  const auto world = make_real_world(bare_device(bench, shape, pools.host_layout, pages, pages));
  play_rounds(*world, 1, seconds, 40, [&](std::size_t, bool counts) {
    Step step;
    for (int i = 0; i < 4; ++i) {
      for (const Direction direction : {Direction::host_to_device, Direction::device_to_host}) {
        step.parts.push_back(copy(pools, direction, IoBackend::direct, pages / 2, limits));
      }
    }
    const Measurement blank = transfer_measurement(Measured::both, step.parts[0], 1);
    if (counts)
      step.on_done = [&bench, blank](std::span<const LaneSpan> spans) { record_both_ways(bench, blank, spans); };
    return step;
  });
}

void measure_copies(Bench& bench, double seconds) {
  // These shapes give pieces from 256 bytes to 64 KiB, 8 and 64 layers times planes, and rows of 1, 2 and 8 heads.
  constexpr std::array<KvShape, 3> kShapes{
      {{.layers = 4, .planes = 2, .heads = 2, .head_bytes = 32, .page_tokens = 64},
       {.layers = 32, .planes = 2, .heads = 1, .head_bytes = 256, .page_tokens = 64},
       {.layers = 4, .planes = 2, .heads = 8, .head_bytes = 256, .page_tokens = 32}}};
  constexpr std::array<Layout, 4> kLayouts{Layout::layer_first, Layout::page_first, Layout::page_first_direct,
                                           Layout::page_head};
  const double each = seconds / (kShapes.size() * kLayouts.size() + 2);
  for (const KvShape& shape : kShapes) {
    for (const Layout layout : kLayouts) measure_copies_of(bench, shape, layout, each);
  }
  measure_both_ways(bench, kShapes[1], each);
  measure_both_ways(bench, kShapes[2], each);
}

// ---- storage ---------------------------------------------------------------------------------------------

Experiment experiment_of(const std::vector<std::string>& settings) {
  Experiment experiment = Experiment::from_text("engine = \"none\"", "kvtwin calibrate");
  for (const std::string& setting : settings) experiment.set(setting, "kvtwin calibrate");
  return experiment;
}

// Storage operations on pages of a series. A new series has new pages, because a tier does not write a present page
// again.
class StoredPages {
 public:
  StoredPages(Tier tier, const KvShape& shape, const PageKey& space) : tier_(tier), shape_(shape), space_(space) {}

  Part part(StorageVerb verb, std::uint64_t series, Pages pages) const {
    Part part;
    for (Pages i = 0; i < pages; ++i) {
      const bool moves = verb == StorageVerb::get || verb == StorageVerb::set;
      part.stored.push_back({key_of(series, i), moves ? static_cast<SlotId>(i) : kNoSlot});
    }
    StorageOperation operation;
    operation.work.verb = verb;
    operation.work.tier = tier_;
    operation.work.pages = pages;
    operation.work.page_bytes = shape_.page_bytes();
    operation.space = space_;
    operation.pages = part.stored;
    part.operation = operation;
    return part;
  }

 private:
  Tier tier_;
  KvShape shape_;
  PageKey space_;
};

// A storage tier with its pages, and a device whose host memory has 64 pages.
struct StorageRig {
  StorageRig(const Bench& bench, const std::vector<std::string>& settings, std::uint32_t page_tokens,
             Tier tier = Tier::disk)
      : shape{.layers = 4, .planes = 2, .heads = 8, .head_bytes = 256, .page_tokens = page_tokens},
        experiment(experiment_of(settings)),
        setup(make_setup(experiment)),
        stored(tier, shape, setup.engine.storage_space) {
    auto device = bare_device(bench, shape, Layout::page_first_direct, 1, 64);
    storage = open_storage(experiment, setup, *device, 1, bench.terms.secrets);
    world = make_real_world(std::move(device), std::move(storage.tiers));
  }

  KvShape shape;
  Experiment experiment;
  Setup setup;
  StoredPages stored;
  RealStorage storage;
  std::unique_ptr<RealWorld> world;
};

std::vector<std::string> disk_settings(const std::filesystem::path& folder) {
  return {"model.name=tiny", "cache.page_tokens=64", "tiers.host.tokens=4096", "tiers.disk.tokens=32768",
          "tiers.disk.path=" + folder.string()};
}

// In each round: stores 1, 4, 16 and 64 new pages, then looks up, reads and removes the pages in the same order.
void measure_storage_of(Bench& bench, Tier tier, const std::vector<std::string>& settings, std::uint32_t page_tokens,
                        double seconds) {
  const StorageRig rig(bench, settings, page_tokens, tier);
  constexpr std::array<Pages, 4> kCounts{1, 4, 16, 64};
  constexpr std::array<StorageVerb, 4> kVerbs{StorageVerb::set, StorageVerb::look_up, StorageVerb::get,
                                              StorageVerb::remove};
  constexpr std::size_t kSteps = kCounts.size() * kVerbs.size();
  std::uint64_t round = 0;
  play_rounds(*rig.world, kSteps, seconds, 60, [&](std::size_t number, bool counts) {
    if (number == 0) ++round;
    const StorageVerb verb = kVerbs[number / kCounts.size()];
    const Pages pages = kCounts[number % kCounts.size()];
    Step step;
    step.parts.push_back(rig.stored.part(verb, 1000 * round + pages + 1'000'000 * page_tokens, pages));
    const StorageWork work = std::get<StorageOperation>(step.parts[0].operation).work;
    if (counts && verb != StorageVerb::remove) {
      step.on_done = [&bench, work](std::span<const LaneSpan> spans) {
        Measurement one;
        one.what = Measured::storage;
        one.work = work;
        one.seconds = seconds_of(spans[0]);
        bench.found.list.push_back(one);
      };
    }
    return step;
  });
}

void measure_disk(Bench& bench, double seconds) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(bench.terms.disk) / "measured-disk";
  for (const std::uint32_t tokens : {4U, 64U}) {  // 64 KiB, 1 MiB
    const fs::path place = folder / std::to_string(tokens);
    measure_storage_of(bench, Tier::disk, disk_settings(place), tokens, seconds / 2);
    std::error_code error;
    fs::remove_all(place, error);
  }
  std::error_code error;
  fs::remove_all(folder, error);
}

void measure_remote(Bench& bench, double seconds) {
  for (const std::uint32_t tokens : {4U, 64U}) {
    measure_storage_of(
        bench, Tier::remote,
        {"model.name=tiny", "cache.page_tokens=64", "tiers.host.tokens=4096", "tiers.remote.tokens=65536",
         "tiers.remote.url=" + bench.terms.remote, "cache.namespace=kvtwin-calibrate"},
        tokens, seconds / 2);
  }
}

// ---- passes ----------------------------------------------------------------------------------------------

constexpr Tokens kPassPageTokens = 64;

struct PassCase {
  Tokens context = 0, fresh = 0;  // per sequence; fresh: the tokens of a prefill, 0 = a decode
  std::uint32_t sequences = 1;
  std::uint64_t steps = 1;
};

constexpr Tokens kDecodeRoomTokens = 64;  // per sequence, behind the longest context, for decoded tokens

// The cheap cases come first, because a slow machine may not reach the last ones.
std::vector<PassCase> pass_cases(std::uint32_t sequences, Tokens longest) {
  std::vector<PassCase> cases;
  for (std::uint32_t n = 1; n <= sequences; n *= 4) {
    for (const Tokens context : {longest / 32, longest / 4, longest}) {
      for (const std::uint64_t steps : {1U, 8U}) cases.push_back({context, 0, n, steps});
    }
  }
  for (const Tokens fresh : {longest / 32, longest / 8, longest / 2, longest}) {
    for (const Tokens context : {Tokens{0}, longest / 4, longest / 2, longest * 31 / 32}) {
      if (context + fresh <= longest) cases.push_back({context, fresh, 1, 1});
    }
  }
  return cases;
}

class Passes {
 public:
  Passes(Tokens page_tokens, Tokens longest) : page_tokens_(page_tokens), longest_(longest) {}

  Tokens longest() const { return longest_; }

  Pages pages_of_a_sequence() const { return (longest_ + kDecodeRoomTokens + page_tokens_ - 1) / page_tokens_; }

  Part part(const PassCase& it) const {
    Part part;
    ForwardOperation operation;
    for (std::uint32_t s = 0; s < it.sequences; ++s) add_sequence(part, it, s);
    for (std::uint32_t s = 0; s < it.sequences; ++s) {
      part.sequences[s].slots = part.slots[s];
      part.sequences[s].keys = part.keys[s];
    }
    operation.shape = shape(it);
    operation.steps = it.steps;
    operation.sequences = part.sequences;
    part.operation = operation;
    return part;
  }

 private:
  void add_sequence(Part& part, const PassCase& it, std::uint32_t number) const {
    const Tokens fresh = it.fresh == 0 ? it.steps : it.fresh;
    std::vector<SlotId> slots;
    std::vector<PageKey> keys;
    for (Pages i = 0; i * page_tokens_ < it.context + fresh; ++i) {
      slots.push_back(static_cast<SlotId>(number * pages_of_a_sequence() + i));
      keys.push_back(key_of(100 + number, i));
    }
    part.slots.push_back(std::move(slots));
    part.keys.push_back(std::move(keys));
    part.sequences.push_back({number, it.context, fresh, {}, {}});
  }
  static ForwardShape shape(const PassCase& it) {
    ForwardShape shape;
    if (it.fresh != 0) {
      shape.prefill_tokens = it.fresh;
      shape.prefill_pairs = it.fresh * it.context + it.fresh * (it.fresh + 1) / 2;
      shape.prefill_context_tokens = it.context;
      shape.prefill_sequences = 1;
    } else {
      shape.decode_sequences = it.sequences;
      shape.decode_context_tokens = it.context * it.sequences;
    }
    return shape;
  }

  Tokens page_tokens_;  // tokens per page
  Tokens longest_;      // the longest context of a sequence
};

std::string config_text(const std::string& model) {
  for (const std::string& name : model_preset_names()) {
    if (name == model) return std::string(model_preset_text(name));
  }
  std::FILE* file = std::fopen(model.c_str(), "rb");
  if (file == nullptr) {
    throw InputError("--model " + model +
                     ": is neither a model preset nor a file; see kvtwin presets, or give the path of "
                     "a config.json");
  }
  std::string text;
  std::array<char, 4096> buffer;
  for (std::size_t n = 0; (n = std::fread(buffer.data(), 1, buffer.size(), file)) > 0;) text.append(buffer.data(), n);
  std::fclose(file);
  return text;
}

struct PassWorld {
  Setup setup;
  std::unique_ptr<RealWorld> world;
  std::uint32_t sequences = 1;
};

// Returns a world with room for up to 16 sequences on the device, and for copies beside the passes.
PassWorld pass_world(const Bench& bench, const std::string& model, const Passes& passes) {
  const bool preset = std::filesystem::path(model).extension() != ".json";
  const Tokens page_tokens = kPassPageTokens;
  PassWorld made;
  const ModelGeometry geometry = preset ? model_preset(model) : model_from_file(model);
  const Bytes of_a_sequence =
      geometry.shape(1, static_cast<std::uint32_t>(page_tokens)).page_bytes() * passes.pages_of_a_sequence();
  const Bytes room = bench.cuda ? Bytes{8} << 30 : Bytes{160} << 20;
  while (made.sequences < bench.max_sequences() && 4 * made.sequences * of_a_sequence <= room) made.sequences *= 4;
  const std::uint64_t pages = made.sequences * passes.pages_of_a_sequence() + 64;
  const Experiment experiment =
      experiment_of({preset ? "model.name=" + model : "model.config=" + std::filesystem::absolute(model).string(),
                     "cache.page_tokens=64", "cache.layout=page_first_direct",
                     "tiers.device.tokens=" + std::to_string(pages * page_tokens), "tiers.host.tokens=4096",
                     "real.device=" + std::string(bench.cuda ? "cuda" : "host")});
  made.setup = make_setup(experiment);
  const std::string refusal = refuse_in_run(made.setup.model);
  if (!refusal.empty()) throw InputError("--model " + model + ": " + refusal);
  made.world = make_real_world(choose_device(experiment, made.setup, nullptr).make());
  return made;
}

// Records the time of a prefill with copies beside it, next to the time of the same prefill alone.
void record_interference(Bench& bench, const std::string& lane, const std::string& beside, double alone,
                         double seconds) {
  if (alone <= 0) return;
  Measurement one;
  one.what = Measured::interference;
  one.lane = lane;
  one.beside = beside;
  one.alone_seconds = alone;
  one.seconds = seconds;
  bench.found.list.push_back(one);
}

// A prefill, and with `copies` also copies of 64 pages behind the sequences' pages, for as long as the prefill takes.
// `alone`: the time of the last prefill without copies.
Step beside_step(Bench& bench, const PassWorld& made, const Passes& passes, bool copies, Direction direction,
                 double& alone, bool counts) {
  Step step;
  step.parts.push_back(passes.part({0, passes.longest() / 32, 1, 1}));  // shorter than the copies
  if (copies) {
    const auto first = static_cast<SlotId>(made.sequences * passes.pages_of_a_sequence());
    for (int i = 0; i < 32; ++i) {
      Part part;
      const bool up = direction == Direction::host_to_device;
      part.runs.push_back({up ? 0 : first, up ? first : 0, 64});
      for (SlotId j = 0; j < 64; ++j) {
        part.moves.push_back({key_of(9, j), up ? j : first + j, up ? first + j : j});
      }
      TransferOperation operation;
      operation.lane = up ? Lane::h2d : Lane::d2h;
      const PoolPair pools{made.setup.engine.shape, made.setup.engine.host_layout, made.setup.engine.device_pages,
                           made.setup.engine.host_pages};
      operation.plan = plan_transfer(part.runs, direction, pools, IoBackend::direct, made.setup.engine.planner);
      operation.pages = part.moves;
      part.operation = operation;
      step.parts.push_back(std::move(part));
    }
  }
  step.on_done = [&bench, &alone, copies, counts, direction](std::span<const LaneSpan> spans) {
    if (!copies) alone = seconds_of(spans[0]);
    const bool covered = spans.back().end >= spans[0].end;  // the copies lasted as long as the pass
    const std::string lane(name_of(direction));
    if (copies && covered && counts) record_interference(bench, "compute", lane, alone, seconds_of(spans[0]));
  };
  return step;
}

void measure_interference(Bench& bench, PassWorld made, const Passes& passes, double seconds) {
  double alone = 0;
  play_rounds(*made.world, 4, seconds, 10, [&](std::size_t number, bool counts) {
    const Direction direction = number < 2 ? Direction::host_to_device : Direction::device_to_host;
    return beside_step(bench, made, passes, number % 2 == 1, direction, alone, counts);
  });
}

// Computes the context of one sequence. Later passes read it.
Step context_step(const Passes& passes, std::uint32_t number) {
  PassCase all{0, passes.longest(), 1, 1};
  all.sequences = number + 1;
  Part part = passes.part(all);
  part.sequences = {part.sequences.back()};
  std::get<ForwardOperation>(part.operation).sequences = part.sequences;
  Step step;
  step.parts.push_back(std::move(part));
  return step;
}

Step pass_step(Bench& bench, const Passes& passes, const PassCase& it, std::size_t model) {
  Step step;
  step.parts.push_back(passes.part(it));
  const auto& operation = std::get<ForwardOperation>(step.parts[0].operation);
  Measurement one;
  one.what = Measured::forward;
  one.model = model;
  one.shape = operation.shape;
  one.steps = operation.steps;
  step.on_done = [&bench, one](std::span<const LaneSpan> spans) {
    bench.found.list.push_back(one);
    bench.found.list.back().seconds = seconds_of(spans[0]);
  };
  return step;
}

void measure_passes(Bench& bench, const std::string& model, double seconds) {
  const Passes passes(kPassPageTokens, bench.longest_context());
  const PassWorld made = pass_world(bench, model, passes);
  const std::size_t number = bench.found.add_model(made.setup.model.name, config_text(model));
  const std::vector<PassCase> cases = pass_cases(made.sequences, passes.longest());
  std::uint32_t written = 0;
  std::size_t at = 0;
  const Clock::time_point end = after(0.8 * seconds), latest = after(1.6 * seconds);
  Player player(*made.world, [&]() -> std::optional<Step> {
    if (written < made.sequences) return context_step(passes, written++);
    const Clock::time_point now = Clock::now();
    const bool round_is_over = at >= cases.size() && now > end;
    if (at >= cases.size() * 20 || round_is_over || (at > 0 && now > latest)) return std::nullopt;
    return pass_step(bench, passes, cases[at++ % cases.size()], number);
  });
  player.play();
  measure_interference(bench, pass_world(bench, model, passes), passes, 0.2 * seconds);
}

// ---- probes ----------------------------------------------------------------------------------------------

constexpr double kProbeSeconds = 0.4;     // for each kind of work
constexpr std::size_t kProbeRounds = 15;  // at most
constexpr Pages kProbePages = 16;         // of 1 MiB, on the disk

// Plays `make` in rounds and returns the median of the times of the last of its `steps` steps.
double probe_seconds(World& world, std::size_t steps, const std::function<Step(std::size_t number)>& make) {
  std::vector<double> times;
  play_rounds(world, steps, kProbeSeconds, kProbeRounds, [&](std::size_t number, bool counts) {
    Step step = make(number);
    if (counts && number + 1 == steps) {
      step.on_done = [&times](std::span<const LaneSpan> spans) { times.push_back(seconds_of(spans[0])); };
    }
    return step;
  });
  if (times.empty()) throw WorkError("kvtwin calibrate: a probe of this machine came to no end");
  std::ranges::sort(times);
  return times[times.size() / 2];
}

double probe_copies(const Bench& bench) {
  const KvShape shape{.layers = 4, .planes = 2, .heads = 8, .head_bytes = 256, .page_tokens = 32};
  const auto pages = static_cast<Pages>(bench.pool_bytes() / shape.page_bytes());
  const PoolPair pools{shape, Layout::page_first_direct, pages, pages};
  const PlannerLimits limits = planner_limits(hardware_preset(bench.cuda ? "h200-sxm" : "cpu-host"));
  const auto world = make_real_world(bare_device(bench, shape, pools.host_layout, pages, pages));
  return probe_seconds(*world, 1, [&](std::size_t) {
    Step step;
    step.parts.push_back(copy(pools, Direction::host_to_device, IoBackend::direct, pages / 2, limits));
    return step;
  });
}

double probe_passes(const Bench& bench) {
  const Passes passes(kPassPageTokens, 512);
  const PassWorld made = pass_world(bench, default_model(bench), passes);
  return probe_seconds(*made.world, 1, [&](std::size_t) {
    Step step;
    step.parts.push_back(passes.part({0, 512, 1, 1}));
    return step;
  });
}

double probe_disk(const Bench& bench) {
  const std::filesystem::path folder = std::filesystem::path(bench.terms.disk) / "measured-disk";
  const StorageRig rig(bench, disk_settings(folder), 64);
  std::uint64_t round = 0;
  const double seconds = probe_seconds(*rig.world, 2, [&](std::size_t number) {
    round += number == 0 ? 1 : 0;
    Step step;
    step.parts.push_back(rig.stored.part(number == 0 ? StorageVerb::set : StorageVerb::get, round, kProbePages));
    return step;
  });
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  return seconds;
}

void add_probes(const Bench& bench) {
  const auto add = [&](const char* of, double seconds) {
    Measurement one;
    one.what = Measured::probe;
    one.of = of;
    one.seconds = seconds;
    bench.found.list.push_back(one);
  };
  add("copies", probe_copies(bench));
  add("forward", probe_passes(bench));
  if (!bench.terms.disk.empty()) add("disk", probe_disk(bench));
}

// Errors: WorkError if the tier has no measurement.
void require_measurements(const Measurements& found, Tier tier, const std::string& where) {
  const auto has = [&](const Measurement& one) { return one.what == Measured::storage && one.work.tier == tier; };
  if (std::ranges::none_of(found.list, has)) {
    throw WorkError(where + ": stored and gave back nothing; is there room, and does it answer?");
  }
}

// Tells the user which part begins, and how long all parts still take.
class Announcer {
 public:
  Announcer(const Listener& listener, std::size_t parts, double seconds)
      : listener_(listener), parts_(parts), left_(seconds) {}
  void begin(const std::string& what, double seconds) {
    char about[100];
    std::snprintf(about, sizeof about, " (%zu of %zu, about %.0f s; about %.0f s left)", ++number_, parts_, seconds,
                  left_);
    listener_.begin("kvtwin: measures " + what + about);
    left_ -= seconds;
  }

 private:
  const Listener& listener_;
  const std::size_t parts_;
  std::size_t number_ = 0;
  double left_;
};

}  // namespace

Measurements probe_machine(const MeasureTerms& terms) {
  Measurements found;
  add_probes({terms, measures_cuda(terms), found});
  return found;
}

Measurements measure_machine(const MeasureTerms& terms, const Listener& listener) {
  Measurements found;
  Bench bench{terms, measures_cuda(terms), found};
  std::vector<std::string> models = terms.models;
  if (models.empty()) models.emplace_back(default_model(bench));
  const double parts = 1.0 + 1.0 + (terms.disk.empty() ? 0 : 0.7) + (terms.remote.empty() ? 0 : 0.7);
  const double each = terms.seconds / parts;
  Announcer announcer(listener, 1 + models.size() + !terms.disk.empty() + !terms.remote.empty(), terms.seconds);
  add_probes(bench);
  announcer.begin("copies", each);
  measure_copies(bench, each);
  add_probes(bench);
  for (const std::string& model : models) {
    const double share = each / static_cast<double>(models.size());
    announcer.begin("passes of " + model, share);
    measure_passes(bench, model, share);
  }
  if (!terms.disk.empty()) {
    announcer.begin("the disk", 0.7 * each);
    measure_disk(bench, 0.7 * each);
    require_measurements(found, Tier::disk, terms.disk);
  }
  if (!terms.remote.empty()) {
    announcer.begin("the remote tier", 0.7 * each);
    measure_remote(bench, 0.7 * each);
    require_measurements(found, Tier::remote, "--remote " + terms.remote);
  }
  add_probes(bench);
  return found;
}

}  // namespace kvtwin
