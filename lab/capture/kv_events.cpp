#include "lab/capture/kv_events.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "lab/capture/kv_batch.hpp"
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
  if (value.kind != Kind::bytes) refuse_batch(what);
  line.append("\"").append(hex_text(value.bytes)).append("\"");
}

std::uint64_t append_hashes(std::string& line, const KvFields& fields) {
  MessagePack from({});
  const Value hashes = fields.head(kHashesField, from);
  if (hashes.kind != Kind::list) refuse_batch("block_hashes is no list");
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
void append_plain(std::string& line, const KvFields& fields, KvField field) {
  const Value value = fields.head(field);
  if (value.kind == Kind::nil) return;
  if (value.kind != Kind::text && !value.is_integer()) {
    refuse_batch(std::string(name_of(field)) + " is neither text nor a number");
  }
  append_key(line, name_of(field));
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
    if (token.kind != Kind::natural) refuse_batch("token_ids holds something that is no token");
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
      if (!value.is_integer()) refuse_batch("extra_keys holds something that is neither text, a number nor a list");
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
void append_extra_keys(std::string& line, const KvFields& fields) {
  MessagePack from({});
  const Value keys = fields.head(kExtraField, from);
  if (keys.kind == Kind::nil) return;
  if (keys.kind != Kind::list) refuse_batch("extra_keys is no list");
  std::string entries;
  bool any = false;
  for (std::uint64_t i = 0; i < keys.number; ++i) {
    if (i > 0) entries += ',';
    const std::size_t before = entries.size();
    append_extra(entries, from);
    any |= std::string_view(entries).substr(before) != "null";
  }
  if (!any) return;
  append_key(line, name_of(kExtraField));
  line.append("[").append(entries).append("]");
}

std::uint64_t append_stored(std::string& line, const KvFields& fields, bool contents) {
  const std::uint64_t blocks = append_hashes(line, fields);
  const Value parent = fields.head(kParentField);
  if (parent.kind != Kind::nil) {
    append_key(line, "parent_block_hash");
    append_hash(line, parent, "parent_block_hash is neither an integer nor bytes");
  }
  MessagePack from({});
  const Value tokens = fields.head(kTokensField, from);
  if (tokens.kind != Kind::list) refuse_batch("token_ids is no list");
  const std::size_t before = line.size();
  append_key(line, "token_ids");
  append_tokens(line, from, tokens.number, true);
  if (!contents) line.resize(before);
  const Value size = fields.head(kSizeField);
  if (size.kind != Kind::natural) refuse_batch("block_size is no number");
  append_key(line, "block_size");
  line += std::to_string(size.number);
  for (const KvField field :
       {kLoraIdField, kMediumField, kLoraNameField, kSaltField, kSessionField, kGroupField, kKindField, kWindowField}) {
    append_plain(line, fields, field);
  }
  if (contents) append_extra_keys(line, fields);
  return blocks;
}

// Calls `take`, if there is one, with each event. Errors: BadBatch.
void decode(std::span<const std::uint8_t> payload, const std::optional<MessagePack>& rank, const TakeKvEvent& take,
            PassedOver* passed_over, bool contents) {
  std::string begin, line;
  const auto take_fields = [&](const KvBatchHead& head, std::string_view type, const KvFields& fields) {
    if (begin.empty()) {
      begin = "{\"ts\":" + (head.time.kind == Kind::real ? Json(head.time.real).dump() : integer_text(head.time)) +
              (head.rank.kind == Kind::nil ? "" : ",\"rank\":" + integer_text(head.rank)) + ",\"type\":\"";
    }
    line.assign(begin).append(type).append("\"");
    std::uint64_t blocks = 0;
    if (type == "BlockStored") blocks = append_stored(line, fields, contents);
    if (type == "BlockRemoved") {
      blocks = append_hashes(line, fields);
      append_plain(line, fields, kMediumField);
      append_plain(line, fields, kGroupField);
    }
    line += '}';
    if (take) take({type, blocks, line});
  };
  for_each_kv_event(payload, rank, take_fields, passed_over);
}

}  // namespace

std::string decode_kv_events(std::span<const std::uint8_t> payload, const TakeKvEvent& take, PassedOver& passed_over,
                             bool contents) {
  std::optional<MessagePack> rank;
  if (std::string why = why_no_message_pack(payload, rank); !why.empty()) return why;
  try {
    decode(payload, rank, {}, nullptr, true);  // a message is read as a whole or not at all
    decode(payload, rank, take, &passed_over, contents);
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
