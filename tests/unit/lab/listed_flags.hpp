// The flags of a real server, as tests/flag_list.py writes them.
#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "lab/engine_flags/flag_table.hpp"
#include "tests/paths.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {

// A flag of the real server, as its argument parser listed it.
struct ListedFlag {
  std::string field;
  std::vector<std::string> flags;
  std::string takes, type, preset;
  std::vector<std::string> choices;

  bool switches() const { return takes == "nothing"; }
  std::string unquoted_preset() const { return preset[0] == '"' ? preset.substr(1, preset.size() - 2) : preset; }
  std::string legal_value() const {
    if (switches()) return "";
    if (field == "model_path" || field == "model") return " Qwen/Qwen3-32B";
    if (!choices.empty()) return " " + choices.front();
    if (preset != "null" && preset != "\"\"" && std::string("[{").find(preset[0]) == std::string::npos &&
        preset.find_first_of("(<") == std::string::npos) {
      return " " + unquoted_preset();
    }
    if (type == "int") return " 1";
    if (type == "human_readable_int") return " 1k";
    if (type == "float") return " 0.5";
    return type == "loads" ? " {}" : " x";
  }
};

inline std::vector<ListedFlag> listed_flags_of(const std::string& file) {
  std::istringstream lines(text_of(in_source(file)));
  std::vector<ListedFlag> list;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("#")) continue;
    std::vector<std::string> cells(1);
    for (const char c : line) {
      if (c == '\t') {
        cells.emplace_back();
      } else {
        cells.back() += c;
      }
    }
    EXPECT_EQ(cells.size(), 6U) << line;
    if (cells.size() != 6) continue;
    const auto words = [](const std::string& text) {
      std::istringstream in(text);
      return std::vector<std::string>(std::istream_iterator<std::string>(in), {});
    };
    list.push_back({cells[0], words(cells[1]), cells[2], cells[3], cells[4], words(cells[5])});
  }
  return list;
}

inline EngineFlag::Takes takes_of(const ListedFlag& listed) {
  using Takes = EngineFlag::Takes;
  if (listed.takes != "one") return listed.takes == "list" ? Takes::list : Takes::nothing;
  if (listed.type == "int") return Takes::integer;
  if (listed.type == "human_readable_int") return Takes::tokens;
  if (listed.type == "float") return Takes::number;
  return listed.choices.empty() ? Takes::text : Takes::word;
}

inline std::set<std::string> sorted_words(std::string_view text) {
  std::istringstream in{std::string(text)};
  return {std::istream_iterator<std::string>(in), {}};
}

}  // namespace kvtwin::test
