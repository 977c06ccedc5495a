#include "tests/gpu/graph.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <stdexcept>
#include <vector>

#include "kernels/copy_list.hpp"
#include "kernels/page_checksum.hpp"
#include "kernels/page_pattern.hpp"
#include "kernels/pattern_kernels.hpp"
#include "kernels/row_kernels.hpp"
#include "tests/gpu/delay.hpp"
#include "tests/gpu/gpu_memory.hpp"

namespace kvtwin::test {
namespace {

void must(cudaError_t error, const char* action) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(action) + ": " + cudaGetErrorString(error));
}

constexpr std::size_t kStreams = 3;
enum : std::size_t { kToDevice, kToHost, kCompute };

enum Where : std::uint32_t { kDevice, kHost, kStaging, kNowhere };
constexpr std::uint32_t kPools = 3;

enum class Kind : std::uint8_t { load, backup, stage_in, unstage, gather, stage_out, produce, consume, delay };

struct Ends {
  Where source, target;
  std::size_t stream;
};
constexpr Ends kEnds[] = {{kHost, kDevice, kToDevice},   {kDevice, kHost, kToHost},     {kHost, kStaging, kToDevice},
                          {kStaging, kDevice, kCompute}, {kDevice, kStaging, kCompute}, {kStaging, kHost, kToHost},
                          {kNowhere, kDevice, kCompute}, {kDevice, kNowhere, kCompute}, {kNowhere, kNowhere, kCompute}};

enum class Path : std::uint8_t { pieces, boxes, one_by_one, registers, ring, warp_per_row };

struct Step {
  Kind kind = Kind::delay;
  Path path = Path::pieces;
  std::size_t stream = 0;
  std::vector<std::int64_t> source, target;  // pages
  std::uint32_t layer_begin = 0, layer_end = 0;
  std::vector<std::uint64_t> versions;                            // produce: [pages]; consume: [layers][pages]
  std::uint64_t first_index = 0, first_key = 0, first_fault = 0;  // positions in the arrays on the GPU
  std::uint32_t ctas = 1, spins = 0;

  Ends ends() const { return kEnds[static_cast<std::size_t>(kind)]; }
};

using Clock = std::array<std::int64_t, kStreams>;  // per stream: the last step that is complete; -1 = none

void join(Clock& clock, const Clock& other) {
  for (std::size_t s = 0; s < kStreams; ++s) clock[s] = std::max(clock[s], other[s]);
}

class Graph {
 public:
  Graph(std::uint64_t seed, Missing missing);
  GraphRun run();

 private:
  // The number of a place, the unit of reads and writes: one layer of a page in a pool.
  std::size_t place(Where pool, std::int64_t page, std::uint32_t layer) const {
    return (pool * pages_ + static_cast<std::uint64_t>(page)) * shape_.layers + layer;
  }
  std::array<std::uint64_t, 4> key(std::uint64_t version) const { return {version, mix(version), seed_, 1}; }
  Pool& pool(Where where) const { return *pools_[where]; }
  Layout layout(Where where) const { return where == kDevice ? Layout::layer_first : layout_; }

  void draw_shape();
  void draw_step();
  void draw_pages(Step& step);
  void apply(Step& step);
  void upload();
  void fill_expected();

  struct Need {
    std::int64_t step;
    Missing kind;
  };
  std::vector<Need> needs(const Step& step);
  void note_accesses(const Step& step, std::int64_t number);
  void wait(const Step& step, std::int64_t number);
  void submit(const Step& step);
  void submit_copies(const Step& step);
  void submit_page_copies(const Step& step);
  void submit_patterns(const Step& step);
  RowTransfer row_transfer(const Step& step) const;
  std::string first_wrong();
  std::uint64_t sum_of(const Step& step, std::size_t pair);

