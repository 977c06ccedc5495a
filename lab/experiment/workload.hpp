// Makes the requests of an experiment, from its trace or its generator, and the inputs of a world from them.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "lab/experiment/experiment.hpp"
#include "models/serving_times.hpp"
#include "traces/answered_source.hpp"
#include "traces/growing.hpp"
#include "traces/paging.hpp"
#include "traces/sessions.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

// Returns whether the experiment says which requests are sent: by a trace, a generator or a recipe. Without one, the
// generator of the default makes them.
bool names_workload(const Experiment& experiment);
// Returns the requests of the experiment, from its trace or generator. Errors: InputError, TraceError.
std::unique_ptr<TraceSource> open_workload(const Experiment& experiment);
// Returns the length of generated traffic that could go on in the same way for ever (chat, agentic, tools, sessions),
// and nothing for traces, for traffic of another kind, and where workload.limit ends the traffic.
std::optional<TrafficLength> steady_traffic(const Experiment& experiment);
// Returns the duration of three conversations, if measure_warm() set a shorter one: a rare burst, or a cache that fills
// slowly, may not show in the shorter run.
std::optional<double> confirming_duration_s(const Experiment& experiment);
// Returns the same requests, and those that follow them, without an end. Requires: steady_traffic() returns a length.
std::unique_ptr<TraceSource> open_endless_workload(const Experiment& experiment);
// Sets report.warm for steady traffic, unless the experiment sets it or workload.warmup_requests; for commands that
// compare settings.
void measure_warm(Experiment& experiment);
// Returns a note on the figures of generated conversations that nobody gave, and that decide about the result: the
// longest context, spreads, length of the traffic. Empty for other traffic.
std::string assumed_traffic(const Experiment& experiment);
// Returns the averages of workload.generate.* for kind = sessions. The rate, the means and the shared prefix must be
// given (kvtwin has no defaults for them). Errors: InputError.
SessionsConfig sessions_config(const Experiment& experiment);
// Returns the longest prompt and answer of a generated conversation: workload.generate.context_max_tokens, or that of
// the model's config; 0 = the config has none. Errors: InputError, ModelError.
Tokens context_max_of(const Experiment& experiment);
// Returns whether another seed changes the work. A trace has every request, except the session starts of agentic
// traces. Errors: InputError, TraceError.
bool seed_changes_work(const Experiment& experiment);
// `page_tokens`: of the engine, which vLLM's blocks may make larger than cache.page_tokens; without it, as given.
TraceInputOptions input_options(const Experiment& experiment);
TraceInputOptions input_options(const Experiment& experiment, Tokens page_tokens);

// The inputs of a world from a workload: an open loop, a closed loop (workload.loop), or clients and stages
// (workload.generate.concurrency, workload.generate.stages). Requires: the engines' events go to observer(); from them
// the source knows the ends of the answers.
class WorkloadInputs {
 public:
  // `page_tokens`: of the engine. `serving`: the front end of a simulated engine.
  WorkloadInputs(const Experiment& experiment, Tokens page_tokens, TraceSource& workload,
                 const ServingTimes& serving = {});

  InputSource& source() { return *source_; }
  // Returns the observer for the engines. Events go on to `observer`, which may be null.
  Observer* observer(Observer* observer);
  // Returns whether arrivals depend on the ends of answers.
  bool waits_for_answers() const { return answered_ != nullptr; }
  // Returns the time at which the traffic of users was cut; later than every other time if it was not.
  TimeNs cut_at() const { return answered_ == nullptr ? AnsweredSource::kNever : answered_->cut_at(); }
  // Returns a note for readers of the results, or nothing. Known at the end.
  std::string note() const { return answered_ == nullptr ? std::string() : answered_->note(); }

 private:
  std::unique_ptr<InputSource> source_;
  AnsweredSource* answered_ = nullptr;  // source_, or null for an open loop
};

}  // namespace kvtwin
