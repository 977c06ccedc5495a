#include "lab/capture/kv_events.hpp"

#include <cerrno>
#include <cmath>
#include <limits>

#include "lab/error.hpp"
#include "lab/out_files.hpp"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr std::size_t kMaxDepth = 16;  // of arrays and maps in each other
constexpr std::size_t kMaxEventLineBytes = std::size_t{1} << 28;
constexpr const char* kFileName = "kv_events.jsonl";

// Parses without building anything, and stops at kMaxDepth: the parser that builds values calls itself once per depth.
class DepthCheck final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(std::size_t) override { return ++depth_ <= kMaxDepth; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return depth_-- > 0; }
  bool start_array(std::size_t) override { return ++depth_ <= kMaxDepth; }
  bool end_array() override { return depth_-- > 0; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override { return false; }

 private:
  std::size_t depth_ = 0;
};

std::string hex_of(const Json::binary_t& bytes) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string text = "0x";
  for (const std::uint8_t byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

// A hash as the file has it; null if it is none.
Json hash_of(const Json& value) {
  if (value.is_number_integer()) return value;
  if (value.is_binary()) return hex_of(value.get_binary());
  return {};
}

// The value of an event's field, by its name in a map or its place in an array (from 1, after the class name).
const Json& field(const Json& event, const char* name, std::size_t place) {
  static const Json kNone;
  if (event.is_array()) return place < event.size() ? event[place] : kNone;
  const auto at = event.find(name);
  return at == event.end() ? kNone : *at;
}

std::string take_hashes(const Json& event, Json& line) {
  const Json& hashes = field(event, "block_hashes", 1);
  if (!hashes.is_array()) return "block_hashes is no list";
  Json& into = line["block_hashes"] = Json::array();
  for (const Json& hash : hashes) {
    into.push_back(hash_of(hash));
    if (into.back().is_null()) return "block_hashes holds something that is neither an integer nor bytes";
  }
  return {};
}

// An id, name or medium: text, a number or nothing.
std::string take_plain(const Json& event, const char* name, std::size_t place, Json& line) {
  const Json& value = field(event, name, place);
  if (value.is_null()) return {};
  if (!value.is_string() && !value.is_number_integer()) return std::string(name) + " is neither text nor a number";
  line[name] = value;
  return {};
}

std::string take_tokens(const Json& event, Json& line) {
  const Json& tokens = field(event, "token_ids", 3);
  if (!tokens.is_array()) return "token_ids is no list";
  for (const Json& token : tokens) {
    if (!token.is_number_unsigned() && !token.is_array()) return "token_ids holds something that is no token";
    if (token.is_array()) {  // of a draft model
      for (const Json& part : token) {
        if (!part.is_number_unsigned()) return "token_ids holds something that is no token";
      }
    }
  }
  line["token_ids"] = tokens;
  return {};
}

std::string take_stored(const Json& event, Json& line) {
  if (std::string problem = take_hashes(event, line); !problem.empty()) return problem;
  const Json& parent = field(event, "parent_block_hash", 2);
  if (!parent.is_null()) {
    line["parent_block_hash"] = hash_of(parent);
    if (line["parent_block_hash"].is_null()) return "parent_block_hash is neither an integer nor bytes";
  }
  if (std::string problem = take_tokens(event, line); !problem.empty()) return problem;
  const Json& size = field(event, "block_size", 4);
  if (!size.is_number_unsigned()) return "block_size is no number";
  line["block_size"] = size;
  for (const auto& [name, place] : {std::pair{"lora_id", 5}, {"medium", 6}, {"lora_name", 7}}) {
    if (std::string problem = take_plain(event, name, static_cast<std::size_t>(place), line); !problem.empty()) {
      return problem;
    }
  }
  if (event.is_array()) return {};
  for (const char* name : {"cache_salt", "session_id"}) {
    if (std::string problem = take_plain(event, name, 0, line); !problem.empty()) return problem;
  }
  return {};
}

std::string take_event(const Json& event, Json& line) {
  const Json& type = field(event, "type", 0);
  if (!type.is_string()) return "an event has no type";
  const auto& name = type.get_ref<const std::string&>();
  line["type"] = name;
  if (name == "BlockStored") return take_stored(event, line);
  if (name == "AllBlocksCleared") return {};
  if (name != "BlockRemoved") return "an event of the unknown type " + name.substr(0, 40);
  if (std::string problem = take_hashes(event, line); !problem.empty()) return problem;
  return take_plain(event, "medium", 2, line);
}

std::string decode(const Json& batch, std::vector<Json>& events) {
  if (!batch.is_array() || batch.size() < 2 || !batch[0].is_number() || !batch[1].is_array()) {
    return "is no batch of events: a list of a time, a list of events, and a rank";
  }
  if (batch[0].is_number_float() && !std::isfinite(batch[0].get<double>())) return "has no finite time";
  const Json rank = batch.size() > 2 ? batch[2] : Json();
  if (!rank.is_null() && !rank.is_number_unsigned()) return "has a rank that is no number";
  for (const Json& event : batch[1]) {
    Json line{{"ts", batch[0]}};
    if (!rank.is_null()) line["rank"] = rank;
    if (!event.is_array() && !event.is_object()) return "holds an event that is neither a map nor a list";
    if (const std::string problem = take_event(event, line); !problem.empty()) return problem;
    events.push_back(std::move(line));
  }
  return {};
}

}  // namespace