  template <typename Act>
  void for_places(Where where, const std::vector<std::int64_t>& pages, const Step& step, const Act& act) const {
    if (where == kNowhere) return;
    for (const std::int64_t page : pages) {
      for (std::uint32_t layer = step.layer_begin; layer < step.layer_end; ++layer) act(place(where, page, layer));
    }
  }

  Splitmix rng_;
  std::uint64_t seed_;
  Missing missing_;
  KvShape shape_;
  Layout layout_ = Layout::page_first;
  std::uint64_t pages_ = 0;  // of each pool
  std::vector<Step> steps_;
  std::vector<std::uint64_t> versions_;  // by place, after the steps so far
  std::uint64_t next_version_ = 1;

  std::unique_ptr<Pool> pools_[kPools];
  std::vector<std::int64_t> indices_;
  std::vector<std::uint64_t> keys_;
  std::uint64_t faults_ = 0;
  std::unique_ptr<OnGpu<std::int64_t>> gpu_indices_;
  std::unique_ptr<OnGpu<std::uint64_t>> gpu_keys_, gpu_sums_;
  std::unique_ptr<OnGpu<PatternFaults>> gpu_faults_;
  Stream streams_[kStreams];
  std::vector<std::unique_ptr<Event>> ends_;  // by step

  // The accesses to a place: the last write, and the reads after this write.
  struct Accesses {
    std::int64_t write = -1;
    std::vector<std::int64_t> reads;
  };
  std::vector<Accesses> accesses_;
  std::vector<Clock> clocks_;  // by step: the steps that are complete when this step is complete
  Clock known_[kStreams], host_knows_;
  GraphRun result_;
  std::vector<std::vector<std::uint64_t>> expected_sums_;  // by step; empty if the step is not a gather
};

Graph::Graph(std::uint64_t seed, Missing missing) : rng_(mix(seed)), seed_(seed), missing_(missing) {
  draw_shape();
  for (Where where : {kDevice, kHost, kStaging}) {
    pools_[where] = std::make_unique<Pool>(where == kHost ? Place::pinned : Place::gpu, pages_ * shape_.page_bytes(),
                                           rng_.chance(70) ? 0 : rng_.below(17));
    if (!pools_[where]->there()) throw std::runtime_error("out of memory");
    draw_bytes(rng_, pools_[where]->bytes);
  }
  versions_.resize(kPools * pages_ * shape_.layers);
  for (std::uint64_t& version : versions_) version = next_version_++;
  accesses_.resize(versions_.size());
  fill_expected();
  for (const auto& one : pools_) must(one->write(), "writing a pool");
  for (std::uint64_t left = rng_.between(12, 40); left > 0; --left) draw_step();
  upload();
}

void Graph::draw_shape() {
  const bool large = scale().pool_bytes >= 1u << 20;
  constexpr std::uint32_t kHeadBytes[] = {16, 48, 64, 128, 257};
  shape_.layers = static_cast<std::uint32_t>(rng_.between(1, 3));
  shape_.planes = static_cast<std::uint32_t>(rng_.between(1, 2));
  shape_.heads = static_cast<std::uint32_t>(rng_.between(1, 2));
  shape_.head_bytes = kHeadBytes[rng_.below(std::size(kHeadBytes))] * (large ? 8 : 1);
  shape_.page_tokens = large ? 32 : static_cast<std::uint32_t>(rng_.between(1, 3));
  layout_ = static_cast<Layout>(rng_.below(4));
  pages_ = rng_.between(2, 5);
}

void Graph::draw_step() {
  constexpr Kind kKinds[] = {Kind::load,     Kind::load,    Kind::load,    Kind::backup,    Kind::backup,
                             Kind::stage_in, Kind::unstage, Kind::gather,  Kind::stage_out, Kind::produce,
                             Kind::produce,  Kind::consume, Kind::consume, Kind::delay,     Kind::delay};
  Step step;
  step.kind = kKinds[rng_.below(std::size(kKinds))];
  step.path = static_cast<Path>(rng_.below(6));
  step.stream = rng_.chance(15) || step.kind == Kind::delay ? rng_.below(kStreams) : step.ends().stream;
  step.ctas = static_cast<std::uint32_t>(rng_.between(1, 16));
  step.spins = static_cast<std::uint32_t>(rng_.below(scale().spins + 1));
  if (step.kind != Kind::delay) draw_pages(step);
  apply(step);
  steps_.push_back(std::move(step));
}

