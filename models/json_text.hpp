// Parses JSON that other programs wrote. A key that one object has twice is no valid input: nlohmann::json would keep
// the last value and say nothing.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

// Collects the keys of the open objects, as a callback of Json::parse().
template <typename Json>
class RepeatedKey {
 public:
  explicit RepeatedKey(std::string& repeated) : repeated_(repeated) {}

  bool operator()(int /*depth*/, typename Json::parse_event_t event, Json& parsed) {
    using JsonEvent = typename Json::parse_event_t;
    if (event == JsonEvent::object_start) open_.emplace_back();
    if (event == JsonEvent::object_end) open_.pop_back();
    if (event == JsonEvent::key && !open_.back().insert(parsed.template get<std::string>()).second &&
        repeated_.empty()) {
      repeated_ = parsed.template get<std::string>();
    }
    return true;
  }

 private:
  std::string& repeated_;
  std::vector<std::set<std::string>> open_;
};

// Returns the parsed text, discarded if it is no JSON, like Json::parse(text, nullptr, false). `repeated`: the first
// key that an object has twice; unchanged if there is none.
template <typename Json>
Json parse_json(std::string_view text, std::string& repeated) {
  return Json::parse(text, RepeatedKey<Json>(repeated), false);
}

}  // namespace kvtwin
