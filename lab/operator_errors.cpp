#include "lab/operator_errors.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <string_view>

#include "lab/error.hpp"
#include "models/text_file.hpp"

namespace kvtwin {
namespace {

struct OperatorRow {
  std::string lattice;
  std::array<std::uint64_t, OperatorLattice::kMaxAxes> at{1, 1, 1};
  std::uint64_t ns = 0;
};

OperatorRow operator_row(std::string_view line, const std::string& file, std::size_t number) {
  const auto refuse = [&] {
    throw InputError(file + ": line " + std::to_string(number) +
                     ": must be as \"gemm bf16,64/4096/1024,12300\"; give the rows of kvtwin import-ops --leave-out");
  };
  OperatorRow row;
  const std::size_t first = line.find(','), last = line.rfind(',');
  if (first == std::string_view::npos || first == last) refuse();
  row.lattice = line.substr(0, first);
  const auto read = [&](std::string_view text, std::uint64_t& value) {
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc() || value == 0) refuse();
    return text.substr(static_cast<std::size_t>(stop - text.data()));
  };
  std::string_view rest = line.substr(first + 1, last - first - 1);
  for (std::size_t i = 0; !rest.empty(); ++i) {
    if (i == row.at.size()) refuse();
    rest = read(rest, row.at[i]);
    if (!rest.empty() && rest.front() != '/') refuse();
    if (!rest.empty()) rest.remove_prefix(1);
  }
  if (!read(line.substr(last + 1), row.ns).empty()) refuse();
  return row;
}

// Nearest rank in a sorted list.
double quantile(const std::vector<double>& sorted, double share) {
  return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1) + 0.5)];
}

}  // namespace

std::vector<OperatorErrors> operator_errors(const OperatorTable& table, const std::string& rows_file) {
  const std::string text = read_text_file(rows_file, "give the rows of kvtwin import-ops --leave-out");
  std::map<std::string, std::vector<double>> percents;  // by family
  std::size_t begin = 0, number = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const OperatorRow row = operator_row(std::string_view(text).substr(begin, end - begin), rows_file, ++number);
    begin = end + 1;
    const OperatorLattice* lattice = table.find(row.lattice);
    if (lattice == nullptr) continue;
    const double ns = static_cast<double>(lattice->at_fs(row.at[0], row.at[1], row.at[2])) / 1e6;
    const std::size_t family = row.lattice.find(' ');
    percents[row.lattice.substr(0, row.lattice.find(' ', family + 1))].push_back(
        std::abs(ns / static_cast<double>(row.ns) - 1) * 100);
  }
  std::vector<OperatorErrors> errors;
  for (auto& [family, list] : percents) {
    std::sort(list.begin(), list.end());
    errors.push_back({family, list.size(), quantile(list, 0.5), quantile(list, 0.9), quantile(list, 0.99)});
  }
  return errors;
}

}  // namespace kvtwin