KvEventBatch decode_kv_events(std::span<const std::uint8_t> payload) {
  KvEventBatch batch;
  DepthCheck check;
  if (!Json::sax_parse(payload.begin(), payload.end(), &check, Json::input_format_t::msgpack, true)) {
    batch.problem = "is no MessagePack, or deeper than " + std::to_string(kMaxDepth);
    return batch;
  }
  const Json json = Json::from_msgpack(payload.begin(), payload.end(), true, false);
  batch.problem = json.is_discarded() ? "is no MessagePack" : decode(json, batch.events);
  if (!batch.problem.empty()) batch.events.clear();
  return batch;
}

// ---- the file ----------------------------------------------------------------------------------------

KvEventWriter::KvEventWriter(const fs::path& folder, const std::string& endpoint, const std::string& topic, bool force)
    : path_(folder / kFileName) {
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

void KvEventWriter::write(std::uint64_t seq, std::span<const std::uint8_t> payload) {
  if (const auto missing = missing_before(seq)) {
    put({{"type", "missing"}, {"from", missing->front()}, {"to", missing->back()}});
    counts_.missing += missing->back() - missing->front() + 1;
  } else if (expected_ && seq < *expected_) {
    put({{"type", "restart"}, {"seq", seq}});
    ++counts_.restarts;
  }
  expected_ = seq + 1;
  ++counts_.messages;
  const KvEventBatch batch = decode_kv_events(payload);
  if (!batch.problem.empty()) {
    if (counts_.bad++ == 0) counts_.first_problem = "message " + std::to_string(seq) + " " + batch.problem;
    put({{"type", "bad"}, {"seq", seq}, {"why", batch.problem}});
  }
  for (const Json& event : batch.events) {
    Json line{{"seq", seq}};
    line.update(event);
    put(line);
    count(event);
  }
  finish();
}

void KvEventWriter::put(const Json& line) {
  const std::string text = line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  errno = 0;
  if (std::fwrite(text.data(), 1, text.size(), out_) != text.size()) throw cannot_write(path_, errno);
}

void KvEventWriter::count(const Json& event) {
  const auto& type = event.at("type").get_ref<const std::string&>();
  if (type == "BlockStored") {
    ++counts_.stored_events;
    counts_.stored_blocks += event.at("block_hashes").size();
  } else if (type == "BlockRemoved") {
    ++counts_.removed_events;
    counts_.removed_blocks += event.at("block_hashes").size();
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
  if (event.kind != KvEvent::Kind::stored) return;
  event.block_size = natural(line, "block_size", where);
  if (line.contains("parent_block_hash")) event.parent = hash_text(line.at("parent_block_hash"), where);
  event.cache_salt = plain_text(line, "cache_salt");
  event.lora = plain_text(line, line.contains("lora_name") ? "lora_name" : "lora_id");
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
  DepthCheck check;
  const bool shallow = Json::sax_parse(text, &check, Json::input_format_t::json, true);
  const Json line = shallow ? Json::parse(text, nullptr, false) : Json();
  if (!line.is_object()) throw InputError(where + ": is no JSON object; give a file that `kvtwin record` wrote");
  const std::uint64_t number = event.line;
  event = {};
  event.line = number;
  event.kind = kind_of(plain_text(line, "type"), where);
  if (event.kind == KvEvent::Kind::missing) {
    event.seq = natural(line, "from", where);
    const std::uint64_t to = natural(line, "to", where);
    if (to < event.seq) throw InputError(where + ": to: is less than from");
    event.count = to - event.seq + 1;
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
  const Json header = any && line.size() < 65'536 ? Json::parse(line, nullptr, false) : Json();
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
