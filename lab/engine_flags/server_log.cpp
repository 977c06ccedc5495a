#include "lab/engine_flags/server_log.hpp"

#include <algorithm>
#include <cctype>
#include <optional>

#include "lab/engine_flags/flag_text.hpp"
#include "lab/error.hpp"

namespace kvtwin {
namespace {

constexpr int kMaxNesting = 64;

// Reads what Python's repr() writes: texts, numbers, lists, dicts, and objects as Name(field=value, ...).
class PythonText {
 public:
  explicit PythonText(std::string_view text) : text_(text) {}

  // Reads one value. Returns nothing for a text that is cut short or no value.
  std::optional<Json> value() {
    skip();
    if (at_ >= text_.size() || ++depth_ > kMaxNesting) return std::nullopt;
    std::optional<Json> read;
    const char c = text_[at_];
    if (c == '\'' || c == '"') {
      read = quoted();
    } else if (c == '[' || c == '(') {
      read = list(c == '[' ? ']' : ')');
    } else if (c == '{') {
      read = dict();
    } else if (c == '<') {
      read = enumerator();
    } else {
      read = word();
    }
    --depth_;
    return read;
  }

  // Reads name=value, ... to `end`; with `end` 0, to the end or to the first thing that is no such pair.
  std::optional<Json> fields(char end) {
    Json object = Json::object();
    for (;;) {
      skip();
      if (end != 0 && take(end)) return object;
      std::string name;
      while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) != 0 || text_[at_] == '_')) {
        name += text_[at_++];
      }
      std::optional<Json> setting;
      if (!name.empty() && take('=')) setting = value();
      if (!setting) return end == 0 ? std::optional<Json>(object) : std::nullopt;
      object[name] = std::move(*setting);
      skip();
      if (!take(',') && end != 0) return take(end) ? std::optional<Json>(object) : std::nullopt;
    }
  }

 private:
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }

  std::optional<Json> quoted() {
    const char end = text_[at_++];
    std::string content;
    for (; at_ < text_.size() && text_[at_] != '\n'; ++at_) {
      if (text_[at_] == end) {
        ++at_;
        return Json(content);
      }
      if (text_[at_] == '\\' && at_ + 1 < text_.size()) {
        ++at_;
        content += text_[at_] == 'n' ? '\n' : text_[at_] == 't' ? '\t' : text_[at_];
      } else {
        content += text_[at_];
      }
    }
    return std::nullopt;
  }

  std::optional<Json> list(char end) {
    ++at_;
    Json array = Json::array();
    for (;;) {
      skip();
      if (take(end)) return array;
      std::optional<Json> entry = value();
      if (!entry) return std::nullopt;
      array.push_back(std::move(*entry));
      skip();
      if (!take(',')) return take(end) ? std::optional<Json>(array) : std::nullopt;
    }
  }

  // A dict; a set becomes a dict of its entries.
  std::optional<Json> dict() {
    ++at_;
    Json object = Json::object();
    for (;;) {
      skip();
      if (take('}')) return object;
      std::optional<Json> name = value();
      if (!name) return std::nullopt;
      skip();
      std::optional<Json> setting = take(':') ? value() : Json(true);
      if (!setting) return std::nullopt;
      object[name->is_string() ? name->get<std::string>() : name->dump()] = std::move(*setting);
      skip();
      if (!take(',')) return take('}') ? std::optional<Json>(object) : std::nullopt;
    }
  }

  // <Color.RED: 'red'>
  std::optional<Json> enumerator() {
    const std::size_t end = text_.find('>', at_), line = text_.find('\n', at_), colon = text_.find(':', at_);
    if (end == std::string_view::npos || line < end) return std::nullopt;
    const std::string whole(text_.substr(at_, end + 1 - at_));
    if (colon >= end) {
      at_ = end + 1;
      return Json(whole);
    }
    at_ = colon + 1;
    std::optional<Json> content = value();
    at_ = end + 1;
    return content;
  }

  std::optional<Json> word() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && std::string_view(",()[]{}=:' \n\"<>").find(text_[at_]) == std::string_view::npos)
      ++at_;
    const std::string_view name = text_.substr(begin, at_ - begin);
    if (name.empty()) return std::nullopt;
    if (take('(')) return fields(')');
    if (name == "True" || name == "False") return Json(name == "True");
    if (name == "None") return Json(nullptr);
    if (const auto whole = number_of<std::int64_t>(name)) return Json(*whole);
    if (const auto number = number_of<double>(name)) return Json(*number);
    return Json(std::string(name));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

