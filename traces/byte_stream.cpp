#include "traces/byte_stream.hpp"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace kvtwin {
namespace {

constexpr std::size_t kCompressedChunkBytes = std::size_t{64} << 10;

class FileStream final : public ByteStream {
 public:
  explicit FileStream(const std::string& path) : file_(std::fopen(path.c_str(), "rb")) {
    if (file_ == nullptr) throw ByteStreamError(std::string("cannot be opened: ") + std::strerror(errno));
    if (std::fseek(file_, 0, SEEK_END) == 0) size_ = std::ftell(file_);  // a pipe has no size
    std::rewind(file_);
  }
  FileStream(const FileStream&) = delete;
  FileStream& operator=(const FileStream&) = delete;
  ~FileStream() override { std::fclose(file_); }

  std::size_t read(std::span<char> into) override {
    errno = 0;
    const std::size_t got = std::fread(into.data(), 1, into.size(), file_);
    if (got == 0 && std::ferror(file_) != 0) {
      throw ByteStreamError(std::string("cannot be read: ") + std::strerror(errno));
    }
    return got;
  }
  double fraction_read() const override {
    return size_ > 0 ? static_cast<double>(std::ftell(file_)) / static_cast<double>(size_) : 0;
  }

 private:
  std::FILE* file_;
  long size_ = 0;
};

class MemoryStream final : public ByteStream {
 public:
  explicit MemoryStream(std::span<const char> bytes) : rest_(bytes), size_(bytes.size()) {}

  std::size_t read(std::span<char> into) override {
    const std::size_t n = std::min(into.size(), rest_.size());
    std::copy_n(rest_.begin(), n, into.begin());
    rest_ = rest_.subspan(n);
    return n;
  }
  double fraction_read() const override {
    return size_ == 0 ? 0 : 1 - static_cast<double>(rest_.size()) / static_cast<double>(size_);
  }

 private:
  std::span<const char> rest_;
  std::size_t size_;
};

// A stream whose first bytes can be compared with the magic numbers of file formats before read() returns them.
class PeekedStream final : public ByteStream {
 public:
  explicit PeekedStream(std::unique_ptr<ByteStream> inner) : inner_(std::move(inner)) {
    while (size_ < head_.size()) {
      const std::size_t got = inner_->read(std::span(head_).subspan(size_));
      if (got == 0) break;
      size_ += got;
    }
  }

  bool starts_with(std::span<const unsigned char> magic) const {
    return size_ >= magic.size() && std::memcmp(head_.data(), magic.data(), magic.size()) == 0;
  }
  // The first four bytes as a little-endian number; 0 if there are fewer.
  std::uint32_t magic_number() const {
    if (size_ < head_.size()) return 0;
    std::uint32_t value = 0;
    for (std::size_t i = head_.size(); i-- > 0;) value = (value << 8) | static_cast<unsigned char>(head_[i]);
    return value;
  }

  std::size_t read(std::span<char> into) override {
    if (given_ == size_) return inner_->read(into);
    const std::size_t n = std::min(into.size(), size_ - given_);
    std::memcpy(into.data(), head_.data() + given_, n);
    given_ += n;
    return n;
  }
  double fraction_read() const override { return inner_->fraction_read(); }

 private:
  std::unique_ptr<ByteStream> inner_;
  std::array<char, 4> head_{};
  std::size_t size_ = 0, given_ = 0;
};

class ZstdStream final : public ByteStream {
 public:
  ZstdStream(std::unique_ptr<ByteStream> inner, int max_window_log)
      : inner_(std::move(inner)), context_(ZSTD_createDCtx()), chunk_(kCompressedChunkBytes) {
    if (context_ == nullptr) throw std::bad_alloc();
    ZSTD_DCtx_setParameter(context_, ZSTD_d_windowLogMax, max_window_log);
  }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;
  ~ZstdStream() override { ZSTD_freeDCtx(context_); }

