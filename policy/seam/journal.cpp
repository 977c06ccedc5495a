#include "policy/seam/journal.hpp"

#include <openssl/evp.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

// No text file begins like this, and a copy in text mode changes these bytes.
constexpr std::array<std::byte, 8> kMagic = {std::byte{0x89}, std::byte{'k'}, std::byte{'v'}, std::byte{'t'},
                                             std::byte{'w'},  std::byte{'i'}, std::byte{'n'}, std::byte{'\n'}};
constexpr std::size_t kCheckBytes = 4;
constexpr std::size_t kHeaderBytes = 48;      // up to its first check
constexpr std::size_t kRecordHeadBytes = 16;  // up to its first check
constexpr std::size_t kKeySize = 32;
constexpr std::size_t kKinds = std::variant_size_v<decltype(Input::what)>;
constexpr std::size_t kCommonBytes = 24;  // the common begin of every payload
// Sizes of payloads by kind. An arrival also has its keys, a reduction its values.
constexpr std::array<std::size_t, kKinds> kPayloadBytes = {64, 44, 72, 32, 36};
constexpr std::size_t kValueBytes = 8;
// The reduction of version 2.
constexpr std::size_t kOldReductionWidth = 16;
constexpr std::size_t kOldReductionBytes = kCommonBytes + 8 + kOldReductionWidth * kValueBytes;
static_assert(kOldReductionWidth <= kMaxReduceWidth);
constexpr std::uint32_t kEndType = kKinds + 1;

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

std::byte* store_i64(std::byte* to, std::int64_t value) { return store_le64(to, static_cast<std::uint64_t>(value)); }

std::array<std::byte, 32> sha256(const void* data, std::size_t bytes) {
  std::array<std::byte, 32> digest{};
  unsigned int size = 0;
  const int ok = EVP_Digest(data, bytes, reinterpret_cast<unsigned char*>(digest.data()), &size, EVP_sha256(), nullptr);
  KV_CHECK(ok == 1 && size == digest.size(), "libcrypto has SHA-256");
  return digest;
}

// Reads words from a payload. Requires: the payload is long enough.
class Words {
 public:
  explicit Words(const std::byte* at) : at_(at) {}
  std::uint64_t u64() { return load_le64(std::exchange(at_, at_ + 8)); }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  std::uint32_t u32() { return load_le32(std::exchange(at_, at_ + 4)); }

 private:
  const std::byte* at_;
};

// ---- ranges of the fields, the same for writer and reader

bool in_range(const Arrival& arrival) {
  return arrival.request != kNoRequest && arrival.prompt_tokens >= 1 && arrival.prompt_tokens <= kMaxJournalTokens &&
         arrival.output_tokens >= 1 && arrival.output_tokens <= kMaxJournalTokens &&
         arrival.keys.size() <= kMaxJournalKeys;
}
bool in_range(const Hint& hint) { return hint.kind <= HintKind::abort; }
bool in_range(const Completion& completion) {
  return completion.id != OperationId::none && completion.status <= Status::gate_failed && completion.stalled_ns >= 0 &&
         completion.cause <= Cause::full;
}
bool in_range(const TimerFired& timer) { return timer.id != OperationId::none; }
bool in_range(const Reduction& reduction) { return reduction.id != OperationId::none; }

// Time and the number of decisions never decrease. A digest changes only with the number of decisions.
bool in_range(const Input& input, const DecisionMark& mark, TimeNs last_now, const DecisionMark& last_mark) {
  return input.now >= last_now && mark.count >= last_mark.count &&
         (mark.count > last_mark.count || mark.digest == last_mark.digest) &&
         std::visit([](const auto& what) { return in_range(what); }, input.what);
}

// There are no decisions between the last input and the end.
bool ends_well(TimeNs now, const DecisionMark& mark, TimeNs last_now, const DecisionMark& last_mark) {
  return now >= last_now && mark == last_mark;
}

// ---- payloads -------------------------------------------------------------------------------------------

void store(std::byte* to, const Arrival& arrival) {
  to = store_le64(to, arrival.request);
  to = store_le64(to, arrival.prompt_tokens);
  to = store_le64(to, arrival.output_tokens);
  to = store_le64(to, arrival.session);
  to = store_le32(to, static_cast<std::uint32_t>(arrival.priority));
  to = store_le32(to, static_cast<std::uint32_t>(arrival.keys.size()));
  for (const PageKey& key : arrival.keys) {
    for (const std::uint64_t word : key.words) to = store_le64(to, word);
  }
}

