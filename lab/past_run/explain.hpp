// Describes the life of one request. The run is decided again, and the request is followed.
#pragma once

#include <cstdint>
#include <string>

namespace kvtwin {

struct Explanation {
  std::string text;   // sentences, or JSON with the column names of requests.csv
  int exit_code = 0;  // 3: the rerun has other decisions than the run
};

// `path`: a run folder or a journal. `request`: a number from 0, in the order of arrival.
// Errors: InputError if the request or the run does not exist.
Explanation explain(const std::string& path, std::int64_t request, bool as_json);

}  // namespace kvtwin
