#include "impl/device/host_device.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "impl/device/dense_layer.hpp"
#include "impl/device/ledger.hpp"
#include "impl/device/paged_device.hpp"
#include "impl/runtime/arena.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/transfer.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr Bytes kStagingBytes = Bytes{1} << 20;
constexpr std::size_t kMaxWrongReadsPerStep = 64;  // per step

std::uint64_t staging_pages(const KvShape& shape) { return std::max<Bytes>(1, kStagingBytes / shape.page_bytes()); }

class HostEngine final : public PageEngine {
 public:
  explicit HostEngine(const HostDeviceConfig& config);

  std::byte* host_pool() const override { return host_.data(); }
  DevicePool device_pool() const override {
    return {{device_->data(), device_->bytes()}, device_, config_.shape, config_.device_pages, config_.pool};
  }
  bool load(const TransferJob& job) override;
  Pages back_up(const TransferJob& job) override;
  void begin_pass(const PassJob&, std::span<const std::uint32_t>) override {}
  bool await_layer(const PassJob& job, std::uint32_t layer) override;
  void layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) override;
  void read_layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) override;
  StepEnd end_step() override { return std::exchange(end_, {}); }
  void read_device_page(SlotId slot, std::byte* page) override { copy_device_page(slot, page, false); }
  void write_device_page(SlotId slot, const std::byte* page) override {
    copy_device_page(slot, const_cast<std::byte*>(page), true);  // read only in this direction
  }
  void copy_device_page(SlotId from, SlotId to) override;
  void flip_device(std::uint64_t offset) override { device_->data()[offset] ^= std::byte{1}; }

 private:
  // Returns the common parameters of all transfers between the pools.
  TransferParams pools() const;
  void copy(const TransferJob& job, std::span<const PageRun> runs, std::uint32_t layer_begin, std::uint32_t layer_end);
  void copy_device_page(SlotId slot, std::byte* page, bool to_device);
  void read_context(const PassJob& job, const PassJob::Sequence& sequence, Tokens context, std::uint32_t layer);
  void write_tokens(const PassJob& job, const PassJob::Sequence& sequence, Tokens begin, Tokens end,
                    std::uint32_t layer);
  std::byte* device_block(SlotId slot, std::uint32_t layer, std::uint32_t plane) const;

  const HostDeviceConfig config_;
  std::shared_ptr<Arena> device_;  // other processes may be writing to it when this object ends
  Arena host_;
  std::array<Arena, 2> staging_;  // [0] to the device, [1] from the device
  std::optional<DenseLayer> dense_;
  StepEnd end_;
};

HostEngine::HostEngine(const HostDeviceConfig& config) : config_(config) {
  KV_CHECK(config.shape.page_bytes() > 0, "a page has bytes");
  const Bytes page = config.shape.page_bytes();
  config.acquire("device pool");
  device_ = std::make_shared<Arena>(config.device_pages * page);
  config.acquire("host pool");
  host_ = Arena(config.host_pages * page);
  config.acquire("staging buffers");
  for (Arena& staging : staging_) staging = Arena(config.host_pages == 0 ? 0 : staging_pages(config.shape) * page);
  config.acquire("weights");
  if (config.hidden != 0) dense_.emplace(config.hidden, config.width, config.pair_work, config.seed);
}

// ---- copies --------------------------------------------------------------------------------------------------

TransferParams HostEngine::pools() const {
  TransferParams params;
  params.shape = config_.shape;
  params.device = device_->data();
  params.device_pages = config_.device_pages;
  params.host = host_.data();
  params.host_pages = config_.host_pages;
  params.host_layout = config_.host_layout;
  params.layer_end = config_.shape.layers;
  return params;
}

