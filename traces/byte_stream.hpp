// Reads the bytes of a trace file and decompresses them: plain, gzip (any number of members) or zstd (any number of
// frames). The first bytes of the file select the decompressor. Internal to traces/.
// Errors: ByteStreamError, whose text continues a sentence that begins with the file's name.
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
  // Fills the beginning of `into` (not empty) and returns the number of bytes. Returns 0 only at the end, or if
  // is_silent().
  virtual std::size_t read(std::span<char> into) = 0;
  // After read() has returned 0: true if more may come later.
  virtual bool is_silent() const { return false; }
  // Returns the part of the (compressed) file or memory that has been read, 0 .. 1; 0 if the size is unknown.
  virtual double fraction_read() const = 0;
};

// max_window_log, 10 .. 31: a zstd frame may need a window of at most 2^max_window_log bytes.
std::unique_ptr<ByteStream> open_file_stream(const std::string& path, int max_window_log);
// Requires: `bytes` outlives the stream.
std::unique_ptr<ByteStream> open_memory_stream(std::span<const char> bytes, int max_window_log);

}  // namespace kvtwin