void Graph::draw_pages(Step& step) {
  const bool whole = step.kind == Kind::stage_in || step.kind == Kind::stage_out;
  step.layer_begin = whole ? 0 : static_cast<std::uint32_t>(rng_.below(shape_.layers));
  step.layer_end =
      whole ? shape_.layers : static_cast<std::uint32_t>(rng_.between(step.layer_begin + 1, shape_.layers));
  // Mostly consecutive pages, from a random page on. The targets are distinct.
  const std::uint64_t count = rng_.between(1, std::min<std::uint64_t>(3, pages_));
  const std::uint64_t from = rng_.below(pages_), to = rng_.below(pages_);
  for (std::uint64_t i = 0; i < count; ++i) {
    step.source.push_back(static_cast<std::int64_t>(rng_.chance(80) ? (from + i) % pages_ : rng_.below(pages_)));
    step.target.push_back(static_cast<std::int64_t>((to + i) % pages_));
  }
}

// Executes the step in the model: updates the versions of the target pages.
void Graph::apply(Step& step) {
  step.first_index = indices_.size();
  indices_.insert(indices_.end(), step.source.begin(), step.source.end());
  indices_.insert(indices_.end(), step.target.begin(), step.target.end());
  step.first_key = keys_.size();
  step.first_fault = faults_;
  const Ends ends = step.ends();
  const auto add_key = [&](std::uint64_t version) {
    step.versions.push_back(version);
    const auto words = key(version);
    keys_.insert(keys_.end(), words.begin(), words.end());
  };
  expected_sums_.emplace_back();
  if (step.kind == Kind::produce) {
    for (std::size_t i = 0; i < step.target.size(); ++i) add_key(next_version_++);
  }
  for (std::uint32_t layer = step.layer_begin; layer < step.layer_end; ++layer) {
    if (step.kind == Kind::consume) {
      for (const std::int64_t page : step.source) add_key(versions_[place(kDevice, page, layer)]);
      ++faults_;
    }
    for (std::size_t i = 0; ends.target != kNowhere && i < step.target.size(); ++i) {
      const std::uint64_t version =
          step.kind == Kind::produce ? step.versions[i] : versions_[place(ends.source, step.source[i], layer)];
      versions_[place(ends.target, step.target[i], layer)] = version;
    }
  }
  if (step.kind != Kind::gather) return;
  faults_ += step.source.size();  // one checksum per page
  for (std::size_t i = 0; i < step.source.size(); ++i) expected_sums_.back().push_back(sum_of(step, i));
}

// Returns the checksum of a gathered page, according to the model after the step.
std::uint64_t Graph::sum_of(const Step& step, std::size_t pair) {
  std::vector<std::byte> page(shape_.page_bytes());
  const std::uint64_t block = shape_.row_bytes() * shape_.page_tokens;
  for (std::uint32_t layer = step.layer_begin; layer < step.layer_end; ++layer) {
    // The gather does not change its source, so the current version of the source is the gathered one.
    const auto words = key(versions_[place(kDevice, step.source[pair], layer)]);
    for (std::uint32_t plane = 0; plane < shape_.planes; ++plane) {
      fill_pattern(page.data() + (plane * shape_.layers + layer) * block, pattern_seed(words.data(), layer, plane), 0,
                   block);
    }
  }
  return page_checksum(Layout::layer_first, shape_, page.data(), 1, 0, step.layer_begin, step.layer_end);
}

