#include "impl/device/ledger.hpp"

#include <algorithm>
#include <utility>

#include "kernels/page_pattern.hpp"
#include "kernels/transfer.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxWrongPages = 16;

}  // namespace

Ledger::Ledger(const DeviceConfig& config, std::byte* host)
    : shape_(config.shape),
      host_layout_(config.host_layout),
      host_pages_(config.host_pages),
      host_(host),
      device_notes_(config.device_pages),
      host_notes_(config.host_pages),
      expected_(config.device_pages),
      page_buffer_(config.host_pages == 0 ? 0 : config.shape.page_bytes()) {}

Bytes Ledger::bytes(const DeviceConfig& config) {
  return (config.device_pages + config.host_pages) * sizeof(SlotNote) + config.device_pages * sizeof(bool) +
         (config.host_pages == 0 ? 0 : config.shape.page_bytes());
}

// ---- content of the slots ------------------------------------------------------------------------------------

void Ledger::begin_load(const TransferJob& job) {
  for (const PageMove& move : job.pages) {
    expected_[move.target] = false;
    device_notes_[move.target] = SlotNote{.key = move.key, .tokens = 0, .loaded_from = move.source};
  }
}

void Ledger::end_load(const TransferJob& job) {
  for (const PageMove& move : job.pages) device_notes_[move.target].tokens = shape_.page_tokens;
}

void Ledger::begin_backup(const TransferJob& job) {
  for (const PageMove& move : job.pages) host_notes_[move.target] = SlotNote{};
}

void Ledger::end_backup(const TransferJob& job, Pages moved) {
  for (Pages i = 0; i < moved; ++i) {
    host_notes_[job.pages[i].target] = SlotNote{.key = job.pages[i].key, .tokens = shape_.page_tokens};
  }
}

void Ledger::fetched(Tier memory, SlotId slot, const PageKey& key) {
  (memory == Tier::device ? device_notes_ : host_notes_)[slot] =
      SlotNote{.key = key, .tokens = shape_.page_tokens, .fetched = true};
}

void Ledger::begin_pass(const PassJob& job) {
  const Tokens page_tokens = shape_.page_tokens;
  for (const PassJob::Sequence& sequence : job.sequences) {
    const Tokens end = sequence.context + sequence.fresh;
    for (std::size_t page = 0; page < sequence.context / page_tokens; ++page) {
      reads(job.slots[sequence.first_page + page], job.keys[sequence.first_page + page]);
    }
    for (Tokens at = sequence.context / page_tokens; at * page_tokens < end; ++at) {
      const SlotId slot = job.slots[sequence.first_page + at];
      SlotNote& note = device_notes_[slot];
      if (at * page_tokens >= sequence.context) {
        expected_[slot] = false;
        note = SlotNote{};
      }
      note.tokens = std::min(
          note.tokens, static_cast<std::uint32_t>(sequence.context - std::min(sequence.context, at * page_tokens)));
    }
  }
}

SlotId Ledger::end_step(const PassJob& job, std::uint64_t number) {
  const Tokens page_tokens = shape_.page_tokens;
  SlotId first_whole = kNoSlot;
  for (const PassJob::Sequence& sequence : job.sequences) {
    const Tokens begin = job.context(sequence, number), end = begin + job.fresh(sequence);
    for (Tokens at = begin / page_tokens; at * page_tokens < end; ++at) {
      const SlotId slot = job.slots[sequence.first_page + at];
      SlotNote& note = device_notes_[slot];
      note.key = job.keys[sequence.first_page + at];
      note.tokens = static_cast<std::uint32_t>(std::min(page_tokens, end - at * page_tokens));
      if (first_whole == kNoSlot && note.tokens == page_tokens) first_whole = slot;
    }
  }
  return first_whole;
}

// ---- wrong pages ---------------------------------------------------------------------------------------------

WrongPage Ledger::wrong_page(const PassJob& job, const WrongRead& read) const {
  const std::uint64_t row = shape_.row_bytes();
  WrongPage wrong;
  wrong.key = job.keys[read.page];
  wrong.slot = job.slots[read.page];
  wrong.layer = read.layer;
  wrong.plane = read.plane;
  wrong.token = static_cast<std::uint32_t>(read.offset / row);
  wrong.byte = static_cast<std::uint32_t>(read.offset % row);
  wrong.expected = pattern_byte(pattern_seed(wrong.key.words.data(), read.layer, read.plane), read.offset);
  wrong.got = read.got;
  return wrong;
}

std::optional<std::size_t> Ledger::add_wrong_page(WrongPage wrong) {
  const std::lock_guard lock(wrong_mutex_);
  for (const WrongPage& known : wrong_) {
    if (known.key == wrong.key && known.layer == wrong.layer && known.plane == wrong.plane) return std::nullopt;
  }
  if (wrong_.size() == kMaxWrongPages) return std::nullopt;
  wrong_.push_back(std::move(wrong));
  return wrong_.size() - 1;
}

