#include "policy/offload/tiered_chunks.hpp"

#include <algorithm>

#include "policy/base/check.hpp"

namespace kvtwin {

TieredChunks::TieredChunks(const TieredChunksConfig& config) : chunk_bytes_(config.chunk_bytes), host_(config.host) {
  for (const TieredChunksConfig::Further& further : config.tiers) {
    Further& tier = tiers_.emplace_back();
    if (further.pressure) tier.pressure.emplace(*further.pressure);
  }
}

void TieredChunks::begin(RequestId request) { requests_[request]; }

// ---- what has ended --------------------------------------------------------------------------------------------

void TieredChunks::complete(std::uint64_t job, std::size_t copied) {
  const auto at = jobs_.find(job);
  KV_CHECK(at != jobs_.end(), "a job ends once");
  tiers_[at->second.tier].ended.emplace_back(job, copied);
}

bool TieredChunks::has_ended_jobs() const {
  return std::ranges::any_of(tiers_, [](const Further& tier) { return !tier.ended.empty(); });
}

void TieredChunks::process_ended_once() {
  if (!std::exchange(processed_, true)) process_ended();
}

void TieredChunks::process_ended() {
  for (Further& tier : tiers_) {
    const auto ended = std::exchange(tier.ended, {});
    for (const auto& [number, copied] : ended) {  // before the host tier hears of the first of them
      const Job& job = jobs_.at(number);
      if (job.to_host) tier.look_ups.lose(std::span(job.chunks).subspan(copied));
    }
    for (const auto& [number, copied] : ended) {
      const Job job = std::move(jobs_.extract(number).mapped());
      if (job.to_host) {
        end_promotion(job, copied);
        continue;
      }
      host_.complete_load(job.chunks);
      if (!tier.pressure) continue;
      if (copied == job.chunks.size()) {
        tier.pressure->copied(now_ - job.submitted, copied * chunk_bytes_, now_);
      } else {
        tier.pressure->failed(now_);
      }
    }
  }
}

void TieredChunks::end_promotion(const Job& job, std::size_t copied) {
  const auto arrived = std::span(job.chunks).first(copied), lost = std::span(job.chunks).subspan(copied);
  const auto request = requests_.find(job.request);
  if (request != requests_.end()) {
    for (const Chunk& chunk : lost) request->second.sources.erase(chunk.key);
  }
  host_.complete_store(arrived, true);
  host_.complete_store(lost, false);
}

// ---- look-ups and promotions -----------------------------------------------------------------------------------

Found TieredChunks::look_up(const Chunk& chunk, RequestId request) {
  process_ended_once();
  const Found on_host = host_.look_up(chunk.key);
  if (on_host != Found::miss) return on_host;
  Found result = Found::miss;
  for (std::uint32_t tier = 0; tier < tiers_.size(); ++tier) {
    const Found found = tiers_[tier].look_ups.look_up(chunk.key, request);
    if (found == Found::hit) return promote(tier, chunk, request) ? Found::pending : Found::miss;
    if (found == Found::retry) result = Found::retry;
  }
  return result;
}

bool TieredChunks::promote(std::uint32_t tier, const Chunk& chunk, RequestId request) {
  auto store = host_.prepare_store(std::span(&chunk, 1), request);
  if (!store) return false;
  const auto of_tier = std::ranges::find_if(promotions_, [&](const auto& jobs) { return jobs.front().tier == tier; });
  std::vector<Job>& jobs = of_tier != promotions_.end() ? *of_tier : promotions_.emplace_back();
  auto job = std::ranges::find(jobs, request, &Job::request);
  if (job == jobs.end()) {
    Job fresh;
    fresh.tier = tier;
    fresh.to_host = true;
    fresh.request = request;
    job = jobs.insert(jobs.end(), std::move(fresh));
  }
  for (std::size_t i = 0; i < store->chunks.size(); ++i) {
    requests_.at(request).sources[store->chunks[i].key] = tier;
    job->chunks.push_back(store->chunks[i]);
    job->slots.push_back(store->slots[i]);
  }
  return true;
}

std::optional<std::uint32_t> TieredChunks::source_of(const ChunkKey& key, RequestId request) const {
  const auto of = requests_.find(request);
  if (of == requests_.end()) return std::nullopt;
  const auto source = of->second.sources.find(key);
  return source == of->second.sources.end() ? std::nullopt : std::optional(source->second);
}

void TieredChunks::submit(Job&& job) {
  job.number = next_job_++;
  job.submitted = now_;
  jobs_[job.number] = job;
  submitted_.push_back(std::move(job));
}

std::vector<TieredChunks::LookUps> TieredChunks::end_step() {
  process_ended_once();
  processed_ = false;
  for (std::vector<Job>& jobs : promotions_) {
    for (Job& job : jobs) submit(std::move(job));
  }
  promotions_.clear();
  std::vector<LookUps> look_ups;
  for (std::uint32_t tier = 0; tier < tiers_.size(); ++tier) {
    auto asked = tiers_[tier].look_ups.end_step();
    if (!asked.empty()) look_ups.push_back({tier, std::move(asked)});
  }
  return look_ups;
}

// ---- between device and host -----------------------------------------------------------------------------------

std::optional<HostChunks::Store> TieredChunks::prepare_store(std::span<const Chunk> offered, RequestId request) {
  processed_ = true;
  process_ended();
  auto store = host_.prepare_store(offered, request);
  if (store && !store->chunks.empty()) ++requests_.at(request).stores;
  return store;
}

void TieredChunks::complete_store(std::span<const Chunk> chunks, RequestId request, bool success) {
  host_.complete_store(chunks, success);
  for (std::uint32_t tier = 0; success && tier < tiers_.size(); ++tier) {
    if (tiers_[tier].pressure && !tiers_[tier].pressure->admits(now_)) continue;
    Job job;
    job.tier = tier;
    job.chunks.assign(chunks.begin(), chunks.end());
    job.slots = host_.prepare_load(chunks, request, false);
    job.request = request;
    submit(std::move(job));
  }
  Request& of = requests_.at(request);
  KV_CHECK(of.stores > 0, "a store completes once");
  --of.stores;
  forget_if_done(request);
}

std::vector<SlotId> TieredChunks::prepare_load(std::span<const Chunk> chunks, RequestId request) {
  return host_.prepare_load(chunks, request);
}

void TieredChunks::finish(RequestId request) {
  host_.finish(request);
  requests_.at(request).has_finished = true;
  forget_if_done(request);
}

// The stores of a request that has finished may still start copies to further tiers.
void TieredChunks::forget_if_done(RequestId request) {
  const Request& of = requests_.at(request);
  if (!of.has_finished || of.stores > 0) return;
  for (Further& tier : tiers_) tier.look_ups.finish(request);
  requests_.erase(request);
}

}  // namespace kvtwin
