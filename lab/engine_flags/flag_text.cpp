#include "lab/engine_flags/flag_text.hpp"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "lab/error.hpp"
#include "models/error.hpp"
#include "models/json.hpp"
#include "models/names.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxInputBytes = std::size_t{1} << 20;
constexpr std::size_t kMaxJsonDepth = 64;
constexpr std::size_t kMaxTypoEdits = 2;

// Returns the end of the JSON object that begins at `at`; npos if the object is not closed. Braces in strings do not
// count.
std::size_t end_of_object(std::string_view text, std::size_t at) {
  std::size_t open = 0;
  bool in_string = false;
  for (; at < text.size(); ++at) {
    if (in_string) {
      if (text[at] == '\\')
        ++at;
      else if (text[at] == '"')
        in_string = false;
    } else if (text[at] == '"') {
      in_string = true;
    } else if (text[at] == '{') {
      ++open;
    } else if (text[at] == '}' && --open == 0) {
      return at + 1;
    }
  }
  return std::string_view::npos;
}

}  // namespace

std::vector<std::string> split_flag_line(std::string_view line, std::string_view option) {
  if (line.size() > kMaxInputBytes) throw InputError(std::string(option) + ": longer than 1 MiB; that is no flag line");
  std::vector<std::string> words;
  std::string word;
  bool in_word = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    const char c = line[i];
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
      if (in_word) words.push_back(std::move(word));
      word.clear();
      in_word = false;
      continue;
    }
    // A line may continue where a page that was copied has lost the line break.
    if (c == '\\' && !in_word && i + 1 < line.size() &&
        std::string_view(" \t\r\n").find(line[i + 1]) != std::string::npos) {
      continue;
    }
    const bool value_begins = !in_word || (word.starts_with("--") && word.ends_with('='));
    in_word = true;
    if (c == '{' && value_begins) {
      const std::size_t end = end_of_object(line, i);
      if (end == std::string_view::npos) {
        throw InputError(std::string(option) + ": " + short_text(line.substr(i)) + " has no closing }");
      }
      word += line.substr(i, end - i);
      i = end - 1;
    } else if (c == '\'' || c == '"') {
      std::size_t end = i + 1;
      for (; end < line.size() && line[end] != c; ++end) {
        if (c == '"' && line[end] == '\\' && end + 1 < line.size() && (line[end + 1] == '"' || line[end + 1] == '\\'))
          ++end;
        word += line[end];
      }
      if (end >= line.size()) {
        throw InputError(std::string(option) + ": " + short_text(line.substr(i)) + " has no closing " + c);
      }
      i = end;
    } else if (c == '\\' && i + 1 < line.size()) {
      ++i;
      if (line[i] == '\n') {  // the line continues
        in_word = !word.empty();
      } else {
        word += line[i];
      }
    } else {
      word += c;
    }
  }
  if (in_word) words.push_back(std::move(word));
  return words;
}

void cut_at_operator(std::vector<std::string>& words, std::size_t first) {
  static constexpr std::string_view kOperators[] = {"&", "&&", "|", "||", ";", "<"};
  for (std::size_t i = first; i < words.size(); ++i) {
    const std::string& word = words[i];
    const bool redirects =
        word.starts_with('>') || word.starts_with("1>") || word.starts_with("2>") || word.starts_with("&>");
    if (redirects || std::ranges::find(kOperators, word) != std::end(kOperators)) return words.resize(i);
    if (word.size() > 1 && word.ends_with(';')) {
      words.resize(i + 1);
      return words.back().pop_back();
    }
  }
}

std::string misspelt(std::string_view name, std::span<const std::string> known) {
  std::string nearest;
  std::size_t fewest = kMaxTypoEdits + 1;
  for (const std::string& candidate : known) {
    const std::size_t edits = edit_distance(name.substr(0, 100), candidate);
    if (edits >= fewest) continue;
    fewest = edits;
    nearest = candidate;
  }
  return nearest;
}

std::string short_text(std::string_view text) {
  return text.size() <= 60 ? std::string(text) : std::string(text.substr(0, 57)) + "...";
}

std::string lower_case(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c; });
  return result;
}

std::string number_text(double number) {
  char text[32];
  const auto [end, error] = std::to_chars(text, text + sizeof text, number);
  return {text, end};
}

std::vector<std::string> split_words(std::string_view words) {
  std::istringstream in{std::string(words)};
  return {std::istream_iterator<std::string>(in), {}};
}

std::string joined_words(const std::vector<std::string>& list, std::size_t most) {
  std::string text;
  for (std::size_t i = 0; i < std::min(most, list.size()); ++i) text += (i == 0 ? "" : ", ") + short_text(list[i]);
  if (list.size() > most) text += " and " + std::to_string(list.size() - most) + " more";
  return text;
}

std::string read_argument_file(const std::string& path, const std::string& where, const std::string& right) {
  if (path.empty()) throw InputError(where + " is empty; " + right);
  try {
    return read_text_file(path, right, kMaxInputBytes);
  } catch (const ModelError& error) {
    throw InputError(where + ": " + error.what());
  }
}

Json read_json_object(std::string_view text, const std::string& where) {
  try {
    const JsonShape shape = json_shape(text);
    if (shape.depth > kMaxJsonDepth)
      throw InputError(where + " is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
    Json object = Json::parse(text);
    object.sort_keys();
    if (!shape.repeated.empty())
      throw InputError(where + " has the key " + short_text(shape.repeated) + " twice; give it once");
    if (object.is_object()) return object;
  } catch (const Json::parse_error& error) {
    throw InputError(where + " is no JSON near byte " + std::to_string(error.byte) +
                     "; it must be one object, { ... }");
  } catch (const Json::exception&) {
    throw InputError(where + " holds a number beyond all bounds");
  }
  throw InputError(where + " is no JSON object; it must be one, { ... }");
}

std::string read_log_head(const std::string& path, const std::string& where) {
  constexpr std::size_t kHeadBytes = std::size_t{4} << 20;
  std::error_code error;
  std::ifstream in(path, std::ios::binary);
  if (path.empty() || !std::filesystem::is_regular_file(path, error) || !in) {
    throw InputError(where + ": " + (path.empty() ? "is empty" : path + " can't be read") +
                     "; give the path of a server's log");
  }
  std::string text(kHeadBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

}  // namespace kvtwin
