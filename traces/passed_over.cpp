#include "traces/passed_over.hpp"

#include <algorithm>

namespace kvtwin {

void PassedOver::add(std::string_view name, std::uint64_t times) {
  total_ += times;
  name = name.substr(0, kMaxNameBytes);
  const auto same = [name](const auto& entry) { return entry.first == name; };
  const auto found = std::find_if(names_.begin(), names_.end(), same);
  if (found != names_.end()) {
    found->second += times;
  } else if (names_.size() < kMaxNames) {
    names_.emplace_back(name, times);
  }
}

std::string PassedOver::text() const {
  std::string text;
  std::uint64_t rest = total_;
  const auto append = [&text](std::string_view name, std::uint64_t times) {
    text.append(text.empty() ? "" : ", ").append(name).append(" (").append(std::to_string(times)).append(")");
  };
  for (const auto& [name, times] : names_) {
    std::string shown = name;
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7F; };
    std::replace_if(shown.begin(), shown.end(), is_control, '?');
    append(shown, times);
    rest -= times;
  }
  if (rest > 0) append("others", rest);
  return text;
}

}  // namespace kvtwin
