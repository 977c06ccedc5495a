#include "lab/capture/kv_events.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "lab/capture/message_pack.hpp"
#include "lab/error.hpp"
#include "lab/out_files.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxEventLineBytes = std::size_t{1} << 28;
constexpr const char* kFileName = "kv_events.jsonl";

// ---- a message ---------------------------------------------------------------------------------------

using Kind = MessagePack::Kind;
using Value = MessagePack::Value;

struct BadBatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};

[[noreturn]] void refuse(const std::string& why) { throw BadBatch(why); }

// The fields of an event that are read.
enum Field : std::size_t {
  type_field,
  hashes_field,
  parent_field,
  tokens_field,
  size_field,
  lora_id_field,
  medium_field,
  lora_name_field,
  salt_field,
  session_field,
  group_field,
  kind_field,
  window_field,
  extra_field,
  kFields,
};
constexpr std::array<const char*, kFields> kFieldNames{"type",
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
  std::span<const Field> places, more;

  bool reads(Field field) const {
    return field == type_field || std::ranges::find(places, field) != places.end() ||
           std::ranges::find(more, field) != more.end();
  }
};
constexpr Field kStoredPlaces[] = {hashes_field,  parent_field, tokens_field,   size_field,
                                   lora_id_field, medium_field, lora_name_field};
constexpr Field kStoredMore[] = {salt_field, session_field, group_field, kind_field, window_field, extra_field};
constexpr Field kRemovedPlaces[] = {hashes_field, medium_field};
constexpr Field kRemovedMore[] = {group_field};
constexpr EventType kEventTypes[] = {{"BlockStored", kStoredPlaces, kStoredMore},
                                     {"BlockRemoved", kRemovedPlaces, kRemovedMore},
                                     {"AllBlocksCleared", {}, {}}};

// The next value of bytes that have been checked.
Value take_value(MessagePack& from) { return from.next().value_or(Value{}); }

// Where each field of an event begins; nothing if the event lacks it.
class Fields {
 public:
  void set(Field field, const MessagePack& at) { at_[field] = at; }
  // Returns the head of the value, and moves `from` behind it. A field that is absent is nil.
  Value head(Field field, MessagePack& from) const {
    if (!at_[field]) return {};
    from = *at_[field];
    return take_value(from);
  }
  Value head(Field field) const {
    MessagePack from({});
    return head(field, from);
  }

 private:
  std::array<std::optional<MessagePack>, kFields> at_;
};

const EventType& event_type(const Value& value) {
  if (value.kind != Kind::text) refuse("an event has no type");
  const auto* const found = std::ranges::find(kEventTypes, value.text(), &EventType::name);
  if (found != std::end(kEventTypes)) return *found;
  refuse("an event of the unknown type " + std::string(value.text().substr(0, 40)));
}

// Reads the fields of an event in a map, and counts the others.
const EventType& read_map(MessagePack& from, std::uint64_t entries, Fields& fields, PassedOver* passed_over) {
  for (std::uint64_t i = 0; i < entries; ++i) {
    const Value key = take_value(from);
    if (key.kind != Kind::text) refuse("an event has a key that is no text");
    const auto known = std::ranges::find(kFieldNames, key.text());
    MessagePack value = from;
    from.skip();
    if (known != kFieldNames.end()) {
      fields.set(static_cast<Field>(known - kFieldNames.begin()), value);
    } else if (passed_over != nullptr && take_value(value).kind != Kind::nil) {
      passed_over->add(key.text());
    }
  }
  const EventType& type = event_type(fields.head(type_field));
  for (std::size_t field = 0; passed_over != nullptr && field < kFields; ++field) {
    const bool is_read = type.reads(static_cast<Field>(field));
    if (!is_read && fields.head(static_cast<Field>(field)).kind != Kind::nil) passed_over->add(kFieldNames[field]);
  }
  return type;
}

// As read_map(), of an event in a list (older vLLM).
const EventType& read_list(MessagePack& from, std::uint64_t entries, Fields& fields, PassedOver* passed_over) {
  if (entries == 0) refuse("an event has no type");
  const EventType& type = event_type(take_value(from));
  for (std::uint64_t i = 1; i < entries; ++i) {
    MessagePack value = from;
    from.skip();
    if (i <= type.places.size()) {
      fields.set(type.places[i - 1], value);
    } else if (passed_over != nullptr && take_value(value).kind != Kind::nil) {
      passed_over->add("entry " + std::to_string(i) + " of " + std::string(type.name));
    }
  }
  return type;
}

