#include "traces/drawn_traffic.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace kvtwin {
namespace {

std::string short_number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, value >= 1000 ? "%.0f" : "%.4g", value);
  return text;
}

std::string text_of(const DrawnTraffic::Mean& mean) {
  return std::string(mean.figure) + " " + (mean.count == 0 ? "-" : short_number(mean.mean())) + " (asked " +
         short_number(mean.asked) + ")";
}

}  // namespace

bool DrawnTraffic::Mean::differs() const {
  if (count < 2) return false;
  const auto n = static_cast<double>(count);
  const double error = std::sqrt(std::max(0.0, squares / n - mean() * mean()) / n);
  return std::abs(mean() - asked) > std::max(0.1 * asked, 3 * error);
}

std::string drawn_text(const DrawnTraffic& drawn) {
  std::string text;
  for (const DrawnTraffic::Mean& mean : drawn.means) text += (text.empty() ? "" : ", ") + text_of(mean);
  return text + ", context up to " + std::to_string(drawn.longest_context) +
         (drawn.context_limit == 0 ? "" : " of " + std::to_string(drawn.context_limit)) + " tokens";
}

std::string drawn_note(const DrawnTraffic& drawn) {
  std::string text;
  for (const DrawnTraffic::Mean& mean : drawn.means) {
    if (mean.differs()) text += (text.empty() ? "" : ", ") + text_of(mean);
  }
  if (text.empty()) return "";
  text = "the generated conversations differ from the figures that were asked for: " + text + "; ";
  const std::string ended = std::to_string(drawn.ended);
  if (20 * drawn.cut < drawn.ended || drawn.cut == 0) {
    return text + ended + " conversations have ended, and longer traffic brings the means closer";
  }
  return text + std::to_string(drawn.cut) + " of the " + ended +
         " conversations that ended did so at the longest context, " + std::to_string(drawn.context_limit) +
         " tokens: a longer context, fewer turns or fewer new tokens keep them whole";
}

}  // namespace kvtwin
