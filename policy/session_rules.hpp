// The rules about sessions on an index of its own, for replays without an engine: hints that the cache obeys
// (policy/cache/holds.hpp), and references of sessions (policy/cache/session_radix.hpp).
#pragma once

#include <optional>
#include <span>

#include "policy/base/check.hpp"
#include "policy/cache/holds.hpp"
#include "policy/cache/session_radix.hpp"
#include "policy/config.hpp"
#include "policy/seam/event_sink.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

class SessionRules {
 public:
  struct Setup {
    bool obeys = false, counts_references = false;
    Pages device = 0, host = 0;  // capacities
  };
  // Requires: `tree` outlives this object.
  SessionRules(RadixTree& tree, const Setup& setup) {
    config_.device_pages = setup.device;
    config_.host_pages = setup.host;
    if (setup.obeys) holds_.emplace(config_, tree, sink_);
    if (setup.counts_references) radix_.emplace(tree);
  }
  SessionRules(const SessionRules&) = delete;
  SessionRules& operator=(const SessionRules&) = delete;

  // Encloses the work of one request.
  void begin(const Visit& visit) {
    if (radix_) opening_ = radix_->arrived(visit.session);
    if (!holds_) return;
    holds_->begin_step(visit.time);
    holds_->request_began(visit.session);
    holds_->visit(visit);
  }
  // The path of the request ends at `end`, and has these keys there.
  void finish(const Visit& visit, NodeId end, std::span<const PageKey> keys) {
    if (radix_) {
      radix_->finished(visit.session, opening_, end);
      radix_->left(visit.session);
    }
    if (!holds_) return;
    holds_->used(end, keys);
    holds_->request_ended(visit.session);
    share();
  }
  void hint(const Hint& hint, TimeNs time) {
    if (radix_ && hint.kind == HintKind::session_end) radix_->close(hint.subject);
    if (!holds_) return;
    holds_->take(hint, time);
    share();
  }
  // Nothing else may be evicted. Returns false if no hold is left either.
  bool drop_hold() { return holds_ && holds_->drop_oldest(Reason::capacity); }

 private:
  // No page has to be written.
  void share() {
    for (const SessionHolds::Sharing& sharing : holds_->sharing()) holds_->shared(sharing.session, true);
  }

  class NoWorld final : public Substrate {
   public:
    TimeNs now() const override { return 0; }
    OperationId submit(const Operation&) override { return none(); }
    OperationId call_at(TimeNs) override { return none(); }
    OperationId reduce_min(const ReduceVector&) override { return none(); }
    void cancel(OperationId) override { none(); }

   private:
    static OperationId none() {
      KV_CHECK(false, "holds move nothing");
      return OperationId::none;
    }
  };
  EngineConfig config_;
  NoWorld world_;
  DecisionLog log_;
  const EventSink sink_{world_, log_, nullptr};
  std::optional<SessionHolds> holds_;
  std::optional<SessionRadix> radix_;
  std::uint64_t opening_ = 0;
};

}  // namespace kvtwin
