#include "impl/remote/remote_url.hpp"

#include <charconv>

namespace kvtwin {

std::string RemoteUrl::setting(const std::string& name, const std::string& absent) const {
  const auto found = settings.find(name);
  return found == settings.end() ? absent : found->second;
}

std::variant<RemoteUrl, std::string> parse_remote_url(std::string_view url, std::string_view scheme,
                                                      std::string_view form) {
  const std::string wrong = "The URL is " + std::string(form) + ", each setting at most once.";
  if (!url.starts_with(scheme)) return wrong;
  url.remove_prefix(scheme.size());
  for (const char character : url) {
    if (character <= ' ' || character > '~') return wrong;
  }
  RemoteUrl parsed;
  parsed.place = url.substr(0, url.find('?'));
  if (parsed.place.size() == url.size()) return parsed;
  url.remove_prefix(parsed.place.size() + 1);
  for (;;) {
    const std::string_view setting = url.substr(0, url.find('&'));
    const std::size_t sign = setting.find('=');
    if (sign == std::string_view::npos || sign == 0 || sign + 1 == setting.size()) return wrong;
    const std::string name(setting.substr(0, sign));
    const bool known =
        form.find("?" + name + "=") != std::string_view::npos || form.find("&" + name + "=") != std::string_view::npos;
    if (!known || !parsed.settings.emplace(name, setting.substr(sign + 1)).second) return wrong;
    if (setting.size() == url.size()) return parsed;
    url.remove_prefix(setting.size() + 1);
  }
}

std::optional<long long> parse_number(std::string_view text, long long least, long long most) {
  long long number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && number >= least && number <= most ? std::optional(number) : std::nullopt;
}

}  // namespace kvtwin
