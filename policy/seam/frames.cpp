#include "policy/seam/frames.hpp"

#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>

#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kCheckBytes = 4;
constexpr std::size_t kHeaderBytes = 48;      // up to its first check
constexpr std::size_t kRecordHeadBytes = 16;  // up to its first check

// XXH3 instead of zlib's CRC-32: policy/ links it already, it is several times faster on records of this size, and it
// takes a seed, which makes each check depend on all earlier ones. A CRC detects every short burst of errors. XXH3
// misses one with a probability of 2^-32, and the next check then detects it: the 64-bit value is the next seed, and
// only its low half is stored.
std::uint64_t chained(const std::byte* bytes, std::size_t size, std::uint64_t before) {
  return XXH3_64bits_withSeed(bytes, size, before);
}

std::byte* store_check(std::byte* to, std::uint64_t check) {
  return store_le32(to, static_cast<std::uint32_t>(check & 0xFFFFFFFFU));
}

bool check_holds(const std::byte* stored, std::uint64_t check) {
  return load_le32(stored) == static_cast<std::uint32_t>(check & 0xFFFFFFFFU);
}

std::array<std::byte, 32> sha256(const void* data, std::size_t bytes) {
  std::array<std::byte, 32> digest{};
  unsigned int size = 0;
  const int ok = EVP_Digest(data, bytes, reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_sha256(), nullptr);
  KV_CHECK(ok == 1 && size == digest.size(), "libcrypto has SHA-256");
  return digest;
}

}  // namespace

std::string_view name_of(JournalStatus status) {
  switch (status) {
    case JournalStatus::record: return "record";
    case JournalStatus::end: return "end";
    case JournalStatus::truncated: return "truncated";
    case JournalStatus::corrupt: return "corrupt";
    case JournalStatus::wrong_version: return "wrong_version";
  }
  return "unknown";
}

// ---- writer ---------------------------------------------------------------------------------------------

FrameWriter::FrameWriter(ByteSink& sink, const JournalMagic& magic, std::uint32_t version, std::string_view text)
    : sink_(sink) {
  KV_CHECK(text.size() <= kMaxJournalTextBytes, "a journal's text is of moderate length");
  buffer_.resize(kHeaderBytes + text.size() + 2 * kCheckBytes);
  std::byte* to = std::ranges::copy(magic, buffer_.data()).out;
  to = store_le32(to, version);
  to = store_le32(to, static_cast<std::uint32_t>(text.size()));
  to = std::ranges::copy(sha256(text.data(), text.size()), to).out;
  check_ = chained(buffer_.data(), kHeaderBytes, 0);
  to = store_check(to, check_);
  std::byte* const begin = to;
  to = std::ranges::transform(text, to, [](char c) { return static_cast<std::byte>(c); }).out;
  check_ = chained(begin, text.size(), check_);
  store_check(to, check_);
  sink_.write(buffer_);
}

std::byte* FrameWriter::open(std::uint32_t type, std::size_t payload_bytes) {
  buffer_.resize(kRecordHeadBytes + payload_bytes + 2 * kCheckBytes);
  std::byte* to = store_le32(buffer_.data(), static_cast<std::uint32_t>(payload_bytes));
  to = store_le32(to, type);
  to = store_le64(to, ++number_);
  return to + kCheckBytes;
}

void FrameWriter::close() {
  std::byte* const payload = buffer_.data() + kRecordHeadBytes + kCheckBytes;
  const std::size_t size = buffer_.size() - kRecordHeadBytes - 2 * kCheckBytes;
  check_ = chained(buffer_.data(), kRecordHeadBytes, check_);
  store_check(buffer_.data() + kRecordHeadBytes, check_);
  check_ = chained(payload, size, check_);
  store_check(payload + size, check_);
  sink_.write(buffer_);
}

// ---- reader ---------------------------------------------------------------------------------------------

void FrameReader::extend(std::span<const std::byte> bytes) {
  KV_CHECK(bytes.size() >= bytes_.size(), "a journal only grows");
  bytes_ = bytes;
}