void HostEngine::copy(const TransferJob& job, std::span<const PageRun> runs, std::uint32_t layer_begin,
                      std::uint32_t layer_end) {
  TransferParams params = pools();
  params.to_device = job.to_device();
  params.runs = runs.data();
  params.run_count = runs.size();
  params.layer_begin = layer_begin;
  params.layer_end = layer_end;
  const Steady::time_point begin = Steady::now();
  switch (job.plan.path) {
    case TransferPath::copy_engine: copy_pieces(params); break;
    case TransferPath::boxes: copy_boxes(params); break;
    case TransferPath::kernel:
    case TransferPath::ring: copy_rows(params); break;
    case TransferPath::staged:
      copy_staged(params, staging_[params.to_device ? 0 : 1].data(), staging_pages(config_.shape));
      break;
  }
  slow_down(config_.slow_factor, begin);
}

bool HostEngine::load(const TransferJob& job) {
  std::uint32_t begin = 0;
  for (std::uint32_t group = 0; group < job.plan.layer_groups; ++group) {
    config_.begin_portion(job.id, begin);
    if (should_stop(job)) return false;
    const std::uint32_t end = layer_group_end(config_.shape.layers, job.plan.layer_groups, group);
    copy(job, job.runs, begin, end);
    job.flight->land(end);
    begin = end;
  }
  return true;
}

Pages HostEngine::back_up(const TransferJob& job) {
  Pages moved = 0;
  for (const PageRun& run : job.runs) {
    config_.begin_portion(job.id, moved);
    if (should_stop(job)) break;
    copy(job, std::span(&run, 1), 0, config_.shape.layers);
    moved += run.pages;
  }
  return moved;
}

void HostEngine::copy_device_page(SlotId slot, std::byte* page, bool to_device) {
  const PageRun run = to_device ? PageRun{0, slot, 1} : PageRun{slot, 0, 1};
  TransferParams params = pools();
  params.host = page;
  params.host_pages = 1;
  params.host_layout = Layout::layer_first;
  params.to_device = to_device;
  params.runs = &run;
  params.run_count = 1;
  copy_pieces(params);
}

void HostEngine::copy_device_page(SlotId from, SlotId to) {
  const Bytes block = config_.shape.row_bytes() * config_.shape.page_tokens;
  for (std::uint32_t plane = 0; plane < config_.shape.planes; ++plane) {
    for (std::uint32_t layer = 0; layer < config_.shape.layers; ++layer) {
      std::memcpy(device_block(to, layer, plane), device_block(from, layer, plane), block);
    }
  }
}

// ---- passes --------------------------------------------------------------------------------------------------

bool HostEngine::await_layer(const PassJob& job, std::uint32_t layer) {
  for (const FlightPtr& gate : job.gates) {
    if (gate->landed(layer) && !gate->lost()) continue;
    const Steady::time_point begin = Steady::now();
    const bool landed = gate->wait_for(layer);
    end_.stalled += std::chrono::duration_cast<std::chrono::nanoseconds>(Steady::now() - begin).count();
    if (!landed) return false;
  }
  return true;
}

void HostEngine::layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) {
  if (dense_) {
    const LayerWork work = layer_work(config_, job.shape, step, layer);
    dense_->run(work.rows, work.pairs);
  }
  for (const PassJob::Sequence& sequence : job.sequences) {
    const Tokens context = job.context(sequence, step);
    read_context(job, sequence, context, layer);
    write_tokens(job, sequence, context, context + job.fresh(sequence), layer);
  }
}

void HostEngine::read_layer(const PassJob& job, std::uint64_t step, std::uint32_t layer) {
  for (const PassJob::Sequence& sequence : job.sequences) {
    read_context(job, sequence, job.context(sequence, step), layer);
  }
}

std::byte* HostEngine::device_block(SlotId slot, std::uint32_t layer, std::uint32_t plane) const {
  return device_->data() + byte_offset(Layout::layer_first, config_.shape, config_.device_pages,
                                       {.page = slot, .plane = plane, .layer = layer});
}

