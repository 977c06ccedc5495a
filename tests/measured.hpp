// Statistics and tables for programs that measure: quantiles, measurements in pairs, CSV files. The caller passes the
// clock.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace kvtwin::test {

struct Spread {
  double median = 0, p10 = 0, p90 = 0;
  std::size_t count = 0;
};

// Interpolates between the two nearest values. Requires: `sorted` is not empty; 0 <= share <= 1.
inline double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// Errors: std::invalid_argument if `values` is empty.
inline Spread spread_of(std::vector<double> values) {
  if (values.empty()) throw std::invalid_argument("there is no spread of no values");
  std::sort(values.begin(), values.end());
  return {quantile(values, 0.5), quantile(values, 0.1), quantile(values, 0.9), values.size()};
}

// How often to repeat a measurement: at least `least` times, then until `most` times or `seconds` are reached.
struct Repeats {
  std::size_t least = 7, most = 21;
  double seconds = 0.5;
};

// Measures two functions alternately, so that a drift (of clocks, of other traffic) affects both. Every second pair has
// the reverse order. One pair before the measurement does not count. first() and second() return a measured value;
// now() returns seconds.
template <typename First, typename Second, typename Now>
std::vector<std::pair<double, double>> in_pairs(const Repeats& repeats, const First& first, const Second& second,
                                                const Now& now) {
  first();
  second();
  std::vector<std::pair<double, double>> pairs;
  const double begin = now();
  while (pairs.size() < repeats.most && (pairs.size() < repeats.least || now() - begin < repeats.seconds)) {
    std::pair<double, double> pair;
    if (pairs.size() % 2 == 0) pair.first = first();
    pair.second = second();
    if (pairs.size() % 2 == 1) pair.first = first();
    pairs.push_back(pair);
  }
  return pairs;
}

// The same for one function.
template <typename One, typename Now>
std::vector<double> repeated(const Repeats& repeats, const One& one, const Now& now) {
  one();
  std::vector<double> values;
  const double begin = now();
  while (values.size() < repeats.most && (values.size() < repeats.least || now() - begin < repeats.seconds)) {
    values.push_back(one());
  }
  return values;
}

// A field of a table.
class Field {
 public:
  Field(const char* text) : Field(std::string(text)) {}
  Field(std::string text) : text_(std::move(text)) {
    if (text_.find_first_of(",\"\n") != std::string::npos) throw std::invalid_argument("a field may not hold " + text_);
  }
  Field(double value) {
    if (!std::isfinite(value)) throw std::invalid_argument("a table's numbers are finite");
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    text_ = text;
  }
  Field(std::uint64_t value) : text_(std::to_string(value)) {}
  Field(std::uint32_t value) : text_(std::to_string(value)) {}
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

// Writes comma-separated values. Lines that begin with "# " describe the origin of the values, then one line names the
// columns. When row() returns, the row is in the file, so a program that is stopped leaves whole rows.
// Errors: std::runtime_error if the file cannot be written; std::invalid_argument if the number of fields is wrong.
class Table {
 public:
  Table(const std::string& path, const std::vector<std::string>& about, std::vector<std::string> columns)
      : path_(path), columns_(std::move(columns)), file_(path) {
    for (const std::string& line : about) file_ << "# " << line << '\n';
    write({columns_.begin(), columns_.end()});
  }
  void row(std::initializer_list<Field> fields) { write(fields); }

 private:
  void write(const std::vector<Field>& fields) {
    if (fields.size() != columns_.size()) throw std::invalid_argument(path_ + ": a row has other fields than columns");
    std::string line;
    for (const Field& field : fields) line += (line.empty() ? "" : ",") + field.text();
    file_ << line << '\n' << std::flush;
    if (!file_) throw std::runtime_error(path_ + ": can't be written");
  }

  std::string path_;
  std::vector<std::string> columns_;
  std::ofstream file_;
};

}  // namespace kvtwin::test
