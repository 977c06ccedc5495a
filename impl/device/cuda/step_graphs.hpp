// CUDA graphs of decode steps: a step of hundreds of kernels costs one launch of the CPU. There is one graph for each
// batch shape, because the launches of a step depend on nothing else (kernels/context.hpp: ContextStep).
//
//   first step of a shape    its kernels are launched one by one, which also loads them
//   second step              the launches are captured and become a graph, which is launched
//   later steps              the graph is launched
//
// Thread: one.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "impl/device/cuda/handles.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

class StepGraphs {
 public:
  static constexpr std::size_t kMaxGraphs = 256;  // the shape that was used least recently makes room

  StepGraphs() = default;
  ~StepGraphs();
  StepGraphs(const StepGraphs&) = delete;
  StepGraphs& operator=(const StepGraphs&) = delete;

  // Runs a step with `tokens` tokens on the stream. `queue`: queues the kernels of the step, and nothing else.
  void run(Tokens tokens, const CudaStream& stream, const std::function<void()>& queue);
  std::uint64_t steps() const { return steps_; }  // that were launched as a graph
  // Returns the reason why steps run without graphs; empty = none.
  const std::string& refusal() const { return refusal_; }

 private:
  struct Shape {
    std::uint64_t last_use = 0;
    cudaGraphExec_t graph = nullptr;
  };
  cudaGraphExec_t capture(const CudaStream& stream, const std::function<void()>& queue);
  void make_room();

  std::map<Tokens, Shape> shapes_;
  std::uint64_t uses_ = 0, steps_ = 0;
  std::string refusal_;
};

}  // namespace kvtwin
