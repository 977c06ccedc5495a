// Replaces libcufile in tests without a GPU: reads files into memory, counts registrations, and fails on demand. Tests
// load the library and access its state through the symbol kvtwin_cufile_stand_in.
#pragma once

#include <atomic>

namespace kvtwin::test {

struct CuFileStandIn {
  // Return values of the calls: cuFile's error codes, 0 = success.
  std::atomic<int> driver_error = 0, file_error = 0, buffer_error = 0;
  // The next `failing_reads` reads return -1 and set errno to `read_error`. If `read_error` is negative, they return
  // it.
  std::atomic<int> failing_reads = 0, read_error = 0;
  // A read moves at most `max_bytes`. The next `empty_reads` reads move 0 bytes.
  std::atomic<long> max_bytes = 1L << 40;
  std::atomic<int> empty_reads = 0;
  // The properties that the driver reports.
  std::atomic<unsigned> nvidia_fs_major = 0, features = 0;

  std::atomic<int> drivers = 0, files = 0, buffers = 0;  // open or registered at the moment
  std::atomic<int> files_ever = 0, reads = 0;
  std::atomic<int> misuses = 0;  // calls that the real library would reject, or that would crash it
};

}  // namespace kvtwin::test
