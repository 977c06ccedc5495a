// One request's life in words and numbers, by deciding its run again.
#pragma once

#include <cstdint>
#include <string>

namespace kvtwin {

struct Explanation {
  std::string text;   // for a person, or JSON with the names of requests.csv
  int exit_code = 0;  // 3: the run isn't decided again as it was
};

// `path`: a run folder or a journal. InputError if there is no such request, or no such run.
Explanation explain(const std::string& path, std::int64_t request, bool as_json);

}  // namespace kvtwin
