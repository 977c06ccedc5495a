// Figures of metrics.prom that report.json has not: the outcome of storage hits, and the time of evictions, as SGLang
// 0.5.23 counts them (sglang/srt/mem_cache/unified_radix_cache.py and base_prefix_cache.py).
#pragma once

#include <cstddef>
#include <map>
#include <string_view>
#include <utility>

#include "lab/report/lane_meter.hpp"
#include "policy/seam/event.hpp"

namespace kvtwin {

class ServerMetrics {
 public:
  ServerMetrics();
  void on_event(const Event& event);

  Pages storage_hit = 0;  // found by the look-ups of prefetches
  // By SGLang's reason, also those without a page: pages of storage_hit that no request could use. too_slow is
  // kvtwin's.
  std::map<std::string_view, Pages> unfulfilled;
  std::map<std::string_view, Pages> deferred;  // by SGLang's reason: pages whose prefetch is tried again later
  // Seconds of each pass that evicts from the device: 0, or the time in which a request waited for write-backs. Bounds:
  // kSecondsBounds.
  Histogram evictions;

 private:
  // A prefetch whose reads are in progress. It may outlive its request.
  struct Fetch {
    Pages started = 0, late = 0;  // late: arrived after the stop
    bool aborted = false;
  };
  // What a request's prefetches have brought, until the request is admitted.
  struct Brought {
    Pages arrived = 0, wasted = 0;
  };
  struct Evicting {
    TimeNs waits_since = -1, last = -1;
  };

  void revoked(const Event& event);
  void landed(const Event& event);
  void used(const Event& event);
  void evicted(const Event& event);

  std::map<std::pair<RequestId, std::size_t>, Brought> brought_;   // by request and engine
  std::map<std::pair<std::size_t, OperationId>, Fetch> fetching_;  // by engine and first read
  std::map<std::size_t, OperationId> newest_;                      // by engine: first read of the newest prefetch
  std::map<std::size_t, Evicting> evicting_;                       // by engine
};

}  // namespace kvtwin
