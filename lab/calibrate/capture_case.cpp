#include "lab/calibrate/capture_case.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>

#include "lab/run/serve.hpp"
#include "policy/base/tiers.hpp"

namespace kvtwin {
namespace {

// The requests that end, by number.
class Ended final : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind == EventKind::finished) records_[event.record->request] = *event.record;
    if (event.kind == EventKind::prefetch_issued && ++look_ups_[event.request] == 2) ++again_;
  }
  const RequestRecord* find(std::uint64_t number) const {
    const auto at = records_.find(number);
    return at == records_.end() ? nullptr : &at->second;
  }
  std::array<double, kHitFigures> hits() const {
    std::array<double, kHitFigures> sums{};
    for (const auto& [number, record] : records_) {
      sums[0] += static_cast<double>(record.prompt_tokens);
      for (const TierSpec& spec : kTierSpecs) {
        const std::size_t at = spec.tier == Tier::device ? 1 : spec.tier == Tier::host ? 2 : 3;
        sums[at] += static_cast<double>(record.hit[spec.tier]);
      }
    }
    sums[4] = static_cast<double>(records_.size());
    sums[5] = static_cast<double>(again_);
    return sums;
  }

 private:
  std::map<std::uint64_t, RequestRecord> records_;
  std::map<std::uint64_t, std::uint64_t> look_ups_;  // by request
  std::uint64_t again_ = 0;
};

double seconds(TimeNs ns) { return static_cast<double>(ns) / 1e9; }

double predicted_time(const RequestRecord& record, FigureOfRequest kind) {
  switch (kind) {
    case FigureOfRequest::ttft: return seconds(record.first_token - record.arrival);
    case FigureOfRequest::tpot:
      if (record.output_tokens < 2) return 0;
      return seconds(record.finished - record.first_token) / static_cast<double>(record.output_tokens - 1);
    case FigureOfRequest::e2e: return seconds(record.finished - record.arrival);
  }
  return 0;
}

// Gives the k-th smallest prediction to the figure with the k-th smallest measured time, for each kind and half.
void match_by_rank(const std::vector<FittedFigure>& figures, std::vector<double>& predicted) {
  std::map<std::pair<FigureOfRequest, bool>, std::vector<std::size_t>> groups;
  for (std::size_t i = 0; i < figures.size(); ++i) groups[{figures[i].kind, figures[i].held_out}].push_back(i);
  for (auto& [group, members] : groups) {
    std::vector<double> values;
    for (const std::size_t i : members) values.push_back(predicted[i]);
    std::ranges::sort(values);
    std::ranges::stable_sort(members, {}, [&](std::size_t i) { return figures[i].measured; });
    for (std::size_t i = 0; i < members.size(); ++i) predicted[members[i]] = values[i];
  }
}

// Returns whether a conversation is held out: a fixed half of all numbers (splitmix64).
bool is_held_out(std::uint64_t conversation) {
  std::uint64_t x = conversation + 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return ((x ^ (x >> 31)) & 1U) != 0;
}

// Holds out half of the conversations; if that leaves a quarter of the requests or less to one half, half of the
// requests. Returns what was halved.
std::string hold_out_half(Capture& capture, std::vector<bool>& held_out) {
  for (const bool by_conversation : {true, false}) {
    held_out.clear();
    for (const CapturedRequest& request : capture.requests) {
      held_out.push_back(is_held_out(by_conversation ? request.conversation : request.number));
    }
    const auto count = static_cast<std::size_t>(std::ranges::count(held_out, true));
    const std::size_t less = std::min(count, held_out.size() - count);
    if (less * 4 > held_out.size()) return by_conversation ? "conversation" : "request";
  }
  return "request";
}

}  // namespace

FitCase case_of_capture(Capture& capture, const std::string& name, std::size_t number, std::string& halved) {
  FitCase one{name, capture.experiment, {}, number, {}};
  std::vector<bool> held_out;
  halved = hold_out_half(capture, held_out);
  std::vector<std::uint64_t> numbers;  // of the request of each figure
  for (std::size_t i = 0; i < capture.requests.size(); ++i) {
    const CapturedRequest& request = capture.requests[i];
    const auto add = [&](FigureOfRequest kind, double measured) {
      if (!(measured > 0)) return;
      one.figures.push_back({kind, measured, held_out[i]});
      numbers.push_back(request.number);
    };
    add(FigureOfRequest::ttft, request.ttft_s);
    add(FigureOfRequest::tpot, request.tpot_s);
    add(FigureOfRequest::e2e, request.e2e_s);
  }
  one.simulate = [figures = one.figures, numbers = std::move(numbers), by_rank = capture.by_rank](
                     const Experiment& experiment, const Setup& setup) {
    const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
    ServeTerms terms = simulated_terms(experiment, setup);
    Ended ended;
    terms.rows = &ended;
    serve(experiment, setup, *world, {}, terms, {});
    std::vector<double> predicted;
    for (std::size_t i = 0; i < figures.size(); ++i) {
      const RequestRecord* record = ended.find(numbers[i]);
      predicted.push_back(record == nullptr ? 0 : predicted_time(*record, figures[i].kind));
    }
    if (by_rank) match_by_rank(figures, predicted);
    for (const double hits : ended.hits()) predicted.push_back(hits);
    return predicted;
  };
  return one;
}

}  // namespace kvtwin
