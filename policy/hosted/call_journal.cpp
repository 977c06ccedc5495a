#include "policy/hosted/call_journal.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "policy/base/byte_order.hpp"

namespace kvtwin {

// No text file begins like this, and a copy in text mode changes these bytes.
const JournalMagic kCallJournalMagic = {std::byte{0x89}, std::byte{'k'}, std::byte{'v'}, std::byte{'c'},
                                        std::byte{'a'},  std::byte{'l'}, std::byte{'l'}, std::byte{'\n'}};

namespace {

enum : std::uint32_t { kTree = 1, kCall = 2, kEnd = 3 };
constexpr std::size_t kTreeBytes = 52;
constexpr std::size_t kCallBytes = 104, kKeySize = 32;
constexpr std::uint8_t kStorageCall = 18;  // in place of a CallVerb
// By the number of a record's node.
constexpr std::array kStorageVerbs{StorageVerb::get, StorageVerb::set, StorageVerb::look_up};
constexpr std::uint32_t kWholeNodes = 1, kSplitRefreshes = 2, kHitsByCount = 4;

bool may_have(std::uint32_t type, std::uint32_t, std::size_t bytes) {
  switch (type) {
    case kTree: return bytes > kTreeBytes && bytes <= kTreeBytes + kMaxEvictionBytes;
    case kCall: return bytes >= kCallBytes && bytes <= kCallBytes + HostedTree::kMaxKeys * kKeySize;
    default: return bytes == 0;
  }
}

const FrameForm& form() {
  static const FrameForm kForm{kCallJournalMagic, kCallJournalVersion, kCallJournalVersion, kEnd, kEnd, may_have};
  return kForm;
}

class Put {
 public:
  explicit Put(std::byte* at) : at_(at) {}
  Put& u32(std::uint64_t value) { return at_ = store_le32(at_, static_cast<std::uint32_t>(value)), *this; }
  Put& u64(std::uint64_t value) { return at_ = store_le64(at_, value), *this; }
  Put& i64(std::int64_t value) { return u64(static_cast<std::uint64_t>(value)); }
  std::byte* at() const { return at_; }

 private:
  std::byte* at_;
};

class Take {
 public:
  explicit Take(const std::byte* at) : at_(at) {}
  std::uint32_t u32() { return load_le32(std::exchange(at_, at_ + 4)); }
  std::uint64_t u64() { return load_le64(std::exchange(at_, at_ + 8)); }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  const std::byte* at() const { return at_; }

