// An event batch of an engine as MessagePack, field by field. Internal to lab/capture. kv_events.hpp describes the
// message.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "lab/capture/message_pack.hpp"
#include "traces/passed_over.hpp"

namespace kvtwin {

struct BadBatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};
[[noreturn]] void refuse_batch(const std::string& why);

// The next value of bytes that have been checked.
inline MessagePack::Value take_value(MessagePack& from) { return from.next().value_or(MessagePack::Value{}); }

// The fields of an event that are read.
enum KvField : std::size_t {
  kTypeField,
  kHashesField,
  kParentField,
  kTokensField,
  kSizeField,
  kLoraIdField,
  kMediumField,
  kLoraNameField,
  kSaltField,
  kSessionField,
  kGroupField,
  kKindField,
  kWindowField,
  kExtraField,
  kKvFields,
};
// The name in a message and in the file.
const char* name_of(KvField field);

// Where each field of an event begins; nothing if the event lacks it.
class KvFields {
 public:
  void set(KvField field, const MessagePack& at) { at_[field] = at; }
  // Returns the head of the value, and moves `from` behind it. A field that is absent is nil.
  MessagePack::Value head(KvField field, MessagePack& from) const {
    if (!at_[field]) return {};
    from = *at_[field];
    return take_value(from);
  }
  MessagePack::Value head(KvField field) const {
    MessagePack from({});
    return head(field, from);
  }

 private:
  std::array<std::optional<MessagePack>, kKvFields> at_;
};

// What all events of a batch have.
struct KvBatchHead {
  MessagePack::Value time;  // a finite number
  MessagePack::Value rank;  // natural or nil
};
using TakeKvFields = std::function<void(const KvBatchHead&, std::string_view type, const KvFields&)>;

// Returns why the bytes are no MessagePack; nothing if they are. `rank`: where the third entry of the batch begins, if
// there is one.
std::string why_no_message_pack(std::span<const std::uint8_t> payload, std::optional<MessagePack>& rank);
// Calls `take` with the fields of each event, whose type is BlockStored, BlockRemoved or AllBlocksCleared. `rank`: from
// why_no_message_pack(), for `take`; it stands behind the events. Returns the batch's head with the rank. Counts what
// it does not read in `passed_over`, if that is not null. Errors: BadBatch, also after calls of `take`.
KvBatchHead for_each_kv_event(std::span<const std::uint8_t> payload, const std::optional<MessagePack>& rank,
                              const TakeKvFields& take, PassedOver* passed_over);

}  // namespace kvtwin
