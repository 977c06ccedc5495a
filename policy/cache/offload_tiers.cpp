// Cache, vLLM's offloading: what moves between the host tier and the storage tiers. TieredChunks decides; Storage has
// the operations. A chunk is a page here: the engine has one group of blocks.
//
//   a copy has arrived in host memory      a job to each tier      Storage::write_to       end_store
//   a look-up has found what a tier has    a job to host memory    Storage::get            take_tier_answer
//   a look-up does not know yet                                    Storage::look_up        take_tier_answer
//
// Different from vLLM, which looks up each chunk alone: a tier answers with the leading pages of a part of a chain, and
// those behind the first missing one count as missing.
#include <algorithm>
#include <utility>

#include "policy/base/check.hpp"
#include "policy/cache.hpp"

namespace kvtwin {

std::vector<TieredChunksConfig::Further> Cache::further_tiers() const {
  std::vector<TieredChunksConfig::Further> tiers;
  for (const StorageTierConfig& tier : config_.storage) {
    TieredChunksConfig::Further& further = tiers.emplace_back();
    if (!config_.block_offload.pressure) continue;
    StorePressureConfig& pressure = further.pressure.emplace();
    pressure.action = *config_.block_offload.pressure;
    if (tier.tier == Tier::disk) continue;
    constexpr std::uint64_t kRemote = 5;  // times the limits of a local tier
    pressure.high_ps_per_mib *= kRemote;
    pressure.low_ps_per_mib *= kRemote;
  }
  return tiers;
}

void Cache::end_offload_step() {
  if (offload_ == nullptr || storage_.tiers() == 0) return;
  for (const TieredChunks::LookUps& look_ups : offload_->end_step()) ask_tier(look_ups);
  asking_.clear();
  report_host_chunks();
  for (const TieredChunks::Job& job : offload_->take_jobs()) read_from_tier(job);
}

// ---- look-ups

// Consecutive pages of a request's chain are one operation.
void Cache::ask_tier(const TieredChunks::LookUps& look_ups) {
  const std::vector<TierLookUps::Asked>& asked = look_ups.asked;
  for (std::size_t from = 0; from < asked.size();) {
    const RequestId request = asked[from].request;
    const auto asking = std::ranges::find(asking_, request, &std::pair<RequestId, std::vector<PageKey>>::first);
    KV_CHECK(asking != asking_.end(), "who asks has looked up in this step");
    const std::span<const PageKey> chain = asking->second;
    const auto at = std::ranges::find(chain, asked[from].key.key);
    const auto first = static_cast<Pages>(at - chain.begin());
    Pages pages = 1;
    while (from + pages < asked.size() && first + pages < chain.size() && asked[from + pages].request == request &&
           asked[from + pages].key.key == chain[first + pages]) {
      ++pages;
    }
    const OperationId id = storage_.look_up(look_ups.tier, request, chain.first(first + pages), first);
    const auto begin = asked.begin() + static_cast<std::ptrdiff_t>(from);
    tier_look_ups_[id].assign(begin, begin + static_cast<std::ptrdiff_t>(pages));
    from += pages;
  }
}

void Cache::take_tier_answer(const StorageAnswer& answer) {
  if (answer.verb == StorageVerb::look_up) {
    const auto asked = tier_look_ups_.extract(answer.id);
    KV_CHECK(!asked.empty(), "a look-up is answered once");
    std::vector<TierLookUps::Answer> answers;
    for (const TierLookUps::Asked& one : asked.mapped()) answers.push_back({one, answers.size() < answer.pages});
    return offload_->answer(static_cast<std::uint32_t>(answer.tier), answers);
  }
  const auto job = tier_reads_.extract(answer.id);
  KV_CHECK(!job.empty(), "a read is answered once");
  TierRead& read = reading_.at(job.mapped());
  if (read.copied == read.asked) read.copied += answer.pages;  // what lies behind a lost page is lost too
  read.asked += answer.asked;
  if (--read.operations > 0) return;
  sink_.decide(DecisionKind::commit, read.copied < read.asked ? Reason::transfer_failed : Reason::none, read.first,
               read.copied, answer.request);
  offload_->complete(job.mapped(), read.copied);
  reading_.erase(job.mapped());
}

// ---- reads into host memory

void Cache::read_from_tier(const TieredChunks::Job& job) {
  KV_CHECK(job.to_host, "jobs to the tiers begin with a copy");
  std::vector<PageKey> keys;
  for (const Chunk& chunk : job.chunks) keys.push_back(chunk.key.key);
  sink_.slots(EventKind::slots_allocated, Tier::host, job.slots);
  sink_.decide(DecisionKind::fetch, Reason::none, keys.front(), keys.size(), job.request);
  TierRead& read = reading_[job.number];
  read.first = keys.front();
  for (std::size_t at = 0; at < keys.size(); at += config_.storage_batch_pages) {
    const std::size_t pages = std::min<std::size_t>(keys.size() - at, config_.storage_batch_pages);
    const StorageAnswer get =
        storage_.get(job.tier, job.request, keys, at, std::span(job.slots).subspan(at, pages), Tier::host);
    tier_reads_[get.id] = job.number;
    ++read.operations;
  }
}

std::vector<FetchedRun> Cache::read_for(std::span<const PageKey> keys, const PrefixMatch& match,
                                        RequestId request) const {
  std::vector<FetchedRun> runs;
  if (offload_ == nullptr || storage_.tiers() == 0) return runs;
  for (Pages page = match.device_pages; page < match.device_pages + match.host_pages; ++page) {
    const auto tier = offload_->source_of(chunk_of(0, keys, page).key, request);
    if (!tier) continue;
    if (!runs.empty() && runs.back().tier == *tier && runs.back().first + runs.back().pages == page) {
      ++runs.back().pages;
    } else {
      runs.push_back({*tier, page, 1});
    }
  }
  return runs;
}

// ---- copies to the tiers

// Begins the jobs of a copy that has arrived in host memory.
void Cache::write_to_tiers(const BlockCopy& copy) {
  for (const TieredChunks::Job& job : offload_->take_jobs()) {
    std::vector<PageKey> keys;
    for (const Chunk& chunk : job.chunks) keys.push_back(chunk.key.key);
    const std::uint64_t store = ++last_store_;
    TierCopy begun{job.number, job.chunks.size(), 0, true};
    for (std::size_t from = 0, to = 0; from < keys.size(); from = to) {  // each run of a chain
      do ++to;
      while (to < keys.size() && copy.priors[to] == keys[to - 1]);
      const PageKey* const prior = copy.priors[from] == PageKey{} ? nullptr : &copy.priors[from];
      begun.operations += storage_.write_to(job.tier, store, prior, std::span(keys).subspan(from, to - from),
                                            std::span(job.slots).subspan(from, to - from), Tier::host, 0);
    }
    if (begun.operations == 0) {
      offload_->complete(job.number, job.chunks.size());
    } else {
      tier_copies_[store] = begun;
    }
  }
}

void Cache::end_tier_copy(std::uint64_t store, bool done) {
  const auto at = tier_copies_.find(store);
  KV_CHECK(at != tier_copies_.end(), "a copy to a tier ends once");
  TierCopy& copy = at->second;
  copy.done &= done;
  if (--copy.operations > 0) return;
  offload_->complete(copy.job, copy.done ? copy.chunks : 0);
  tier_copies_.erase(at);
}

}  // namespace kvtwin