void Graph::upload() {
  gpu_indices_ = std::make_unique<OnGpu<std::int64_t>>(indices_);
  gpu_keys_ = std::make_unique<OnGpu<std::uint64_t>>(keys_);
  gpu_faults_ = std::make_unique<OnGpu<PatternFaults>>(std::vector<PatternFaults>(faults_ + 1));
  gpu_sums_ = std::make_unique<OnGpu<std::uint64_t>>(std::vector<std::uint64_t>(faults_ + 1));
}

// Writes the bytes that the model expects into the expected bytes of the pools.
void Graph::fill_expected() {
  std::vector<std::byte> block(shape_.row_bytes() * shape_.page_tokens);
  for (Where where : {kDevice, kHost, kStaging}) {
    KvIndex at;
    for (at.page = 0; at.page < pages_; ++at.page) {
      for (at.layer = 0; at.layer < shape_.layers; ++at.layer) {
        const auto words = key(versions_[place(where, static_cast<std::int64_t>(at.page), at.layer)]);
        for (at.plane = 0; at.plane < shape_.planes; ++at.plane) {
          fill_pattern(block.data(), pattern_seed(words.data(), at.layer, at.plane), 0, block.size());
          const std::byte* row = block.data();
          for (at.token = 0; at.token < shape_.page_tokens; ++at.token) {
            for (at.head = 0; at.head < shape_.heads; ++at.head, row += shape_.head_bytes) {
              std::memcpy(pool(where).expected() + byte_offset(layout(where), shape_, pages_, at), row,
                          shape_.head_bytes);
            }
          }
          at.token = at.head = 0;
        }
      }
    }
  }
}

// ---- dependencies -------------------------------------------------------------------------------------------

std::vector<Graph::Need> Graph::needs(const Step& step) {
  std::vector<Need> found;
  const Ends ends = step.ends();
  for_places(ends.source, step.source, step, [&](std::size_t at) {
    if (accesses_[at].write >= 0) found.push_back({accesses_[at].write, Missing::read_after_write});
  });
  for_places(ends.target, step.target, step, [&](std::size_t at) {
    for (const std::int64_t read : accesses_[at].reads) found.push_back({read, Missing::write_after_read});
    // If there are reads after the write, they have waited for the write.
    if (accesses_[at].write >= 0 && accesses_[at].reads.empty()) {
      found.push_back({accesses_[at].write, Missing::write_after_write});
    }
  });
  // The latest step first: a wait for this step often makes the other waits unnecessary.
  std::stable_sort(found.begin(), found.end(), [](const Need& a, const Need& b) { return a.step > b.step; });
  return found;
}

void Graph::note_accesses(const Step& step, std::int64_t number) {
  const Ends ends = step.ends();
  for_places(ends.source, step.source, step, [&](std::size_t at) { accesses_[at].reads.push_back(number); });
  for_places(ends.target, step.target, step, [&](std::size_t at) { accesses_[at] = {number, {}}; });
}

void Graph::wait(const Step& step, std::int64_t number) {
  // A copy list may read host memory before the stream reaches the copy. So earlier writes of this memory must be
  // complete at the submission: the host waits for them.
  const bool ahead = step.kind == Kind::load && (step.path == Path::pieces || step.path == Path::boxes);
  Clock& known = known_[step.stream];
  join(known, host_knows_);
  for (const Need& need : needs(step)) {
    const auto before = static_cast<std::size_t>(need.step);
    const std::size_t on = steps_[before].stream;
    const bool by_host = ahead && need.kind == Missing::read_after_write;
    if ((by_host ? host_knows_ : known)[on] >= need.step) continue;
    if (need.kind == missing_) {
      ++result_.left_out;
      continue;
    }
    ++result_.waits;
    if (by_host) {
      must(cudaEventSynchronize(*ends_[before]), "cudaEventSynchronize");
      join(host_knows_, clocks_[before]);
    } else {
      must(cudaStreamWaitEvent(streams_[step.stream], *ends_[before], 0), "cudaStreamWaitEvent");
    }
    join(known, clocks_[before]);
  }
  known[step.stream] = number;
  clocks_.push_back(known);
}

