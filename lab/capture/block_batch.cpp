#include "lab/capture/block_batch.hpp"

#include <array>
#include <charconv>
#include <cstddef>
#include <string_view>

#include "lab/capture/kv_batch.hpp"
#include "traces/format.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kMaxGroup = 1 << 20;
constexpr TimeNs kMaxSeconds = 9'000'000'000;
constexpr int kNsDigits = 9;  // of a ns

// As a recording is read: the shortest decimal of the number, rounded to ns.
TimeNs time_of(const MessagePack::Value& value) {
  if (value.kind == MessagePack::Kind::natural && value.number <= static_cast<std::uint64_t>(kMaxSeconds)) {
    return static_cast<TimeNs>(value.number) * kNsPerSecond;
  }
  if (value.kind != MessagePack::Kind::real || value.real < 0 || value.real > static_cast<double>(kMaxSeconds)) {
    refuse_batch("has a time before 1970, or after 285 years");
  }
  std::array<char, 400> text{};
  const char* const end =
      std::to_chars(text.data(), text.data() + text.size(), value.real, std::chars_format::fixed).ptr;
  TimeNs time = 0;
  const char* at = text.data();
  for (; at != end && *at != '.'; ++at) time = time * 10 + (*at - '0');
  if (at != end) ++at;
  for (int digit = 0; digit < kNsDigits; ++digit) time = time * 10 + (at != end ? *at++ - '0' : 0);
  return at != end && *at >= '5' ? time + 1 : time;
}

std::uint64_t block_of(const MessagePack::Value& value, const char* what) {
  if (value.is_integer()) return event_block(value.number);
  if (value.kind != MessagePack::Kind::bytes) refuse_batch(what);
  constexpr const char* kHexDigits = "0123456789abcdef";
  std::string text = "0x";
  for (const std::uint8_t byte : value.bytes) {
    text += kHexDigits[byte >> 4];
    text += kHexDigits[byte & 15];
  }
  return event_block(text);
}

std::uint64_t natural_of(const KvFields& fields, KvField field, std::uint64_t largest) {
  const MessagePack::Value value = fields.head(field);
  if (value.kind != MessagePack::Kind::natural || value.number > largest) {
    refuse_batch(std::string(name_of(field)) + " is no number from 0 to " + std::to_string(largest));
  }
  return value.number;
}

std::optional<std::string_view> text_of(const KvFields& fields, KvField field) {
  const MessagePack::Value value = fields.head(field);
  return value.kind == MessagePack::Kind::text ? std::optional(value.text()) : std::nullopt;
}

void add_hashes(const KvFields& fields, std::vector<std::uint64_t>& hashes) {
  MessagePack from({});
  const MessagePack::Value list = fields.head(kHashesField, from);
  if (list.kind != MessagePack::Kind::list) refuse_batch("block_hashes is no list");
  for (std::uint64_t i = 0; i < list.number; ++i) {
    hashes.push_back(block_of(take_value(from), "block_hashes holds something that is neither an integer nor bytes"));
  }
}

void read_stored(const KvFields& fields, BlockEvent& event) {
  event.kind = BlockEvent::Kind::stored;
  const MessagePack::Value parent = fields.head(kParentField);
  if (parent.kind != MessagePack::Kind::nil) {
    event.parent = block_of(parent, "parent_block_hash is neither an integer nor bytes");
  }
  if (fields.head(kTokensField).kind != MessagePack::Kind::list) refuse_batch("token_ids is no list");
  event.block_tokens = natural_of(fields, kSizeField, kMaxBlockTokens);
  event.session = text_of(fields, kSessionField);
  event.lora = text_of(fields, kLoraNameField);
  event.group_kind = text_of(fields, kKindField).value_or("");
  if (fields.head(kWindowField).kind != MessagePack::Kind::nil) {
    event.group_window = natural_of(fields, kWindowField, kMaxTraceTokens);
  }
}

}  // namespace

std::string BlockBatch::read(std::span<const std::uint8_t> payload) {
  events_.clear();
  hashes_.clear();
  std::vector<std::size_t> ends;  // of each event's hashes: the list of all moves while it grows
  const auto take = [&](const KvBatchHead& head, std::string_view type, const KvFields& fields) {
    BlockEvent event;
    event.time = time_of(head.time);
    event.kind = BlockEvent::Kind::cleared;
    if (type != "AllBlocksCleared") {
      event.kind = BlockEvent::Kind::removed;
      event.medium = text_of(fields, kMediumField).value_or("");
      if (fields.head(kGroupField).kind != MessagePack::Kind::nil) {
        event.group = natural_of(fields, kGroupField, kMaxGroup);
      }
      add_hashes(fields, hashes_);
      if (type == "BlockStored") read_stored(fields, event);
    }
    events_.push_back(event);
    ends.push_back(hashes_.size());
  };
  try {
    const MessagePack::Value rank = for_each_kv_event(payload, std::nullopt, take, &passed_over_).rank;
    if (rank.kind != MessagePack::Kind::nil && rank.number > BlockEventLines::kMaxRank) {
      refuse_batch("has a rank above 63");
    }
    for (BlockEvent& event : events_) event.rank = rank.number;  // 0 if it has none
  } catch (const BadBatch& bad) {
    events_.clear();
    return bad.what();
  }
  for (std::size_t i = 0, begin = 0; i < events_.size(); begin = ends[i++]) {
    events_[i].blocks = std::span(hashes_).subspan(begin, ends[i] - begin);
  }
  return {};
}

}  // namespace kvtwin
