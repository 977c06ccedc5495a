#include "traces/passed_over.hpp"

#include <simdjson.h>

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

void PassedOver::add(const PassedOver& more) {
  std::uint64_t rest = more.total_;
  for (const auto& [name, times] : more.names_) {
    add(name, times);
    rest -= times;
  }
  total_ += rest;
}

std::string PassedOver::listed(bool counts) const {
  std::string text;
  std::uint64_t rest = total_;
  const auto append = [&text](std::string_view name, std::uint64_t times, bool counted) {
    text.append(text.empty() ? "" : ", ").append(name);
    if (counted) text.append(" (").append(std::to_string(times)).append(")");
  };
  for (const auto& [name, times] : names_) {
    std::string shown = name;
    const bool is_text = simdjson::validate_utf8(shown);
    const auto is_hidden = [is_text](char c) {
      const auto byte = static_cast<unsigned char>(c);
      return byte < 0x20 || byte == 0x7F || (byte > 0x7F && !is_text);
    };
    std::replace_if(shown.begin(), shown.end(), is_hidden, '?');
    append(shown, times, counts);
    rest -= times;
  }
  if (rest > 0) append("others", rest, true);
  return text;
}

void LeftOut::add(std::string_view reason, std::string_view entry) {
  const auto same = [reason](const auto& known) { return known.first == reason; };
  auto at = std::find_if(by_reason_.begin(), by_reason_.end(), same);
  if (at == by_reason_.end()) at = by_reason_.emplace(at, reason, PassedOver());
  at->second.add(entry);
}

std::vector<std::string> LeftOut::sentences(std::uint64_t all, std::string_view what) const {
  std::vector<std::string> list;
  for (const auto& [reason, entries] : by_reason_) {
    std::string sentence = std::to_string(entries.total()) + " of " + std::to_string(all) + " ";
    sentence.append(what).append(": ").append(reason).append(" (").append(entries.names()).append(")");
    list.push_back(std::move(sentence));
  }
  return list;
}

}  // namespace kvtwin