// ---- the work -----------------------------------------------------------------------------------------------

RowTransfer Graph::row_transfer(const Step& step) const {
  const Ends ends = step.ends();
  RowTransfer t;
  t.shape = shape_;
  t.device = pool(kDevice).data();
  t.host = pool(ends.source == kDevice ? ends.target : ends.source).data();
  t.device_pages = t.host_pages = pages_;
  t.host_layout = layout_;
  t.to_device = ends.target == kDevice;
  t.source_pages = gpu_indices_->data() + step.first_index;
  t.target_pages = gpu_indices_->data() + step.first_index + step.source.size();
  t.count = step.source.size();
  t.layer_begin = step.layer_begin;
  t.layer_end = step.layer_end;
  return t;
}

void Graph::submit_copies(const Step& step) {
  std::vector<PageRun> runs;
  for (std::size_t i = 0; i < step.source.size(); ++i) {
    const auto source = static_cast<std::uint32_t>(step.source[i]), target = static_cast<std::uint32_t>(step.target[i]);
    if (i > 0 && step.source[i] == step.source[i - 1] + 1 && step.target[i] == step.target[i - 1] + 1) {
      ++runs.back().pages;
    } else {
      runs.push_back({source, target, 1});
    }
  }
  const TransferParams params{shape_,        pool(kDevice).data(),    pages_,      pool(kHost).data(), pages_,
                              layout_,       step.kind == Kind::load, runs.data(), runs.size(),        step.layer_begin,
                              step.layer_end};
  CopyList list;
  step.path == Path::boxes ? list.assign_boxes(params) : list.assign_pieces(params);
  const std::size_t half = list.size() / 2;
  const Stream& stream = streams_[step.stream];
  if (step.path == Path::one_by_one) {
    must(list.submit_one_by_one(0, half, stream), "copying one by one");
    must(list.submit_one_by_one(half, list.size(), stream), "copying one by one");
  } else {
    must(list.submit(0, half, stream), "submitting copies");
    must(list.submit(half, list.size(), stream), "submitting copies");
  }
}

// Copies whole pages between pools with the same layout.
void Graph::submit_page_copies(const Step& step) {
  const bool in_blocks = layout_ == Layout::layer_first;
  const std::uint64_t bytes = shape_.page_bytes() / shape_.planes / (in_blocks ? shape_.layers : 1);
  const Ends ends = step.ends();
  for (std::size_t i = 0; i < step.source.size(); ++i) {
    for (std::uint32_t plane = 0; plane < shape_.planes; ++plane) {
      for (std::uint32_t layer = 0; layer < (in_blocks ? shape_.layers : 1); ++layer) {
        KvIndex from{.plane = plane, .layer = layer}, to = from;
        from.page = static_cast<std::uint64_t>(step.source[i]);
        to.page = static_cast<std::uint64_t>(step.target[i]);
        must(cudaMemcpyAsync(pool(ends.target).data() + byte_offset(layout_, shape_, pages_, to),
                             pool(ends.source).data() + byte_offset(layout_, shape_, pages_, from), bytes,
                             cudaMemcpyDefault, streams_[step.stream]),
             "cudaMemcpyAsync");
      }
    }
  }
}

void Graph::submit_patterns(const Step& step) {
  PatternPages p;
  p.shape = shape_;
  p.pool = pool(kDevice).data();
  p.pool_pages = pages_;
  p.pages = gpu_indices_->data() + step.first_index + (step.kind == Kind::produce ? step.source.size() : 0);
  p.keys = gpu_keys_->data() + step.first_key;
  p.count = step.source.size();
  p.layer_begin = step.layer_begin;
  p.layer_end = step.layer_end;
  const LaunchLimits limits{step.ctas};
  if (step.kind == Kind::produce) return must(launch_fill_pattern(p, limits, streams_[step.stream]), "fill_pattern");
  // One launch per layer, because the layers of a page may have different versions.
  for (std::uint32_t i = 0; i < step.layer_end - step.layer_begin; ++i) {
    p.layer_begin = step.layer_begin + i;
    p.layer_end = p.layer_begin + 1;
    must(launch_check_pattern(p, gpu_faults_->data() + step.first_fault + i, limits, streams_[step.stream]),
         "check_pattern");
    p.keys += 4 * p.count;
  }
}