std::string integer_text(const Value& value) {
  return value.kind == Kind::natural ? std::to_string(value.number)
                                     : std::to_string(static_cast<std::int64_t>(value.number));
}

std::string string_text(std::string_view text) { return Json(text).dump(-1, Json::BadBytes::replace); }

void append_key(std::string& line, const char* name) { line.append(",\"").append(name).append("\":"); }

std::string hex_text(std::span<const std::uint8_t> bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

void append_hash(std::string& line, const Value& value, const char* what) {
  if (value.is_integer()) {
    line += integer_text(value);
    return;
  }
  if (value.kind != Kind::bytes) refuse(what);
  line.append("\"").append(hex_text(value.bytes)).append("\"");
}

std::uint64_t append_hashes(std::string& line, const Fields& fields) {
  MessagePack from({});
  const Value hashes = fields.head(hashes_field, from);
  if (hashes.kind != Kind::list) refuse("block_hashes is no list");
  append_key(line, "block_hashes");
  line += '[';
  for (std::uint64_t i = 0; i < hashes.number; ++i) {
    if (i > 0) line += ',';
    append_hash(line, take_value(from), "block_hashes holds something that is neither an integer nor bytes");
  }
  line += ']';
  return hashes.number;
}

// An id, name or medium: text, a number or nothing.
void append_plain(std::string& line, const Fields& fields, Field field) {
  const Value value = fields.head(field);
  if (value.kind == Kind::nil) return;
  if (value.kind != Kind::text && !value.is_integer()) {
    refuse(std::string(kFieldNames[field]) + " is neither text nor a number");
  }
  append_key(line, kFieldNames[field]);
  line += value.kind == Kind::text ? string_text(value.text()) : integer_text(value);
}

// A list of tokens, or (of a draft model) of lists of tokens.
void append_tokens(std::string& line, MessagePack& from, std::uint64_t count, bool has_lists) {
  line += '[';
  for (std::uint64_t i = 0; i < count; ++i) {
    if (i > 0) line += ',';
    const Value token = take_value(from);
    if (token.kind == Kind::list && has_lists) {
      append_tokens(line, from, token.number, false);
      continue;
    }
    if (token.kind != Kind::natural) refuse("token_ids holds something that is no token");
    line += std::to_string(token.number);
  }
  line += ']';
}

// What else is in the hash of each block: a list of texts, numbers and such lists; null for a block without.
void append_extra(std::string& line, MessagePack& from) {
  const Value value = take_value(from);
  switch (value.kind) {
    case Kind::nil: line += "null"; return;
    case Kind::text: line += string_text(value.text()); return;
    case Kind::bytes: line += string_text(hex_text(value.bytes)); return;
    case Kind::real: line += Json(value.real).dump(); return;
    case Kind::list: break;
    default:
      if (!value.is_integer()) refuse("extra_keys holds something that is neither text, a number nor a list");
      line += integer_text(value);
      return;
  }
  line += '[';
  for (std::uint64_t i = 0; i < value.number; ++i) {
    if (i > 0) line += ',';
    append_extra(line, from);
  }
  line += ']';
}

// Most blocks have no extra keys.
void append_extra_keys(std::string& line, const Fields& fields) {
  MessagePack from({});
  const Value keys = fields.head(extra_field, from);
  if (keys.kind == Kind::nil) return;
  if (keys.kind != Kind::list) refuse("extra_keys is no list");
  std::string entries;
  bool any = false;
  for (std::uint64_t i = 0; i < keys.number; ++i) {
    if (i > 0) entries += ',';
    const std::size_t before = entries.size();
    append_extra(entries, from);
    any |= std::string_view(entries).substr(before) != "null";
  }
  if (!any) return;
  append_key(line, kFieldNames[extra_field]);
  line.append("[").append(entries).append("]");
}

std::uint64_t append_stored(std::string& line, const Fields& fields, bool contents) {
  const std::uint64_t blocks = append_hashes(line, fields);
  const Value parent = fields.head(parent_field);
  if (parent.kind != Kind::nil) {
    append_key(line, "parent_block_hash");
    append_hash(line, parent, "parent_block_hash is neither an integer nor bytes");
  }
  MessagePack from({});
  const Value tokens = fields.head(tokens_field, from);
  if (tokens.kind != Kind::list) refuse("token_ids is no list");
  const std::size_t before = line.size();
  append_key(line, "token_ids");
  append_tokens(line, from, tokens.number, true);
  if (!contents) line.resize(before);
  const Value size = fields.head(size_field);
  if (size.kind != Kind::natural) refuse("block_size is no number");
  append_key(line, "block_size");
  line += std::to_string(size.number);
  for (const Field field : {lora_id_field, medium_field, lora_name_field, salt_field, session_field, group_field,
                            kind_field, window_field}) {
    append_plain(line, fields, field);
  }
  if (contents) append_extra_keys(line, fields);
  return blocks;
}

// Calls `take`, if there is one, with each event. Errors: BadBatch.
void decode(std::span<const std::uint8_t> payload, const TakeKvEvent& take, PassedOver* passed_over, bool contents) {
  MessagePack from(payload);
  const Value batch = take_value(from);
  const Value time = batch.kind == Kind::list && batch.number >= 2 ? take_value(from) : Value{};
  const Value events = time.kind == Kind::real || time.is_integer() ? take_value(from) : Value{};
  if (events.kind != Kind::list) refuse("is no batch of events: a list of a time, a list of events, and a rank");
  if (time.kind == Kind::real && !std::isfinite(time.real)) refuse("has no finite time");
  MessagePack behind = from;
  for (std::uint64_t i = 0; i < events.number; ++i) behind.skip();
  const Value rank = batch.number > 2 ? take_value(behind) : Value{};
  if (rank.kind != Kind::nil && rank.kind != Kind::natural) refuse("has a rank that is no number");
  if (batch.number > 3 && passed_over != nullptr) passed_over->add("entries of a batch behind the rank");
  const std::string head = "{\"ts\":" + (time.kind == Kind::real ? Json(time.real).dump() : integer_text(time)) +
                           (rank.kind == Kind::nil ? "" : ",\"rank\":" + integer_text(rank)) + ",\"type\":\"";
  std::string line;
  for (std::uint64_t i = 0; i < events.number; ++i) {
    const Value event = take_value(from);
    if (event.kind != Kind::map && event.kind != Kind::list) refuse("holds an event that is neither a map nor a list");
    Fields fields;
    const EventType& type = event.kind == Kind::map ? read_map(from, event.number, fields, passed_over)
                                                    : read_list(from, event.number, fields, passed_over);
    line.assign(head).append(type.name).append("\"");
    std::uint64_t blocks = 0;
    if (type.name == "BlockStored") blocks = append_stored(line, fields, contents);
    if (type.name == "BlockRemoved") {
      blocks = append_hashes(line, fields);
      append_plain(line, fields, medium_field);
      append_plain(line, fields, group_field);
    }
    line += '}';
    if (take) take({type.name, blocks, line});
  }
}

}  // namespace

