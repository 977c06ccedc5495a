// Reads the validated runs of the user.
#include <optional>

#include "lab/error.hpp"
#include "lab/errors/error_model.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

// Returns measured / predicted; nothing if a cell lacks one of the two.
std::optional<double> factor_of(const Json& cell, const std::string& figure) {
  for (const Json& one : cell.at("figures")) {
    if (one.at("figure") != figure) continue;
    const double measured = one.at("measured"), predicted = one.at("predicted");
    if (measured > 0 && predicted > 0) return measured / predicted;
  }
  return std::nullopt;
}

}  // namespace

std::vector<OwnRun> read_own_runs(const std::filesystem::path& folder) {
  const std::string wanted = "report.validated is a folder that kvtwin validate --out wrote";
  const std::filesystem::path file = folder / "validate.json";
  const Json json = Json::parse_or_discard(read_text_file(file, wanted));
  if (!json.is_object() || !json.contains("cells"))
    throw InputError(file.string() + ": is no result of kvtwin validate; " + wanted);
  std::vector<OwnRun> runs;
  for (const Json& cell : json.at("cells")) {
    const std::optional<double> ttft = factor_of(cell, "ttft_mean_s"), tpot = factor_of(cell, "tpot_mean_s");
    if (!cell.contains("intervals_of") || !ttft || !tpot) continue;
    runs.push_back({ErrorFeatures::from_json(cell.at("intervals_of").at("features")), {*ttft, *tpot}});
  }
  if (runs.empty())
    throw InputError(file.string() + ": has no run with a TTFT and a TPOT, measured and predicted by this version");
  return runs;
}

}  // namespace kvtwin