void Graph::submit(const Step& step) {
  const LaunchLimits limits{step.ctas};
  const Stream& stream = streams_[step.stream];
  switch (step.kind) {
    case Kind::load:
    case Kind::backup: {
      if (step.path <= Path::one_by_one) return submit_copies(step);
      const RowTransfer t = row_transfer(step);
      if (step.path == Path::warp_per_row) return must(launch_warp_per_row(t, limits, stream), "warp_per_row");
      if (step.path == Path::ring && ring_fits(t)) {
        const cudaError_t error = launch_ring(t, limits, stream);
        if (error != cudaErrorNotSupported) return must(error, "ring");
      }
      return must(launch_gather_scatter(t, limits, stream), "gather_scatter");
    }
    case Kind::stage_in:
    case Kind::stage_out: return submit_page_copies(step);
    case Kind::unstage: return must(launch_relayout(row_transfer(step), limits, stream), "relayout");
    case Kind::gather:
      return must(launch_gather_checksum(row_transfer(step), gpu_sums_->data() + step.first_fault, limits, stream),
                  "gather_checksum");
    case Kind::produce:
    case Kind::consume: return submit_patterns(step);
    case Kind::delay: return must(launch_delay(step.spins, stream), "delay");
  }
}

std::string Graph::first_wrong() {
  const std::vector<PatternFaults> faults = gpu_faults_->read(faults_ + 1);
  const std::vector<std::uint64_t> sums = gpu_sums_->read(faults_ + 1);
  for (std::size_t number = 0; number < steps_.size(); ++number) {
    const Step& step = steps_[number];
    const std::uint64_t checks = step.kind == Kind::consume ? step.layer_end - step.layer_begin : 0;
    for (std::uint64_t i = 0; i < checks; ++i) {
      const std::uint64_t bytes = faults[step.first_fault + i].wrong;
      if (bytes > 0) return "step " + std::to_string(number) + " read " + std::to_string(bytes) + " wrong bytes";
    }
    for (std::size_t i = 0; i < expected_sums_[number].size(); ++i) {
      if (sums[step.first_fault + i] != expected_sums_[number][i]) {
        return "step " + std::to_string(number) + " gathered a page of another sum";
      }
    }
  }
  fill_expected();
  constexpr const char* kNames[] = {"the device pool", "the host pool", "the staging pool"};
  for (Where where : {kDevice, kHost, kStaging}) {
    if (!pool(where).as_expected()) return std::string("a wrong byte in ") + kNames[where];
  }
  return "";
}

GraphRun Graph::run() {
  for (Clock& clock : known_) clock.fill(-1);
  host_knows_.fill(-1);
  for (std::size_t number = 0; number < steps_.size(); ++number) {
    const Step& step = steps_[number];
    wait(step, static_cast<std::int64_t>(number));
    submit(step);
    ends_.push_back(std::make_unique<Event>());
    must(cudaEventRecord(*ends_.back(), streams_[step.stream]), "cudaEventRecord");
    note_accesses(step, static_cast<std::int64_t>(number));
  }
  for (const Stream& stream : streams_) must(stream.finish(), "cudaStreamSynchronize");
  result_.operations = steps_.size();
  result_.wrong = first_wrong();
  return result_;
}

}  // namespace

GraphRun run_graph(std::uint64_t seed, Missing missing) { return Graph(seed, missing).run(); }

}  // namespace kvtwin::test
