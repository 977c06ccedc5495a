// In libcufile's place in tests without a GPU: reads files into memory, counts what is registered, and fails on demand.
// Tests that load it reach its inside by the symbol kvtwin_cufile_stand_in.
#pragma once

#include <atomic>

namespace kvtwin::test {

struct CuFileStandIn {
  // What calls answer: cuFile's error codes, 0 = none.
  std::atomic<int> driver_error = 0, file_error = 0, buffer_error = 0;
  // Of the next reads: so many end with -1 and this errno, or, if it is negative, with it.
  std::atomic<int> failing_reads = 0, read_error = 0;
  // Reads move no more than this; of the next so many reads nothing comes at all.
  std::atomic<long> most_bytes = 1L << 40;
  std::atomic<int> empty_reads = 0;
  // What the driver says of itself.
  std::atomic<unsigned> nvidia_fs_major = 0, features = 0;

  std::atomic<int> drivers = 0, files = 0, buffers = 0;  // open, registered now
  std::atomic<int> files_ever = 0, reads = 0;
  std::atomic<int> misuses = 0;  // what the real one would refuse, or crash on
};

}  // namespace kvtwin::test
