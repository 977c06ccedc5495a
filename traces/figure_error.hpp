// A figure of a generator's configuration is out of range.
#pragma once

#include <string>

#include "traces/trace.hpp"

namespace kvtwin {

// A caller that gave the figure under a name of its own says that name and range().
class FigureError : public TraceError {
 public:
  FigureError(const std::string& figure, const std::string& range)
      : TraceError(figure + " " + range), figure_(figure), range_(range) {}
  const std::string& figure() const { return figure_; }  // the configuration's member
  const std::string& range() const { return range_; }    // "must be ..."

 private:
  std::string figure_, range_;
};

}  // namespace kvtwin
