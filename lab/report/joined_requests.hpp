// Joins the two parts of a request, on a prefill and on a decode engine, into one record, and the attempts of a request
// whose engine died. The observers behind it see each request arrive once and end once.
//
// The joined record has the hits and the waits of the prefill part, the times of the decode part, and between them
// hand_over_ns: from the end of the prompt on the prefill engine to the last page on the decode engine.
#pragma once

#include <cstdint>
#include <map>

#include "policy/seam/event.hpp"

namespace kvtwin {

struct HandOverFigures {
  std::uint64_t hand_overs = 0;  // requests
  std::uint64_t writes = 0, failed_writes = 0;
  Pages pages = 0;               // of the writes that are done
  std::uint64_t fell_back = 0;   // requests that their decode engine computed itself
  std::uint64_t sent_again = 0;  // attempts after the first
};

// Returns the record of a decode part with the hits and the waits of its prefill part. Only the decode part's if it did
// not receive the prompt from this prefill part, or if there is none (null).
RequestRecord joined_parts(const RequestRecord& decode, const RequestRecord* prefill);

class JoinedRequests final : public Observer {
 public:
  // Requires: `next` outlives this object.
  explicit JoinedRequests(Observer& next) : next_(next) {}
  void on_event(const Event& event) override;
  const HandOverFigures& figures() const { return figures_; }

 private:
  struct Open {
    TimeNs arrival = 0;     // of the first attempt
    RequestRecord prefill;  // of the last prefill part that computed its prompt
    bool arrived = false;   // on the engine that answers
    bool prefilled = false;
  };
  void pass_on(const Event& event, const RequestRecord& record);
  RequestRecord joined(const RequestRecord& record);

  Observer& next_;
  std::map<RequestId, Open> open_;
  HandOverFigures figures_;
};

}  // namespace kvtwin