// Returns the text behind the first `mark`; nothing if there is none.
std::optional<std::string_view> behind(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) return std::nullopt;
  return text.substr(at + mark.size());
}

// Returns the number at the begin of the text, with commas between thousands; 0 for none.
std::int64_t number_at(std::string_view text) {
  std::string digits;
  for (const char c : text) {
    if (c >= '0' && c <= '9') {
      digits += c;
    } else if (c != ',') {
      break;
    }
  }
  return number_of<std::int64_t>(digits).value_or(0);
}

// Returns the version at the begin of the text.
std::string version_at(std::string_view text) {
  const auto end = std::ranges::find_if(
      text, [](char c) { return std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.' && c != '+'; });
  return {text.begin(), end};
}

[[noreturn]] void refuse_cut(const std::string& where, const std::string& line) {
  throw InputError(where + ": the line " + line + " is cut short or no longer as the server wrote it");
}

// The fields of vLLM's configuration that are named as its arguments.
Json arguments_of_config(std::string_view text) {
  const Json config = PythonText(text.substr(0, text.find('\n'))).fields(0).value_or(Json::object());
  Json arguments = Json::object();
  for (const char* field : {"model", "quantization", "tensor_parallel_size", "pipeline_parallel_size",
                            "data_parallel_size", "kv_cache_dtype", "enforce_eager", "enable_prefix_caching"}) {
    if (config.contains(field)) arguments[field] = config.at(field);
  }
  if (config.contains("max_seq_len")) arguments["max_model_len"] = config.at("max_seq_len");
  return arguments;
}

}  // namespace

ServerLog read_server_log(std::string_view text, const std::string& where) {
  ServerLog log;
  if (const auto sglang = behind(text, "server_args=ServerArgs(")) {
    std::optional<Json> arguments = PythonText(*sglang).fields(')');
    if (!arguments) refuse_cut(where, "server_args=ServerArgs(...)");
    log.arguments = std::move(*arguments);
    const auto sizes = behind(*sglang, "max_total_num_tokens=");
    if (!sizes) return log;
    log.pool_tokens = number_at(*sizes);
    // The same line has what SGLang derived from the GPU.
    const std::string_view line = sizes->substr(0, sizes->find('\n'));
    for (const char* field : {"chunked_prefill_size", "max_running_requests"}) {
      const auto derived = behind(line, std::string(field) + "=");
      if (derived && number_at(*derived) != 0) log.arguments[field] = number_at(*derived);
    }
    return log;
  }
  log.of_vllm = true;
  const auto given = behind(text, "non-default args: ");
  const auto config = behind(text, "Initializing a V1 LLM engine (v");
  if (!given && !config) {
    throw InputError(
        where +
        ": has no first lines of a server's log: neither SGLang's \"server_args=ServerArgs(...)\" nor vLLM's "
        "\"non-default args: {...}\" or \"Initializing a V1 LLM engine ... with config: ...\"");
  }
  if (given) {
    std::optional<Json> arguments = PythonText(*given).value();
    if (!arguments || !arguments->is_object()) refuse_cut(where, "non-default args: {...}");
    log.arguments = std::move(*arguments);
  } else if (const auto settings = behind(*config, " with config: ")) {
    log.arguments = arguments_of_config(*settings);
  }
  if (config) log.version = version_at(*config);
  if (const auto tokens = behind(text, "KV cache size: ")) log.pool_tokens = number_at(*tokens);
  return log;
}

}  // namespace kvtwin
