// Help for mistyped names: a sentence with the known names.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "policy/base/nearest_name.hpp"  // IWYU pragma: export

namespace kvtwin {

// Returns, for example: unknown model "lama-3.1-8b": did you mean "llama-3.1-8b"? Known: deepseek-v3, gpt-oss-120b.
// Where one is near, it stands for a long list.
std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string> known);

}  // namespace kvtwin
