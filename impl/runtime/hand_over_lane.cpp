#include "impl/runtime/hand_over_lane.hpp"

#include <algorithm>
#include <string>

#include "policy/base/check.hpp"

namespace kvtwin {

HandOverLane::HandOverLane(std::unique_ptr<PeerPools> pools, EnginePost& post)
    : pools_(std::move(pools)), post_(post) {}

HandOverLane::~HandOverLane() {
  worker_.drop();
  for (const auto& [id, job] : flights_) job->cancelled.store(true, std::memory_order_relaxed);
}

void HandOverLane::start(CompletionQueue& queue, const RunClock& clock) {
  queue_ = &queue;
  clock_ = &clock;
  worker_.start("hand-over thread", [this](JobPtr& job) { execute(*job); });
}

void HandOverLane::submit(OperationId id, const HandOverOperation& operation) {
  const auto job = std::make_shared<Job>();
  job->id = id;
  job->part = {operation.request, operation.attempt};
  std::shared_ptr<Part>& fate = parts_[job->part];
  if (fate == nullptr) fate = std::make_shared<Part>();
  ++fate->in_flight;
  job->fate = fate;
  job->number = ++submitted_;
  job->peer = operation.peer;
  job->first = operation.first;
  job->last = operation.last;
  job->bytes = operation.work.bytes;
  job->pass = operation.pass;
  job->moves.push_back({0, {operation.pages.begin(), operation.pages.end()}});
  for (const HandOverOperation::Part& part : operation.parts) {
    job->moves.push_back({part.pool + 1, {part.moves.begin(), part.moves.end()}});
  }
  flights_[id] = job;
  waiting_.push_back(job);
  start_ready();
}

void HandOverLane::cancel(OperationId id) {
  const auto found = flights_.find(id);
  if (found != flights_.end()) found->second->cancelled.store(true, std::memory_order_relaxed);
}

void HandOverLane::pass_ended(OperationId pass, bool counts) {
  for (const JobPtr& job : waiting_) {
    if (job->pass != pass) continue;
    job->pass = OperationId::none;
    job->gate_failed = !counts;
  }
  start_ready();
}

void HandOverLane::retire(const Completion& completion) {
  const auto found = flights_.find(completion.id);
  KV_CHECK(found != flights_.end(), "a completion of the lane answers one of its operations");
  const Job& job = *found->second;
  const bool quiet = --job.fate->in_flight == 0;
  if (quiet && completion.status == Status::done) parts_.erase(job.part);
  flights_.erase(found);
}

void HandOverLane::notify(std::uint32_t peer, const Notice& notice) {
  if (notice.kind == NoticeKind::withdrawn) parts_.erase({notice.request, notice.attempt});
  post_.notify(peer, notice);
}

void HandOverLane::start_ready() {
  for (; !waiting_.empty() && waiting_.front()->pass == OperationId::none; waiting_.pop_front()) {
    worker_.submit(waiting_.front());
  }
}

Status HandOverLane::write(Job& job, Finished& finished) {
  if (job.gate_failed) return Status::gate_failed;
  if (job.cancelled.load(std::memory_order_relaxed)) return Status::cancelled;
  if (job.fate->gap.is_before(job.first)) return Status::failed;
  switch (pools_->write(job.peer, job.moves, job.cancelled)) {
    case PeerPools::Answer::done: return Status::done;
    case PeerPools::Answer::stopped: return Status::cancelled;
    case PeerPools::Answer::failed: break;
    // The decode engine must not use the slots for other pages while bytes may land in them.
    case PeerPools::Answer::late:
      finished.failure = std::make_shared<const std::string>("pages of request " + std::to_string(job.part.first) +
                                                             " haven't reached engine " + std::to_string(job.peer) +
                                                             " in time; has it been stopped?");
      break;
  }
  return Status::failed;
}

void HandOverLane::execute(Job& job) {
  Finished finished;
  finished.completion.id = finished.span.id = job.id;
  finished.span.lane = Lane::peer;
  finished.span.begin = finished.span.flowing = clock_->now();
  const Status status = write(job, finished);
  if (status == Status::done) {
    job.fate->gap.written(job.number);
    finished.completion.bytes = finished.span.bytes = job.bytes;
    if (job.last) post_.landed(job.peer, {job.part.first, job.part.second, job.number});
  } else {
    job.fate->gap.failed(job.first, job.number);
  }
  finished.completion.status = finished.span.status = status;
  finished.span.end = clock_->now();
  queue_->push(finished);
}

}  // namespace kvtwin
