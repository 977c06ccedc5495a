// The error for a value of a generator's configuration that is out of range.
#pragma once

#include <string>

#include "traces/trace.hpp"

namespace kvtwin {

// A caller with a different name for the value (for example a key of the experiment) prints this name and range().
class FigureError : public TraceError {
 public:
  FigureError(const std::string& figure, const std::string& range)
      : TraceError(figure + " " + range), figure_(figure), range_(range) {}
  const std::string& figure() const { return figure_; }  // name of the configuration's member
  const std::string& range() const { return range_; }    // "must be ..."

 private:
  std::string figure_, range_;
};

}  // namespace kvtwin
