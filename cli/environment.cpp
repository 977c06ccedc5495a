#include "cli/environment.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "lab/error.hpp"
#include "models/names.hpp"

namespace kvtwin {
namespace {

const std::vector<std::string>& known() {
  static const std::vector<std::string> names{"KVTWIN_PYTHON", "KVTWIN_PROGRESS", "KVTWIN_REDIS_PASSWORD",
                                              "KVTWIN_PAGE_KEY"};
  return names;
}

bool parse_flag(const std::string& name, const std::string& text) {
  for (const char* no : {"false", "0", "off"}) {
    if (text == no) return false;
  }
  for (const char* yes : {"true", "1", "on"}) {
    if (text == yes) return true;
  }
  throw InputError(name + "=" + text + ": must be true, 1, on, false, 0 or off");
}

std::string value_of(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace

void check_environment() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with("KVTWIN_")) continue;
    const std::string name(text.substr(0, text.find('=')));
    bool found = false;
    for (const std::string& candidate : known()) found |= candidate == name;
    if (!found) throw InputError(unknown_name("environment variable", name, known()));
  }
  environment_progress();
}

std::string environment_help() {
  return "Environment:\n"
         "  KVTWIN_PYTHON          Python with the packages of notebooks/requirements.txt, for `figures`, `report`\n"
         "                         and `import-ops` (default: .venv of the source folder)\n"
         "  KVTWIN_PROGRESS        false, 0 or off: no progress line on a terminal (default: on, if TERM is not dumb)\n"
         "  NO_COLOR               any text: no colour on a terminal\n"
         "  KVTWIN_REDIS_PASSWORD  password of the servers in tiers.remote.url; never written to a file\n"
         "  KVTWIN_PAGE_KEY        secret of 16 characters or more; `run` signs stored pages with the secret; pages "
         "without "
         "this\n"
         "                         signature are misses; never written to a file";
}

std::string environment_python() { return value_of("KVTWIN_PYTHON"); }

StorageSecrets environment_secrets() {
  const std::string s3_key = value_of("AWS_ACCESS_KEY_ID");
  return {value_of("KVTWIN_REDIS_PASSWORD"), s3_key.empty() ? "" : s3_key + ":" + value_of("AWS_SECRET_ACCESS_KEY"),
          value_of("KVTWIN_PAGE_KEY")};
}

bool environment_progress() {
  const std::string text = value_of("KVTWIN_PROGRESS");
  const bool wanted = text.empty() || parse_flag("KVTWIN_PROGRESS", text);
  return wanted && value_of("TERM") != "dumb";
}

bool environment_colour() { return value_of("NO_COLOR").empty() && value_of("TERM") != "dumb"; }

}  // namespace kvtwin
