// Reads the output of RDMA benchmarks as measurements of a NIC: a message in a stream (bandwidth tests), or alone
// (latency tests).
//   perftest   " #bytes  #iterations  BW peak[MB/sec]  BW average[MB/sec]  MsgRate[Mpps]", or " #bytes #iterations
//              t_min[usec] t_max[usec] t_typical[usec] ...", then one row per size; MB are 2^20 bytes
//   ucx        "| Message size: N", a head with "latency (usec)" or "overhead (usec)", then "Final:" with iterations,
//              percentile, average, overall, bandwidth (MB/s, of 2^20 bytes) average and overall, rates
#include <algorithm>
#include <charconv>
#include <optional>

#include "models/calibration_samples.hpp"

namespace kvtwin {
namespace {

constexpr double kMiB = 1048576;

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (;;) {
    const std::size_t begin = line.find_first_not_of(" \t\r|");
    if (begin == std::string_view::npos) return words;
    line.remove_prefix(begin);
    const std::size_t end = std::min(line.find_first_of(" \t\r|"), line.size());
    words.push_back(line.substr(0, end));
    line.remove_prefix(end);
  }
}

bool has(std::string_view line, std::string_view what) { return line.find(what) != std::string_view::npos; }

class Tables {
 public:
  explicit Tables(std::string file) : file_(std::move(file)) {}

  void read(std::string_view line) {
    ++number_;
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty()) return;
    if (words[0] == "#bytes") return begin_table(line);
    if (has(line, "Message size:")) message_ = number(words.back());
    if (has(line, "latency (usec)")) ucx_stream_ = false;
    if (has(line, "overhead (usec)")) ucx_stream_ = true;
    if (words[0] == "Final:") return ucx_row(words);
    if (column_ && words[0].find_first_not_of("0123456789") == std::string_view::npos) perftest_row(words);
  }

  Measurements take() {
    if (found_.list.empty()) {
      throw ModelError(file_ + ": holds no row of ib_write_bw, ib_write_lat or ucx_perftest; keep all that they print");
    }
    return std::move(found_);
  }

 private:
  [[noreturn]] void fail(const std::string& right) const {
    throw ModelError(file_ + ":" + std::to_string(number_) + ": " + right);
  }
  double number(std::string_view word) const {
    double value = 0;
    const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
    // This form also fails for NaN.
    if (error != std::errc() || end != word.data() + word.size() || !(value >= 0) || !(value < 1e15)) {
      fail("`" + std::string(word.substr(0, 40)) + "` where a number belongs");
    }
    return value;
  }
  void add(double bytes, bool stream, double seconds) {
    if (!(bytes >= 1) || !(seconds > 0)) fail("a size and a figure above 0 belong here");
    Measurement one;
    one.what = Measured::nic;
    one.bytes = static_cast<Bytes>(bytes);
    one.stream = stream;
    one.seconds = seconds;
    found_.list.push_back(one);
  }

  void begin_table(std::string_view head) {
    stream_ = has(head, "BW average");
    if (stream_) {
      column_ = 3;
      unit_ = has(head, "Gb/sec") ? 1e9 / 8 : kMiB;
    } else if (has(head, "t_typical")) {
      column_ = 4;
    } else if (has(head, "t_avg")) {
      column_ = 2;
    } else {
      fail("neither `BW average` nor `t_typical` is in this head of a perftest table");
    }
  }
  void perftest_row(const std::vector<std::string_view>& words) {
    if (words.size() <= *column_) fail("the row is cut short");
    const double bytes = number(words[0]), figure = number(words[*column_]);
    add(bytes, stream_, stream_ ? bytes / (figure * unit_) : figure * 1e-6);
  }
  void ucx_row(const std::vector<std::string_view>& words) {
    if (message_ < 1 || !ucx_stream_) fail("before `Final:` the message size and the table's head belong");
    if (words.size() < 7) fail("the row is cut short");
    add(message_, *ucx_stream_, *ucx_stream_ ? message_ / (number(words[6]) * kMiB) : number(words[4]) * 1e-6);
  }

  std::string file_;
  std::size_t number_ = 0;
  Measurements found_;
  std::optional<std::size_t> column_;  // in the table of perftest
  bool stream_ = false;
  double unit_ = kMiB;
  double message_ = 0;
  std::optional<bool> ucx_stream_;
};

}  // namespace

bool looks_like_perftest(std::string_view text) { return has(text, "#bytes") || has(text, "Message size:"); }

Measurements parse_perftest(std::string_view text, const std::string& file) {
  Tables tables(file);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    tables.read(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return tables.take();
}

}  // namespace kvtwin