  std::size_t read(std::span<char> into) override {
    ZSTD_outBuffer output{into.data(), into.size(), 0};
    while (output.pos == 0) {
      if (input_.pos == input_.size && !flushing_) {
        input_ = {chunk_.data(), inner_->read(chunk_), 0};
        if (input_.size == 0) {
          if (in_frame_) throw ByteStreamError("is cut off in the middle of a zstd frame");
          return 0;
        }
      }
      const std::size_t rest = ZSTD_decompressStream(context_, &output, &input_);
      if (ZSTD_isError(rest) != 0) {
        throw ByteStreamError(std::string("is not valid zstd: ") + ZSTD_getErrorName(rest));
      }
      in_frame_ = rest != 0;
      // If the output is full, the decoder may hold more output although all input is consumed.
      flushing_ = in_frame_ && output.pos == output.size;
    }
    return output.pos;
  }
  double fraction_read() const override { return inner_->fraction_read(); }

 private:
  std::unique_ptr<ByteStream> inner_;
  ZSTD_DCtx* context_;
  std::vector<char> chunk_;
  ZSTD_inBuffer input_{nullptr, 0, 0};
  bool in_frame_ = false, flushing_ = false;
};

class GzipStream final : public ByteStream {
 public:
  explicit GzipStream(std::unique_ptr<ByteStream> inner) : inner_(std::move(inner)), chunk_(kCompressedChunkBytes) {
    if (inflateInit2(&z_, 15 + 16) != Z_OK) throw std::bad_alloc();  // 16: a gzip wrapper is required
  }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;
  ~GzipStream() override { inflateEnd(&z_); }

  std::size_t read(std::span<char> into) override {
    const std::size_t capacity = std::min(into.size(), std::size_t{1} << 30);
    z_.next_out = reinterpret_cast<Bytef*>(into.data());
    z_.avail_out = static_cast<uInt>(capacity);
    while (z_.avail_out == capacity) {
      if (z_.avail_in == 0) {
        z_.next_in = reinterpret_cast<Bytef*>(chunk_.data());
        z_.avail_in = static_cast<uInt>(inner_->read(chunk_));
        if (z_.avail_in == 0) {
          if (in_member_) throw ByteStreamError("is cut off in the middle of a gzip member");
          return 0;
        }
      }
      if (!in_member_) {
        inflateReset(&z_);
        in_member_ = true;
      }
      const int status = inflate(&z_, Z_NO_FLUSH);
      if (status == Z_STREAM_END) {
        in_member_ = false;
      } else if (status != Z_OK && status != Z_BUF_ERROR) {
        throw ByteStreamError(std::string("is not valid gzip: ") + (z_.msg != nullptr ? z_.msg : "broken data"));
      }
    }
    return capacity - z_.avail_out;
  }
  double fraction_read() const override { return inner_->fraction_read(); }

 private:
  std::unique_ptr<ByteStream> inner_;
  std::vector<char> chunk_;
  z_stream z_{};
  bool in_member_ = true;
};

std::unique_ptr<ByteStream> decompressed(std::unique_ptr<ByteStream> raw, int max_window_log) {
  constexpr std::array<unsigned char, 4> kZstd{0x28, 0xB5, 0x2F, 0xFD};
  constexpr std::array<unsigned char, 2> kGzip{0x1F, 0x8B};
  constexpr std::uint32_t kZstdSkippable = 0x184D2A50;  // the last hexadecimal digit may have any value
  auto peeked = std::make_unique<PeekedStream>(std::move(raw));
  if (peeked->starts_with(kZstd) || (peeked->magic_number() & 0xFFFFFFF0U) == kZstdSkippable) {
    return std::make_unique<ZstdStream>(std::move(peeked), max_window_log);
  }
  if (peeked->starts_with(kGzip)) return std::make_unique<GzipStream>(std::move(peeked));
  return peeked;
}

}  // namespace

std::unique_ptr<ByteStream> open_file_stream(const std::string& path, int max_window_log) {
  return decompressed(std::make_unique<FileStream>(path), max_window_log);
}

std::unique_ptr<ByteStream> open_memory_stream(std::span<const char> bytes, int max_window_log) {
  return decompressed(std::make_unique<MemoryStream>(bytes), max_window_log);
}

}  // namespace kvtwin
