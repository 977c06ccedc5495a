#include <zlib.h>
#include <zstd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <utility>

#include "traces/trace.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kChunkBytes = std::size_t{64} << 10;
constexpr int kZstdLevel = 19;  // small files are more important here than the extra second
constexpr int kGzipLevel = 9;
constexpr TimeNs kNsPerMs = 1'000'000;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw TraceError("trace \"" + path + "\" " + what + ".");
}

class OutputFile {
 public:
  explicit OutputFile(const std::string& path) : path_(path), file_(std::fopen(path.c_str(), "wb")) {
    if (file_ == nullptr) fail(path_, std::string("cannot be created: ") + std::strerror(errno));
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  ~OutputFile() {
    if (file_ != nullptr) std::fclose(file_);
  }

  void write(const char* data, std::size_t size) {
    if (std::fwrite(data, 1, size, file_) != size)
      fail(path_, std::string("cannot be written: ") + std::strerror(errno));
  }
  void flush() {
    if (std::fflush(file_) != 0) fail(path_, std::string("cannot be written: ") + std::strerror(errno));
  }
  void close() {
    const int status = std::fclose(std::exchange(file_, nullptr));
    if (status != 0) fail(path_, std::string("cannot be written: ") + std::strerror(errno));
  }

 private:
  std::string path_;
  std::FILE* file_;
};

// Compresses bytes, or leaves them as they are, and writes the result to a file.
class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual void write(OutputFile& file, const char* data, std::size_t size, bool last) = 0;
};

class PlainEncoder final : public Encoder {
 public:
  void write(OutputFile& file, const char* data, std::size_t size, bool /*last*/) override { file.write(data, size); }
};

class ZstdEncoder final : public Encoder {
 public:
  ZstdEncoder() : context_(ZSTD_createCCtx()), chunk_(kChunkBytes) {
    if (context_ == nullptr) throw std::bad_alloc();
    ZSTD_CCtx_setParameter(context_, ZSTD_c_compressionLevel, kZstdLevel);
    ZSTD_CCtx_setParameter(context_, ZSTD_c_checksumFlag, 1);
  }
  ZstdEncoder(const ZstdEncoder&) = delete;
  ZstdEncoder& operator=(const ZstdEncoder&) = delete;
  ~ZstdEncoder() override { ZSTD_freeCCtx(context_); }

  void write(OutputFile& file, const char* data, std::size_t size, bool last) override {
    ZSTD_inBuffer input{data, size, 0};
    std::size_t rest = 0;
    do {
      ZSTD_outBuffer output{chunk_.data(), chunk_.size(), 0};
      rest = ZSTD_compressStream2(context_, &output, &input, last ? ZSTD_e_end : ZSTD_e_continue);
      if (ZSTD_isError(rest) != 0) throw TraceError(std::string("zstd failed: ") + ZSTD_getErrorName(rest) + ".");
      file.write(chunk_.data(), output.pos);
    } while (input.pos < input.size || (last && rest > 0));
  }

 private:
  ZSTD_CCtx* context_;
  std::vector<char> chunk_;
};

class GzipEncoder final : public Encoder {
 public:
  GzipEncoder() : chunk_(kChunkBytes) {
    if (deflateInit2(&z_, kGzipLevel, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY) != Z_OK) throw std::bad_alloc();
  }
  GzipEncoder(const GzipEncoder&) = delete;
  GzipEncoder& operator=(const GzipEncoder&) = delete;
  ~GzipEncoder() override { deflateEnd(&z_); }

  void write(OutputFile& file, const char* data, std::size_t size, bool last) override {
    z_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data));  // zlib does not write here; the type lacks const
    z_.avail_in = static_cast<uInt>(size);
    do {
      z_.next_out = reinterpret_cast<Bytef*>(chunk_.data());
      z_.avail_out = static_cast<uInt>(chunk_.size());
      deflate(&z_, last ? Z_FINISH : Z_NO_FLUSH);
      file.write(chunk_.data(), chunk_.size() - z_.avail_out);
    } while (z_.avail_out == 0);
  }

 private:
  std::vector<char> chunk_;
  z_stream z_{};
};

std::unique_ptr<Encoder> encoder_for(const std::string& path) {
  if (path.ends_with(".zst")) return std::make_unique<ZstdEncoder>();
  if (path.ends_with(".gz")) return std::make_unique<GzipEncoder>();
  return std::make_unique<PlainEncoder>();
}

template <class Integer>
void append_number(std::string& text, Integer value) {
  std::array<char, 24> digits{};
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  text.append(digits.data(), end);
}

// Appends `time` in ms: an integer if possible, otherwise a decimal with as many digits as the nanoseconds need.
void append_ms(std::string& text, TimeNs time) {
  append_number(text, time / kNsPerMs);
  TimeNs rest = time % kNsPerMs;
  if (rest == 0) return;
  text += '.';
  for (TimeNs unit = kNsPerMs / 10; rest > 0; unit /= 10) {
    text += static_cast<char>('0' + rest / unit);
    rest %= unit;
  }
}

void append_session(std::string& text, std::uint64_t session) {
  append_number(text, session == kSessionZero ? 0 : session);
}

void append_hint(std::string& text, const Hint& hint) {
  text.append(",\"hint\":\"").append(name_of(hint.kind)).append("\",\"session\":");
  append_session(text, hint.subject);
  if (hint.value != 0) append_number(text.append(",\"value\":"), hint.value);
}

void append_request(std::string& text, const TraceRequest& request) {
  append_number(text.append(",\"input_length\":"), request.input);
  append_number(text.append(",\"output_length\":"), request.output);
  text += ",\"hash_ids\":[";
  for (std::size_t i = 0; i < request.blocks.size(); ++i) {
    if (i > 0) text += ',';
    append_number(text, request.blocks[i]);
  }
  text += ']';
  if (request.system != 0) append_number(text.append(",\"system_length\":"), request.system);
  if (request.session != 0) append_session(text.append(",\"session\":"), request.session);
  if (request.turn != 0) append_number(text.append(",\"turn\":"), request.turn);
  if (request.tenant != 0) append_number(text.append(",\"tenant\":"), request.tenant);
  if (request.priority != 0) append_number(text.append(",\"priority\":"), request.priority);
  if (request.think >= 0) append_ms(text.append(",\"think_time\":"), request.think);
  if (request.type != 0) append_number(text.append(",\"type\":"), request.type);
}

}  // namespace

struct TraceWriter::State {
  explicit State(const std::string& path) : file(path), encoder(encoder_for(path)) {}

  void flush(bool last) {
    encoder->write(file, text.data(), text.size(), last);
    bytes += text.size();
    text.clear();
  }

  OutputFile file;
  std::unique_ptr<Encoder> encoder;
  std::string text;  // lines not yet encoded
  std::uint64_t bytes = 0;
};

TraceWriter::TraceWriter(const std::string& path) : state_(std::make_unique<State>(path)) {}
TraceWriter::~TraceWriter() = default;

void TraceWriter::write(const TraceRequest& request) {
  std::string& text = state_->text;
  append_ms(text.append("{\"timestamp\":"), request.arrival);
  request.is_hint ? append_hint(text, request.hint) : append_request(text, request);
  text += "}\n";
  if (text.size() >= kChunkBytes) state_->flush(false);
}

void TraceWriter::flush() {
  state_->flush(false);
  state_->file.flush();
}

std::uint64_t TraceWriter::bytes() const { return state_->bytes + state_->text.size(); }

void TraceWriter::finish() {
  state_->flush(true);
  state_->file.close();
}

}  // namespace kvtwin
