// The JSON that the program under test prints. Apart from program.hpp, because the library takes a second to compile.
#pragma once

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "tests/program.hpp"

namespace kvtwin::test {

inline Json Outcome::json() const {
  if (exit_code != 0) throw std::runtime_error("exit code " + std::to_string(exit_code) + ": " + err);
  return Json::parse(out);
}

}  // namespace kvtwin::test
