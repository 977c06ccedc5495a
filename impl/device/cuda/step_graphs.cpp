#include "impl/device/cuda/step_graphs.hpp"

#include <algorithm>
#include <stdexcept>

namespace kvtwin {

StepGraphs::~StepGraphs() {
  for (const auto& [tokens, shape] : shapes_) {
    if (shape.graph != nullptr) cudaGraphExecDestroy(shape.graph);
  }
}

void StepGraphs::run(Tokens tokens, const CudaStream& stream, const std::function<void()>& queue) {
  if (!refusal_.empty()) return queue();
  const auto found = shapes_.find(tokens);
  if (found == shapes_.end()) {
    make_room();
    shapes_[tokens].last_use = ++uses_;
    return queue();
  }
  Shape& shape = found->second;
  shape.last_use = ++uses_;
  if (shape.graph == nullptr) shape.graph = capture(stream, queue);
  if (shape.graph == nullptr) return queue();
  stream.must(cudaGraphLaunch(shape.graph, stream.get()), "cudaGraphLaunch");
  ++steps_;
}

// Returns null, and sets the refusal, if the driver or cuBLAS captures nothing.
cudaGraphExec_t StepGraphs::capture(const CudaStream& stream, const std::function<void()>& queue) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t made = nullptr;
  bool capturing = false;
  try {
    // Calls of other threads neither disturb this capture nor are disturbed by it.
    stream.must(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    capturing = true;
    queue();
    capturing = false;
    stream.must(cudaStreamEndCapture(stream.get(), &graph), "cudaStreamEndCapture");
    stream.must(cudaGraphInstantiate(&made, graph, 0), "cudaGraphInstantiate");
  } catch (const std::runtime_error& error) {
    refusal_ = error.what();
    if (capturing) cudaStreamEndCapture(stream.get(), &graph);
    cudaGetLastError();
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  return made;
}

void StepGraphs::make_room() {
  if (shapes_.size() < kMaxGraphs) return;
  const auto oldest = std::ranges::min_element(shapes_, {}, [](const auto& it) { return it.second.last_use; });
  if (oldest->second.graph != nullptr) cudaGraphExecDestroy(oldest->second.graph);
  shapes_.erase(oldest);
}

}  // namespace kvtwin
