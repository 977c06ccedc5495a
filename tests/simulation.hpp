// Calls `kvtwin simulate` with settings, and returns the report and the files. Also makes small traces.
#pragma once

#include <cstdint>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "tests/program.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

// The world for tests that work with every world.
inline constexpr const char* kAnyWorld = KVTWIN_TEST_SIMGRID ? "simgrid" : "events";

// The experiment of tests that are about no engine: the defaults, without an engine's rules and times.
inline constexpr const char* kNoEngine = "engine = \"none\"\n";

// An experiment of 96 requests: contexts return, and the tiers cannot hold all contexts.
inline constexpr const char* kReturning = R"(engine = "none"
[model]
name = "tiny"
[hardware]
name = "cpu-host"
[workload.generate]
kind = "returning"
prompt_tokens = 512
working_set_tokens = 16384
visits = 3
[tiers]
device.tokens = 2048
host.tokens = 4096
)";

// Removes the values that may differ between two runs of the same simulation.
inline Json without_costs(Json report) {
  for (const char* key : {"wall_seconds", "requests_per_wall_second", "peak_rss_bytes"}) report.erase(key);
  return report;
}

// A CSV file with a line of column names. Cells with quotes are not supported.
class Table {
 public:
  explicit Table(const std::string& text) {
    std::istringstream lines(text);
    std::string line;
    while (std::getline(lines, line)) {
      std::vector<std::string> cells{""};
      for (const char c : line) {
        if (c == ',') {
          cells.emplace_back();
        } else {
          cells.back() += c;
        }
      }
      if (columns_.empty()) {
        for (std::size_t i = 0; i < cells.size(); ++i) columns_[cells[i]] = i;
      } else if (cells.size() == columns_.size()) {
        rows_.push_back(std::move(cells));
      } else {
        throw std::runtime_error("a row has " + std::to_string(cells.size()) + " cells: " + line);
      }
    }
  }

  std::size_t size() const { return rows_.size(); }
  const std::string& text(std::size_t row, const std::string& column) const { return rows_[row][columns_.at(column)]; }
  double number(std::size_t row, const std::string& column) const { return std::stod(text(row, column)); }
  std::uint64_t integer(std::size_t row, const std::string& column) const { return std::stoull(text(row, column)); }
  std::uint64_t sum(const std::string& column) const {
    std::uint64_t total = 0;
    for (std::size_t row = 0; row < size(); ++row) {
      if (!text(row, column).empty()) total += integer(row, column);
    }
    return total;
  }
  // Returns the row that has `value` in `column`.
  std::size_t row_of(const std::string& column, std::uint64_t value) const {
    for (std::size_t row = 0; row < size(); ++row) {
      if (integer(row, column) == value) return row;
    }
    throw std::runtime_error("no row with " + column + " " + std::to_string(value));
  }

 private:
  std::map<std::string, std::size_t> columns_;
  std::vector<std::vector<std::string>> rows_;
};

struct Simulated {
  Json report;
  std::string requests_csv, lanes_csv, prometheus, resolved;

  std::uint64_t tokens(const char* key) const { return report.at("tokens").at(key).get<std::uint64_t>(); }
  std::uint64_t requests(const char* key) const { return report.at("requests").at(key).get<std::uint64_t>(); }
  double mean_ttft() const { return report.at("ttft_seconds").at("mean").get<double>(); }
  std::string digest() const { return report.at("decisions").at("digest").get<std::string>(); }
  std::uint64_t lane_bytes(std::string_view name) const {
    for (const Json& lane : report.at("lanes")) {
      if (lane.at("name").get<std::string>() == name) return lane.at("bytes").get<std::uint64_t>();
    }
    throw std::runtime_error("no lane " + std::string(name));
  }
  const Json& tier(std::string_view name) const {
    for (const Json& tier : report.at("tiers")) {
      if (tier.at("name").get<std::string>() == name) return tier;
    }
    throw std::runtime_error("no tier " + std::string(name));
  }
  std::uint64_t counter(const std::string& name) const {
    const std::string wanted = "\n" + name + " ";
    const std::size_t at = prometheus.find(wanted);
    if (at == std::string::npos) throw std::runtime_error("no counter " + name);
    return std::stoull(prometheus.substr(at + wanted.size()));
  }
};

using Settings = std::vector<std::string>;  // key=value

