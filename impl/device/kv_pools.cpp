#include "impl/device/kv_pools.hpp"

#include <algorithm>
#include <utility>

#include "impl/storage/pool_blocks.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/transfer.hpp"
#include "policy/index/page_key.hpp"

namespace kvtwin {

bool LedgerDirectPages::land(std::span<Landing> pages) {
  for (const Landing& it : pages) ledger_.begin_fetch(Tier::device, it.slot);
  return engine_.land(pages);
}

KvPools::KvPools(const DeviceConfig& config, std::unique_ptr<PageEngine> engine)
    : config_(config),
      engine_(std::move(engine)),
      ledger_(config, engine_->host_pool()),
      last_use_(config.device_pages),
      last_write_(config.device_pages),
      landed_since_(config.device_pages),
      steps_read_(config.device_pages),
      counted_in_(config.device_pages) {
  if (engine_->direct() != nullptr && config.kind == KvKind::pages) direct_.emplace(*engine_->direct(), ledger_);
}

PageKey KvPools::own_key(PageKey key) const {
  constexpr std::uint64_t kDraftMark = 0x7466617264;  // "draft"
  if (config_.kind == KvKind::pages) return key;
  if (config_.kind != KvKind::draft) return marked(pool_page_key(key, config_.pool));
  key.words[0] ^= kDraftMark;
  return key;
}

PageKey KvPools::state_key_of(const PassJob& pass, std::size_t sequence, Tokens length,
                              const DeviceConfig& pages) const {
  const Tokens page = pages.shape.page_tokens;
  const PageKey& last = pass.keys[pass.sequences[sequence].first_page + (length - 1) / page];
  return marked(state_key(last, (length - 1) % page + 1, page, config_.pool));
}

bool KvPools::use(SlotId slot, bool writes, std::uint64_t pass, bool gated) {
  const bool landed = landed_since_[slot];
  // A device may finish a load within the pass that waits for it, so backups of the slot wait for the pass.
  if (writes || (landed && gated)) last_write_[slot] = pass;
  landed_since_[slot] = false;
  last_use_[slot] = pass;
  return landed;
}

Pages KvPools::move(const TransferJob& job) {
  if (job.pages.empty()) {  // it moves windows and states only
    if (job.to_device()) job.flight->land(config_.shape.layers);
    return 0;
  }
  if (job.to_device()) {
    ledger_.begin_load(job);
    if (config_.flip == DeviceConfig::Flip::host && !flipped_host_) flip_host(job);
    if (!engine_->load(job)) return 0;
    ledger_.end_load(job);
    return job.plan.pages;
  }
  const std::shared_lock writing = ledger_.lock_host_for_writing();
  ledger_.begin_backup(job);
  const Pages moved = engine_->back_up(job);
  ledger_.end_backup(job, moved);
  return moved;
}

Verification KvPools::finish() {
  audit_device();
  ledger_.audit_host(reads_);
  ledger_.conclude(reads_);
  reads_.flipped = flipped_device_ || flipped_host_;
  return std::move(reads_);
}

void KvPools::audit_device() {
  const PassJob job = ledger_.device_audit();
  if (job.slots.empty()) return;
  engine_->begin_pass(job, {});
  for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) engine_->read_layer(job, 0, layer);
  const PageEngine::StepEnd end = engine_->end_step();
  ledger_.record_audit(job, end);
  reads_.pages_audited += job.slots.size();
  reads_.bytes_audited += end.checked;
}

// ---- pages of storage tiers ----------------------------------------------------------------------------------

bool KvPools::pieces(Tier memory, SlotId slot, Bytes first, Bytes bytes, Pieces& pieces) {
  if (memory != Tier::host) return false;
  const Bytes block = form().bytes() / pool_blocks(form());
  for (Bytes at = first / block; at * block < first + bytes; ++at) {
    pieces.emplace_back(engine_->host_pool() + pool_block_offset(form(), config_.host_pages, slot, at), block);
  }
  return true;
}

void KvPools::begin_write(Tier memory, SlotId slot) {
  const std::shared_lock writing = ledger_.lock_host_for_writing();
  ledger_.begin_fetch(memory, slot);
}

void KvPools::written(Tier memory, SlotId slot, const PageKey& key) {
  const std::shared_lock writing = ledger_.lock_host_for_writing();
  ledger_.fetched(memory, slot, config_.kind == KvKind::draft ? own_key(key) : marked(key));
}

// Converts one page between layer_first and the host pool's layout.
void KvPools::convert_layout(std::byte* layer_first, std::byte* page, bool to_device) const {
  const PageRun run{0, 0, 1};
  TransferParams params;
  params.shape = config_.shape;
  params.device = layer_first;
  params.device_pages = 1;
  params.host = page;
  params.host_pages = 1;
  params.host_layout = config_.host_layout;
  params.to_device = to_device;
  params.runs = &run;
  params.run_count = 1;
  params.layer_end = config_.shape.layers;
  copy_pieces(params);
}

void KvPools::read_page(Tier memory, SlotId slot, std::span<std::byte> page) {
  if (Pieces list; pieces(memory, slot, 0, page.size(), list)) return gather(list, page);
  std::vector<std::byte> bytes(page.size());
  engine_->read_device_page(slot, bytes.data());
  convert_layout(bytes.data(), page.data(), false);
}

