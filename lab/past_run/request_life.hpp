// The life of one request: collects the inputs, decisions and events of the request while its run is decided again
// (past_run.hpp).
// Cost: memory grows with the request, not with the run.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "lab/past_run/past_run.hpp"

namespace kvtwin {

class RequestLife final : public RerunObserver {
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
    TimeNs queued = 0, landed = -1;  // landed: end of the copy; -1 = not known
    Pages pages = 0;
    Reason refused = Reason::none;
    Status status = Status::done;
    OperationId operation = OperationId::none;
  };
  // A prefetch from L3 while the request waited.
  struct Prefetch {
    TimeNs issued = 0;
    Pages asked = 0;
    Reason declined = Reason::none;
    std::vector<std::pair<Tier, Pages>> found;  // pages to fetch to L2, by tier
    Pages no_room = 0;                          // found pages without room in L2
    std::vector<OperationId> gets;              // of the fetch to L2
    std::map<Cause, Pages> fell_short;          // pages that did not come, by cause; not those of a cancelled get
    TimeNs begin = -1, end = -1;                // of the fetch to L2; -1 = no fetch, or not known
    Pages arrived = 0;                          // until the end of the fetch, also after a stop
    TimeNs revoked = -1;
    Reason revoke_reason = Reason::none;
    Pages hit = 0;  // found pages of a revoked prefetch
    TimeNs stopped = -1;
    Reason stop_reason = Reason::none;
    Pages arrived_at_stop = 0;
  };
  // A load from L3 to the device without host memory.
  struct DirectLoad {
    TimeNs queued = 0;
    Pages pages = 0;
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
  // A change of the pages [first, first + pages) of the prompt and the output, after the first token.
  struct PageMoment {
    DecisionKind kind = DecisionKind::backup;  // backup, evict_device, evict_host
    Reason reason = Reason::none;
    Pages first = 0, pages = 0;
    TimeNs at = 0, done = -1;  // done: the end of a backup
    Status status = Status::done;
    OperationId operation = OperationId::none;
    std::uint8_t pool = 0;  // Decision::pool

    bool goes_on_below(const PageMoment& next) const {
      return next.kind == kind && next.reason == reason && next.at == at && next.pool == pool &&
             next.first + next.pages == first;
    }
  };
  // What a part of the request knows of the other engine; -1 = it never happened, or is not known.
  struct HandOver {
    TimeNs room = -1;  // prefill part: the decode engine had room. Decode part: it leased the pages
    Pages leased = 0;  // decode part
    std::uint64_t writes = 0, failed_writes = 0;
    Pages pages = 0;                           // of the writes that are done
    TimeNs first_write = -1, last_write = -1;  // submission of the first, end of the last
    TimeNs ended = -1;             // prefill part: handed over or withdrawn. Decode part: all pages were there
    TimeNs fell_back = -1;         // decode part: it computed the prompt itself
    Reason reason = Reason::none;  // of withdrawal or of falling back
  };
  static constexpr std::size_t kMaxAhead = 8, kMaxMoments = 1000;

  std::uint64_t arrivals = 0;  // of all requests
  bool arrived = false;
  RequestRecord record;      // of the last event
  TimeNs first_arrival = 0;  // if it was sent again, `record` and `hand_over` are of the last attempt
  std::uint64_t session = 0;
  std::int32_t priority = 0;
  std::uint64_t found_waiting = 0, found_running = 0, admitted_meanwhile = 0;
  std::vector<RequestId> ahead;  // waiting requests at the arrival, at most kMaxAhead
  std::vector<Admission> admissions;
  std::vector<Load> loads;
  std::vector<Prefetch> prefetches;  // in order; a stopped one may be fetching while the next one looks up
  std::vector<DirectLoad> direct_loads;
  std::vector<Prefill> prefills;
  std::vector<Retraction> retractions;
  std::vector<Retraction> releases;  // loaded prefixes that it gave back while it waited
  std::vector<PageMoment> moments;
  std::uint64_t moments_left_out = 0;
  HandOver hand_over;
  std::optional<Pages> pages_left;  // cached pages of the request when it finished

 private:
  void follow_queue(const Decision& decision);
  void follow_pages(const Decision& decision);
  void follow_prefetch(const Decision& decision);
  void follow_prefetch(const Event& event);
  void follow_hand_over(const Event& event);
  void take(const Arrival& arrival);
  void take(const Completion& completion);

  const RequestId request_;
  const Tokens page_tokens_;
  TimeNs now_ = 0;
  std::set<RequestId> waiting_;
  std::set<RequestId> running_;
  std::unordered_map<PageKey, Pages, PageKeyHash> pages_;  // page numbers of the request, by key
  std::vector<Decision> backups_;                          // of the current input, until the first token
  bool published_ = false;                                 // the prompt is in the index
  std::uint32_t attempt_ = 0;                              // the last one
  std::set<OperationId> writes_;                           // of this attempt
};

}  // namespace kvtwin
