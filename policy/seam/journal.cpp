#include "policy/seam/journal.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include "policy/base/byte_order.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

// No text file begins like this, and a copy in text mode changes these bytes.
constexpr JournalMagic kMagic = {std::byte{0x89}, std::byte{'k'}, std::byte{'v'}, std::byte{'t'},
                                 std::byte{'w'},  std::byte{'i'}, std::byte{'n'}, std::byte{'\n'}};
constexpr std::size_t kKeySize = 32;
constexpr std::size_t kKinds = std::variant_size_v<decltype(Input::what)>;
constexpr std::size_t kCommonBytes = 24;  // the common begin of every payload
// Sizes of payloads by kind. An arrival also has its keys and its part, a completion its usable lengths, a reduction
// its values, a notice its slots.
constexpr std::array<std::size_t, kKinds> kPayloadBytes = {64, 44, 72, 32, 36, 56};
constexpr std::size_t kPartBytes = 12;   // what version 4 has added to an arrival
constexpr std::size_t kSystemBytes = 8;  // what version 7 has added to an arrival
constexpr std::size_t kUsableBytes = 4;  // what version 6 has added to a completion, beside the lengths
constexpr std::size_t added_to_arrival(std::uint32_t version) {
  return version < 4 ? 0 : version < 7 ? kPartBytes : kPartBytes + kSystemBytes;
}
constexpr std::size_t kSlotBytes = 4;
constexpr std::size_t kValueBytes = 8;
// The reduction of version 2.
constexpr std::size_t kOldReductionWidth = 16;
constexpr std::size_t kOldReductionBytes = kCommonBytes + 8 + kOldReductionWidth * kValueBytes;
static_assert(kOldReductionWidth <= kMaxReduceWidth);
// Types are kinds from 1 on; the end has the number that it had before there were notices.
constexpr std::uint32_t kEndType = 6, kMaxType = 7;
static_assert(kMaxType == kKinds + 1);
constexpr std::uint32_t type_of(InputKind kind) {
  const auto type = static_cast<std::uint32_t>(kind) + 1;
  return type < kEndType ? type : type + 1;
}
constexpr InputKind kind_of_type(std::uint32_t type) {
  return static_cast<InputKind>(type < kEndType ? type - 1 : type - 2);
}

std::byte* store_i64(std::byte* to, std::int64_t value) { return store_le64(to, static_cast<std::uint64_t>(value)); }

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
         arrival.system_tokens <= arrival.prompt_tokens && arrival.keys.size() <= kMaxJournalKeys &&
         arrival.part <= RequestPart::decode;
}
bool in_range(const Notice& notice) {
  return notice.kind <= NoticeKind::peer_lost && notice.slots.size() <= kMaxJournalKeys &&
         (notice.request == kNoRequest) == (notice.kind == NoticeKind::peer_lost);
}
bool in_range(const Hint& hint) { return static_cast<std::size_t>(hint.kind) < kHintKinds; }
bool in_range(const Completion& completion) {
  return completion.id != OperationId::none && completion.status <= Status::gate_failed && completion.stalled_ns >= 0 &&
         completion.cause <= Cause::lease && completion.usable.size() <= kMaxJournalKeys;
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
  to = store_le32(to, static_cast<std::uint32_t>(arrival.part));
  to = store_le32(to, arrival.peer);
  to = store_le32(to, arrival.attempt);
  store_le64(to, arrival.system_tokens);
}

void store(std::byte* to, const Notice& notice) {
  to = store_le64(to, notice.request);
  to = store_le64(to, notice.first);
  to = store_le32(to, static_cast<std::uint32_t>(notice.kind));
  to = store_le32(to, notice.attempt);
  to = store_le32(to, notice.peer);
  to = store_le32(to, static_cast<std::uint32_t>(notice.slots.size()));
  for (const SlotId slot : notice.slots) to = store_le32(to, slot);
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
  to = store_le32(to, static_cast<std::uint32_t>(completion.cause));
  to = store_le32(to, static_cast<std::uint32_t>(completion.usable.size()));
  for (const Pages length : completion.usable) to = store_le64(to, length);
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

Completion load_completion(Words& words) {
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
    case InputKind::arrival: {
      const std::size_t part = added_to_arrival(version);
      return {least + part, least + part + kMaxJournalKeys * kKeySize};
    }
    case InputKind::completion:
      if (version < 6) return {least, least};
      return {least + kUsableBytes, least + kUsableBytes + kMaxJournalKeys * kValueBytes};
    case InputKind::notice:
      if (version < 4) return {1, 0};
      return {least, least + kMaxJournalKeys * kSlotBytes};
    case InputKind::reduction:
      if (version < 3) return {kOldReductionBytes, kOldReductionBytes};
      return {least, least + kMaxReduceWidth * kValueBytes};
    default: return {least, least};
  }
}

bool may_have(std::uint32_t type, std::uint32_t version, std::size_t payload_bytes) {
  if (type == kEndType) return payload_bytes == kCommonBytes;
  const PayloadSizes sizes = payload_sizes(kind_of_type(type), version);
  return payload_bytes >= sizes.least && payload_bytes <= sizes.most;
}

constexpr FrameForm kForm{kMagic, kOldestJournalVersion, kJournalVersion, kEndType, kMaxType, may_have};

}  // namespace

InputKind kind_of(const Input& input) { return static_cast<InputKind>(input.what.index()); }