std::string decode_kv_events(std::span<const std::uint8_t> payload, const TakeKvEvent& take, PassedOver& passed_over,
                             bool contents) {
  MessagePack whole(payload);
  if (!whole.skip() || !whole.at_end()) {
    return "is no MessagePack, or deeper than " + std::to_string(MessagePack::kMaxDepth);
  }
  try {
    decode(payload, {}, nullptr, true);  // a message is read as a whole or not at all
    decode(payload, take, &passed_over, contents);
  } catch (const BadBatch& bad) {
    return bad.what();
  }
  return {};
}

// ---- the file ----------------------------------------------------------------------------------------

namespace {

// Numbers of messages come over the wire: their sums end at 2^64 - 1.
std::uint64_t saturating_sum(std::uint64_t a, std::uint64_t b) {
  return a + std::min(b, std::numeric_limits<std::uint64_t>::max() - a);
}

// Messages from `first` to `last`.
std::uint64_t range_size(std::uint64_t first, std::uint64_t last) { return saturating_sum(last - first, 1); }

}  // namespace

KvEventWriter::KvEventWriter(const fs::path& folder, const std::string& endpoint, const std::string& topic, bool force,
                             bool contents)
    : path_(folder / kFileName), contents_(contents) {
  std::error_code error;
  if (fs::exists(path_, error) && !force) {
    throw InputError("--out " + folder.string() + ": holds a recording; give another folder, or --force to replace it");
  }
  make_out_folder(folder, error);
  if (error) throw WorkError("--out " + folder.string() + ": can't be written: " + error.message());
  errno = 0;
  out_ = std::fopen(path_.c_str(), "wb");
  if (out_ == nullptr) throw cannot_write(path_, errno);
  put({{"type", "header"}, {"version", 1}, {"endpoint", endpoint}, {"topic", topic}});
  finish();
}

