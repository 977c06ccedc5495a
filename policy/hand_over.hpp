// Hand-overs of an engine that serves one part of a request, as prefill engine or as decode engine. The protocol of
// both sides; the scheduler owns the requests. docs/internals/hand-over.md has the whole picture.
//
// A prefill part:
//
//              room (decode engine)                                   last write done
//   begun -----------------------------> with room --> writing -----------------------> handed over
//      \-- drop ------------------------------\-----------\-- drop --> (writes end) --> withdrawn
//
// The pages that a write reads stay allocated until it ends. If the request gives them up before (retraction, abort),
// they linger here. A decode engine reuses leased pages only after `handed` or `withdrawn`, or when the prefill engine
// is known to be dead.
//
// Thread: one. Errors: KV_CHECK.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "policy/cache.hpp"
#include "policy/config.hpp"
#include "policy/in_flight.hpp"
#include "policy/seam/event_sink.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

struct Request;

class HandOvers {
 public:
  HandOvers(const EngineConfig& config, Substrate& substrate, Cache& cache, const EventSink& sink)
      : config_(config), substrate_(substrate), cache_(cache), sink_(sink) {}

  // ---- prefill engine
  // The part has arrived. Requires: not known yet.
  void begin(const Arrival& arrival);
  void take_room(const Notice& room);
  bool is_open(const Request& request) const;  // known, and not dropped
  bool has_room(const Request& request) const;
  // Writes the pages that have been computed, or that `pass` computes, and are not written yet. `tokens`: of the
  // prompt, computed at the end of the pass.
  void write(const Request& request, Tokens tokens, OperationId pass);
  // Returns whether writes of its pages are in flight.
  bool reads_pages(const Request& request) const;
  // The request gives these pages up. They are freed after the last write of the request in flight.
  void linger(const Request& request, NodeId lease, std::vector<SlotId> slots, RequestPools pools);
  // The part ends without a hand-over. Tells the decode engine once no write is in flight, unless `peer_lost`.
  void drop(RequestId request, std::uint32_t attempt, bool peer_lost);

  bool complete(const Completion& completion) { return flights_.complete(completion); }
  // For the step's agreement, as in InFlight.
  std::uint64_t writes_complete() const { return flights_.complete_from_oldest(); }
  std::uint64_t failure() const { return flights_.failure(); }
  // Takes the results that the step has agreed on. Returns true if there are more.
  bool commit(const Acknowledged& agreed);
  bool acknowledgement_due() const { return flights_.acknowledgement_due(); }
  // The parts that commit() has ended: handed over, or failed too often.
  struct Ended {
    RequestId request = kNoRequest;
    std::uint32_t attempt = 0;
    bool handed = false;
  };
  std::vector<Ended> take_ended() { return std::exchange(ended_, {}); }

  // ---- both
  void send(NoticeKind kind, const Request& request, Pages first = 0, std::span<const SlotId> slots = {});
  bool writing() const { return !flights_.empty(); }
  bool idle() const { return flights_.empty() && parts_.empty() && lingering_.empty(); }
  Pages lingering_pages() const;
  // Appends what lingers beside pool 0.
  void lingering_pools(std::vector<const RequestPools*>& pools) const;

 private:
  using PartId = std::pair<RequestId, std::uint32_t>;  // with the attempt
  struct Part {
    std::uint32_t peer = 0;
    Tokens prompt = 0;
    Pages pages = 0;  // of the prompt
    bool room = false;
    Pages first = 0;  // the decode engine has the pages before
    std::vector<SlotId> targets;
    std::vector<SlotId> targets_beside;  // as in Notice::slots
    Pages written = 0;                   // the pages before are written, or in flight
    std::uint32_t flights = 0;           // writes in flight
    bool failed = false;                 // a write has failed; the others of this part in flight fail too
    std::uint32_t failures = 0;
    bool dropped = false, peer_lost = false;
  };
  struct Flight : Submitted {
    PartId part;
    Pages first = 0, pages = 0;
    bool last = false;
  };
  struct Lingering {
    PartId part;
    NodeId lease = NodeId::none;
    std::vector<SlotId> slots;
    RequestPools pools;
  };

  void hand_beside(const Request& request, const Part& part, HandOverOperation& operation);
  void settle(const Flight& flight, bool done);
  void end_if_quiet(std::map<PartId, Part>::iterator part);

  const EngineConfig& config_;
  Substrate& substrate_;
  Cache& cache_;
  const EventSink& sink_;
  std::map<PartId, Part> parts_;
  InFlight<Flight> flights_;
  std::vector<Lingering> lingering_;
  std::vector<Ended> ended_;
  std::vector<PageMove> moves_, moves_beside_;
  std::vector<SlotId> sources_, targets_;
  std::vector<PageRun> runs_;
};

}  // namespace kvtwin
