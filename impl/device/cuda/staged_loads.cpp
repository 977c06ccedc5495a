#include "impl/device/cuda/staged_loads.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvtwin {
namespace {

// On the compute stream no other kernel runs beside it, so it takes the whole GPU.
constexpr LaunchLimits kWholeGpu{512};

}  // namespace

StagedLoads::StagedLoads(const CudaPools& pools, Pages area_pages)
    : pools_(pools),
      area_pages_(area_pages),
      area_(area_pages * pools.shape.page_bytes(), "the staging area of loads"),
      indices_(2 * area_pages * sizeof(std::int32_t), "page indices of the staging area"),
      gpu_indices_(indices_.bytes(), "page indices of the staging area") {
  auto* const numbers = reinterpret_cast<std::int32_t*>(indices_.data());
  std::iota(numbers, numbers + area_pages, 0);
}

Bytes StagedLoads::gpu_bytes(const KvShape& shape, Pages area_pages) {
  return area_pages * (shape.page_bytes() + 2 * sizeof(std::int32_t));
}

// ---- loads ---------------------------------------------------------------------------------------------------

void StagedLoads::wait_for(const Load& load, const CudaStream& stream) const {
  for (std::size_t group = 0; group < load.queued; ++group) stream.wait_for(load.groups[group]->laid_out);
}

StagedLoads::LoadPtr StagedLoads::begin(std::span<const SlotId> slots, const CudaStream& copying) {
  const std::lock_guard lock(mutex_);
  const bool fits = slots.size() <= area_pages_;
  const Pages first = fits && next_ + slots.size() <= area_pages_ ? next_ : 0;
  const Pages end = fits ? first + slots.size() : area_pages_;
  std::erase_if(loads_, [&](const LoadPtr& other) {
    if (other->first >= end || first >= other->first + other->pages) return false;
    wait_for(*other, copying);
    return true;
  });
  if (!fits) return nullptr;
  next_ = end;
  auto* const numbers = reinterpret_cast<std::int32_t*>(indices_.data());
  std::ranges::copy(slots, numbers + area_pages_ + first);
  for (const Pages at : {first, area_pages_ + first}) {
    copying.must(cudaMemcpyAsync(reinterpret_cast<std::int32_t*>(gpu_indices_.data()) + at, numbers + at,
                                 slots.size() * sizeof(std::int32_t), cudaMemcpyHostToDevice, copying.get()),
                 "cudaMemcpyAsync");
  }
  auto load = std::make_shared<Load>();
  load->first = first;
  load->pages = slots.size();
  load->slots.assign(slots.begin(), slots.end());
  loads_.push_back(load);
  return load;
}

void StagedLoads::add_group(Load& load, std::uint32_t layer_begin, std::uint32_t layer_end, const CudaStream& copying) {
  const auto* const numbers = reinterpret_cast<const std::int32_t*>(gpu_indices_.data());
  auto group = std::make_unique<Load::Group>();
  RowTransfer& rows = group->rows;
  rows.shape = pools_.shape;
  rows.device = pools_.device;
  rows.device_pages = pools_.device_pages;
  rows.host = area_.data();
  rows.host_pages = area_pages_;
  rows.host_layout = pools_.host_layout;
  rows.source_pages = numbers + load.first;
  rows.target_pages = numbers + area_pages_ + load.first;
  rows.index_type = IndexType::int32;
  rows.count = load.pages;
  rows.layer_begin = layer_begin;
  rows.layer_end = layer_end;
  copying.record(group->copied);
  const std::lock_guard lock(mutex_);
  load.groups.push_back(std::move(group));
}

// Queues the kernel of the load's next group. Requires: the lock.
void StagedLoads::queue_kernel(Load& load, const CudaStream& stream, const LaunchLimits& limits) {
  Load::Group& group = *load.groups[load.queued];
  stream.wait_for(group.copied);
  stream.must(launch_relayout(group.rows, limits, stream.get()), "the relayout kernel's launch");
  stream.record(group.laid_out);
  ++load.queued;
}

void StagedLoads::finish(const LoadPtr& load, const Flight& flight, const CudaStream& own, const LaunchLimits& limits) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] {
    const bool awaited = std::ranges::any_of(awaited_, [&](const FlightPtr& gate) { return gate.get() == &flight; });
    return stopped_ || !awaited || load->queued == load->groups.size();
  });
  if (stopped_ || load->queued == load->groups.size()) return;
  while (load->queued < load->groups.size()) queue_kernel(*load, own, limits);
  const Load::Group& last = *load->groups.back();
  lock.unlock();  // a pass that begins now waits for the kernels on the GPU
  own.until(last.laid_out);
}

void StagedLoads::close(Load& load) {
  const std::lock_guard lock(mutex_);
  load.closed = true;
}

// ---- passes --------------------------------------------------------------------------------------------------

void StagedLoads::begin_wait(const std::vector<FlightPtr>& gates) {
  const std::lock_guard lock(mutex_);
  awaited_ = gates;
}

void StagedLoads::end_wait() {
  const std::lock_guard lock(mutex_);
  awaited_.clear();
  changed_.notify_all();
}

bool StagedLoads::lay_out(Load& load, std::size_t group, const CudaStream& compute) {
  const std::lock_guard lock(mutex_);
  while (load.queued <= group && !load.closed) queue_kernel(load, compute, kWholeGpu);
  if (load.queued <= group) return false;
  compute.wait_for(load.groups[group]->laid_out);
  if (load.queued == load.groups.size()) changed_.notify_all();
  return true;
}

// ---- others --------------------------------------------------------------------------------------------------

void StagedLoads::wait_for_slot(SlotId slot, const CudaStream& stream) {
  const std::lock_guard lock(mutex_);
  for (const LoadPtr& load : loads_) {
    if (std::ranges::find(load->slots, slot) != load->slots.end()) wait_for(*load, stream);
  }
}

void StagedLoads::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace kvtwin