void store(std::byte* to, const Hint& hint) {
  to = store_le64(to, hint.subject);
  to = store_i64(to, hint.value);
  store_le32(to, static_cast<std::uint32_t>(hint.kind));
}

void store(std::byte* to, const Completion& completion) {
  to = store_le64(to, static_cast<std::uint64_t>(completion.id));
  to = store_le64(to, completion.bytes);
  to = store_le64(to, completion.steps);
  to = store_i64(to, completion.stalled_ns);
  to = store_le64(to, completion.pages);
  to = store_le32(to, static_cast<std::uint32_t>(completion.status));
  store_le32(to, static_cast<std::uint32_t>(completion.cause));
}

void store(std::byte* to, const TimerFired& timer) { store_le64(to, static_cast<std::uint64_t>(timer.id)); }

void store(std::byte* to, const Reduction& reduction) {
  to = store_le64(to, static_cast<std::uint64_t>(reduction.id));
  to = store_le32(to, static_cast<std::uint32_t>(reduction.values.size()));
  for (const std::int64_t value : reduction.values) to = store_i64(to, value);
}

// A number that is too large for the enum becomes 255, which is outside every range.
template <typename Enum>
Enum load_enum(std::uint32_t value) {
  return static_cast<Enum>(std::min<std::uint32_t>(value, 0xFF));
}

Hint load_hint(Words words) {
  Hint hint;
  hint.subject = words.u64();
  hint.value = words.i64();
  hint.kind = load_enum<HintKind>(words.u32());
  return hint;
}

Completion load_completion(Words words) {
  Completion completion;
  completion.id = OperationId{words.u64()};
  completion.bytes = words.u64();
  completion.steps = words.u64();
  completion.stalled_ns = words.i64();
  completion.pages = words.u64();
  completion.status = load_enum<Status>(words.u32());
  completion.cause = load_enum<Cause>(words.u32());
  return completion;
}

// Returns false if the payload does not have the length of a reduction of this version.
bool load_reduction(Words words, std::uint32_t version, std::size_t payload_bytes, Reduction& reduction) {
  reduction.id = OperationId{words.u64()};
  std::size_t width = kOldReductionWidth;
  if (version >= 3) {
    width = words.u32();
    if (width > kMaxReduceWidth) return false;
    if (payload_bytes != kPayloadBytes[static_cast<std::size_t>(InputKind::reduction)] + width * kValueBytes)
      return false;
  }
  reduction.values.resize(width);
  for (std::int64_t& value : reduction.values) value = words.i64();
  return true;
}

struct PayloadSizes {
  std::size_t least = 0, most = 0;
};

PayloadSizes payload_sizes(InputKind kind, std::uint32_t version) {
  const std::size_t least = kPayloadBytes[static_cast<std::size_t>(kind)];
  switch (kind) {
    case InputKind::arrival: return {least, least + kMaxJournalKeys * kKeySize};
    case InputKind::reduction:
      if (version < 3) return {kOldReductionBytes, kOldReductionBytes};
      return {least, least + kMaxReduceWidth * kValueBytes};
    default: return {least, least};
  }
}

}  // namespace

InputKind kind_of(const Input& input) { return static_cast<InputKind>(input.what.index()); }

std::string_view name_of(InputKind kind) {
  switch (kind) {
    case InputKind::arrival: return "arrival";
    case InputKind::hint: return "hint";
    case InputKind::completion: return "completion";
    case InputKind::timer: return "timer";
    case InputKind::reduction: return "reduction";
  }
  return "unknown";
}

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

