#include "models/copy_sizes.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>

#include "models/text_file.hpp"
#include "policy/base/names.hpp"

namespace kvtwin {
namespace {

constexpr double kMinRelativeRate = 0.95;

// One row, by the names of the columns.
class Row {
 public:
  Row(const std::vector<std::string_view>& names, std::vector<std::string_view> fields, std::string where)
      : names_(names), fields_(std::move(fields)), where_(std::move(where)) {
    if (fields_.size() == names_.size()) return;
    throw ModelError(where_ + ": " + std::to_string(fields_.size()) + " fields under " + std::to_string(names_.size()) +
                     " columns");
  }
  // Returns an empty text if the table has no such column.
  std::string_view text(std::string_view column) const {
    const auto found = std::ranges::find(names_, column);
    return found == names_.end() ? std::string_view() : fields_[static_cast<std::size_t>(found - names_.begin())];
  }
  // Returns 0 if the table has no such column.
  double number(std::string_view column) const {
    if (std::ranges::find(names_, column) == names_.end()) return 0;
    const std::string_view field = text(column);
    double value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error == std::errc() && end == field.data() + field.size() && value >= 0 && value < 1e15) return value;
    throw ModelError(where_ + ": `" + std::string(field.substr(0, 60)) + "` where a number of 0 or more belongs (" +
                     std::string(column) + ")");
  }
  std::uint64_t whole(std::string_view column) const {
    return static_cast<std::uint64_t>(std::llround(number(column)));
  }
  Direction direction() const {
    if (const std::optional<Direction> value = value_named<Direction>(text("direction"))) return *value;
    throw ModelError(where_ + ": direction `" + std::string(text("direction")) + "`; there are h2d and d2h");
  }

 private:
  const std::vector<std::string_view>& names_;
  std::vector<std::string_view> fields_;
  std::string where_;
};

// Returns the smallest size of this kind that reaches kMinRelativeRate of the best one in both directions.
std::optional<std::uint64_t> smallest(const std::vector<CopyRate>& rates, std::string_view kind,
                                      std::uint64_t CopyRate::*size) {
  std::optional<std::uint64_t> most;
  for (const Direction direction : {Direction::host_to_device, Direction::device_to_host}) {
    std::map<std::uint64_t, double> by_size;
    double best = 0;
    for (const CopyRate& rate : rates) {
      if (rate.kind != kind || rate.direction != direction || rate.*size == 0) continue;
      by_size[rate.*size] = std::max(by_size[rate.*size], rate.rate);
      best = std::max(best, rate.rate);
    }
    for (const auto& [value, rate] : by_size) {
      if (best == 0 || rate < kMinRelativeRate * best) continue;
      most = std::max(most.value_or(0), value);
      break;
    }
  }
  return most;
}

}  // namespace

std::vector<CopyRate> parse_copy_rates(std::string_view csv, const std::string& file) {
  std::vector<CopyRate> rates;
  std::vector<std::string_view> names;
  for (std::size_t number = 1; !csv.empty(); ++number) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    std::string_view line = csv.substr(0, end);
    csv.remove_prefix(std::min(end + 1, csv.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() || line.starts_with('#')) continue;
    if (names.empty()) {
      names = fields_of(line);
      continue;
    }
    const Row row(names, fields_of(line), file + ":" + std::to_string(number));
    const std::string_view kind = row.text("kind");
    if (kind != "kernel" && kind != "ring" && kind != "ring_stages" && kind != "staged") continue;
    rates.push_back({std::string(kind), row.direction(), row.whole("ctas"), row.whole("stages"),
                     row.whole("portion_bytes"), row.number("gbps")});
  }
  return rates;
}

MeasuredSizes sizes_from(const std::vector<CopyRate>& rates) {
  return {smallest(rates, "kernel", &CopyRate::ctas), smallest(rates, "ring", &CopyRate::ctas),
          smallest(rates, "ring_stages", &CopyRate::stages), smallest(rates, "staged", &CopyRate::portion)};
}

}  // namespace kvtwin
