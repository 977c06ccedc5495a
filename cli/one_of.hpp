// A check of options whose value is one of some words. Of a mistyped word it names the nearest one.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "models/names.hpp"

namespace kvtwin {

// In help texts and completions, the type of the option is {A,B,C}.
inline CLI::Validator is_one_of(std::vector<std::string> words) {
  std::string type = "{";
  for (const std::string& word : words) type += (type.size() == 1 ? "" : ",") + word;
  type += "}";
  return {[words = std::move(words)](const std::string& text) {
            for (const std::string& word : words) {
              if (word == text) return std::string();
            }
            return unknown_name("value", text, words);
          },
          type};
}

}  // namespace kvtwin