std::string_view name_of(InputKind kind) {
  switch (kind) {
    case InputKind::arrival: return "arrival";
    case InputKind::hint: return "hint";
    case InputKind::completion: return "completion";
    case InputKind::timer: return "timer";
    case InputKind::reduction: return "reduction";
    case InputKind::notice: return "notice";
  }
  return "unknown";
}

// ---- writer ---------------------------------------------------------------------------------------------

JournalWriter::JournalWriter(ByteSink& sink, std::string_view text) : frames_(sink, kMagic, kJournalVersion, text) {}

void JournalWriter::append(const Input& input, const DecisionMark& after) {
  KV_CHECK(!finished_, "a finished journal takes no more inputs");
  KV_CHECK(in_range(input, after, last_now_, last_mark_), "an input keeps the seam's field ranges");
  std::size_t size = kPayloadBytes[input.what.index()];
  if (const auto* arrival = std::get_if<Arrival>(&input.what))
    size += arrival->keys.size() * kKeySize + added_to_arrival(kJournalVersion);
  if (const auto* completion = std::get_if<Completion>(&input.what)) {
    size += kUsableBytes + completion->usable.size() * kValueBytes;
  }
  if (const auto* reduction = std::get_if<Reduction>(&input.what)) size += reduction->values.size() * kValueBytes;
  if (const auto* notice = std::get_if<Notice>(&input.what)) size += notice->slots.size() * kSlotBytes;
  std::byte* const to = open(type_of(kind_of(input)), size, input.now, after);
  std::visit([to](const auto& what) { store(to, what); }, input.what);
  frames_.close();
  ++records_;
}

void JournalWriter::finish(TimeNs now, const DecisionMark& after) {
  KV_CHECK(!finished_, "a journal is finished once");
  KV_CHECK(ends_well(now, after, last_now_, last_mark_), "a run ends with its last input's decisions");
  open(kEndType, kCommonBytes, now, after);
  frames_.close();
  finished_ = true;
}

std::byte* JournalWriter::open(std::uint32_t type, std::size_t payload_bytes, TimeNs now, const DecisionMark& after) {
  last_now_ = now;
  last_mark_ = after;
  std::byte* to = store_i64(frames_.open(type, payload_bytes), now);
  to = store_le64(to, after.count);
  return store_le64(to, after.digest);
}

// ---- reader ---------------------------------------------------------------------------------------------

JournalReader::JournalReader(std::span<const std::byte> bytes) : frames_(bytes, kForm) {}

JournalStatus JournalReader::next(JournalRecord& record) {
  FrameReader::Frame frame;
  JournalStatus status = frames_.peek(frame);
  if (status != JournalStatus::record) return status;
  if (frame.type == kEndType) {
    if (!parse_end(frame.payload.data())) return frames_.refuse();
    frames_.accept();
    return frames_.peek(frame);  // no bytes may follow
  }
  if (!parse_payload(kind_of_type(frame.type), frame.payload.data(), frame.payload.size(), record)) {
    return frames_.refuse();
  }
  frames_.accept();
  record.number = place().number;
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
  if (place().number == 0) return "header";
  const std::uint32_t type = frames_.type_here();
  if (type == kEndType) return "end";
  return type >= 1 && type <= kMaxType ? name_of(kind_of_type(type)) : "unknown";
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
      const std::size_t part = added_to_arrival(frames_.version());
      if (size != kPayloadBytes[0] + keys * kKeySize + part) return false;
      keys_.resize(keys);  // never more than the payload has
      for (PageKey& key : keys_) {
        for (std::uint64_t& word : key.words) word = words.u64();
      }
      arrival.keys = keys_;
      if (part != 0) {
        arrival.part = load_enum<RequestPart>(words.u32());
        arrival.peer = words.u32();
        arrival.attempt = words.u32();
      }
      if (frames_.version() >= 7) arrival.system_tokens = words.u64();
      record.input.what = arrival;
      break;
    }
    case InputKind::hint: record.input.what = load_hint(words); break;
    case InputKind::completion: {
      Completion completion = load_completion(words);
      if (frames_.version() < 5 && completion.cause > Cause::full) return false;
      if (frames_.version() >= 6) {
        const std::size_t lengths = words.u32();
        const std::size_t least = kPayloadBytes[static_cast<std::size_t>(InputKind::completion)] + kUsableBytes;
        if (size != least + lengths * kValueBytes) return false;
        usable_.resize(lengths);  // never more than the payload has
        for (Pages& length : usable_) length = words.u64();
        completion.usable = usable_;
      }
      record.input.what = completion;
      break;
    }
    case InputKind::timer: record.input.what = TimerFired{OperationId{words.u64()}}; break;
    case InputKind::reduction: {
      Reduction reduction;
      if (!load_reduction(words, frames_.version(), size, reduction)) return false;
      record.input.what = reduction;
      break;
    }
    case InputKind::notice: {
      Notice notice;
      notice.request = words.u64();
      notice.first = words.u64();
      notice.kind = load_enum<NoticeKind>(words.u32());
      notice.attempt = words.u32();
      notice.peer = words.u32();
      const std::size_t slots = words.u32();
      if (size != kPayloadBytes[static_cast<std::size_t>(InputKind::notice)] + slots * kSlotBytes) return false;
      slots_.resize(slots);  // never more than the payload has
      for (SlotId& slot : slots_) slot = words.u32();
      notice.slots = slots_;
      record.input.what = notice;
      break;
    }
  }
  return in_range(record.input, record.after, last_now_, last_mark_);
}

}  // namespace kvtwin