std::vector<Ledger::HostCheck> Ledger::record_wrong_reads(const PassJob& job, const PageEngine::StepEnd& end) {
  std::vector<HostCheck> checks;
  wrong_reads_ += end.wrong_reads;
  for (const WrongRead& read : end.wrong) {
    const auto sequence = std::ranges::find_if(job.sequences, [&](const PassJob::Sequence& s) {
      return read.page >= s.first_page && read.page < s.first_page + s.pages;
    });
    WrongPage wrong = wrong_page(job, read);
    wrong.found = "read by a pass of request " + std::to_string(sequence->request);
    const SlotNote& note = device_notes_[wrong.slot];
    if (note.fetched) wrong.found += ", fetched from storage";
    if (note.handed_over) wrong.found += ", handed over by another engine";
    const std::optional<std::size_t> entry = add_wrong_page(std::move(wrong));
    if (entry && note.loaded_from != kNoSlot) checks.push_back({*entry, note.loaded_from, job.keys[read.page]});
  }
  return checks;
}

std::optional<WrongPage> Ledger::check_host_page(SlotId slot, const PageKey& key) {
  const PageRun run{slot, 0, 1};
  TransferParams gather;  // target: a device pool of one page
  gather.shape = shape_;
  gather.device = page_buffer_.data();
  gather.device_pages = 1;
  gather.host = host_;
  gather.host_pages = host_pages_;
  gather.host_layout = host_layout_;
  gather.runs = &run;
  gather.run_count = 1;
  gather.layer_end = shape_.layers;
  copy_pieces(gather);
  const std::uint64_t bytes = shape_.row_bytes() * shape_.page_tokens;
  for (std::uint32_t layer = 0; layer < shape_.layers; ++layer) {
    for (std::uint32_t plane = 0; plane < shape_.planes; ++plane) {
      const std::byte* block =
          page_buffer_.data() + byte_offset(Layout::layer_first, shape_, 1, {.plane = plane, .layer = layer});
      const std::uint64_t seed = pattern_seed(key.words.data(), layer, plane);
      const std::uint64_t wrong = check_pattern(block, seed, 0, bytes);
      if (wrong == bytes) continue;
      WrongPage entry;
      entry.tier = Tier::host;
      entry.key = key;
      entry.slot = slot;
      entry.layer = layer;
      entry.plane = plane;
      entry.token = static_cast<std::uint32_t>(wrong / shape_.row_bytes());
      entry.byte = static_cast<std::uint32_t>(wrong % shape_.row_bytes());
      entry.expected = pattern_byte(seed, wrong);
      entry.got = static_cast<std::uint8_t>(block[wrong]);
      return entry;
    }
  }
  return std::nullopt;
}

void Ledger::run_host_check(const HostCheck& check) {
  const std::unique_lock reading(host_writes_);
  const SlotNote& note = host_notes_[check.slot];
  const bool still_there = note.tokens != 0 && note.key == check.key;
  const bool wrong_too = still_there && check_host_page(check.slot, check.key).has_value();
  const std::lock_guard lock(wrong_mutex_);
  WrongPage& entry = wrong_[check.entry];
  const std::string device_slot = std::to_string(entry.slot);
  if (wrong_too) {
    entry.tier = Tier::host;
    entry.slot = check.slot;
    entry.found += " in device slot " + device_slot + ", where it had been loaded; it went wrong " +
                   (note.fetched ? "on the host, or in storage" : "on the host, or before it was backed up");
  } else {
    entry.found += std::string(", loaded from host slot ") + std::to_string(check.slot) +
                   (still_there ? ", whose bytes are right" : ", which holds another page now");
  }
}

// ---- end of the run ------------------------------------------------------------------------------------------

PassJob Ledger::device_audit() const {
  PassJob job;
  for (SlotId slot = 0; slot < device_notes_.size(); ++slot) {
    const SlotNote& note = device_notes_[slot];
    if (note.tokens == 0) continue;
    job.sequences.push_back({kNoRequest, note.tokens, 0, job.slots.size(), 1});
    job.slots.push_back(slot);
    job.keys.push_back(note.key);
  }
  return job;
}

void Ledger::record_audit(const PassJob& job, const PageEngine::StepEnd& end) {
  wrong_reads_ += end.wrong_reads;
  for (const WrongRead& read : end.wrong) {
    WrongPage wrong = wrong_page(job, read);
    wrong.found = "found when the run was over";
    add_wrong_page(std::move(wrong));
  }
}

void Ledger::audit_host(Verification& verification) {
  for (SlotId slot = 0; slot < host_notes_.size(); ++slot) {
    const SlotNote& note = host_notes_[slot];
    if (note.tokens == 0) continue;
    if (std::optional<WrongPage> wrong = check_host_page(slot, note.key)) {
      ++wrong_reads_;
      wrong->found = "found when the run was over";
      const auto known = std::ranges::find_if(wrong_, [&](const WrongPage& w) { return w.key == note.key; });
      if (known == wrong_.end() && wrong_.size() < kMaxWrongPages) wrong_.push_back(*std::move(wrong));
    }
    ++verification.pages_audited;
    verification.bytes_audited += shape_.page_bytes();
  }
}

void Ledger::conclude(Verification& verification) {
  verification.wrong_reads = wrong_reads_;
  verification.wrong = std::move(wrong_);
}

}  // namespace kvtwin
