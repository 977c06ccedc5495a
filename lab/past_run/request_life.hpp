// What befalls one request while its run is decided again (past_run.hpp): collected from the inputs, decisions and
// events that pass by, in memory that grows with the request, not with the run.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lab/past_run/past_run.hpp"

namespace kvtwin {

class RequestLife final : public Onlooker {
 public:
  RequestLife(RequestId request, Tokens page_tokens) : request_(request), page_tokens_(page_tokens) {}
  void handle(const Input& input) override;
  void decided(const Decision& decision) override;
  void on_event(const Event& event) override;

  struct Admission {
    TimeNs at = 0;
    Pages reused = 0;
  };
  struct Load {
    TimeNs queued = 0, landed = -1;  // -1 = not told
    Pages pages = 0;
    Reason refused = Reason::none;
    Status status = Status::done;
    OperationId operation = OperationId::none;
  };
  // What L3 was asked for it while it waited.
  struct Prefetch {
    TimeNs issued = 0;
    Pages asked = 0;
    Reason declined = Reason::none;
    std::vector<std::pair<Tier, Pages>> found;  // to be fetched to L2, by tier
    Pages no_room = 0;                          // found, and L2 had no room for it
    TimeNs begin = -1, end = -1;                // of the fetch to L2; -1 = there was none, or not told
    Pages arrived = 0;                          // until its end, those after a stop too
    TimeNs revoked = -1;
    Reason revoke_reason = Reason::none;
    Pages hit = 0;  // of a revoked one
    TimeNs stopped = -1;
    Reason stop_reason = Reason::none;
    Pages arrived_at_stop = 0;
  };
  // L3 to the device, past the host.
  struct DirectLoad {
    TimeNs queued = 0;
    Pages pages = 0;
    Reason refused = Reason::none;
  };
  struct Prefill {
    TimeNs begin = 0, end = -1;
    Tokens tokens = 0;
    TimeNs stalled = 0;
    Status status = Status::done;
    OperationId pass = OperationId::none;
  };
  struct Retraction {
    TimeNs at = 0;
    Reason reason = Reason::none;
  };
  // From its first token on, of the pages [first, first + pages) of its prompt and output.
  struct PageMoment {
    DecisionKind kind = DecisionKind::backup;  // backup, evict_device, evict_host
    Reason reason = Reason::none;
    Pages first = 0, pages = 0;
    TimeNs at = 0, done = -1;  // done: of backups
    Status status = Status::done;
    OperationId operation = OperationId::none;
  };
  static constexpr std::size_t kAheadShown = 8, kMomentsKept = 1000;

  std::uint64_t arrivals = 0;  // of all requests
  bool arrived = false;
  RequestRecord record;  // as it was told last
  std::uint64_t session = 0;
  std::int32_t priority = 0;
  std::uint64_t found_waiting = 0, found_running = 0, admitted_meanwhile = 0;
  std::vector<RequestId> ahead;  // the first of those that waited
  std::vector<Admission> admissions;
  std::vector<Load> loads;
  std::vector<Prefetch> prefetches;  // the last one was issued, others declined
  std::vector<DirectLoad> direct_loads;
  std::vector<Prefill> prefills;
  std::vector<Retraction> retractions;
  std::vector<PageMoment> moments;
  std::uint64_t moments_left_out = 0;
  std::optional<Pages> pages_left;  // in the cache, when it had finished

 private:
  void follow_queue(const Decision& decision);
  void follow_pages(const Decision& decision);
  void follow_prefetch(const Decision& decision);
  void follow_prefetch(const Event& event);
  void take(const Arrival& arrival);
  void take(const Completion& completion);

  const RequestId request_;
  const Tokens page_tokens_;
  TimeNs now_ = 0;
  std::set<RequestId> waiting_;
  std::uint64_t running_ = 0;
  std::unordered_map<PageKey, Pages, PageKeyHash> pages_;  // its pages by key
  std::vector<Decision> backups_;                          // of the input at hand, until its first token
  bool published_ = false;                                 // its prompt is the index's
};

}  // namespace kvtwin