KvEventWriter::~KvEventWriter() {
  if (out_ != nullptr) std::fclose(out_);
}

std::optional<std::array<std::uint64_t, 2>> KvEventWriter::missing_before(std::uint64_t seq) const {
  if (!expected_ || seq <= *expected_) return std::nullopt;
  return std::array{*expected_, seq - 1};
}

void KvEventWriter::begin(std::uint64_t seq) {
  if (const auto missing = missing_before(seq)) {
    put({{"type", "missing"}, {"from", missing->front()}, {"to", missing->back()}});
    counts_.missing = saturating_sum(counts_.missing, range_size(missing->front(), missing->back()));
  } else if (expected_ && seq < *expected_) {
    put({{"type", "restart"}, {"seq", seq}});
    ++counts_.restarts;
  }
  expected_ = saturating_sum(seq, 1);
  ++counts_.messages;
}

void KvEventWriter::write(std::uint64_t seq, std::span<const std::uint8_t> payload) {
  begin(seq);
  const auto take = [&](const KvEventLine& event) {
    put_line("{\"seq\":" + std::to_string(seq) + ",", event.json.substr(1));
    count(event);
  };
  if (const std::string problem = decode_kv_events(payload, take, counts_.passed_over, contents_); !problem.empty()) {
    put_bad(seq, problem);
  }
  finish();
}

void KvEventWriter::write_unread(std::uint64_t seq, const std::string& why) {
  begin(seq);
  put_bad(seq, why);
  finish();
}

void KvEventWriter::put_bad(std::uint64_t seq, const std::string& why) {
  if (counts_.bad++ == 0) counts_.first_problem = "message " + std::to_string(seq) + " " + why;
  put({{"type", "bad"}, {"seq", seq}, {"why", why}});
}

void KvEventWriter::put(const Json& line) { put_line({}, line.dump(-1, Json::BadBytes::replace)); }

void KvEventWriter::put_line(std::string_view begin, std::string_view rest) {
  errno = 0;
  for (const std::string_view part : {begin, rest, std::string_view("\n")}) {
    if (std::fwrite(part.data(), 1, part.size(), out_) != part.size()) throw cannot_write(path_, errno);
  }
}

void KvEventWriter::count(const KvEventLine& event) {
  if (event.type == "BlockStored") {
    ++counts_.stored_events;
    counts_.stored_blocks += event.blocks;
  } else if (event.type == "BlockRemoved") {
    ++counts_.removed_events;
    counts_.removed_blocks += event.blocks;
  } else {
    ++counts_.cleared;
  }
}

void KvEventWriter::finish() {
  errno = 0;
  if (std::fflush(out_) != 0) throw cannot_write(path_, errno);
}

// ---- reading it --------------------------------------------------------------------------------------

