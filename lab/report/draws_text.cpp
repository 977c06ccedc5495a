#include "lab/report/draws_text.hpp"

#include <algorithm>
#include <cstdio>

namespace kvtwin {

std::string draws_text(const Draws& draws) {
  char line[256];
  std::snprintf(line, sizeof line, "draws      95 %% of %zu hardware variants (%zu figures drawn) have", draws.count,
                draws.numbers);
  std::string text = line;
  const char* const shown[][2] = {{"ttft_mean_s", "mean TTFT"}, {"ttft_p90_s", "p90"}, {"ttft_p99_s", "p99"}};
  for (const auto& [name, words] : shown) {
    const auto figure = std::ranges::find(draws.figures, name, &Draws::Figure::name);
    text += std::string(text.ends_with("have") ? " a " : ", ") + words;
    if (figure->low) {
      std::snprintf(line, sizeof line, " %.4g to %.4g s", *figure->low, *figure->high);
      text += line;
    } else {
      text += " -";
    }
  }
  text += "\n";
  const auto ttft = std::ranges::find(draws.figures, "ttft_mean_s", &Draws::Figure::name);
  if (ttft == draws.figures.end() || !ttft->value) return text + "hangs on   not known: no request has a first token\n";
  if (draws.hangs_on.empty()) return text + "hangs on   no figure: none of them changes the mean TTFT\n";
  constexpr std::size_t kShown = 3;
  text += "hangs on  ";
  for (std::size_t i = 0; i < std::min(kShown, draws.hangs_on.size()); ++i) {
    const Draws::Cause& cause = draws.hangs_on[i];
    std::snprintf(line, sizeof line, "%s %s (%+.0f to %+.0f %%: mean TTFT %.4g to %.4g s)", i == 0 ? "" : ";",
                  cause.number.c_str(), 100 * (cause.low - 1), 100 * (cause.high - 1), cause.at_low, cause.at_high);
    text += line;
  }
  return text + "\n";
}

}  // namespace kvtwin
