#include "lab/run/serve.hpp"

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/experiment/engine_word.hpp"
#include "lab/experiment/idle_keys.hpp"
#include "lab/experiment/stages.hpp"
#include "lab/experiment/workload.hpp"
#include "lab/formatted.hpp"
#include "lab/report/counting_terms.hpp"
#include "lab/report/hit_bounds.hpp"
#include "lab/report/joined_requests.hpp"
#include "lab/report/lane_meter.hpp"
#include "lab/report/metrics.hpp"
#include "lab/report/page_history.hpp"
#include "lab/report/prefetch_bounds.hpp"
#include "lab/report/request_json.hpp"
#include "lab/report/shared_prefixes.hpp"
#include "lab/report/timeline.hpp"
#include "lab/report/warnings.hpp"
#include "lab/run/cluster.hpp"
#include "lab/run/front_end.hpp"
#include "lab/run/journal_file.hpp"
#include "lab/run/rank_report.hpp"

namespace kvtwin {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Reports the progress to the listener, at most five times per second.
class Progress {
 public:
  Progress(const TraceSource& source, const Metrics& metrics, std::uint64_t limit, const Listener& listener)
      : source_(source), metrics_(metrics), limit_(limit), listener_(listener) {}
  static void tick(void* self, TimeNs now) { static_cast<Progress*>(self)->tell(now); }