JournalWriter::JournalWriter(ByteSink& sink, std::string_view text) : sink_(sink) {
  KV_CHECK(text.size() <= kMaxJournalTextBytes, "a journal's text is of moderate length");
  buffer_.resize(kHeaderBytes + text.size() + 2 * kCheckBytes);
  std::byte* to = std::ranges::copy(kMagic, buffer_.data()).out;
  to = store_le32(to, kJournalVersion);
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

void JournalWriter::append(const Input& input, const DecisionMark& after) {
  KV_CHECK(!finished_, "a finished journal takes no more inputs");
  KV_CHECK(in_range(input, after, last_now_, last_mark_), "an input keeps the seam's field ranges");
  std::size_t size = kPayloadBytes[input.what.index()];
  if (const auto* arrival = std::get_if<Arrival>(&input.what)) size += arrival->keys.size() * kKeySize;
  if (const auto* reduction = std::get_if<Reduction>(&input.what)) size += reduction->values.size() * kValueBytes;
  std::byte* const to = open(static_cast<std::uint32_t>(input.what.index() + 1), size, input.now, after);
  std::visit([to](const auto& what) { store(to, what); }, input.what);
  close();
  ++records_;
}

void JournalWriter::finish(TimeNs now, const DecisionMark& after) {
  KV_CHECK(!finished_, "a journal is finished once");
  KV_CHECK(ends_well(now, after, last_now_, last_mark_), "a run ends with its last input's decisions");
  open(kEndType, kCommonBytes, now, after);
  close();
  finished_ = true;
}

std::byte* JournalWriter::open(std::uint32_t type, std::size_t payload_bytes, TimeNs now, const DecisionMark& after) {
  last_now_ = now;
  last_mark_ = after;
  buffer_.resize(kRecordHeadBytes + payload_bytes + 2 * kCheckBytes);
  std::byte* to = store_le32(buffer_.data(), static_cast<std::uint32_t>(payload_bytes));
  to = store_le32(to, type);
  to = store_le64(to, records_ + 1);
  to += kCheckBytes;
  to = store_i64(to, now);
  to = store_le64(to, after.count);
  return store_le64(to, after.digest);
}

void JournalWriter::close() {
  std::byte* const payload = buffer_.data() + kRecordHeadBytes + kCheckBytes;
  const std::size_t size = buffer_.size() - kRecordHeadBytes - 2 * kCheckBytes;
  check_ = chained(buffer_.data(), kRecordHeadBytes, check_);
  store_check(buffer_.data() + kRecordHeadBytes, check_);
  check_ = chained(payload, size, check_);
  store_check(payload + size, check_);
  sink_.write(buffer_);
}

// ---- reader ---------------------------------------------------------------------------------------------

void JournalReader::extend(std::span<const std::byte> bytes) {
  KV_CHECK(bytes.size() >= bytes_.size(), "a journal only grows");
  bytes_ = bytes;
}

std::string_view JournalReader::text() const {
  if (ahead_.number == 0) return {};
  return {reinterpret_cast<const char*>(bytes_.data()) + kHeaderBytes + kCheckBytes, text_bytes_};
}

JournalStatus JournalReader::stop(JournalStatus status) { return stopped_ = status; }

JournalStatus JournalReader::header() {
  place_ = {};
  if (ahead_.number > 0) return JournalStatus::record;
  return stopped_ == JournalStatus::record ? parse_header() : stopped_;
}

JournalStatus JournalReader::next(JournalRecord& record) {
  place_ = ahead_;
  if (stopped_ != JournalStatus::record) return stopped_;
  if (ahead_.number == 0) {
    const JournalStatus status = parse_header();
    if (status != JournalStatus::record) return status;
    place_ = ahead_;
  }
  return parse_record(record);
}

JournalStatus JournalReader::parse_header() {
  const std::byte* const at = bytes_.data();
  const std::size_t magic = std::min(bytes_.size(), kMagic.size());
  if (!std::equal(at, at + magic, kMagic.begin())) return stop(JournalStatus::corrupt);
  if (bytes_.size() < kMagic.size() + 4) return JournalStatus::truncated;
  // The version comes first: other versions may look different from here on.
  version_ = load_le32(at + kMagic.size());
  if (version_ < kOldestJournalVersion || version_ > kJournalVersion) return stop(JournalStatus::wrong_version);
  if (bytes_.size() < kHeaderBytes + kCheckBytes) return JournalStatus::truncated;
  const std::uint64_t first = chained(at, kHeaderBytes, 0);
  if (!check_holds(at + kHeaderBytes, first)) return stop(JournalStatus::corrupt);
  const std::size_t size = load_le32(at + kMagic.size() + 4);
  if (size > kMaxJournalTextBytes) return stop(JournalStatus::corrupt);
  if (bytes_.size() - kHeaderBytes < size + 2 * kCheckBytes) return JournalStatus::truncated;

  const std::byte* const words = at + kHeaderBytes + kCheckBytes;
  const std::uint64_t second = chained(words, size, first);
  if (!check_holds(words + size, second)) return stop(JournalStatus::corrupt);
  std::copy_n(at + kMagic.size() + 8, text_digest_.size(), text_digest_.begin());
  if (sha256(words, size) != text_digest_) return stop(JournalStatus::corrupt);
  text_bytes_ = size;
  check_ = second;
  ahead_ = {1, kHeaderBytes + size + 2 * kCheckBytes};
  return JournalStatus::record;
}

JournalStatus JournalReader::parse_record(JournalRecord& record) {
  const std::byte* const at = bytes_.data() + ahead_.offset;
  const std::size_t left = bytes_.size() - ahead_.offset;
  if (end_.number != 0) {
    if (left != 0) return stop(JournalStatus::corrupt);
    place_ = end_;
    return JournalStatus::end;
  }
  if (left < kRecordHeadBytes + kCheckBytes) return JournalStatus::truncated;
  const std::uint64_t first = chained(at, kRecordHeadBytes, check_);
  if (!check_holds(at + kRecordHeadBytes, first)) return stop(JournalStatus::corrupt);

  const std::size_t size = load_le32(at);
  const std::uint32_t type = load_le32(at + 4);
  if (type < 1 || type > kEndType || load_le64(at + 8) != ahead_.number) return stop(JournalStatus::corrupt);
  const bool ends = type == kEndType;
  const auto kind = static_cast<InputKind>(type - 1);
  const PayloadSizes sizes = ends ? PayloadSizes{kCommonBytes, kCommonBytes} : payload_sizes(kind, version_);
  if (size < sizes.least || size > sizes.most) return stop(JournalStatus::corrupt);
  if (left - kRecordHeadBytes < size + 2 * kCheckBytes) return JournalStatus::truncated;

  const std::byte* const payload = at + kRecordHeadBytes + kCheckBytes;
  const std::uint64_t second = chained(payload, size, first);
  if (!check_holds(payload + size, second)) return stop(JournalStatus::corrupt);
  if (ends ? !parse_end(payload) : !parse_payload(kind, payload, size, record)) return stop(JournalStatus::corrupt);
  check_ = second;
  ahead_ = {ahead_.number + 1, ahead_.offset + kRecordHeadBytes + size + 2 * kCheckBytes};
  if (ends) {
    end_ = place_;
    place_ = ahead_;
    return parse_record(record);  // no bytes may follow
  }
  record.number = place_.number;
  last_now_ = record.input.now;
  last_mark_ = record.after;
  return JournalStatus::record;
}

bool JournalReader::parse_end(const std::byte* payload) {
  Words words(payload);
  const TimeNs now = words.i64();
  const std::uint64_t count = words.u64();
  if (!ends_well(now, {count, words.u64()}, last_now_, last_mark_)) return false;
  last_now_ = now;
  return true;
}

std::string_view JournalReader::kind_here() const {
  const std::size_t left = bytes_.size() - std::min(bytes_.size(), place_.offset);
  if (place_.number == 0) return "header";
  if (left < 8) return "unknown";
  const std::uint32_t type = load_le32(bytes_.data() + place_.offset + 4);
  if (type == kEndType) return "end";
  return type >= 1 && type <= kKinds ? name_of(static_cast<InputKind>(type - 1)) : "unknown";
}

bool JournalReader::parse_payload(InputKind kind, const std::byte* payload, std::size_t size, JournalRecord& record) {
  Words words(payload);
  record.input.now = words.i64();
  record.after.count = words.u64();
  record.after.digest = words.u64();
  switch (kind) {
    case InputKind::arrival: {
      Arrival arrival;
      arrival.request = words.u64();
      arrival.prompt_tokens = words.u64();
      arrival.output_tokens = words.u64();
      arrival.session = words.u64();
      arrival.priority = static_cast<std::int32_t>(words.u32());
      const std::size_t keys = words.u32();
      if (size != kPayloadBytes[0] + keys * kKeySize) return false;
      keys_.resize(keys);  // never more than the payload has
      for (PageKey& key : keys_) {
        for (std::uint64_t& word : key.words) word = words.u64();
      }
      arrival.keys = keys_;
      record.input.what = arrival;
      break;
    }
    case InputKind::hint: record.input.what = load_hint(words); break;
    case InputKind::completion: record.input.what = load_completion(words); break;
    case InputKind::timer: record.input.what = TimerFired{OperationId{words.u64()}}; break;
    case InputKind::reduction: {
      Reduction reduction;
      if (!load_reduction(words, version_, size, reduction)) return false;
      record.input.what = reduction;
      break;
    }
  }
  return in_range(record.input, record.after, last_now_, last_mark_);
}

}  // namespace kvtwin
