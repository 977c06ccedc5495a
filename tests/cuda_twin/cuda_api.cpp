// The C functions of the CUDA twin. Each function makes its checks under the lock of the runtime, and submits work to
// the streams.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "tests/cuda_twin/runtime.hpp"

namespace kvtwin::twin {
namespace {

constexpr std::size_t kMaxPitchBytes = (std::size_t{1} << 31) - 1;

std::string at_fault(const char* function, const char* what) { return std::string(function) + ": " + what; }

bool pinned(const Block* block) {
  return block != nullptr && (block->kind == Block::Kind::pinned || block->kind == Block::Kind::registered);
}

enum class Side : std::uint8_t { device, pinned, pageable, wrong };

Side side_of(const Blocks& blocks, const void* at, std::size_t bytes) {
  const Block* all = block_of(blocks, at, bytes);
  const Block* first = block_of(blocks, at, 0);
  if (pinned(all)) return Side::pinned;
  if (all != nullptr) return all->kind == Block::Kind::device ? Side::device : Side::wrong;
  // A range that begins in a known block and ends after the block is wrong. But pageable memory may follow a registered
  // block.
  return first == nullptr || first->kind == Block::Kind::registered ? Side::pageable : Side::wrong;
}

// Sets piece.way, and sets `pageable` if the piece uses pageable memory. Returns false, and adds a violation, if the
// piece cannot be copied.
bool judge(Runtime& runtime, Runtime::Locked& locked, const char* function, Piece& piece, bool& pageable) {
  if (piece.to == nullptr || piece.from == nullptr) {
    runtime.violation(locked, at_fault(function, "a null pointer"));
    return false;
  }
  const Side to = side_of(runtime.blocks, piece.to, piece.to_span());
  const Side from = side_of(runtime.blocks, piece.from, piece.from_span());
  if (to == Side::wrong || from == Side::wrong) {
    runtime.violation(locked, at_fault(function, "memory that is freed, or beyond the end of its allocation"));
    return false;
  }
  pageable = pageable || to == Side::pageable || from == Side::pageable;
  piece.way = from == Side::device ? (to == Side::device ? Way::on_device : Way::to_host)
                                   : (to == Side::device ? Way::to_device : Way::on_host);
  return true;
}

// The rest of a copy.
struct Copying {
  std::vector<Piece> pieces;
  std::vector<std::vector<std::byte>> read_early;  // source bytes that were read early; `pieces` point to them
};

void carry_out(const Piece& piece) {
  for (std::size_t slice = 0; slice < piece.depth; ++slice) {
    for (std::size_t row = 0; row < piece.height; ++row) {
      std::memcpy(piece.to + slice * piece.to_slice + row * piece.to_pitch,
                  piece.from + slice * piece.from_slice + row * piece.from_pitch, piece.width);
    }
  }
}

// Reads the source now. If `again`, the source is read a second time when the copy runs, and those bytes are copied.
void read_early(Copying& copying, Piece& piece, bool again) {
  Piece packed = piece;
  copying.read_early.emplace_back(piece.bytes());
  packed.to = copying.read_early.back().data();
  packed.to_pitch = piece.width;
  packed.to_slice = piece.width * piece.height;
  carry_out(packed);
  if (again) return;
  piece.from = packed.to;
  piece.from_pitch = packed.to_pitch;
  piece.from_slice = packed.to_slice;
}

bool still_there(Runtime& runtime, const char* function, const Piece& piece) {
  Runtime::Locked locked(runtime);
  const Side to = side_of(runtime.blocks, piece.to, piece.to_span());
  const Side from = side_of(runtime.blocks, piece.from, piece.from_span());
  if (to != Side::wrong && from != Side::wrong) return true;
  runtime.violation(locked, at_fault(function, "memory of a copy was freed before the copy ran"));
  return false;
}

bool step(Runtime& runtime, const char* function, Copying& copying, std::uint64_t draw) {
  std::vector<Piece>& left = copying.pieces;
  for (std::size_t now = draw == 0 ? left.size() : 1 + draw / 2 % left.size(); now > 0; --now) {
    if (draw != 0) std::swap(left[draw / 3 % left.size()], left.back());
    if (still_there(runtime, function, left.back())) carry_out(left.back());
    left.pop_back();
  }
  return left.empty();
}

struct Counted {
  CUstream_st* stream = nullptr;
  bool pageable = false;
  cudaError_t error = cudaSuccess;
};

Counted judge_all(Runtime& runtime, const char* function, cudaStream_t stream, std::vector<Piece>& pieces, Work& work,
                  bool waits) {
  Runtime::Locked locked(runtime);
  Counted counted;
  counted.stream =
      waits ? runtime.default_stream(locked, current_device()) : runtime.stream_of(locked, stream, function);
  if (counted.stream == nullptr) return {nullptr, false, cudaErrorInvalidResourceHandle};
  for (Piece& piece : pieces) {
    if (!judge(runtime, locked, function, piece, counted.pageable)) return {nullptr, false, cudaErrorInvalidValue};
  }
  Copies before[4];
  for (const Piece& piece : pieces) {
    Copies& way = before[static_cast<int>(piece.way)];
    way.calls = 1;
    ++way.copies;
    way.bytes += piece.bytes();
  }
  for (const Way way : {Way::to_device, Way::to_host, Way::on_device, Way::on_host}) {
    const Copies& now = before[static_cast<int>(way)];
    if (now.calls == 0) continue;
    work.under_way.emplace_back(way, now.bytes);
    for (Copies* sum : {&runtime.totals[static_cast<int>(way)], &runtime.copies[{way, function}]}) {
      sum->calls += now.calls;
      sum->copies += now.copies;
      sum->bytes += now.bytes;
    }
  }
  if (counted.pageable && !waits) {
    runtime.hidden_sync(locked, at_fault(function, "host memory that isn't page-locked"));
  }
  return counted;
}

cudaError_t copy_all(Runtime& runtime, const char* function, cudaStream_t stream, std::vector<Piece> pieces,
                     bool waits) {
  std::erase_if(pieces, [](const Piece& piece) { return piece.bytes() == 0; });
  auto work = std::make_unique<Work>();
  const Counted counted = judge_all(runtime, function, stream, pieces, *work, waits);
  if (counted.error != cudaSuccess) return counted.error;
  auto copying = std::make_shared<Copying>();
  // cudaMemcpy from pageable memory returns when the source has been read, before all bytes have been written.
  const bool returns_early = waits && counted.pageable && pieces.front().way == Way::to_device;
  for (Piece& piece : pieces) {
    // With streams as threads, the source is read at both times. So a write to the source at any time before the copy
    // ends is a data race that ThreadSanitizer detects.
    if (returns_early) {
      read_early(*copying, piece, false);
    } else if (piece.early && (runtime.threads() || runtime.draw(2) == 0)) {
      read_early(*copying, piece, runtime.threads());
    }
  }
  copying->pieces = std::move(pieces);
  if (!copying->pieces.empty()) {
    // From now on, only the stream uses `copying`.
    work->step = [&runtime, function, copying = std::move(copying)](std::uint64_t draw) {
      return step(runtime, function, *copying, draw);
    };
    const cudaError_t error = runtime.submit(counted.stream, std::move(work));
    if (error != cudaSuccess) return error;
  }
  if (!returns_early && (counted.pageable || waits)) runtime.wait_for(counted.stream);
  return cudaSuccess;
}

Piece flat(void* to, const void* from, std::size_t bytes) {
  return {static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, 1, 1, bytes, bytes, bytes, bytes};
}

// Returns true if the caller's `kind` matches the direction of the copy.
bool agrees(cudaMemcpyKind kind, Way way) {
  switch (kind) {
    case cudaMemcpyHostToDevice: return way == Way::to_device;
    case cudaMemcpyDeviceToHost: return way == Way::to_host;
    case cudaMemcpyDeviceToDevice: return way == Way::on_device;
    case cudaMemcpyHostToHost: return way == Way::on_host;
    default: return true;
  }
}

cudaError_t copy_one(Runtime& runtime, const char* function, Piece piece, cudaMemcpyKind kind, cudaStream_t stream,
                     bool waits) {
  if (piece.bytes() == 0) return cudaSuccess;
  {
    Runtime::Locked locked(runtime);
    bool pageable = false;
    if (!judge(runtime, locked, function, piece, pageable)) return cudaErrorInvalidValue;
    if (!agrees(kind, piece.way)) {
      runtime.violation(locked, at_fault(function, "the kind says another direction than the pointers"));
      return cudaErrorInvalidMemcpyDirection;
    }
  }
  return copy_all(runtime, function, stream, {piece}, waits);
}

cudaError_t set_bytes(Runtime& runtime, const char* function, void* at, int value, std::size_t bytes,
                      cudaStream_t stream, bool is_default) {
  if (bytes == 0) return cudaSuccess;
  CUstream_st* on = nullptr;
  {
    Runtime::Locked locked(runtime);
    const Side side = side_of(runtime.blocks, at, bytes);
    if (side == Side::wrong || side == Side::pageable) {
      runtime.violation(locked, at_fault(function, "memory that the GPU doesn't reach"));
      return cudaErrorInvalidValue;
    }
    on = is_default ? runtime.default_stream(locked, current_device()) : runtime.stream_of(locked, stream, function);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
  }
  auto work = std::make_unique<Work>();
  work->step = [at, value, bytes](std::uint64_t) {
    std::memset(at, value, bytes);
    return true;
  };
  return runtime.submit(on, std::move(work));
}

bool takes_batches(Runtime& runtime, const char* function, cudaStream_t stream) {
  if (stream != nullptr && stream != cudaStreamLegacy) return true;
  Runtime::Locked locked(runtime);
  runtime.violation(locked, at_fault(function, "the null stream"));
  return false;
}

bool orders(cudaMemcpySrcAccessOrder order) {
  return order == cudaMemcpySrcAccessOrderStream || order == cudaMemcpySrcAccessOrderDuringApiCall ||
         order == cudaMemcpySrcAccessOrderAny;
}

struct Batch {
  void* const* to;
  const void* const* from;
  const std::size_t* bytes;
  std::size_t count;
  const cudaMemcpyAttributes* attributes;
  const std::size_t* firsts;
  std::size_t attribute_count;
};

cudaError_t copy_batch(Runtime& runtime, const Batch& b, cudaStream_t stream) {
  const char* function = "cudaMemcpyBatchAsync";
  if (!takes_batches(runtime, function, stream)) return cudaErrorInvalidValue;
  bool lawful = b.count > 0 && b.attribute_count > 0 && b.attribute_count <= b.count && b.firsts[0] == 0;
  for (std::size_t i = 0; lawful && i < b.attribute_count; ++i) {
    lawful =
        b.firsts[i] < b.count && (i == 0 || b.firsts[i] > b.firsts[i - 1]) && orders(b.attributes[i].srcAccessOrder);
  }
  for (std::size_t i = 0; lawful && i < b.count; ++i) lawful = b.bytes[i] > 0;
  if (!lawful) {
    Runtime::Locked locked(runtime);
    runtime.violation(locked, at_fault(function, "nothing to copy, or attributes out of order"));
    return cudaErrorInvalidValue;
  }
  std::vector<Piece> pieces;
  for (std::size_t i = 0, of = 0; i < b.count; ++i) {
    while (of + 1 < b.attribute_count && b.firsts[of + 1] <= i) ++of;
    pieces.push_back(flat(b.to[i], b.from[i], b.bytes[i]));
    pieces.back().early = b.attributes[of].srcAccessOrder != cudaMemcpySrcAccessOrderStream;
  }
  return copy_all(runtime, function, stream, std::move(pieces), false);
}

// Converts a 3-D copy to a piece. Returns false if a GPU would reject the box.
bool box_of(const cudaMemcpy3DBatchOp& op, Piece& piece) {
  const auto& to = op.dst.op.ptr;
  const auto& from = op.src.op.ptr;
  if (op.dst.type != cudaMemcpyOperandTypePointer || op.src.type != cudaMemcpyOperandTypePointer) return false;
  if (op.extent.width == 0 || op.extent.height == 0 || op.extent.depth == 0 || !orders(op.srcAccessOrder)) return false;
  piece.to = static_cast<std::byte*>(to.ptr);
  piece.from = static_cast<const std::byte*>(from.ptr);
  piece.width = op.extent.width;
  piece.height = op.extent.height;
  piece.depth = op.extent.depth;
  const auto lay = [&](std::size_t row, std::size_t rows, std::size_t& pitch, std::size_t& slice) {
    pitch = row == 0 ? piece.width : row;
    const std::size_t height = rows == 0 ? piece.height : rows;
    slice = pitch * height;
    return pitch >= piece.width && height >= piece.height && pitch <= kMaxPitchBytes;
  };
  piece.early = op.srcAccessOrder != cudaMemcpySrcAccessOrderStream;
  return lay(to.rowLength, to.layerHeight, piece.to_pitch, piece.to_slice) &&
         lay(from.rowLength, from.layerHeight, piece.from_pitch, piece.from_slice);
}

cudaError_t copy_boxes(Runtime& runtime, std::size_t count, const cudaMemcpy3DBatchOp* ops, unsigned long long flags,
                       cudaStream_t stream) {
  const char* function = "cudaMemcpy3DBatchAsync";
  if (!takes_batches(runtime, function, stream)) return cudaErrorInvalidValue;
  std::vector<Piece> pieces(count);
  bool lawful = count > 0 && flags == 0;
  for (std::size_t i = 0; lawful && i < count; ++i) lawful = box_of(ops[i], pieces[i]);
  if (!lawful) {
    Runtime::Locked locked(runtime);
    runtime.violation(locked, at_fault(function, "an empty box, a pitch under its row or over 2^31 - 1, or flags"));
    return cudaErrorInvalidValue;
  }
  return copy_all(runtime, function, stream, std::move(pieces), false);
}

cudaError_t allocate(const char* function, Block::Kind kind, void** at, std::size_t bytes) {
  return call(function, [&](Runtime& runtime) {
    if (at == nullptr) return cudaErrorInvalidValue;
    *at = nullptr;
    if (bytes == 0) return cudaSuccess;
    Runtime::Locked locked(runtime);
    return runtime.allocate(locked, kind, bytes, current_device(), at);
  });
}

cudaError_t free_memory(const char* function, Block::Kind kind, void* at) {
  return freeing_call(function, [&](Runtime& runtime) {
    if (at == nullptr) return cudaSuccess;
    bool waits = false;
    {
      Runtime::Locked locked(runtime);
      waits = runtime.under_way(locked) && kind != Block::Kind::registered;
      if (waits) runtime.hidden_sync(locked, at_fault(function, "while streams have work"));
    }
    if (waits) runtime.wait_for_all();
    Runtime::Locked locked(runtime);
    return runtime.release(locked, kind, at);
  });
}

cudaError_t make_stream(const char* function, cudaStream_t* stream, unsigned flags, int priority) {
  return call(function, [&](Runtime& runtime) {
    if (stream == nullptr || (flags & ~unsigned{cudaStreamNonBlocking}) != 0) return cudaErrorInvalidValue;
    if (flags != cudaStreamNonBlocking) {
      Runtime::Locked locked(runtime);
      runtime.violation(locked, at_fault(function, "a stream that isn't cudaStreamNonBlocking: the twin has none"));
    }
    return runtime.make_stream(current_device(), std::clamp(priority, -5, 0), stream);
  });
}

cudaError_t make_event(const char* function, cudaEvent_t* event, unsigned flags) {
  return call(function, [&](Runtime& runtime) {
    if (event == nullptr) return cudaErrorInvalidValue;
    const Runtime::Locked locked(runtime);
    *event = new CUevent_st{current_device(), flags, nullptr};
    runtime.events.insert(*event);
    return cudaSuccess;
  });
}

cudaError_t record(const char* function, cudaEvent_t event, cudaStream_t stream) {
  return call(function, [&](Runtime& runtime) {
    auto work = std::make_unique<Work>();
    work->kind = Work::Kind::record;
    work->recording = std::make_shared<Recording>();
    CUstream_st* on = nullptr;
    {
      Runtime::Locked locked(runtime);
      on = runtime.stream_of(locked, stream, function);
      CUevent_st* known = runtime.event_of(locked, event, function);
      if (on == nullptr || known == nullptr) return cudaErrorInvalidResourceHandle;
      if (on->device != known->device) {
        runtime.violation(locked, at_fault(function, "event and stream are of different devices"));
        return cudaErrorInvalidResourceHandle;
      }
      known->recording = work->recording;
    }
    return runtime.submit(on, std::move(work));
  });
}

// Gets the current recording of an event; null if the event was never recorded.
cudaError_t recording_of(Runtime& runtime, const char* function, cudaEvent_t event,
                         std::shared_ptr<Recording>& recording) {
  Runtime::Locked locked(runtime);
  const CUevent_st* known = runtime.event_of(locked, event, function);
  if (known == nullptr) return cudaErrorInvalidResourceHandle;
  recording = known->recording;
  return cudaSuccess;
}

// `waits`: the call waits for the stream by definition, so using a default stream is no hidden synchronization. A
// stream that captures cannot be waited for.
cudaError_t find_stream(Runtime& runtime, const char* function, cudaStream_t stream, CUstream_st*& on,
                        bool waits = false) {
  Runtime::Locked locked(runtime);
  on = waits && stream == nullptr ? runtime.default_stream(locked, current_device())
                                  : runtime.stream_of(locked, stream, function);
  if (on == nullptr) return cudaErrorInvalidResourceHandle;
  if (!waits || on->capture == nullptr) return cudaSuccess;
  on->capture_spoiled = true;
  runtime.violation(locked, at_fault(function, "a stream that captures"));
  return cudaErrorStreamCaptureUnsupported;
}

cudaError_t begin_capture(Runtime& runtime, cudaStream_t stream, cudaStreamCaptureMode mode) {
  Runtime::Locked locked(runtime);
  CUstream_st* on = runtime.stream_of(locked, stream, "cudaStreamBeginCapture");
  if (on == nullptr) return cudaErrorInvalidResourceHandle;
  if (!runtime.machine().graphs) return cudaErrorNotSupported;
  if (on->capture != nullptr) return cudaErrorIllegalState;
  if (mode == cudaStreamCaptureModeGlobal) {
    runtime.violation(locked, "cudaStreamBeginCapture: the global mode, which makes calls of other threads fail");
  }
  on->capture = std::make_unique<CUgraph_st>();
  on->capture_spoiled = false;
  return cudaSuccess;
}

cudaError_t end_capture(Runtime& runtime, cudaStream_t stream, cudaGraph_t* graph) {
  Runtime::Locked locked(runtime);
  CUstream_st* on = runtime.stream_of(locked, stream, "cudaStreamEndCapture");
  if (on == nullptr) return cudaErrorInvalidResourceHandle;
  *graph = nullptr;
  if (on->capture == nullptr) return cudaErrorIllegalState;
  const std::unique_ptr<CUgraph_st> captured = std::move(on->capture);
  if (on->capture_spoiled) return cudaErrorStreamCaptureInvalidated;
  *graph = new CUgraph_st(*captured);
  runtime.graphs.insert(*graph);
  return cudaSuccess;
}

// Submits the kernels of a graph, in their order. Work of other streams runs between them.
cudaError_t launch_graph(Runtime& runtime, cudaGraphExec_t graph, cudaStream_t stream) {
  CUstream_st* on = nullptr;
  {
    Runtime::Locked locked(runtime);
    on = runtime.stream_of(locked, stream, "cudaGraphLaunch");
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (runtime.graph_launches.count(graph) == 0) {
      runtime.violation(locked, "cudaGraphLaunch: no such graph, or destroyed");
      return cudaErrorInvalidValue;
    }
  }
  for (const std::shared_ptr<const Node>& node : graph->nodes) {
    auto work = std::make_unique<Work>();
    work->kernel = node->kernel;
    work->step = [node](std::uint64_t draw) { return node->step(draw); };
    const cudaError_t error = runtime.submit(on, std::move(work));
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

struct Attribute {
  cudaDeviceAttr name;
  int value;
};

int compute_major_of(const Machine& machine, int device) {
  return machine.compute_majors.empty() ? machine.compute_major
                                        : machine.compute_majors.at(static_cast<std::size_t>(device));
}

bool attribute_of(const Machine& machine, int device, cudaDeviceAttr name, int& value) {
  const Attribute known[] = {{cudaDevAttrComputeCapabilityMajor, compute_major_of(machine, device)},
                             {cudaDevAttrComputeCapabilityMinor, machine.compute_minor},
                             {cudaDevAttrMaxSharedMemoryPerBlockOptin, machine.shared_bytes},
                             {cudaDevAttrMaxSharedMemoryPerBlock, 48 * 1024},
                             {cudaDevAttrMultiProcessorCount, 132},
                             {cudaDevAttrMaxPitch, static_cast<int>(kMaxPitchBytes)},
                             {cudaDevAttrWarpSize, 32},
                             {cudaDevAttrAsyncEngineCount, 3},
                             {cudaDevAttrCanMapHostMemory, 1},
                             {cudaDevAttrUnifiedAddressing, 1},
                             {cudaDevAttrHostRegisterSupported, 1},
                             {cudaDevAttrCanUseHostPointerForRegisteredMem, 1},
                             {cudaDevAttrStreamPrioritiesSupported, 1},
                             {cudaDevAttrConcurrentKernels, 1},
                             {cudaDevAttrL2CacheSize, 50 << 20},
                             {cudaDevAttrMaxThreadsPerBlock, 1024},
                             {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
                             {cudaDevAttrClockRate, 1980000},
                             {cudaDevAttrPciDomainId, 0},
                             {cudaDevAttrPciBusId, 1},
                             {cudaDevAttrPciDeviceId, 0},
                             {cudaDevAttrGPUDirectRDMASupported, 0},
                             {cudaDevAttrIntegrated, 0},
                             {cudaDevAttrPageableMemoryAccess, 0},
                             {cudaDevAttrNumaConfig, 0},
                             {cudaDevAttrNumaId, -1},
                             {cudaDevAttrHostNumaId, 0}};
  for (const Attribute& attribute : known) {
    if (attribute.name == name) {
      value = attribute.value;
      return true;
    }
  }
  return false;
}

bool device_there(const Runtime& runtime, int device) { return device >= 0 && device < runtime.machine().devices; }

struct Word {
  cudaError_t error;
  const char* name;
  const char* text;
};

constexpr Word kWords[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection", "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered",
     "part or all of the requested memory range is already mapped"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered",
     "pointer does not correspond to a registered memory region"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the operation cannot be performed in the present state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorUnknown, "cudaErrorUnknown", "unknown error"},
};

const Word* word_of(cudaError_t error) {
  for (const Word& word : kWords) {
    if (word.error == error) return &word;
  }
  return nullptr;
}

}  // namespace

}  // namespace kvtwin::twin

using namespace kvtwin::twin;

// The functions below are declared in CUDA's headers.
extern "C" {

// ---- errors -------------------------------------------------------------------------------------------------

const char* cudaGetErrorName(cudaError_t error) {
  const Word* word = word_of(error);
  return word == nullptr ? "unrecognized error code" : word->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const Word* word = word_of(error);
  return word == nullptr ? "unrecognized error code" : word->text;
}

cudaError_t cudaPeekAtLastError() {
  Runtime& runtime = Runtime::get();
  const Runtime::Locked locked(runtime);
  return runtime.sticky != cudaSuccess ? runtime.sticky : last_error();
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  last_error() = cudaSuccess;
  return error;
}

// ---- devices ------------------------------------------------------------------------------------------------

cudaError_t cudaDriverGetVersion(int* version) {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = Runtime::get().machine().driver ? CUDART_VERSION : 0;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return cudaErrorInvalidValue;
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  if (count != nullptr) *count = 0;
  return call("cudaGetDeviceCount", [&](Runtime& runtime) {
    if (count == nullptr) return cudaErrorInvalidValue;
    *count = runtime.machine().devices;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Runtime& runtime) {
    if (!device_there(runtime, device)) return cudaErrorInvalidDevice;
    current_device() = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Runtime&) {
    if (device == nullptr) return cudaErrorInvalidValue;
    *device = current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaSetDeviceFlags(unsigned) {
  return call("cudaSetDeviceFlags", [](Runtime&) { return cudaSuccess; });
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](Runtime& runtime) {
    if (properties == nullptr) return cudaErrorInvalidValue;
    if (!device_there(runtime, device)) return cudaErrorInvalidDevice;
    const Machine& machine = runtime.machine();
    *properties = {};
    std::snprintf(properties->name, sizeof properties->name, "kvtwin CUDA twin");
    properties->totalGlobalMem = machine.device_bytes;
    properties->major = compute_major_of(machine, device);
    properties->minor = machine.compute_minor;
    properties->memPitch = kMaxPitchBytes;
    properties->sharedMemPerBlockOptin = static_cast<std::size_t>(machine.shared_bytes);
    properties->warpSize = 32;
    properties->multiProcessorCount = 132;
    properties->asyncEngineCount = 3;
    properties->l2CacheSize = 50 << 20;
    properties->canMapHostMemory = properties->unifiedAddressing = properties->hostRegisterSupported = 1;
    properties->maxThreadsPerBlock = 1024;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return call("cudaDeviceGetAttribute", [&](Runtime& runtime) {
    if (value == nullptr) return cudaErrorInvalidValue;
    if (!device_there(runtime, device)) return cudaErrorInvalidDevice;
    if (attribute_of(runtime.machine(), device, attribute, *value)) return cudaSuccess;
    Runtime::Locked locked(runtime);
    runtime.violation(locked, "cudaDeviceGetAttribute: the twin doesn't know attribute " + std::to_string(attribute));
    return cudaErrorInvalidValue;
  });
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  return call("cudaDeviceGetPCIBusId", [&](Runtime& runtime) {
    if (id == nullptr || bytes < 13) return cudaErrorInvalidValue;
    if (!device_there(runtime, device)) return cudaErrorInvalidDevice;
    std::snprintf(id, static_cast<std::size_t>(bytes), "0000:%02X:00.0", device + 1);
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call("cudaDeviceGetStreamPriorityRange", [&](Runtime&) {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [](Runtime& runtime) {
    {
      Runtime::Locked locked(runtime);
      runtime.hidden_sync(locked, "cudaDeviceSynchronize");
    }
    runtime.synchronize();
    return runtime.sticky_error();
  });
}

cudaError_t cudaMemGetInfo(std::size_t* left, std::size_t* total) {
  return call("cudaMemGetInfo", [&](Runtime& runtime) {
    if (left == nullptr || total == nullptr) return cudaErrorInvalidValue;
    const Runtime::Locked locked(runtime);
    *total = *left = runtime.machine().device_bytes;
    for (const auto& [start, block] : runtime.blocks) {
      if (block.kind == Block::Kind::device && block.device == current_device()) *left -= block.bytes;
    }
    return cudaSuccess;
  });
}

// ---- memory -------------------------------------------------------------------------------------------------

cudaError_t cudaMalloc(void** at, std::size_t bytes) { return allocate("cudaMalloc", Block::Kind::device, at, bytes); }
cudaError_t cudaMallocHost(void** at, std::size_t bytes) {
  return allocate("cudaMallocHost", Block::Kind::pinned, at, bytes);
}
cudaError_t cudaHostAlloc(void** at, std::size_t bytes, unsigned) {
  return allocate("cudaHostAlloc", Block::Kind::pinned, at, bytes);
}
cudaError_t cudaFree(void* at) { return free_memory("cudaFree", Block::Kind::device, at); }
cudaError_t cudaFreeHost(void* at) { return free_memory("cudaFreeHost", Block::Kind::pinned, at); }
cudaError_t cudaHostUnregister(void* at) { return free_memory("cudaHostUnregister", Block::Kind::registered, at); }

cudaError_t cudaHostRegister(void* at, std::size_t bytes, unsigned) {
  return call("cudaHostRegister", [&](Runtime& runtime) {
    if (at == nullptr || bytes == 0) return cudaErrorInvalidValue;
    Runtime::Locked locked(runtime);
    const auto start = reinterpret_cast<std::uintptr_t>(at);
    for (const auto& [other, block] : runtime.blocks) {
      if (other < start + bytes && start < other + block.bytes) return cudaErrorHostMemoryAlreadyRegistered;
    }
    void* registered = at;
    return runtime.allocate(locked, Block::Kind::registered, bytes, current_device(), &registered);
  });
}

cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned flags) {
  return call("cudaHostGetDevicePointer", [&](Runtime& runtime) {
    if (device == nullptr || flags != 0) return cudaErrorInvalidValue;
    const Runtime::Locked locked(runtime);
    if (!pinned(block_of(runtime.blocks, host, 1))) return cudaErrorInvalidValue;
    *device = host;
    return cudaSuccess;
  });
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* at) {
  return call("cudaPointerGetAttributes", [&](Runtime& runtime) {
    if (attributes == nullptr) return cudaErrorInvalidValue;
    const Runtime::Locked locked(runtime);
    const Block* block = block_of(runtime.blocks, at, 1);
    *attributes = {};
    attributes->type = cudaMemoryTypeUnregistered;
    if (block == nullptr || block->kind == Block::Kind::freed) return cudaSuccess;
    attributes->type = block->kind == Block::Kind::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->device = block->device;
    attributes->devicePointer = const_cast<void*>(at);
    attributes->hostPointer = block->kind == Block::Kind::device ? nullptr : const_cast<void*>(at);
    return cudaSuccess;
  });
}

cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return call("cudaMemcpy", [&](Runtime& runtime) {
    return copy_one(runtime, "cudaMemcpy", flat(to, from, bytes), kind, nullptr, true);
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Runtime& runtime) {
    return copy_one(runtime, "cudaMemcpyAsync", flat(to, from, bytes), kind, stream, false);
  });
}

cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from, std::size_t from_pitch,
                              std::size_t width, std::size_t height, cudaMemcpyKind kind, cudaStream_t stream) {
  return call("cudaMemcpy2DAsync", [&](Runtime& runtime) {
    if (to_pitch < width || from_pitch < width || to_pitch > kMaxPitchBytes || from_pitch > kMaxPitchBytes) {
      return cudaErrorInvalidPitchValue;
    }
    Piece piece = flat(to, from, width);
    piece.height = height;
    piece.to_pitch = to_pitch;
    piece.from_pitch = from_pitch;
    return copy_one(runtime, "cudaMemcpy2DAsync", piece, kind, stream, false);
  });
}

cudaError_t cudaMemset(void* at, int value, std::size_t bytes) {
  return call("cudaMemset",
              [&](Runtime& runtime) { return set_bytes(runtime, "cudaMemset", at, value, bytes, nullptr, true); });
}

cudaError_t cudaMemsetAsync(void* at, int value, std::size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync",
              [&](Runtime& runtime) { return set_bytes(runtime, "cudaMemsetAsync", at, value, bytes, stream, false); });
}

// The function of CUDA 12.8 has one more argument than that of CUDA 13.
#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const std::size_t* bytes, std::size_t count,
                                 cudaMemcpyAttributes* attributes, std::size_t* firsts, std::size_t attribute_count,
                                 cudaStream_t stream) {
#else
cudaError_t cudaMemcpyBatchAsync(void** to, void** from, std::size_t* bytes, std::size_t count,
                                 cudaMemcpyAttributes* attributes, std::size_t* firsts, std::size_t attribute_count,
                                 std::size_t*, cudaStream_t stream) {
#endif
  return call("cudaMemcpyBatchAsync", [&](Runtime& runtime) {
    return copy_batch(runtime, {to, from, bytes, count, attributes, firsts, attribute_count}, stream);
  });
}

#if CUDART_VERSION >= 13000
cudaError_t cudaMemcpy3DBatchAsync(std::size_t count, cudaMemcpy3DBatchOp* ops, unsigned long long flags,
                                   cudaStream_t stream) {
#else
cudaError_t cudaMemcpy3DBatchAsync(std::size_t count, cudaMemcpy3DBatchOp* ops, std::size_t*, unsigned long long flags,
                                   cudaStream_t stream) {
#endif
  return call("cudaMemcpy3DBatchAsync",
              [&](Runtime& runtime) { return copy_boxes(runtime, count, ops, flags, stream); });
}

// ---- streams ------------------------------------------------------------------------------------------------

cudaError_t cudaStreamCreate(cudaStream_t* stream) { return make_stream("cudaStreamCreate", stream, 0, 0); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return make_stream("cudaStreamCreateWithFlags", stream, flags, 0);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return make_stream("cudaStreamCreateWithPriority", stream, flags, priority);
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return call("cudaStreamGetPriority", [&](Runtime& runtime) {
    CUstream_st* on = nullptr;
    const cudaError_t error = find_stream(runtime, "cudaStreamGetPriority", stream, on);
    if (error == cudaSuccess) *priority = on->priority;
    return error;
  });
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return freeing_call("cudaStreamDestroy", [&](Runtime& runtime) {
    Runtime::Locked locked(runtime);
    if (runtime.streams.erase(stream) == 0) {
      runtime.violation(locked, "cudaStreamDestroy: no such stream, or destroyed");
      return cudaErrorInvalidResourceHandle;
    }
    runtime.close(locked, stream);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", [&](Runtime& runtime) {
    CUstream_st* on = nullptr;
    const cudaError_t error = find_stream(runtime, "cudaStreamSynchronize", stream, on, true);
    if (error != cudaSuccess) return error;
    runtime.wait_for(on);
    return runtime.sticky_error();
  });
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call("cudaStreamQuery", [&](Runtime& runtime) {
    CUstream_st* on = nullptr;
    const cudaError_t error = find_stream(runtime, "cudaStreamQuery", stream, on, true);
    if (error != cudaSuccess) return error;
    const bool done = runtime.is_done(on);
    const cudaError_t broken = runtime.sticky_error();
    return broken != cudaSuccess ? broken : done ? cudaSuccess : cudaErrorNotReady;
  });
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", [&](Runtime& runtime) {
    CUstream_st* on = nullptr;
    cudaError_t error = find_stream(runtime, "cudaStreamWaitEvent", stream, on);
    auto work = std::make_unique<Work>();
    work->kind = Work::Kind::wait;
    if (error == cudaSuccess) error = recording_of(runtime, "cudaStreamWaitEvent", event, work->recording);
    if (error != cudaSuccess || work->recording == nullptr) return error;
    return runtime.submit(on, std::move(work));
  });
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call("cudaLaunchHostFunc", [&](Runtime& runtime) {
    if (function == nullptr) return cudaErrorInvalidValue;
    CUstream_st* on = nullptr;
    const cudaError_t error = find_stream(runtime, "cudaLaunchHostFunc", stream, on);
    if (error != cudaSuccess) return error;
    auto work = std::make_unique<Work>();
    work->step = [function, data](std::uint64_t) {
      function(data);
      return true;
    };
    return runtime.submit(on, std::move(work));
  });
}

// ---- graphs -------------------------------------------------------------------------------------------------

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Runtime& runtime) { return begin_capture(runtime, stream, mode); });
}

// Ends the capture even if an injected fault makes the call fail.
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return freeing_call("cudaStreamEndCapture", [&](Runtime& runtime) { return end_capture(runtime, stream, graph); });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* made, cudaGraph_t graph, unsigned long long flags) {
  return call("cudaGraphInstantiate", [&](Runtime& runtime) {
    Runtime::Locked locked(runtime);
    if (made == nullptr || runtime.graphs.count(graph) == 0 || flags != 0) {
      runtime.violation(locked, "cudaGraphInstantiate: no such graph, or flags");
      return cudaErrorInvalidValue;
    }
    *made = new CUgraphExec_st{*graph};
    runtime.graph_launches.insert(*made);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
  return call("cudaGraphLaunch", [&](Runtime& runtime) { return launch_graph(runtime, graph, stream); });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return freeing_call("cudaGraphDestroy", [&](Runtime& runtime) {
    Runtime::Locked locked(runtime);
    if (runtime.graphs.erase(graph) == 0) {
      runtime.violation(locked, "cudaGraphDestroy: no such graph, or destroyed");
      return cudaErrorInvalidValue;
    }
    delete graph;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  return freeing_call("cudaGraphExecDestroy", [&](Runtime& runtime) {
    Runtime::Locked locked(runtime);
    if (runtime.graph_launches.erase(graph) == 0) {
      runtime.violation(locked, "cudaGraphExecDestroy: no such graph, or destroyed");
      return cudaErrorInvalidValue;
    }
    delete graph;
    return cudaSuccess;
  });
}

// ---- events -------------------------------------------------------------------------------------------------

cudaError_t cudaEventCreate(cudaEvent_t* event) { return make_event("cudaEventCreate", event, cudaEventDefault); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return make_event("cudaEventCreateWithFlags", event, flags);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return freeing_call("cudaEventDestroy", [&](Runtime& runtime) {
    Runtime::Locked locked(runtime);
    if (runtime.event_of(locked, event, "cudaEventDestroy") == nullptr) return cudaErrorInvalidResourceHandle;
    runtime.events.erase(event);
    delete event;
    return cudaSuccess;
  });
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return record("cudaEventRecord", event, stream); }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return record("cudaEventRecordWithFlags", event, stream);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", [&](Runtime& runtime) {
    std::shared_ptr<Recording> recording;
    const cudaError_t error = recording_of(runtime, "cudaEventSynchronize", event, recording);
    if (error != cudaSuccess || recording == nullptr) return error;
    runtime.wait_for(recording);
    return runtime.sticky_error();
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&](Runtime& runtime) {
    std::shared_ptr<Recording> recording;
    const cudaError_t error = recording_of(runtime, "cudaEventQuery", event, recording);
    if (error != cudaSuccess || recording == nullptr) return error;
    const bool done = runtime.is_done(recording);
    const cudaError_t broken = runtime.sticky_error();
    return broken != cudaSuccess ? broken : done ? cudaSuccess : cudaErrorNotReady;
  });
}

// The twin's clock: every work item takes one microsecond.
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t first, cudaEvent_t last) {
  return call("cudaEventElapsedTime", [&](Runtime& runtime) {
    Runtime::Locked locked(runtime);
    const CUevent_st* from = runtime.event_of(locked, first, "cudaEventElapsedTime");
    const CUevent_st* to = runtime.event_of(locked, last, "cudaEventElapsedTime");
    if (milliseconds == nullptr) return cudaErrorInvalidValue;
    if (from == nullptr || to == nullptr || ((from->flags | to->flags) & cudaEventDisableTiming) != 0 ||
        from->recording == nullptr || to->recording == nullptr) {
      return cudaErrorInvalidResourceHandle;
    }
    if (!from->recording->done || !to->recording->done) return cudaErrorNotReady;
    *milliseconds = 1e-3f * (static_cast<float>(to->recording->time) - static_cast<float>(from->recording->time));
    return cudaSuccess;
  });
}

}  // extern "C"