 private:
  void tell(TimeNs now) {
    const auto wall = Clock::now();
    if (wall - last_ < std::chrono::milliseconds(200)) return;
    last_ = wall;
    double read = source_.fraction_read();
    if (limit_ != 0) read = std::max(read, static_cast<double>(metrics_.served) / static_cast<double>(limit_));
    listener_.requests({metrics_.served, now, read, seconds_since(start_)});
  }
  const TraceSource& source_;
  const Metrics& metrics_;
  std::uint64_t limit_;
  const Listener& listener_;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

void add_memory(const Setup& setup, const std::string& role, EngineRange engines, RunFacts& facts) {
  if (setup.memory) facts.memory.push_back({role, *setup.memory});
  for (const Tier tier : {Tier::device, Tier::host}) {
    std::uint8_t number = 0;
    for (const PoolSize& pool : tier == Tier::device ? setup.device_pools.pools : setup.host_pools) {
      facts.pools.push_back({tier, role, pool, setup.model.window, number++, engines, 0});
    }
  }
  if (setup.block_pool) facts.block_pools.push_back({role, *setup.block_pool, 0});
}

RunFacts facts_of(const Experiment& experiment, const Setup& setup, const ServeTerms& terms) {
  RunFacts facts;
  facts.world = terms.world;
  facts.device = terms.device;
  if (facts.device == "model") {
    facts.engine = engine_line(experiment);
    facts.errors = features_of_settings(experiment, setup);
  }
  facts.prefetches = !setup.has_blocks();
  facts.seed = static_cast<std::uint64_t>(experiment.integer("seed"));
  facts.tier(Tier::device).capacity = setup.sum_of_engines([](const EngineConfig& of) { return of.device_pages; });
  facts.tier(Tier::host).capacity = setup.sum_of_engines([](const EngineConfig& of) { return of.host_pages; });
  for (const StorageTierConfig& tier : setup.engine.storage) {
    facts.tier(tier.tier).capacity = setup.stores_of(tier.tier) * tier.pages;
  }
  facts.gpus = setup.gpus();
  facts.stored_page_bytes = setup.page_bytes() * setup.engine.storage_writers;
  if (setup.has_storage()) {
    facts.objects_per_page = std::uint64_t{setup.engine.storage_objects} * setup.engine.storage_writers;
  }
  if (setup.draft) {
    const Bytes draft = setup.draft->restored ? setup.draft->shape.page_bytes() : 0;
    facts.components = {{"target", setup.target.page_bytes()}, {"draft", draft}};
  }
  facts.page_tokens = setup.engine.shape.page_tokens;
  facts.kv_formula = setup.model.kv_formula;
  facts.layers = layer_table(setup.model);
  if (setup.decode == nullptr) {
    add_memory(setup, "", {}, facts);
  } else {
    add_memory(setup, "prefill", {0, setup.roles.prefill}, facts);
    add_memory(*setup.decode, "decode", {setup.roles.prefill, SIZE_MAX}, facts);
  }
  facts.stages = stages_of(experiment);
  facts.bill = setup.bill;
  facts.notes = setup.notes;
  facts.notes.insert(facts.notes.end(), terms.notes.begin(), terms.notes.end());
  return facts;
}

void add_findings(const Setup& setup, const RunOutcome& outcome, RunFacts& facts) {
  for (Finding& finding : findings_of(setup, outcome)) {
    if (finding.is_warning) {
      facts.warnings.push_back({std::string(name_of(finding.kind)), std::move(finding.sentence)});
    } else {
      facts.notes.push_back(std::move(finding.sentence));
    }
  }
  if (outcome.history != nullptr) facts.missed_pages = outcome.history->missed_pages();
}

void add_outcome(const Cluster& cluster, const Setup& setup, RunFacts& facts) {
  const bool real = facts.world == "real";
  for (const TierSpec& spec : kTierSpecs) facts.tier(spec.tier).used_max = cluster.pages_used_max(spec.tier);
  for (RunFacts::PoolFacts& pool : facts.pools) {
    if (setup.engine.pools.empty()) break;
    const Tokens unit = pool.size.kind == PoolKind::state ? 1 : setup.engine.shape.page_tokens;
    pool.used_max = unit * cluster.pool_used_max(pool.number, pool.tier, pool.engines);
  }
  for (RunFacts::BlockPoolFacts& pool : facts.block_pools) {
    if (setup.has_blocks()) pool.used_max = cluster.pool_used_max(1, Tier::device);
  }
  for (std::size_t seat = 0; seat < cluster.seats() && !real; ++seat) {
    const DecisionMark mark = cluster.decisions_of(seat);
    if (setup.world.instances) facts.ranks.push_back({mark.digest, cluster.reductions_of(seat)});
    if (setup.world.engines > 1) facts.engines.push_back({mark, {}, {}});
  }
}

void add_lanes_of(std::size_t engine, std::vector<LaneUse> lanes, std::vector<LaneUse>& all) {
  for (LaneUse& use : lanes) {
    use.name.insert(0, "engine" + std::to_string(engine) + ".");
    all.push_back(std::move(use));
  }
}

// Returns the lanes of all seats. Ranks as instances each have a GPU; seat 0 has the figures of all other lanes.
std::vector<LaneUse> lane_uses(const std::vector<LaneMeters>& meters, const Setup& setup, TimeNs end) {
  std::vector<LaneUse> uses = meters[0].uses(end);
  if (setup.world.engines > 1 && meters.size() > 1) {
    uses.clear();
    for (std::size_t engine = 0; engine < meters.size(); ++engine) add_lanes_of(engine, meters[engine].uses(end), uses);
  } else {
    for (std::size_t rank = 1; rank < meters.size(); ++rank) {
      std::vector<LaneUse> own = meters[rank].uses(end);
      for (const std::size_t lane : {2 * rank, 2 * rank + 1}) uses[lane] = std::move(own[lane]);
    }
  }
  return uses;
}

// The observers for report.bounds: events go to `stops`, then to `hits`, then to `next`.
struct Bounds {
  Bounds(const Setup& setup, Observer* next)
      : hits(setup.engine.shape.page_tokens, tier_worths(setup), states_of(setup), *setup.cost, next),
        stops(setup.engine.shape.page_tokens, *setup.cost, &hits) {}

