// A trace file's bytes, decompressed on the way: plain, gzip (any number of members) or zstd (any number of
// frames), told apart by the first bytes. Internal to traces/. Errors: ByteStreamError, half a sentence that goes on
// after the file's name.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace kvtwin {

class ByteStreamError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class ByteStream {
 public:
  virtual ~ByteStream() = default;
  // Fills a part of `into` (not empty) and returns its length; 0 at the end only.
  virtual std::size_t read(std::span<char> into) = 0;
  // How much of the file or memory below has been taken in, 0 .. 1; 0 if its size isn't known.
  virtual double fraction_read() const = 0;
};

// max_window_log: a zstd frame may ask for at most 2^this bytes, 10 .. 31.
std::unique_ptr<ByteStream> open_file_stream(const std::string& path, int max_window_log);
std::unique_ptr<ByteStream> open_memory_stream(std::span<const char> bytes, int max_window_log);  // borrowed

}  // namespace kvtwin
