// The parts of the URL of a remote tier: scheme://place?name=value&name=value.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace kvtwin {

struct RemoteUrl {
  std::string place;
  std::map<std::string, std::string> settings;

  // Returns the setting, or `absent`.
  std::string setting(const std::string& name, const std::string& absent) const;
};

// Parses a URL that begins with `scheme`, for example "mooncake://". `form`: the URL as users write it; all its
// settings are NAME=... Returns one sentence if the URL is wrong; the sentence does not contain the URL.
std::variant<RemoteUrl, std::string> parse_remote_url(std::string_view url, std::string_view scheme,
                                                      std::string_view form);

// Returns the number in `text` if it is one from `least` to `most`.
std::optional<long long> parse_number(std::string_view text, long long least, long long most);

}  // namespace kvtwin