 private:
  const std::byte* at_;
};

// Takes the fields of a storage call out of `record`. Returns false if others are set.
bool take_storage_call(CallRecord& record) {
  const Call& call = record.call;
  const auto verb = static_cast<std::size_t>(call.node);
  const bool others = call.tier != Tier::device || call.hint != HintKind{} || call.value != 0 ||
                      call.prompt_tokens != 0 || call.output_tokens != 0 || !call.keys.empty() ||
                      record.answer != Answer{} || record.after != DecisionMark{};
  if (others || verb >= kStorageVerbs.size()) return false;
  record.storage = {kStorageVerbs.at(verb), call.pages, call.request, call.session, call.time};
  record.call = {};
  return true;
}

// Returns false if a field is out of range.
bool parse_tree(std::span<const std::byte> payload, HostedSetup& setup) {
  Take take(payload.data());
  setup.page_tokens = take.u32();
  const std::uint32_t flags = take.u32();
  if (flags > (kWholeNodes | kSplitRefreshes | kHitsByCount)) return false;
  setup.whole_nodes = (flags & kWholeNodes) != 0;
  setup.split_refreshes = (flags & kSplitRefreshes) != 0;
  setup.hits_by_count = (flags & kHitsByCount) != 0;
  setup.device_pages = take.u64();
  setup.host_pages = take.u64();
  setup.doubling_tokens = take.u64();
  const std::uint32_t slru_protected = take.u32();
  const Tokens tlru_threshold = take.u64(), tlru_next_prompt = take.u64();
  const std::string_view eviction(reinterpret_cast<const char*>(take.at()), payload.size() - kTreeBytes);
  setup.eviction = with_numbers(eviction, slru_protected, tlru_threshold, tlru_next_prompt);
  return HostedTree::error_of(setup).empty();
}

bool parse_call(std::span<const std::byte> payload, CallRecord& record, std::vector<PageKey>& keys) {
  Take take(payload.data());
  const std::uint32_t head = take.u32();
  const std::uint32_t verb = head & 0xFFU, tier = head >> 8 & 0xFFU, hint = head >> 16 & 0xFFU;
  const bool is_storage = verb == kStorageCall;
  if ((verb >= kCallVerbs && !is_storage) || tier > 1 || hint > static_cast<std::uint32_t>(HintKind::abort) ||
      head >> 24 != 0) {
    return false;
  }
  Call& call = record.call;
  call.verb = is_storage ? CallVerb{} : static_cast<CallVerb>(verb);
  call.tier = tier == 0 ? Tier::device : Tier::host;
  call.hint = static_cast<HintKind>(hint);
  call.node = NodeId{take.u32()};
  call.pages = take.u64();
  call.request = take.u64();
  call.time = take.i64();
  call.session = take.u64();
  call.value = take.i64();
  call.prompt_tokens = take.u64();
  call.output_tokens = take.u64();
  record.answer.node = NodeId{take.u32()};
  record.answer.device_pages = take.u64();
  record.answer.host_pages = take.u64();
  record.after.count = take.u64();
  record.after.digest = take.u64();
  const std::size_t count = take.u32();
  if (payload.size() != kCallBytes + count * kKeySize) return false;
  keys.resize(count);  // never more than the payload has
  for (PageKey& key : keys) {
    for (std::uint64_t& word : key.words) word = take.u64();
  }
  call.keys = keys;
  return !is_storage || take_storage_call(record);
}

}  // namespace

CallJournalWriter::CallJournalWriter(ByteSink& sink, std::string_view text)
    : frames_(sink, kCallJournalMagic, kCallJournalVersion, text) {}

void CallJournalWriter::tree(const HostedSetup& setup) {
  Put put(frames_.open(kTree, kTreeBytes + setup.eviction.size()));
  put.u32(setup.page_tokens);
  put.u32((setup.whole_nodes ? kWholeNodes : 0) | (setup.split_refreshes ? kSplitRefreshes : 0) |
          (setup.hits_by_count ? kHitsByCount : 0));
  put.u64(setup.device_pages).u64(setup.host_pages).u64(setup.doubling_tokens);
  put.u32(kSlruProtected).u64(0).u64(0);  // earlier journals have parameters here; now the text has them
  std::byte* to = put.at();
  for (const char letter : setup.eviction) *to++ = static_cast<std::byte>(letter);
  frames_.close();
}

void CallJournalWriter::append(const Call& call, const Answer& answer, const DecisionMark& after) {
  put(static_cast<std::uint8_t>(call.verb), call, answer, after);
}

void CallJournalWriter::append(const HostStorageCall& call) {
  const auto verb = std::ranges::find(kStorageVerbs, call.verb) - kStorageVerbs.begin();
  put(kStorageCall,
      {.node = NodeId{static_cast<std::uint32_t>(verb)},
       .pages = call.pages,
       .request = call.done,
       .time = call.duration,
       .session = call.bytes},
      {}, {});
}

void CallJournalWriter::put(std::uint8_t verb, const Call& call, const Answer& answer, const DecisionMark& after) {
  Put put(frames_.open(kCall, kCallBytes + call.keys.size() * kKeySize));
  put.u32(verb | (call.tier == Tier::host ? 1U << 8 : 0U) | static_cast<std::uint32_t>(call.hint) << 16);
  put.u32(static_cast<std::uint32_t>(call.node)).u64(call.pages).u64(call.request).i64(call.time);
  put.u64(call.session).i64(call.value).u64(call.prompt_tokens).u64(call.output_tokens);
  put.u32(static_cast<std::uint32_t>(answer.node)).u64(answer.device_pages).u64(answer.host_pages);
  put.u64(after.count).u64(after.digest).u32(call.keys.size());
  for (const PageKey& key : call.keys) {
    for (const std::uint64_t word : key.words) put.u64(word);
  }
  frames_.close();
}

void CallJournalWriter::finish() {
  frames_.open(kEnd, 0);
  frames_.close();
}

CallJournalReader::CallJournalReader(std::span<const std::byte> bytes) : frames_(bytes, form()) {}

JournalStatus CallJournalReader::next(CallRecord& record) {
  FrameReader::Frame frame;
  const JournalStatus status = frames_.peek(frame);
  if (status != JournalStatus::record) return status;
  if (frame.type == kEnd) {
    frames_.accept();
    return frames_.peek(frame);  // no bytes may follow
  }
  record.tree.reset();
  record.storage.reset();
  if (frame.type == kTree) {
    if (!parse_tree(frame.payload, record.tree.emplace())) return frames_.refuse();
    has_tree_ = true;
  } else {
    if (!parse_call(frame.payload, record, keys_)) return frames_.refuse();
    if (!has_tree_ && !record.storage) return frames_.refuse();
  }
  frames_.accept();
  return JournalStatus::record;
}

}  // namespace kvtwin