namespace {

constexpr std::size_t kMaxDepth = 16;  // of arrays and objects in each other

std::uint64_t natural(const Json& line, const char* key, const std::string& where) {
  const auto at = line.find(key);
  if (at == line.end() || !at->is_number_unsigned()) {
    throw InputError(where + ": " + key + ": must be a number; give a file that `kvtwin record` wrote");
  }
  return *at;
}

std::string plain_text(const Json& line, const char* key) {
  const auto at = line.find(key);
  if (at == line.end()) return {};
  return at->is_string() ? at->get<std::string>() : at->dump();
}

std::string hash_text(const Json& hash, const std::string& where) {
  if (hash.is_string()) return hash;
  if (hash.is_number_integer()) return hash.dump();
  throw InputError(where + ": block_hashes: must be integers or hex; give a file that `kvtwin record` wrote");
}

const Json& list_of(const Json& line, const char* key, const std::string& where) {
  const auto at = line.find(key);
  if (at == line.end() || !at->is_array()) {
    throw InputError(where + ": " + key + ": must be a list; give a file that `kvtwin record` wrote");
  }
  return *at;
}

void take_blocks(const Json& line, const std::string& where, KvEvent& event) {
  for (const Json& hash : list_of(line, "block_hashes", where)) event.hashes.push_back(hash_text(hash, where));
  event.medium = plain_text(line, "medium");
  if (line.contains("group_idx")) event.group = natural(line, "group_idx", where);
  if (event.kind != KvEvent::Kind::stored) return;
  event.group_kind = plain_text(line, "kv_cache_spec_kind");
  event.block_size = natural(line, "block_size", where);
  if (line.contains("parent_block_hash")) event.parent = hash_text(line.at("parent_block_hash"), where);
  event.cache_salt = plain_text(line, "cache_salt");
  event.lora = plain_text(line, line.contains("lora_name") ? "lora_name" : "lora_id");
  if (!line.contains("token_ids")) return;  // record --without-token-ids
  for (const Json& token : list_of(line, "token_ids", where)) {
    if (!token.is_number_unsigned() || token.get<std::uint64_t>() > std::numeric_limits<std::uint32_t>::max()) {
      event.tokens.clear();
      return;
    }
    event.tokens.push_back(token.get<std::uint32_t>());
  }
}

KvEvent::Kind kind_of(const std::string& type, const std::string& where) {
  using enum KvEvent::Kind;
  if (type == "BlockStored") return stored;
  if (type == "BlockRemoved") return removed;
  if (type == "AllBlocksCleared") return cleared;
  if (type == "missing") return missing;
  if (type == "restart") return restart;
  if (type == "bad") return bad;
  throw InputError(where + ": type: is none of a recording's; give a file that `kvtwin record` wrote");
}

}  // namespace

void parse_kv_event(const std::string& text, const std::string& where, KvEvent& event) {
  const Json line = Json::parse_or_discard(text, kMaxDepth);
  if (!line.is_object()) throw InputError(where + ": is no JSON object; give a file that `kvtwin record` wrote");
  const std::uint64_t number = event.line;
  event = {};
  event.line = number;
  event.kind = kind_of(plain_text(line, "type"), where);
  if (event.kind == KvEvent::Kind::missing) {
    event.seq = natural(line, "from", where);
    const std::uint64_t to = natural(line, "to", where);
    if (to < event.seq) throw InputError(where + ": to: is less than from");
    event.count = range_size(event.seq, to);
    return;
  }
  event.seq = natural(line, "seq", where);
  if (line.contains("rank")) event.rank = natural(line, "rank", where);
  if (event.kind == KvEvent::Kind::stored || event.kind == KvEvent::Kind::removed) take_blocks(line, where, event);
}

KvEventReader::KvEventReader(const fs::path& path) : path_(path) {
  std::error_code error;
  if (fs::is_directory(path_, error)) path_ /= kFileName;
  in_ = std::fopen(path_.c_str(), "rb");
  if (in_ == nullptr) {
    throw InputError(path_.string() + ": can't be read: " + std::generic_category().message(errno) +
                     "; give a folder that `kvtwin record --out` wrote");
  }
  std::string line;
  const bool any = read_line(line);
  const Json header = any && line.size() < 65'536 ? Json::parse_or_discard(line) : Json();
  if (!header.is_object() || plain_text(header, "type") != "header") {
    fail("is no recording of KV events; give a folder that `kvtwin record --out` wrote");
  }
  if (plain_text(header, "version") != "1") fail("is of version " + plain_text(header, "version") + "; this is 1");
}

KvEventReader::~KvEventReader() {
  if (in_ != nullptr) std::fclose(in_);
}

void KvEventReader::fail(const std::string& why) const {
  throw InputError(path_.string() + ":" + std::to_string(line_) + ": " + why);
}

// A line without an end is no line.
bool KvEventReader::read_line(std::string& line) {
  line.clear();
  ++line_;
  for (int c = std::getc(in_); c != EOF; c = std::getc(in_)) {
    if (c == '\n') return true;
    line += static_cast<char>(c);
    if (line.size() > kMaxEventLineBytes) fail("is longer than 256 MiB");
  }
  cut_ = !line.empty();
  return false;
}

bool KvEventReader::next(KvEvent& event) {
  std::string line;
  if (!read_line(line)) return false;
  event.line = line_;
  parse_kv_event(line, path_.string() + ":" + std::to_string(line_), event);
  return true;
}

}  // namespace kvtwin