void KvPools::write_page(Tier memory, SlotId slot, const PageKey& key, std::span<const std::byte> page) {
  if (Pieces list; pieces(memory, slot, 0, page.size(), list)) {
    begin_write(memory, slot);
    scatter(page, list);
  } else {
    std::vector<std::byte> bytes(page.size());
    convert_layout(bytes.data(), const_cast<std::byte*>(page.data()), true);  // read only in this direction
    engine_->write_device_page(slot, bytes.data());
  }
  written(memory, slot, key);
}

// ---- passes --------------------------------------------------------------------------------------------------

void KvPools::begin_pass(const PassJob& job) {
  page_reads_.resize(job.slots.size());
  for (std::size_t page = 0; page < job.slots.size(); ++page) {
    if (job.landed[page] != 0) steps_read_[job.slots[page]] = 0;
  }
  for (std::size_t page = 0; page < job.slots.size(); ++page) {
    page_reads_[page] = steps_read_[job.slots[page]] + static_cast<std::uint32_t>(job.steps_before);
  }
  engine_->begin_pass(job, page_reads_);
}

void KvPools::copy(std::span<const std::pair<SlotId, SlotId>> slots) {
  for (const auto& [from, to] : slots) {
    engine_->copy_device_page(from, to);
    ledger_.copied(from, to);
  }
}

// A pass may name a slot several times: sequences share pages. A draft model leaves out some pages.
void KvPools::end_pass(const PassJob& job, std::uint64_t steps) {
  ++passes_;
  for (const PassJob::Sequence& sequence : job.sequences) {
    for (const SlotId slot : std::span(job.slots).subspan(sequence.first_page, sequence.pages)) {
      if (std::exchange(counted_in_[slot], passes_) != passes_) steps_read_[slot] += static_cast<std::uint32_t>(steps);
    }
  }
}

bool KvPools::run_layers(const PassJob& job, std::uint64_t number, bool awaits, TimeNs& stalled,
                         std::vector<Ledger::HostCheck>& checks) {
  if (number == 0) begin_pass(job);
  const bool waits = awaits && !job.gates.empty();
  bool done = !engine_->stopping();
  if (config_.kind == KvKind::states) {
    for (std::uint32_t layer = 0; done && waits && layer < config_.shape.layers; ++layer) {
      done = engine_->await_layer(job, layer);
    }
    if (done) copy(job.copies);
    for (std::uint32_t layer = 0; done && layer < config_.shape.layers; ++layer) engine_->layer(job, number, layer);
  } else if (waits || !done || !engine_->whole_step(job, number)) {
    for (std::uint32_t layer = 0; done && layer < config_.shape.layers; ++layer) {
      done = !engine_->stopping() && (!waits || engine_->await_layer(job, layer));
      if (done) engine_->layer(job, number, layer);
    }
  }
  const PageEngine::StepEnd end = engine_->end_step();
  stalled += end.stalled;
  checked_ = end.checked;
  checks = ledger_.record_wrong_reads(job, end);
  return done;
}

void KvPools::record_step(const PassJob& job, std::uint64_t number) {
  for (const PassJob::Sequence& sequence : job.sequences) {
    const Tokens context = job.context(sequence, number);
    reads_.bytes_read += context * config_.shape.token_bytes();
    reads_.pages_read += (context + config_.shape.page_tokens - 1) / config_.shape.page_tokens;
  }
  reads_.bytes_checked += checked_;
  const SlotId whole = ledger_.end_step(job, number);
  if (config_.flip == DeviceConfig::Flip::device && !flipped_device_ && whole != kNoSlot) flip_device(whole);
}

// ---- test hooks ----------------------------------------------------------------------------------------------

namespace {

// Draws a byte of a page from the seed.
KvIndex draw_place(const KvShape& shape, std::uint64_t seed, SlotId slot, std::uint32_t& byte) {
  const std::uint64_t draw = pattern_mix(seed ^ 0x666C6970);
  byte = static_cast<std::uint32_t>((draw >> 48) % shape.head_bytes);
  return {.page = slot,
          .plane = static_cast<std::uint32_t>(draw % shape.planes),
          .layer = static_cast<std::uint32_t>((draw >> 8) % shape.layers),
          .token = static_cast<std::uint32_t>((draw >> 20) % shape.page_tokens),
          .head = static_cast<std::uint32_t>((draw >> 40) % shape.heads)};
}

}  // namespace

void KvPools::flip_device(SlotId slot) {
  flipped_device_ = true;
  std::uint32_t byte = 0;
  const KvIndex place = draw_place(config_.shape, config_.seed, slot, byte);
  engine_->flip_device(byte_offset(Layout::layer_first, config_.shape, config_.device_pages, place) + byte);
}

void KvPools::flip_host(const TransferJob& job) {
  flipped_host_ = true;
  std::uint32_t byte = 0;
  const KvIndex place = draw_place(config_.shape, config_.seed, job.pages.front().source, byte);
  engine_->host_pool()[byte_offset(config_.host_layout, config_.shape, config_.host_pages, place) + byte] ^=
      std::byte{1};
}

}  // namespace kvtwin
