// vLLM's offloading with further tiers below the host tier (its TieringOffloadingManager). A chunk that has been stored
// in host memory is copied to every further tier, in order. A chunk that only a further tier has is first read into
// host memory (promotion), in a slot that the look-up takes at once: without a slot it is a miss. What is read for one
// request of one tier in a step is one job.
//
//     prepare_store, complete_store          a job per tier, unless its writes are too slow (StorePressure)
//   device --------------------------> host ----------------------------------------------------------> tiers
//         <--------------------------      <----------------------------------------------------------
//     prepare_load, complete_load            look_up takes a slot, end_step submits the job
//
// A further tier has no capacity here: its store evicts. Jobs and look-ups that have ended take effect when a step
// first looks up, whenever chunks are to be stored, and at the end of a step. Rules: vLLM 0.33.0,
// v1/kv_offload/tiering/manager.py and fs/manager.py. Not here: tiers that copy whole requests and that serve other
// servers (p2p), requests that name their tiers, and the reset of a running server's cache.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "policy/offload/host_chunks.hpp"
#include "policy/offload/store_pressure.hpp"
#include "policy/offload/tier_look_ups.hpp"

namespace kvtwin {

struct TieredChunksConfig {
  HostChunksConfig host;
  struct Further {
    std::optional<StorePressureConfig> pressure;  // none: every chunk is copied
  };
  std::vector<Further> tiers;
  Bytes chunk_bytes = 0;  // of a host slot
};

class TieredChunks {
 public:
  explicit TieredChunks(const TieredChunksConfig& config);

  // A copy between the host tier and a further one.
  struct Job {
    std::uint64_t number = 0;
    std::uint32_t tier = 0;  // of the further ones
    bool to_host = false;
    std::vector<Chunk> chunks;
    std::vector<SlotId> slots;  // of the host tier
    RequestId request = kNoRequest;
    TimeNs submitted = 0;
  };
  struct LookUps {
    std::uint32_t tier = 0;
    std::vector<TierLookUps::Asked> asked;
  };

  // The time of the calls that follow.
  void set_time(TimeNs now) { now_ = now; }

  // Requires of every request: begin(), then the calls with its number, then finish().
  void begin(RequestId request);
  // Pending: the chunk is on its way to the host tier. Retry: a further tier has not answered yet.
  Found look_up(const Chunk& chunk, RequestId request);
  // As those of HostChunks.
  std::optional<HostChunks::Store> prepare_store(std::span<const Chunk> offered, RequestId request);
  // Once for each prepare_store() that returned chunks, with these chunks.
  void complete_store(std::span<const Chunk> chunks, RequestId request, bool success);
  std::vector<SlotId> prepare_load(std::span<const Chunk> chunks, RequestId request);
  void complete_load(std::span<const Chunk> chunks) { host_.complete_load(chunks); }
  void touch(std::span<const Chunk> chunks) { host_.touch(chunks); }
  void finish(RequestId request);
  // Returns the further tier that a chunk of the host tier was read from for this request; none: it was there.
  std::optional<std::uint32_t> source_of(const ChunkKey& key, RequestId request) const;

  // Ends a step of the scheduler. Returns what the tiers are to look up.
  std::vector<LookUps> end_step();
  // Returns the jobs submitted since the last call, in order.
  std::vector<Job> take_jobs() { return std::exchange(submitted_, {}); }
  void answer(std::uint32_t tier, std::span<const TierLookUps::Answer> answers) {
    tiers_[tier].look_ups.answer(answers);
  }
  // A job has ended. `copied`: leading chunks that arrived.
  void complete(std::uint64_t job, std::size_t copied);

  const HostChunks& host() const { return host_; }
  std::vector<HostChunks::Change> take_changes() { return host_.take_changes(); }
  bool has_jobs() const { return !jobs_.empty(); }
  // Returns whether jobs have ended that have not taken effect.
  bool has_ended_jobs() const;

 private:
  struct Further {
    std::optional<StorePressure> pressure;
    TierLookUps look_ups;
    std::vector<std::pair<std::uint64_t, std::size_t>> ended;  // jobs, and chunks that arrived
  };
  struct Request {
    std::uint32_t stores = 0;  // to the host tier, under way
    bool has_finished = false;
    std::map<ChunkKey, std::uint32_t> sources;  // further tiers
  };

  void process_ended();
  void process_ended_once();
  void end_promotion(const Job& job, std::size_t copied);
  bool promote(std::uint32_t tier, const Chunk& chunk, RequestId request);
  void submit(Job&& job);
  void forget_if_done(RequestId request);

  const Bytes chunk_bytes_;
  HostChunks host_;
  std::vector<Further> tiers_;
  std::map<RequestId, Request> requests_;
  std::map<std::uint64_t, Job> jobs_;  // under way
  std::vector<Job> submitted_;
  std::vector<std::vector<Job>> promotions_;  // of this step, by tier, in the order of their first look-ups
  std::uint64_t next_job_ = 0;
  bool processed_ = false;  // in this step
  TimeNs now_ = 0;
};

}  // namespace kvtwin