std::string_view FrameReader::text() const {
  if (ahead_.number == 0) return {};
  return {reinterpret_cast<const char*>(bytes_.data()) + kHeaderBytes + kCheckBytes, text_bytes_};
}

JournalStatus FrameReader::header() {
  place_ = {};
  if (ahead_.number > 0) return JournalStatus::record;
  return stopped_ == JournalStatus::record ? parse_header() : stopped_;
}

JournalStatus FrameReader::parse_header() {
  const auto stop = [this](JournalStatus status) { return stopped_ = status; };
  const std::byte* const at = bytes_.data();
  const std::size_t magic = std::min(bytes_.size(), form_.magic.size());
  if (!std::equal(at, at + magic, form_.magic.begin())) return stop(JournalStatus::corrupt);
  if (bytes_.size() < form_.magic.size() + 4) return JournalStatus::truncated;
  // The version comes first: other versions may look different from here on.
  version_ = load_le32(at + form_.magic.size());
  if (version_ < form_.oldest_version || version_ > form_.version) return stop(JournalStatus::wrong_version);
  if (bytes_.size() < kHeaderBytes + kCheckBytes) return JournalStatus::truncated;
  const std::uint64_t first = chained(at, kHeaderBytes, 0);
  if (!check_holds(at + kHeaderBytes, first)) return stop(JournalStatus::corrupt);
  const std::size_t size = load_le32(at + form_.magic.size() + 4);
  if (size > kMaxJournalTextBytes) return stop(JournalStatus::corrupt);
  if (bytes_.size() - kHeaderBytes < size + 2 * kCheckBytes) return JournalStatus::truncated;

  const std::byte* const words = at + kHeaderBytes + kCheckBytes;
  const std::uint64_t second = chained(words, size, first);
  if (!check_holds(words + size, second)) return stop(JournalStatus::corrupt);
  std::copy_n(at + form_.magic.size() + 8, text_digest_.size(), text_digest_.begin());
  if (sha256(words, size) != text_digest_) return stop(JournalStatus::corrupt);
  text_bytes_ = size;
  check_ = second;
  ahead_ = {1, kHeaderBytes + size + 2 * kCheckBytes};
  return JournalStatus::record;
}

JournalStatus FrameReader::peek(Frame& frame) {
  place_ = ahead_;
  if (stopped_ != JournalStatus::record) return stopped_;
  if (ahead_.number == 0) {
    const JournalStatus status = parse_header();
    if (status != JournalStatus::record) return status;
    place_ = ahead_;
  }
  const std::byte* const at = bytes_.data() + ahead_.offset;
  const std::size_t left = bytes_.size() - ahead_.offset;
  if (end_.number != 0) {
    if (left != 0) return refuse();
    place_ = end_;
    return JournalStatus::end;
  }
  if (left < kRecordHeadBytes + kCheckBytes) return JournalStatus::truncated;
  const std::uint64_t first = chained(at, kRecordHeadBytes, check_);
  if (!check_holds(at + kRecordHeadBytes, first)) return refuse();

  const std::size_t size = load_le32(at);
  type_ = load_le32(at + 4);
  if (type_ < 1 || type_ > form_.max_type || load_le64(at + 8) != ahead_.number) return refuse();
  if (!form_.may_have(type_, version_, size)) return refuse();
  if (left - kRecordHeadBytes < size + 2 * kCheckBytes) return JournalStatus::truncated;

  const std::byte* const payload = at + kRecordHeadBytes + kCheckBytes;
  check_behind_ = chained(payload, size, first);
  if (!check_holds(payload + size, check_behind_)) return refuse();
  behind_ = {ahead_.number + 1, ahead_.offset + kRecordHeadBytes + size + 2 * kCheckBytes};
  frame = {type_, {payload, size}};
  return JournalStatus::record;
}

void FrameReader::accept() {
  if (type_ == form_.end_type) end_ = place_;
  check_ = check_behind_;
  ahead_ = behind_;
}

std::uint32_t FrameReader::type_here() const {
  const std::size_t left = bytes_.size() - std::min(bytes_.size(), place_.offset);
  return place_.number == 0 || left < 8 ? 0 : load_le32(bytes_.data() + place_.offset + 4);
}

}  // namespace kvtwin