  // `counted`: the completed requests that count; null: all do.
  void add_to(RunFacts& facts, const std::vector<RequestId>* counted) const {
    const TimeWindow arrivals = facts.warm ? facts.warm->window : TimeWindow{};
    facts.bounds = RunFacts::BoundFacts{hits.reckon(counted), stops.found(arrivals)};
    if (!facts.bounds->hits.saved_most) {
      facts.notes.push_back("bounds.net_saved_seconds_max: is reckoned for up to " +
                            std::to_string(HitBounds::kMaxAdmissionsForSaved) + " admissions; lower workload.limit");
    }
  }

  HitBounds hits;
  PrefetchBounds stops;
};

// Joins the ranks of one engine: returns the digest of each rank, and moves the lanes of their GPUs to those of the
// first rank. Errors: WorkError that begins with `who`, if ranks decided differently.
std::vector<RunFacts::RankFacts> join_ranks(std::span<RankOutcome> ranks, const std::string& who) {
  std::vector<RunFacts::RankFacts> facts;
  std::vector<DecisionMark> marks;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    marks.push_back(ranks[rank].decisions);
    facts.push_back({ranks[rank].decisions.digest, ranks[rank].reductions});
    if (rank == 0) continue;
    std::ranges::move(ranks[rank].lanes, ranks[0].lanes.begin() + static_cast<std::ptrdiff_t>(2 * rank));
  }
  refuse_disagreement(marks, who);
  return facts;
}

// Adds what the other processes know, on process 0: digests and lanes; of several engines also the pages used. Returns
// the decisions of all engines. Errors: WorkError on process 0 if the ranks of an engine decided differently.
DecisionMark add_processes(RealRanks& processes, const Setup& setup, const Cluster& cluster, RunFacts& facts,
                           std::vector<LaneUse>& lanes) {
  RankOutcome ours{cluster.decisions_of(0), cluster.reductions_of(0), lanes, {}};
  if (setup.rank != 0) {
    const auto own = lanes.begin() + static_cast<std::ptrdiff_t>(2 * setup.rank);
    ours.lanes.assign(own, own + 2);
  }
  for (const TierSpec& spec : kTierSpecs) ours.used_max[spec.tier] = cluster.pages_used_max(spec.tier);
  std::vector<RankOutcome> all = gather_outcomes(processes, ours);
  if (all.empty()) return {};
  const std::size_t engines = setup.world.engines, ranks = setup.engine.ranks;
  if (engines == 1) {
    facts.ranks = join_ranks(all, "");
    lanes = std::move(all[0].lanes);
    return all[0].decisions;
  }
  lanes.clear();
  facts.engines.resize(engines);
  for (const TierSpec& spec : kTierSpecs) facts.tier(spec.tier).used_max = 0;
  std::vector<DecisionMark> marks;
  for (std::size_t engine = 0; engine < engines; ++engine) {
    const std::span<RankOutcome> outcomes = std::span(all).subspan(engine * ranks, ranks);
    std::vector<RunFacts::RankFacts> of_ranks = join_ranks(outcomes, "engine " + std::to_string(engine) + ": ");
    if (ranks > 1) facts.engines[engine].ranks = std::move(of_ranks);
    facts.engines[engine].decisions = outcomes[0].decisions;
    marks.push_back(outcomes[0].decisions);
    for (const TierSpec& spec : kTierSpecs) facts.tier(spec.tier).used_max += outcomes[0].used_max[spec.tier];
    add_lanes_of(engine, std::move(outcomes[0].lanes), lanes);
  }
  for (const TierSpec& spec : kTierSpecs) {
    RunFacts::TierFacts& tier = facts.tier(spec.tier);
    tier.used_max = std::min(tier.used_max, tier.capacity);
  }
  return joined_decisions(marks);
}

// Returns the latest time of all processes. Each of them calls it.
TimeNs end_of_all(RealRanks& processes, TimeNs ours) {
  std::int64_t least = -ours;
  processes.group().minimum(RankChannel::run, std::span(&least, 1));
  return -least;
}

std::vector<LaneMeters> lane_meters(const World& world, const Setup& setup, const ServeTerms& terms) {
  std::vector<Tier> storage;
  for (const StorageTierConfig& tier : setup.engine.storage) storage.push_back(tier.tier);
  const Bytes page_bytes = setup.page_bytes() * setup.engine.storage_writers;
  std::vector<LaneMeters> meters;
  for (std::size_t seat = 0; seat < world.seats(); ++seat) {
    const bool decodes = setup.is_decode_engine(seat);
    const bool prefills = setup.decode != nullptr && !decodes;
    meters.emplace_back(decodes ? setup.decode->engine.ranks : setup.engine.ranks, storage, terms.dram_bytes_per_second,
                        page_bytes, prefills);
  }
  return meters;
}

void fill(RunFolder& folder, const RunFacts& facts, const Metrics& metrics, const std::vector<LaneUse>& lanes,
          const std::string& report) {
  folder.write("metrics.prom", prometheus_text(facts, metrics, lanes));
  folder.write_lanes(lanes);
  if (!facts.stages.empty()) folder.write("stages.csv", stages_csv(facts.stages, metrics.counter()));
  folder.write("report.json", report);  // last: a folder with a report is complete
  folder.commit();
}

// `processes`: each engine has processes of its own, and sees the events of no other one.
void refuse_files(const RunFiles& files, const Setup& setup, bool processes) {
  if (files.out.empty() && files.journal) throw InputError("--journal needs --out, the folder to write it to");
  if (files.out.empty() && files.timeline) throw InputError("--timeline needs --out, the folder to write it to");
  if (files.timeline && processes) {
    throw InputError("--timeline: is of one process, and cluster.engines is " + std::to_string(setup.world.engines) +
                     "; leave it out, set cluster.engines to 1, or take kvtwin simulate");
  }
}

// Returns the names of the engines in a timeline; one empty name for one engine.
std::vector<std::string> timeline_engines(const Setup& setup) {
  if (setup.world.engines == 1) return {""};
  std::vector<std::string> names;
  for (std::size_t seat = 0; seat < setup.world.engines; ++seat) {
    names.push_back("engine " + std::to_string(seat) +
                    (setup.decode == nullptr        ? ""
                     : setup.is_decode_engine(seat) ? ", decode"
                                                    : ", prefill"));
  }
  return names;
}

// Five think times of generated conversations.
TimeNs least_warm_ns(const Experiment& experiment) {
  constexpr double kThinkTimes = 5;
  if (!experiment.text("workload.trace").empty()) return 0;
  return static_cast<TimeNs>(kThinkTimes * experiment.number("workload.generate.think_s") * kNsPerSecond);
}

std::string answers_note(const AnswerGaps& answers) {
  return grouped(answers.requests()) +
         " requests continue an earlier one, and the trace does not say where its answer stands in the prompt: at "
         "most " +
         grouped(answers.tokens()) +
         formatted(" tokens (%.1f %% of the prompts) are computed again that a server has from the answer",
                   100 * static_cast<double>(answers.tokens()) / static_cast<double>(answers.prompt()));
}

MainFigures main_figures(const RunFacts& facts, const Metrics& metrics, const DecisionMark& decisions) {
  MainFigures figures;
  figures.requests = metrics.arrived;
  figures.completed = metrics.completed;
  figures.rejected = metrics.rejected_total;
  figures.failed = metrics.failed();
  figures.prompt_tokens = metrics.prompt;
  figures.hit_tokens = metrics.hit.sum();
  figures.output_tokens = metrics.output;
  figures.ttft_mean_s = metrics.ttft.mean_seconds();
  figures.ttft_p50_s = metrics.ttft.quantile_seconds(500);
  figures.ttft_p99_s = metrics.ttft.quantile_seconds(990);
  figures.tpot_mean_s = metrics.tpot.mean_seconds();
  figures.seconds = static_cast<double>(facts.simulated_ns) / 1e9;
  figures.decisions = decisions;
  return figures;
}

}  // namespace

