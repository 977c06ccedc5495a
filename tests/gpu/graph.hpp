// Runs random graphs of transfers and computation on three streams: to the device, to the host, and compute. CUDA
// events order exactly those operations that read or write the same page. The final bytes of all pages are compared
// with the bytes after a sequential execution.
#pragma once

#include <cstdint>
#include <string>

namespace kvtwin::test {

// A class of waits that a mutant leaves out: a read waits for a write, a write waits for a read, a write for a write.
enum class Missing : std::uint8_t { none, read_after_write, write_after_read, write_after_write };

struct GraphRun {
  std::string wrong;           // a sentence; empty if the bytes are equal to those of the model
  std::uint64_t waits = 0;     // waits of streams and of the host
  std::uint64_t left_out = 0;  // necessary waits that the mutant left out
  std::uint64_t operations = 0;
};

// Requires: a GPU or the CUDA twin. Errors: std::runtime_error if a CUDA call fails.
GraphRun run_graph(std::uint64_t seed, Missing missing = Missing::none);

}  // namespace kvtwin::test
