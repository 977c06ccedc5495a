#include "lab/calibrate/calibrate_tables.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <vector>

#include "models/text_file.hpp"
#include "policy/base/names.hpp"

namespace kvtwin {
namespace {

class Table {
 public:
  explicit Table(std::string file) : file_(std::move(file)) {}

  void read(std::string_view line) {
    ++number_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) return;
    if (line.starts_with("# ")) return remark(line.substr(2));
    std::vector<std::string_view> fields = fields_of(line);
    if (columns_.empty()) return begin(std::move(fields));
    if (fields.size() != columns_.size()) {
      fail("has " + std::to_string(fields.size()) + " fields, and the table " + std::to_string(columns_.size()) +
           " columns");
    }
    row_ = std::move(fields);
    columns_.contains("kind") ? link_row() : matrix_row();
  }

  Measurements take() {
    if (columns_.empty()) {
      throw ModelError(file_ + ": is no table; give a link.csv or matrix.csv of tools/gpu-check");
    }
    if (!cpu_.empty() && !gpu_.empty()) found_.machine = MeasuredMachine{cpu_, "", cores_, gpu_};
    return std::move(found_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw ModelError(file_ + ":" + std::to_string(number_) + ": " + what);
  }
  void remark(std::string_view text) {
    const std::size_t comma = std::min(text.rfind(", "), text.size());
    if (text.starts_with("machine: ") && comma > 9) {
      cpu_ = text.substr(9, comma - 9);
      const std::string_view cores = text.substr(std::min(comma + 2, text.size()));
      std::from_chars(cores.data(), cores.data() + cores.size(), cores_);
    }
    if (text.starts_with("gpu: ")) gpu_ = text.substr(5, std::min(text.find(','), text.size()) - 5);
  }
  void begin(std::vector<std::string_view> names) {
    for (std::size_t i = 0; i < names.size(); ++i) columns_[std::string(names[i])] = i;
    const std::vector<const char*> link{"direction", "bytes", "us"};
    const std::vector<const char*> matrix{"path", "direction", "chunk_bytes", "chunks", "bytes", "gbps"};
    for (const char* needed : columns_.contains("kind") ? link : matrix) {
      if (!columns_.contains(needed)) {
        fail("no column " + std::string(needed) + "; calibrate takes link.csv and matrix.csv of tools/gpu-check");
      }
    }
  }
  std::string_view text(const char* column) const { return row_[columns_.at(column)]; }
  double number(const char* column) const {
    const std::string_view field = text(column);
    double value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    // The negated comparisons also refuse NaN.
    if (error != std::errc() || end != field.data() + field.size() || !(value > 0) || !(value < 1e15)) {
      fail("`" + std::string(field.substr(0, 40)) + "` where a number above 0 belongs (" + column + ")");
    }
    return value;
  }
  Direction direction() const {
    if (const std::optional<Direction> value = value_named<Direction>(text("direction"))) return *value;
    fail("direction `" + std::string(text("direction")) + "`; there are h2d and d2h");
  }

  void add(Measured what, TransferPath path, double pieces, double piece, double seconds) {
    Measurement one;
    one.what = what;
    one.plan.path = path;
    one.plan.direction = direction();
    one.plan.bytes = static_cast<Bytes>(pieces * piece);
    one.plan.piece_bytes = static_cast<Bytes>(piece);
    one.plan.pages = 1;
    one.plan.descriptors = path == TransferPath::boxes ? 1 : static_cast<std::uint64_t>(pieces);
    one.plan.descriptor_bytes = one.plan.bytes / one.plan.descriptors;
    one.seconds = seconds;
    found_.list.push_back(one);
  }
  void link_row() {
    const bool both = text("kind") == "copy_both";
    if (!both && text("kind") != "copy") return;
    add(both ? Measured::both : Measured::transfer, TransferPath::copy_engine, 1, number("bytes"), number("us") * 1e-6);
  }
  void matrix_row() {
    static const std::map<std::string_view, TransferPath> kPaths{{"batch", TransferPath::copy_engine},
                                                                 {"boxes", TransferPath::boxes},
                                                                 {"kernel", TransferPath::kernel},
                                                                 {"ring", TransferPath::ring}};
    const auto path = kPaths.find(text("path"));
    if (path == kPaths.end()) return;
    add(Measured::transfer, path->second, number("chunks"), number("chunk_bytes"),
        number("bytes") / (number("gbps") * 1e9));
  }

  std::string file_;
  std::size_t number_ = 0;
  std::map<std::string, std::size_t, std::less<>> columns_;
  std::vector<std::string_view> row_;
  std::string cpu_, gpu_;
  std::uint64_t cores_ = 0;
  Measurements found_;
};

}  // namespace

Measurements measurements_of_table(std::string_view csv, const std::string& file) {
  Table table(file);
  while (!csv.empty()) {
    const std::size_t end = std::min(csv.find('\n'), csv.size());
    table.read(csv.substr(0, end));
    csv.remove_prefix(std::min(end + 1, csv.size()));
  }
  return table.take();
}

}  // namespace kvtwin