inline Settings operator+(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

inline std::vector<std::string> simulate_arguments(const std::string& experiment, const Settings& settings,
                                                   const std::string& out, const std::string& world) {
  std::vector<std::string> arguments{"simulate", experiment, "--world", world, "--json"};
  if (!out.empty()) arguments.insert(arguments.end(), {"--out", out});
  for (const std::string& setting : settings) arguments.insert(arguments.end(), {"--set", setting});
  return arguments;
}

// What every report must say.
inline void check_report(const Json& report) {
  for (const Json& tier : report.at("tiers")) {
    if (tier.at("used_pages_max").get<std::uint64_t>() <= tier.at("capacity_pages").get<std::uint64_t>()) continue;
    throw std::runtime_error("a tier holds more pages than it can: " + tier.dump());
  }
}

inline Simulated read_run(const Outcome& outcome, const fs::path& folder) {
  const Json report = outcome.json();
  check_report(report);
  return {report, text_of(folder / "requests.csv"), text_of(folder / "lanes.csv"), text_of(folder / "metrics.prom"),
          text_of(folder / "experiment.resolved.toml")};
}

// Throws if the program fails.
inline Simulated simulate_file(const std::string& experiment, const Settings& settings,
                               const std::string& world = kAnyWorld, const Surroundings& around = {}) {
  const Folder folder;
  const std::string out = folder / "run";
  return read_run(run(simulate_arguments(experiment, settings, out, world), around), out);
}

// Simulates kNoEngine with `settings`.
inline Simulated simulate(const Settings& settings, const std::string& world = kAnyWorld,
                          const Surroundings& around = {}) {
  const Folder folder;
  const std::string experiment = folder / "experiment.toml";
  write_text(experiment, kNoEngine);
  return simulate_file(experiment, settings, world, around);
}

// A trace whose requests are given by their block ids.
class TraceText {
 public:
  explicit TraceText(std::uint64_t block_tokens) : block_tokens_(block_tokens) {}

  // Requires: `ms` is not less than in the previous request. The last block may be partial: the request has `input`
  // tokens.
  void request(std::uint64_t ms, std::uint64_t input, std::uint64_t output, const std::vector<std::uint64_t>& ids) {
    if (ids.size() != (input + block_tokens_ - 1) / block_tokens_) throw std::logic_error("ids don't fit the input");
    Json line{{"timestamp", ms}, {"input_length", input}, {"output_length", output}, {"hash_ids", ids}};
    text_ += line.dump() + "\n";
  }
  // Whole blocks.
  void request(std::uint64_t ms, std::uint64_t output, const std::vector<std::uint64_t>& ids) {
    request(ms, ids.size() * block_tokens_, output, ids);
  }

  const std::string& text() const { return text_; }
  // Writes the trace file, and returns the settings that name the file.
  Settings save(const Folder& folder, const std::string& name = "trace.jsonl") const {
    write_text(folder / name, text_);
    return {"workload.trace=" + (folder / name), "workload.block_tokens=" + std::to_string(block_tokens_)};
  }

 private:
  std::uint64_t block_tokens_;
  std::string text_;
};

// Returns the ids `first` .. `first` + `count` - 1.
inline std::vector<std::uint64_t> ids(std::uint64_t first, std::uint64_t count) {
  std::vector<std::uint64_t> list;
  for (std::uint64_t i = 0; i < count; ++i) list.push_back(first + i);
  return list;
}

// Conversations that grow turn by turn. Some start again from a shared head. They hit on every tier.
struct Conversations {
  std::uint64_t requests = 300, block_tokens = 64, first_blocks = 24, growth_blocks = 6, live = 24, output = 60;
  std::uint64_t least_gap_ms = 0, gap_ms = 100;  // gap between requests: least_gap_ms + gap_ms on average
};

inline TraceText conversations(const Conversations& c, std::uint64_t seed) {
  Splitmix random(seed);
  TraceText trace(c.block_tokens);
  std::vector<std::vector<std::uint64_t>> live(c.live);
  std::uint64_t next = 1000, ms = 0;
  for (std::uint64_t i = 0; i < c.requests; ++i) {
    std::vector<std::uint64_t>& blocks = live[random.below(c.live)];
    const bool fresh = blocks.empty() || random.chance(10);
    if (fresh) blocks = ids(random.below(3) * 8, 8);  // one of three system prompts
    const std::uint64_t more = random.between(1, fresh ? 2 * c.first_blocks : 2 * c.growth_blocks);
    for (std::uint64_t block = 0; block < more; ++block) blocks.push_back(next++);
    const std::uint64_t cut = random.below(c.block_tokens);  // tokens missing in the last block
    trace.request(ms, blocks.size() * c.block_tokens - cut, random.between(1, 2 * c.output), blocks);
    if (cut != 0) blocks.back() = next++;  // the next turn fills this block with other tokens
    ms += c.least_gap_ms + random.below(2 * c.gap_ms + 1);
  }
  return trace;
}

}  // namespace kvtwin::test
