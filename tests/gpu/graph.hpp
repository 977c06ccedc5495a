// Random graphs of transfers and computation on three streams (to the device, to the host, compute), tied by exactly
// the events that their reads and writes of pages ask for, and compared with what they leave when carried out one after
// another, byte for byte.
#pragma once

#include <cstdint>
#include <string>

namespace kvtwin::test {

// A class of waits that a mutant leaves out: for reads of what was written, for writes of what was read or written.
enum class Missing : std::uint8_t { none, read_after_write, write_after_read, write_after_write };

struct GraphRun {
  std::string wrong;           // a sentence; empty: as the model says
  std::uint64_t waits = 0;     // of streams, and of the host
  std::uint64_t left_out = 0;  // waits that a mutant would have needed
  std::uint64_t operations = 0;
};

// Needs a GPU, or a twin. std::runtime_error if a call fails.
GraphRun run_graph(std::uint64_t seed, Missing missing = Missing::none);

}  // namespace kvtwin::test
