// The one exception of models/: a config, a preset name or a number that can't be used. what() is one
// sentence: which file, which key, what would be right. The program ends with exit code 2 on it.
#pragma once

#include <stdexcept>
#include <string>

namespace kvtwin {

class ModelError : public std::runtime_error {
 public:
  explicit ModelError(const std::string& sentence) : std::runtime_error(sentence) {}
};

}  // namespace kvtwin
