#include "lab/calibrate/calibrate_runs.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "lab/error.hpp"
#include "lab/past_run/past_run.hpp"
#include "lab/run/journal_file.hpp"
#include "models/presets.hpp"
#include "models/text_file.hpp"
#include "policy/engine.hpp"
#include "policy/seam/journal.hpp"

namespace kvtwin {
namespace {

// A substrate that does no work: it returns ids, its time is the time of the current input, and it records durations.
class JournalTimer final : public Substrate {
 public:
  JournalTimer(Measurements& found, std::size_t model, std::uint32_t tp) : found_(found), model_(model), tp_(tp) {}

  // Returns false if the input is a completion of an operation that was never submitted.
  bool take(const Input& input) {
    now_ = input.now;
    const auto* done = std::get_if<Completion>(&input.what);
    if (done == nullptr) return true;
    const auto at = open_.find(done->id);
    if (at == open_.end()) return false;
    end(at->second, *done);
    open_.erase(at);
    return true;
  }

  TimeNs now() const override { return now_; }
  OperationId submit(const Operation& operation) override {
    const OperationId id{++last_};
    Open open;
    open.submitted = now_;
    if (const auto* transfer = std::get_if<TransferOperation>(&operation)) {
      open.lane = transfer->lane;
      open.one.what = Measured::transfer;
      open.one.plan = transfer->plan;
      open.one.plan.runs = {};
      open.counts = transfer->beside.empty();
    } else if (const auto* pass = std::get_if<ForwardOperation>(&operation)) {
      open.lane = Lane::compute;
      open.one.what = Measured::forward;
      open.one.model = model_;
      open.one.tp = tp_;
      open.one.shape = pass->shape;
      open.one.steps = pass->steps;
      open.counts = pass->shape.draft_tokens == 0;
    } else {
      const StorageWork& work = std::get<StorageOperation>(operation).work;
      open.lane = lane_of(work);
      open.queues = work.verb != StorageVerb::look_up;
      open.one.what = Measured::storage;
      open.one.work = work;
      open.counts = work.verb != StorageVerb::remove;
    }
    open_.emplace(id, open);
    return id;
  }
  OperationId call_at(TimeNs) override { return OperationId{++last_}; }
  OperationId reduce_min(const ReduceVector&) override { return OperationId{++last_}; }
  void cancel(OperationId id) override {
    if (const auto at = open_.find(id); at != open_.end()) at->second.counts = false;
  }

 private:
  struct Open {
    Measurement one;
    Lane lane = Lane::compute;
    TimeNs submitted = 0;
    bool queues = true;  // false: a look-up, which has no lane
    bool counts = true;  // false: the cost model does not describe this operation, or it was cancelled
  };

  void end(Open& open, const Completion& done) {
    TimeNs begin = open.submitted;
    if (open.queues) {
      TimeNs& last = lane_end_[open.lane];
      begin = std::max(begin, last);
      last = now_;
    }
    const TimeNs took = now_ - begin - done.stalled_ns;
    if (!open.counts || done.status != Status::done || took <= 0) return;
    open.one.recorded = true;
    open.one.seconds = static_cast<double>(took) * 1e-9;
    found_.list.push_back(open.one);
  }

  Measurements& found_;
  std::size_t model_;
  std::uint32_t tp_;
  TimeNs now_ = 0;
  std::uint64_t last_ = 0;
  std::map<OperationId, Open> open_;
  PerLane<TimeNs> lane_end_{};
};

std::string config_of(const Experiment& experiment) {
  if (experiment.text("model.config").empty()) return std::string(model_preset_text(experiment.text("model.name")));
  return read_text_file(experiment.path("model.config"), "give a config.json (JSON)");
}

[[noreturn]] void refuse_other_decisions(const std::filesystem::path& path) {
  throw InputError(path.string() +
                   ": has decisions that this kvtwin does not make, so its operations are not known; record the "
                   "run again (kvtwin replay says where they part)");
}

}  // namespace

Measurements measurements_of_run(const std::filesystem::path& path) {
  const PastRun run(path);
  if (!run.has_journal()) {
    throw InputError(path.string() + ": has no journal; give a folder that `kvtwin run` wrote");
  }
  const Setup setup = setup_for_rerun(run.experiment());
  if (setup.hardware.file_a_page) {
    throw InputError(path.string() + ": its disk tier is a file a page, which isn't fitted; give a run in segments");
  }
  Measurements found;
  const std::size_t model = found.add_model(setup.model.name, config_of(run.experiment()));
  JournalTimer timer(found, model, static_cast<std::uint32_t>(setup.engine.ranks));
  DecisionLog decisions(nullptr);
  Engine engine(setup.engine, timer, decisions, nullptr);
  const std::vector<std::byte> bytes = read_journal(run.journal_path());
  JournalReader reader(bytes);
  JournalRecord record;
  while (reader.next(record) == JournalStatus::record) {
    if (!timer.take(record.input)) refuse_other_decisions(path);
    engine.handle(record.input);
    if (DecisionMark{decisions.count(), decisions.digest()} != record.after) refuse_other_decisions(path);
  }
  return found;
}

}  // namespace kvtwin