ServeTerms simulated_terms(const Experiment& experiment, const Setup& setup) {
  ServeTerms terms;
  terms.world = experiment.text("sim.world").c_str();
  terms.device = "model";
  terms.dram_bytes_per_second = static_cast<std::uint64_t>(setup.hardware.dram_bandwidth);
  return terms;
}

RunResult serve(const Experiment& experiment, const Setup& setup, World& world, const RunFiles& files,
                const ServeTerms& terms, const Listener& listener) {
  const auto start = Clock::now();
  const bool leads = terms.ranks == nullptr || terms.ranks->leads();
  std::optional<WarmWatch> warm;
  const TimeNs least_warm = least_warm_ns(experiment);
  // The clients of a real run are not kept waiting for figures.
  const std::optional<TrafficLength> given = experiment.flag("report.warm") && std::string_view(terms.device) == "model"
                                                 ? steady_traffic(experiment)
                                                 : std::nullopt;
  const std::unique_ptr<TraceSource> traffic = given ? open_endless_workload(experiment) : open_workload(experiment);
  std::optional<GrowingSource> growing;
  if (given) {
    growing.emplace(*traffic, *given, 2 * least_warm, [&warm, &terms, least_warm] {
      const WarmWindow window = warm->window(least_warm);
      const bool hopeless = terms.hopeless_wait_s && window.wait_s > *terms.hopeless_wait_s;
      return window.not_flat.empty() || window.overloaded || hopeless;
    });
  }
  TraceSource* const workload = growing ? static_cast<TraceSource*>(&*growing) : traffic.get();
  // A real engine has a front end of its own.
  const ServingTimes serving = std::string_view(terms.device) == "model" ? setup.serving : ServingTimes{};
  SharedPrefixes prefixes(*workload, setup.engine.shape.page_tokens);
  WorkloadInputs inputs(experiment, setup.engine.shape.page_tokens, prefixes, serving);
  const bool one_reader = terms.engines != nullptr;  // process 0 sends the inputs to all ranks
  if (inputs.waits_for_answers() && !one_reader && terms.ranks != nullptr && setup.engine.ranks > 1) {
    const bool closed = experiment.text("workload.loop") == "closed";
    throw InputError(experiment.where(closed ? "workload.loop" : "workload.generate.stages") +
                     (closed ? ": is closed" : ": waits for the end of a stage") +
                     ", and real ranks are told of answers at times of their own; " +
                     (closed ? "set it to open" : "set it to \"\"") + ", or take one rank");
  }
  CountingTerms counted = counting_terms(experiment);
  counted.cut_at = [&inputs] { return inputs.cut_at(); };
  refuse_files(files, setup, terms.engines != nullptr);

  std::vector<std::string> idle = idle_sentences(idle_keys(experiment));
  if (std::string assumed = assumed_traffic(experiment); !assumed.empty()) idle.push_back(std::move(assumed));
  if (leads) {
    for (const auto* notes : {&experiment.notes(), &std::as_const(idle), &terms.notes}) {
      for (const std::string& note : *notes) listener.tell(note);
    }
  }
  const std::string resolved = experiment.resolved();
  std::optional<RunFolder> folder;
  if (!files.out.empty() && leads) {
    folder.emplace(files.out, files.force, terms.at_once ? RunFolder::Appears::at_once : RunFolder::Appears::whole,
                   RequestColumns{setup.world.engines > 1, setup.decode != nullptr,
                                  !setup.engine.pools.empty() || setup.has_block_groups()});
    folder->write("experiment.resolved.toml", resolved);
  }
  if (terms.ranks != nullptr) terms.ranks->meet();  // rank 0 has created the folder
  std::deque<JournalFile> journals;                 // one per seat
  for (std::size_t seat = 0; files.journal && seat < world.seats(); ++seat) {
    const std::string name = journal_name(terms.ranks == nullptr ? seat : terms.ranks->rank());
    journals.emplace_back(folder ? folder->place(name) : std::filesystem::path(files.out) / name);
  }
  std::vector<LaneMeters> meters = lane_meters(world, setup, terms);
  std::optional<Timeline> timeline;
  if (files.timeline && leads) timeline.emplace(folder->place("timeline.json"), timeline_engines(setup), &*folder);
  Observer* const rows = timeline ? static_cast<Observer*>(&*timeline) : folder ? &*folder : terms.rows;
  std::optional<Bounds> bounds;
  if (experiment.flag("report.bounds") && leads) bounds.emplace(setup, rows);
  Observer* const counts = bounds ? &bounds->stops : rows;
  if (experiment.flag("report.warm") && leads) warm.emplace(counts, setup.cost.get(), counted.level);
  std::vector<RequestId> completed;  // that count
  Metrics metrics(warm ? &*warm : counts, setup.cost.get(), std::move(counted),
                  [&completed](const RequestRecord& record) { completed.push_back(record.request); });
  FrontEnd front_end(serving, metrics);
  JoinedRequests joined(front_end);
  const bool joins = setup.decode != nullptr || setup.roles.engines_die;
  Observer& requests = joins ? static_cast<Observer&>(joined) : front_end;
  // With several processes, this one sees neither the inputs nor the pages of the other engines.
  std::optional<PageHistory> history;
  if (leads && terms.engines == nullptr) {
    std::vector<std::size_t> disk_of;
    for (std::size_t seat = 0; seat < setup.world.engines; ++seat) disk_of.push_back(setup.first_on_machine(seat));
    history.emplace(setup.world.engines, setup.engine.shape.page_tokens, requests, std::move(disk_of));
  }
  std::vector<SeatWatch> watches(world.seats());
  for (std::size_t seat = 0; seat < watches.size(); ++seat) {
    // All ranks decide the same, so only one rank has observers.
    if (terms.engines != nullptr) {
      watches[seat].observer = terms.engines->reporter();
    } else if ((seat == 0 && leads) || !setup.world.instances) {
      watches[seat].observer = inputs.observer(history ? static_cast<Observer*>(&*history) : &requests);
      if (bounds) watches[seat].decisions = &bounds->hits;
      if (bounds) watches[seat].inputs = bounds->stops.inputs_of(seat, &bounds->hits);
      if (history) watches[seat].inputs = history->inputs_of(seat, watches[seat].inputs);
    }
    if (files.journal) watches[seat].journal = &journals[seat];
    world.watch_lanes_of(seat, &meters[seat]);
  }
  for (std::size_t seat = 0; timeline && seat < timeline->engines(); ++seat) {
    world.watch_lanes_of(seat, timeline->lanes_of(seat, &meters[seat]));
    if (timeline->engines() > 1) watches[seat].observer = timeline->events_of(seat, watches[seat].observer);
  }
  Cluster cluster(setup, world, watches, terms.checked, resolved);
  const auto lost = [&metrics](std::size_t engine) { metrics.engine_lost(engine); };
  cluster.tell_losses_to(lost);
  {
    Progress progress(*workload, metrics, static_cast<std::uint64_t>(experiment.integer("workload.limit")), listener);
    const bool tells = leads && listener.requests;
    if (tells && terms.engines == nullptr) world.set_progress(&Progress::tick, &progress);
    const auto run = [&] {
      if (terms.engines == nullptr) return cluster.run(inputs.source());
      EngineStream stream{&inputs.source(), inputs.observer(&requests), lost, {}};
      if (tells) stream.ticks = [&progress](TimeNs now) { Progress::tick(&progress, now); };
      terms.ranks->on_death([&](std::size_t rank) { return terms.engines->lose(rank); });
      terms.engines->run(stream, [&cluster](InputSource& source) { cluster.run(source); });
      terms.ranks->go_on_without(terms.engines->lost_processes());
    };
    terms.ranks != nullptr ? terms.ranks->serve(run) : run();
    world.set_progress(nullptr, nullptr);
  }

  metrics.finish();
  for (const TierSpec& spec : kTierSpecs)
    metrics.tier(spec.tier).evicted += world.stored_pages_evicted(spec.tier).value_or(0);
  RunFacts facts = facts_of(experiment, setup, terms);
  std::ranges::move(idle, std::back_inserter(facts.notes));
  add_outcome(cluster, setup, facts);
  facts.drawn = workload->drawn();
  if (const AnswerGaps& answers = prefixes.answers(); answers.requests() != 0) {
    facts.continued = answers.requests();
    facts.answers_again = answers.tokens();
    facts.notes.push_back(answers_note(answers));
  }
  std::vector<std::string> workload_notes = workload->notes();
  if (std::string note = inputs.note(); !note.empty()) workload_notes.push_back(std::move(note));
  for (std::string& note : workload_notes) {
    if (leads) listener.tell(note);
    facts.notes.push_back(std::move(note));
  }
  std::vector<std::uint64_t> sent;
  for (const StageFigures& stage : metrics.counter().stages()) sent.push_back(stage.sent);
  if (std::string note = stages_past_limit(experiment, sent); !note.empty()) {
    if (leads) listener.tell(note);
    facts.notes.push_back(std::move(note));
  }
  facts.simulated_ns = terms.engines == nullptr ? world.now() : end_of_all(*terms.ranks, world.now());
  if (terms.add_facts) terms.add_facts(facts);
  facts.wall_seconds = seconds_since(start);
  std::vector<LaneUse> lanes = lane_uses(meters, setup, facts.simulated_ns);
  DecisionMark decisions = cluster.decisions();
  if (terms.ranks != nullptr) decisions = add_processes(*terms.ranks, setup, cluster, facts, lanes);
  if (setup.decode != nullptr) {
    facts.roles = RunFacts::RoleFacts{setup.machines(), setup.all_machines() - setup.machines(), joined.figures(), 0};
    for (const LaneUse& lane : lanes) {
      if (lane.name.ends_with(".peer")) facts.roles->bytes += lane.bytes;
    }
  }
  if (!leads) return {};
  facts.measured = metrics.rates(facts.simulated_ns);
  if (warm) {
    facts.warm = warm->found(least_warm, growing ? growing->cut_at() : inputs.cut_at());
    facts.measured = facts.warm->rates;
  }
  if (facts.measured.completed == 0 && metrics.completed != 0) {
    facts.notes.push_back(
        "throughput: no request completes in the measured window, so there are no rates, no price of a token and "
        "no wear of drives; serve more requests");
  }
  add_findings(setup,
               {metrics, lanes, facts.simulated_ns, !inputs.waits_for_answers(), history ? &*history : nullptr,
                &prefixes, setup.decode != nullptr ? &joined.figures() : nullptr, facts.measured},
               facts);
  if (growing) {
    facts.warm->times = growing->times();
    WarmWindow& window = facts.warm->window;
    if (!window.not_flat.empty() && !window.growth.empty()) {
      window.overloaded = true;
      window.not_flat = window.growth;
    }
  }
  if (bounds) {
    const bool all = !facts.warm && metrics.counter().terms().counts_all();
    bounds->add_to(facts, all ? nullptr : facts.warm ? &facts.warm->completed : &completed);
  }
  if (history) {
    metrics.infinite_hit = history->repeated(completed);
    if (facts.warm) facts.warm->figures.infinite_hit = history->repeated(facts.warm->completed);
  }
  if (timeline) timeline->finish();
  RunResult result;
  result.figures = main_figures(facts, metrics, decisions);
  result.report = report_json(facts, metrics, decisions, lanes);
  result.summary = summary_text(facts, metrics, decisions, lanes);
  if (folder) {
    fill(*folder, facts, metrics, lanes, result.report);
    result.folder = folder->path();
  }
  return result;
}

}  // namespace kvtwin