void HostEngine::read_context(const PassJob& job, const PassJob::Sequence& sequence, Tokens context,
                              std::uint32_t layer) {
  const KvShape& shape = config_.shape;
  const std::uint64_t row = shape.row_bytes();
  for (Tokens at = 0; at * shape.page_tokens < context; ++at) {
    const std::size_t page = sequence.first_page + at;
    const std::uint64_t bytes = std::min<Tokens>(shape.page_tokens, context - at * shape.page_tokens) * row;
    for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
      const std::uint64_t seed = pattern_seed(job.keys[page].words.data(), layer, plane);
      const std::byte* block = device_block(job.slots[page], layer, plane);
      const std::uint64_t wrong = check_pattern(block, seed, 0, bytes);
      end_.checked += bytes;
      if (wrong == bytes) continue;
      ++end_.wrong_reads;
      if (end_.wrong.size() == kMaxWrongReadsPerStep) continue;
      end_.wrong.push_back({page, layer, plane, wrong, static_cast<std::uint8_t>(block[wrong])});
    }
  }
}

void HostEngine::write_tokens(const PassJob& job, const PassJob::Sequence& sequence, Tokens begin, Tokens end,
                              std::uint32_t layer) {
  const KvShape& shape = config_.shape;
  const std::uint64_t row = shape.row_bytes();
  for (Tokens at = begin / shape.page_tokens; at * shape.page_tokens < end; ++at) {
    const Tokens first = at * shape.page_tokens;
    const PageKey& key = job.keys[sequence.first_page + at];
    for (std::uint32_t plane = 0; plane < shape.planes; ++plane) {
      fill_pattern(device_block(job.slots[sequence.first_page + at], layer, plane),
                   pattern_seed(key.words.data(), layer, plane), (std::max(begin, first) - first) * row,
                   (std::min(end, first + shape.page_tokens) - first) * row);
    }
  }
}

}  // namespace

LayerWork layer_work(const HostDeviceConfig& config, const ForwardShape& shape, std::uint64_t step,
                     std::uint32_t layer) {
  const auto rows_of = [&](std::uint64_t multiply_adds) {
    const std::uint64_t of_a_row = std::uint64_t{config.hidden} * config.width;
    return (multiply_adds + of_a_row / 2) / of_a_row;
  };
  const std::uint64_t decoding = std::uint64_t{shape.decode_sequences} * (shape.draft_tokens + 1);  // verified tokens
  LayerWork work{decoding, 0};
  std::uint64_t yielding = decoding;
  if (step == 0) {
    work.rows += shape.prefill_tokens + rows_of(shape.prefill_context_tokens * config.context_work);
    work.pairs += shape.prefill_pairs;
    yielding += shape.prefill_sequences;
  }
  if (config.pair_work != 0) {
    const Tokens context = shape.decode_context_tokens * (shape.draft_tokens + 1) + (step + 1) * decoding;
    work.pairs += context * config.decode_work / config.pair_work;
  }
  if (layer + 1 == config.shape.layers) work.rows += rows_of(yielding * config.head_work);
  return work;
}

Bytes host_device_bytes(const HostDeviceConfig& config) {
  const Bytes page = config.shape.page_bytes();
  const Bytes staging = config.host_pages == 0 ? 0 : 2 * staging_pages(config.shape) * page;
  const Bytes dense = config.hidden == 0 ? 0 : DenseLayer::bytes(config.hidden, config.width, config.pair_work);
  Bytes beside = 0;
  for (const HostDeviceConfig& other : config.beside) beside += host_device_bytes(other);
  return (config.device_pages + config.host_pages) * page + staging + dense + Ledger::bytes(config) + beside;
}

std::unique_ptr<Device> make_host_device(const HostDeviceConfig& config) {
  std::vector<PagedDevicePart> parts;
  parts.push_back({config, std::make_unique<HostEngine>(config)});
  for (const HostDeviceConfig& other : config.beside) parts.push_back({other, std::make_unique<HostEngine>(other)});
  return make_paged_device(std::move(parts));
}

}  // namespace kvtwin
