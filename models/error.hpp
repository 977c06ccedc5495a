// The exception of models/, for unusable configs, preset names and numbers. what() is one sentence: the file, the key,
// and a valid value. The program then ends with exit code 2.
#pragma once

#include <stdexcept>
#include <string>

namespace kvtwin {

class ModelError : public std::runtime_error {
 public:
  explicit ModelError(const std::string& sentence) : std::runtime_error(sentence) {}
};

}  // namespace kvtwin
