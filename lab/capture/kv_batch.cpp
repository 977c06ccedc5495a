#include "lab/capture/kv_batch.hpp"

#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

constexpr std::uint64_t kRankAt = 2;  // of the entries of a batch

constexpr std::array<const char*, kKvFields> kFieldNames{"type",
                                                         "block_hashes",
                                                         "parent_block_hash",
                                                         "token_ids",
                                                         "block_size",
                                                         "lora_id",
                                                         "medium",
                                                         "lora_name",
                                                         "cache_salt",
                                                         "session_id",
                                                         "group_idx",
                                                         "kv_cache_spec_kind",
                                                         "kv_cache_spec_sliding_window",
                                                         "extra_keys"};

// A type of event. `places`: its fields in a list, behind the type; `more`: those that only a map has.
struct EventType {
  std::string_view name;
  std::span<const KvField> places, more;

  bool reads(KvField field) const {
    return field == kTypeField || std::ranges::find(places, field) != places.end() ||
           std::ranges::find(more, field) != more.end();
  }
};
constexpr KvField kStoredPlaces[] = {kHashesField, kParentField, kTokensField,  kSizeField,
                                     kLoraIdField, kMediumField, kLoraNameField};
constexpr KvField kStoredMore[] = {kSaltField, kSessionField, kGroupField, kKindField, kWindowField, kExtraField};
constexpr KvField kRemovedPlaces[] = {kHashesField, kMediumField};
constexpr KvField kRemovedMore[] = {kGroupField};
constexpr EventType kEventTypes[] = {{"BlockStored", kStoredPlaces, kStoredMore},
                                     {"BlockRemoved", kRemovedPlaces, kRemovedMore},
                                     {"AllBlocksCleared", {}, {}}};

const EventType& event_type(const MessagePack::Value& value) {
  if (value.kind != MessagePack::Kind::text) refuse_batch("an event has no type");
  const auto* const found = std::ranges::find(kEventTypes, value.text(), &EventType::name);
  if (found != std::end(kEventTypes)) return *found;
  refuse_batch("an event of the unknown type " + std::string(value.text().substr(0, 40)));
}

std::string no_message_pack() { return "is no MessagePack, or deeper than " + std::to_string(MessagePack::kMaxDepth); }

void skip(MessagePack& from) {
  if (!from.skip()) refuse_batch(no_message_pack());
}

MessagePack::Value rank_in(std::optional<MessagePack> at) {
  if (!at) return {};
  const MessagePack::Value rank = take_value(*at);
  if (rank.kind != MessagePack::Kind::nil && rank.kind != MessagePack::Kind::natural)
    refuse_batch("has a rank that is no number");
  return rank;
}

// Reads the fields of an event in a map, and counts the others.
const EventType& read_map(MessagePack& from, std::uint64_t entries, KvFields& fields, PassedOver* passed_over) {
  for (std::uint64_t i = 0; i < entries; ++i) {
    const MessagePack::Value key = take_value(from);
    if (key.kind != MessagePack::Kind::text) refuse_batch("an event has a key that is no text");
    const auto known = std::ranges::find(kFieldNames, key.text());
    MessagePack value = from;
    skip(from);
    if (known != kFieldNames.end()) {
      fields.set(static_cast<KvField>(known - kFieldNames.begin()), value);
    } else if (passed_over != nullptr && take_value(value).kind != MessagePack::Kind::nil) {
      passed_over->add(key.text());
    }
  }
  const EventType& type = event_type(fields.head(kTypeField));
  for (std::size_t field = 0; passed_over != nullptr && field < kKvFields; ++field) {
    const bool is_read = type.reads(static_cast<KvField>(field));
    if (!is_read && fields.head(static_cast<KvField>(field)).kind != MessagePack::Kind::nil)
      passed_over->add(kFieldNames[field]);
  }
  return type;
}

// As read_map(), of an event in a list (older vLLM).
const EventType& read_list(MessagePack& from, std::uint64_t entries, KvFields& fields, PassedOver* passed_over) {
  if (entries == 0) refuse_batch("an event has no type");
  const EventType& type = event_type(take_value(from));
  for (std::uint64_t i = 1; i < entries; ++i) {
    MessagePack value = from;
    skip(from);
    if (i <= type.places.size()) {
      fields.set(type.places[i - 1], value);
    } else if (passed_over != nullptr && take_value(value).kind != MessagePack::Kind::nil) {
      passed_over->add("entry " + std::to_string(i) + " of " + std::string(type.name));
    }
  }
  return type;
}

}  // namespace

void refuse_batch(const std::string& why) { throw BadBatch(why); }

const char* name_of(KvField field) { return kFieldNames[field]; }

std::string why_no_message_pack(std::span<const std::uint8_t> payload, std::optional<MessagePack>& rank) {
  rank.reset();
  MessagePack whole(payload), entries(payload);
  const std::optional<MessagePack::Value> head = entries.next();
  bool is_whole = false;
  if (head && head->kind == MessagePack::Kind::list) {
    whole = entries;
    is_whole = true;
    for (std::uint64_t i = 0; is_whole && i < head->number; ++i) {
      if (i == kRankAt) rank = whole;
      is_whole = whole.skip();
    }
  } else {
    is_whole = whole.skip();
  }
  if (is_whole && whole.at_end()) return {};
  return no_message_pack();
}

KvBatchHead for_each_kv_event(std::span<const std::uint8_t> payload, const std::optional<MessagePack>& rank,
                              const TakeKvFields& take, PassedOver* passed_over) {
  MessagePack from(payload);
  const MessagePack::Value batch = take_value(from);
  KvBatchHead head;
  head.time = batch.kind == MessagePack::Kind::list && batch.number >= 2 ? take_value(from) : MessagePack::Value{};
  const MessagePack::Value events =
      head.time.kind == MessagePack::Kind::real || head.time.is_integer() ? take_value(from) : MessagePack::Value{};
  if (events.kind != MessagePack::Kind::list)
    refuse_batch("is no batch of events: a list of a time, a list of events, and a rank");
  if (head.time.kind == MessagePack::Kind::real && !std::isfinite(head.time.real)) refuse_batch("has no finite time");
  head.rank = rank_in(rank);
  if (batch.number > 3 && passed_over != nullptr) passed_over->add("entries of a batch behind the rank");
  for (std::uint64_t i = 0; i < events.number; ++i) {
    const MessagePack::Value event = take_value(from);
    if (event.kind != MessagePack::Kind::map && event.kind != MessagePack::Kind::list)
      refuse_batch("holds an event that is neither a map nor a list");
    KvFields fields;
    const EventType& type = event.kind == MessagePack::Kind::map ? read_map(from, event.number, fields, passed_over)
                                                                 : read_list(from, event.number, fields, passed_over);
    take(head, type.name, fields);
  }
  std::optional<MessagePack> rank_here;
  for (std::uint64_t i = kRankAt; i < batch.number; ++i) {
    if (i == kRankAt) rank_here = from;
    skip(from);
  }
  if (!from.at_end()) refuse_batch(no_message_pack());
  head.rank = rank_in(rank_here);
  return head;
}

}  // namespace kvtwin
