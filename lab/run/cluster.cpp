#include "lab/run/cluster.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "policy/base/mix.hpp"
#include "policy/seam/decorators.hpp"

namespace kvtwin {

// ---- one seat ----------------------------------------------------------------------------------------

// One engine, and the chain of handlers between the world and the engine: world -> Checking -> Recording -> Seat ->
// engine.
class Cluster::Seat final : public InputHandler, public Observer {
 public:
  Seat(std::size_t number, const EngineConfig& config, Substrate& seat, const SeatWatch& watch, RequestRoute* route,
       bool several_ranks, bool checked, std::string_view text)
      : number_(number), watch_(watch), route_(route), counts_reductions_(several_ranks), decisions_(watch.decisions) {
    Substrate* substrate = &seat;
    ContractTerms terms{config.shape.page_tokens, config.hand_over.role};
    terms.windows = config.windows();
    terms.ranks_decide = several_ranks;
    if (checked) substrate = &checking_.emplace(*substrate, terms);
    engine_.emplace(config, *substrate, decisions_, route == nullptr ? watch.observer : this);
    // Without observers of inputs, the engine receives the inputs directly.
    first_ = counts_reductions_ || watch.inputs != nullptr ? static_cast<InputHandler*>(this) : &*engine_;
    if (watch.journal != nullptr) {
      writer_.emplace(*watch.journal, text);
      first_ = &recording_.emplace(*first_, decisions_, *writer_);
    }
    if (checked) {
      checking_->connect(*first_);
      first_ = &*checking_;
    }
  }

  void handle(const Input& input) override {
    if (counts_reductions_ && std::holds_alternative<Reduction>(input.what)) ++reductions_;
    if (watch_.inputs != nullptr) watch_.inputs->handle(input);
    engine_->handle(input);
  }
  void on_event(const Event& event) override {
    route_->on_event(number_, event);
    if (watch_.observer == nullptr) return;
    Event of_engine = event;
    of_engine.engine = number_;
    watch_.observer->on_event(of_engine);
  }

  // `died`: operations are left without an answer.
  void finish(TimeNs now, bool died) {
    if (checking_ && !died) checking_->finish();
    if (writer_) writer_->finish(now, mark());
  }
  InputHandler& first() { return *first_; }
  const Engine& engine() const { return *engine_; }
  DecisionMark mark() const { return {decisions_.count(), decisions_.digest()}; }
  std::uint64_t reductions() const { return reductions_; }

 private:
  std::size_t number_;
  SeatWatch watch_;
  RequestRoute* route_;
  bool counts_reductions_;
  std::uint64_t reductions_ = 0;
  DecisionLog decisions_;
  std::optional<Checking> checking_;
  std::optional<Engine> engine_;
  std::optional<JournalWriter> writer_;
  std::optional<Recording> recording_;
  InputHandler* first_ = nullptr;
};

// ---- the cluster -------------------------------------------------------------------------------------

Cluster::Cluster(const Setup& setup, World& world, const std::vector<SeatWatch>& watches, bool checked,
                 std::string_view text)
    : setup_(setup), world_(world) {
  if (setup.world.engines > 1 && world.seats() > 1) {
    route_ = std::make_unique<RequestRoute>(setup.route, setup.router, setup.route_view_delay, setup.roles);
  }
  for (std::size_t seat = 0; seat < world.seats(); ++seat) {
    const SeatWatch watch = seat < watches.size() ? watches[seat] : SeatWatch{};
    seats_.push_back(std::make_unique<Seat>(seat, setup.engine_of(seat), world.substrate_of(seat), watch, route_.get(),
                                            setup.world.instances, checked, text));
  }
}

Cluster::~Cluster() = default;

void Cluster::tell_losses_to(std::function<void(std::size_t)> lost) {
  if (route_) route_->tell_losses_to(std::move(lost));
}

void Cluster::run(InputSource& source) {
  std::vector<InputHandler*> handlers;
  for (const auto& seat : seats_) handlers.push_back(&seat->first());
  world_.run_seats(source, handlers, route_.get());
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    const bool died = world_.has_died(i);
    const Engine& engine = seats_[i]->engine();
    const std::string who = seats_.size() == 1 ? "" : (route_ ? "engine " : "rank ") + std::to_string(i) + ": ";
    if (!died && !engine.idle()) throw WorkError("the run ended with work left: " + who + engine.state_summary());
    seats_[i]->finish(world_.now(), died);
  }
  if (!setup_.world.instances) return;
  std::vector<DecisionMark> ranks;
  for (std::size_t rank = 0; rank < seats_.size(); ++rank) ranks.push_back(decisions_of(rank));
  refuse_disagreement(ranks);
}

void refuse_disagreement(const std::vector<DecisionMark>& ranks, const std::string& who) {
  const DecisionMark first = ranks.front();
  for (std::size_t rank = 1; rank < ranks.size(); ++rank) {
    const DecisionMark mark = ranks[rank];
    if (mark == first) continue;
    throw WorkError(who + "rank " + std::to_string(rank) + " decided otherwise than rank 0: " +
                    std::to_string(mark.count) + " decisions, digest " + digest_text(mark.digest) + ", not " +
                    std::to_string(first.count) + ", digest " + digest_text(first.digest));
  }
}

std::size_t Cluster::seats() const { return seats_.size(); }

Pages Cluster::pages_used_max(Tier tier) const {
  if (const std::optional<Pages> stored = world_.stored_pages_max(tier)) return *stored;
  if (!route_) return seats_[0]->engine().pages_used_max(tier);
  Pages used = 0;
  for (const auto& seat : seats_) used += seat->engine().pages_used_max(tier);
  for (const StorageTierConfig& storage : setup_.engine.storage) {
    if (storage.tier == tier && !storage.owned) used = std::min(used, storage.pages * setup_.stores_of(tier));
  }
  return used;
}

Pages Cluster::pool_used_max(std::size_t at, Tier tier, EngineRange engines) const {
  Pages used = 0;
  for (std::size_t seat = 0; seat < seats_.size(); ++seat) {
    if (!engines.contains(seat)) continue;
    const Engine& engine = seats_[seat]->engine();
    used += at == 0 ? engine.pages_used_max(tier) : engine.pool_used_max(at - 1, tier);
  }
  return used;
}

DecisionMark Cluster::decisions_of(std::size_t seat) const { return seats_[seat]->mark(); }
std::uint64_t Cluster::reductions_of(std::size_t seat) const { return seats_[seat]->reductions(); }

DecisionMark Cluster::decisions() const {
  if (!route_) return decisions_of(0);
  std::vector<DecisionMark> engines;
  for (std::size_t engine = 0; engine < seats_.size(); ++engine) engines.push_back(decisions_of(engine));
  return joined_decisions(engines);
}

DecisionMark joined_decisions(const std::vector<DecisionMark>& engines) {
  DecisionMark all = engines.front();
  for (std::size_t engine = 1; engine < engines.size(); ++engine) {
    const DecisionMark mark = engines[engine];
    all.count += mark.count;
    all.digest = mixed_bits(all.digest * 0xD1B54A32D192ED03u + mark.digest);  // depends on the order
  }
  return all;
}

}  // namespace kvtwin
