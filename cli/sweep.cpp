// kvtwin sweep: an experiment under many settings, a cell each, side by side.
//
// Each cell is simulated by a process of its own: SimGrid has one world a process, and a few go on at once. A cell's
// row is kept as soon as it is there, so that a sweep that was ended goes on where it was; at the end the rows are
// written again in the order of the cells.
#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cli/commands.hpp"
#include "cli/decision_text.hpp"
#include "cli/environment.hpp"
#include "cli/error.hpp"
#include "cli/experiment.hpp"
#include "cli/serve.hpp"
#include "cli/setup.hpp"
#include "cli/sweep_plan.hpp"
#include "cli/sweep_words.hpp"
#include "kvtwin_version.hpp"
#include "models/error.hpp"
#include "models/names.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;
namespace fs = std::filesystem;

struct Arguments {
  std::string experiment, out, world;
  std::vector<std::string> sets, lists, cases;
  int jobs = 2;
  bool force = false, json = false;
};

struct Cell {
  SweepCell place;
  std::uint64_t objects_a_page = 0;  // of all ranks
  Bytes page_bytes = 0;              // likewise
  std::string identity;              // of everything that its row depends on
};

// ---- a cell ------------------------------------------------------------------------------------------

std::string identity_of(const Experiment& experiment, double warm_up) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;  // FNV-1a
  const auto mix = [&](std::string_view text) {
    for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    hash = (hash ^ 0xFF) * 0x100000001b3ULL;
  };
  mix(kGitCommit);
  mix(Json(warm_up).dump());
  for (const Experiment::Key& key : Experiment::keys()) {
    const bool is_path = key.name == "workload.trace" || key.name == "model.config" || key.name == "hardware.file";
    mix(key.name);
    mix(is_path && !experiment.text(key.name).empty()
            ? fs::absolute(experiment.path(key.name)).lexically_normal().string()
            : experiment.as_toml(key.name));
    std::error_code missing;
    const fs::path path = is_path ? experiment.path(key.name) : fs::path();
    if (is_path && fs::is_regular_file(path, missing)) {  // its content, as far as a look tells
      mix(std::to_string(fs::file_size(path, missing)));
      mix(std::to_string(fs::last_write_time(path, missing).time_since_epoch().count()));
    }
  }
  return digest_text(hash);
}

// What TTFT is made of, of each request.
class Times final : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind == EventKind::finished) records_.push_back(*event.record);
  }
  // Without the first ones.
  Json figures(double warm_up) {
    std::ranges::sort(records_, {}, &RequestRecord::request);
    const auto first = static_cast<std::size_t>(warm_up * static_cast<double>(records_.size()) + 0.5);
    std::vector<double> ttft;
    std::array<double, 4> parts{};
    for (std::size_t i = std::min(first, records_.size()); i < records_.size(); ++i) {
      const RequestRecord& r = records_[i];
      ttft.push_back(static_cast<double>(r.first_token - r.arrival) / 1e9);
      std::size_t part = 0;
      for (const TimeNs ns : {r.queue_ns, r.prefetch_wait_ns, r.load_wait_ns, r.compute_ns}) {
        parts[part++] += static_cast<double>(ns) / 1e9;
      }
    }
    const double count = std::max(1.0, static_cast<double>(ttft.size()));
    std::ranges::sort(ttft);
    const auto quantile = [&](std::size_t per_cent) {
      return ttft.empty() ? 0 : ttft[(ttft.size() * per_cent + 99) / 100 - 1];
    };
    const double sum = parts[0] + parts[1] + parts[2] + parts[3];
    return {{"ttft_mean_s", sum / count},
            {"ttft_p50_s", quantile(50)},
            {"ttft_p99_s", quantile(99)},
            {"ttft_queue_s", parts[0] / count},
            {"ttft_prefetch_wait_s", parts[1] / count},
            {"ttft_load_wait_s", parts[2] / count},
            {"ttft_compute_s", parts[3] / count}};
  }

 private:
  std::vector<RequestRecord> records_;
};

constexpr char kBetween = '\x1e';  // the report and what is told beside it

// In the child: the report goes to stdout, which is the pipe; or what was wrong.
[[noreturn]] void simulate_cell(const Experiment& experiment, double warm_up, int out) {
  dup2(out, STDOUT_FILENO);
  setenv("KVTWIN_PROGRESS", "0", 1);
  Json failure;
  const auto failed = [&](int code, const std::exception& error) {
    failure = {{"exit", code}, {"sentence", error.what()}};
  };
  try {
    const Setup setup = make_setup(experiment);
    const std::unique_ptr<World> world = make_simulated_world(experiment, setup);
    ServeArguments arguments;
    arguments.json = true;
    ServeTerms terms;
    terms.world = experiment.text("sim.world").c_str();
    terms.device = "model";
    terms.dram_bytes_per_second = static_cast<std::uint64_t>(setup.hardware.dram_bandwidth);
    Times times;
    terms.rows = &times;
    serve(experiment, setup, *world, arguments, terms);
    std::printf("%c%s", kBetween, times.figures(warm_up).dump().c_str());
  } catch (const InputError& error) {
    failed(2, error);
  } catch (const TraceError& error) {
    failed(2, error);
  } catch (const ModelError& error) {
    failed(2, error);
  } catch (const std::exception& error) {
    failed(1, error);
  }
  if (!failure.is_null()) {
    const std::string text = failure.dump(-1, ' ', false, Json::error_handler_t::replace);
    std::fwrite(text.data(), 1, text.size(), stdout);
  }
  std::fflush(stdout);
  _exit(0);
}

// A row's figures, of its report.
Json figures_of(const Json& report, const Cell& cell) {
  Json row;
  row["requests"] = report.at("requests").at("total");
  row["completed"] = report.at("requests").at("completed");
  row.update(report.at("times"));
  row["tpot_mean_s"] = report.at("tpot_seconds").at("mean");
  const Json& tokens = report.at("tokens");
  row["prompt_tokens"] = tokens.at("prompt");
  for (const char* name : {"hit_device", "hit_host", "hit_disk", "hit_remote", "recomputed_after_stop", "miss"}) {
    row[name] = tokens.at(name);
  }
  const Json bounds = report.value("bounds", Json::object());  // with report.bounds only; a column in any case
  row["hit_opt"] = bounds.value("eviction_opt_hit_tokens", Json());
  row["hit_lru"] = bounds.value("lru_hit_tokens", Json());
  row["gap_closed"] = bounds.value("gap_closed", Json());
  const Json& prefetch = report.at("prefetch");
  for (const char* name : {"issued", "completed", "stopped", "revoked"}) {
    row[std::string("prefetch_") + name] = prefetch.at(name);
  }
  std::uint64_t declined = 0;
  for (const auto& [reason, count] : prefetch.at("declined").items()) declined += count.get<std::uint64_t>();
  row["prefetch_declined"] = declined;
  double bytes = 0, busy = 0;
  const double simulated = report.at("simulated_seconds");
  for (const Json& lane : report.at("lanes")) {
    std::string name = lane.at("name");
    name.erase(0, name.rfind('.') + 1);  // of one of several engines
    if (name != "disk_read" && name != "remote_read" && name != "direct_read") continue;
    bytes += lane.at("bytes").get<double>();
    busy += lane.at("busy_fraction").get<double>() * simulated;
  }
  row["l3_read_bytes"] = static_cast<std::uint64_t>(bytes);
  row["l3_read_busy_s"] = busy;
  row["l3_read_gbps"] = busy > 0 ? bytes / busy / 1e9 : 0.0;  // while it reads
  row["objects_a_page"] = cell.objects_a_page;
  const double pages = cell.page_bytes == 0 ? 0 : bytes / static_cast<double>(cell.page_bytes);
  row["objects_read"] = static_cast<std::uint64_t>(pages * static_cast<double>(cell.objects_a_page) + 0.5);
  row["prompt_tokens_per_second"] = report.at("throughput").at("prompt_tokens_per_second");
  row["output_tokens_per_second"] = report.at("throughput").at("output_tokens_per_second");
  row["simulated_s"] = simulated;
  row["decisions_digest"] = report.at("decisions").at("digest");
  return row;
}

Json row_of(const SweepPlan& plan, const Cell& cell, std::size_t number, const Json& figures) {
  Json row{{"cell", number}};
  if (!plan.cases.empty()) row["case"] = plan.cases[cell.place.of_case].name;
  for (std::size_t a = 0; a < plan.axes.size(); ++a) {
    const auto& index = cell.place.indices[a];
    if (!index) {
      row[plan.axes[a].name] = nullptr;  // the case sets it
      continue;
    }
    const SweepValue& value = plan.axes[a].values[*index];
    row[plan.axes[a].name] = value.number ? Json(*value.number) : Json(value.text);
  }
  row.update(figures);
  Json settings = Json::array();
  for (const auto& [key, value] : plan.settings(cell.place)) settings.push_back(key + "=" + value);
  row["settings"] = settings;
  row["identity"] = cell.identity;
  return row;
}

// ---- the folder --------------------------------------------------------------------------------------

class SweepFolder {
 public:
  SweepFolder(const std::string& path, bool force) : path_(path) {
    std::error_code error;
    const bool there = fs::exists(path_, error) && !fs::is_empty(path_, error);
    if (there && !fs::exists(rows_path(), error)) {
      throw InputError("--out " + path + ": is not empty, and no sweep's; name another folder");
    }
    fs::create_directories(path_, error);
    if (!fs::is_directory(path_)) {
      throw WorkError("--out " + path + ": can't be made" + (error ? ": " + error.message() : ""));
    }
    if (force) {
      for (const char* name : {"sweep.jsonl", "sweep.csv", "sweep.json"}) fs::remove(path_ / name, error);
    }
  }

  // Rows of an earlier sweep by identity.
  std::map<std::string, Json> earlier() const {
    std::map<std::string, Json> rows;
    std::ifstream in(rows_path());
    for (std::string line; std::getline(in, line);) {
      Json row = Json::parse(line, nullptr, false);
      if (!row.is_object() || !row.contains("identity") || !row["identity"].is_string()) continue;  // cut short
      const std::string identity = row["identity"];
      rows[identity] = std::move(row);
    }
    return rows;
  }

  void keep(const Json& row) {
    if (!log_.is_open()) {
      std::ifstream before(rows_path(), std::ios::binary | std::ios::ate);
      const bool cut_short = before && before.tellg() > 0 && before.seekg(-1, std::ios::end).get() != '\n';
      log_.open(rows_path(), std::ios::app | std::ios::binary);
      if (cut_short) log_ << "\n";  // whoever wrote that row was ended in the middle of it
    }
    log_ << row.dump() << "\n" << std::flush;
    if (!log_) throw WorkError(rows_path().string() + ": can't be written; is the disk full?");
  }

  void write(const std::string& name, const std::string& content) {
    log_.close();
    const fs::path partial = path_ / ("." + name + ".partial");
    std::ofstream out(partial, std::ios::binary);
    out << content;
    out.close();
    std::error_code error;
    if (out) fs::rename(partial, path_ / name, error);
    if (!out || error) throw WorkError((path_ / name).string() + ": can't be written; is the disk full?");
  }

 private:
  fs::path rows_path() const { return path_ / "sweep.jsonl"; }
  fs::path path_;
  std::ofstream log_;
};

std::string csv_cell(const Json& value) {
  if (value.is_null()) return "";
  if (!value.is_string()) return value.dump();
  std::string text = value.get<std::string>();
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  for (std::size_t at = 0; (at = text.find('"', at)) != std::string::npos; at += 2) text.insert(at, 1, '"');
  return '"' + text + '"';
}

std::string csv_of(const std::vector<Json>& rows) {
  std::string text;
  for (const Json& row : rows) {
    std::string heading, line;
    for (const auto& [name, value] : row.items()) {
      if (value.is_array() || name == "identity") continue;
      heading += (heading.empty() ? "" : ",") + csv_cell(Json(name));
      line += (line.empty() ? "" : ",") + csv_cell(value);
    }
    if (text.empty()) text = heading + "\n";
    text += line + "\n";
  }
  return text;
}

// ---- processes ---------------------------------------------------------------------------------------

struct Child {
  pid_t id = -1;
  int pipe = -1;
  std::size_t cell = 0;
  std::string text;
};

class Children {
 public:
  ~Children() {
    for (Child& child : list_) {
      kill(child.id, SIGKILL);  // somebody else's cell went wrong
      end(child);
    }
  }
  std::size_t size() const { return list_.size(); }

  void start(const Experiment& experiment, double warm_up, std::size_t cell) {
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw WorkError(std::string("sweep: no pipe: ") + std::strerror(errno));
    std::fflush(nullptr);
    const pid_t id = fork();
    if (id < 0) {
      close(ends[0]);
      close(ends[1]);
      throw WorkError(std::string("sweep: no process: ") + std::strerror(errno));
    }
    if (id == 0) simulate_cell(experiment, warm_up, ends[1]);
    close(ends[1]);
    list_.push_back({id, ends[0], cell, {}});
  }

  // The next one that has ended: its cell and what it said.
  std::pair<std::size_t, std::string> wait() {
    for (;;) {
      std::vector<pollfd> polls;
      for (const Child& child : list_) polls.push_back({child.pipe, POLLIN, 0});
      if (poll(polls.data(), polls.size(), -1) < 0 && errno != EINTR) {
        throw WorkError(std::string("sweep: poll: ") + std::strerror(errno));
      }
      for (std::size_t i = 0; i < polls.size(); ++i) {
        if (polls[i].revents == 0) continue;
        std::array<char, 1 << 16> piece{};
        const ssize_t got = read(list_[i].pipe, piece.data(), piece.size());
        if (got > 0) {
          list_[i].text.append(piece.data(), static_cast<std::size_t>(got));
        } else if (got == 0 || errno != EINTR) {
          Child done = std::move(list_[i]);
          list_.erase(list_.begin() + static_cast<std::ptrdiff_t>(i));
          end(done);
          return {done.cell, std::move(done.text)};
        }
      }
    }
  }

 private:
  static void end(Child& child) {
    close(child.pipe);
    int status = 0;
    while (waitpid(child.id, &status, 0) < 0 && errno == EINTR) {
    }
  }
  std::vector<Child> list_;
};

Json report_of(const std::string& text, const std::string& cell) {
  const std::size_t between = text.find(kBetween);
  Json said = Json::parse(text.substr(0, between), nullptr, false);
  if (said.is_object() && said.contains("sentence")) {
    const std::string sentence = cell + ": " + said.at("sentence").get<std::string>();
    if (said.at("exit") == 2) throw InputError(sentence);
    throw WorkError(sentence);
  }
  Json times = between == std::string::npos ? Json() : Json::parse(text.substr(between + 1), nullptr, false);
  if (!said.is_object() || !times.is_object()) throw WorkError(cell + ": its process broke off");
  said["times"] = std::move(times);
  return said;
}

// ---- all of it ---------------------------------------------------------------------------------------

class Progress {
 public:
  explicit Progress(std::size_t left) : all_(left) { shown_ = isatty(STDERR_FILENO) != 0 && environment_progress(); }
  ~Progress() {
    if (shown_) std::fprintf(stderr, "\r\033[K");
  }
  void done(std::size_t count) const {
    if (!shown_) return;
    const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
    std::fprintf(stderr, "\r\033[K%zu of %zu cells, about %.0f s left", count, all_,
                 spent * static_cast<double>(all_ - count) / static_cast<double>(count));
    std::fflush(stderr);
  }

 private:
  std::size_t all_;
  Clock::time_point start_ = Clock::now();
  bool shown_ = false;
};

SweepPlan plan_of(const Arguments& arguments) {
  SweepPlan plan = SweepPlan::from_file(arguments.experiment);
  for (const std::string& list : arguments.lists) plan.vary(list);
  if (!arguments.cases.empty()) plan.only_cases(arguments.cases);
  plan.check();
  for (const std::string& set : arguments.sets) {
    const std::string key = set.substr(0, set.find('='));
    for (const SweepAxis& axis : plan.axes) {
      if (std::ranges::find(axis.keys, key) != axis.keys.end()) {
        throw InputError("--set " + set + ": the sweep varies " + key + "; give --vary " + axis.name +
                         "=... instead, of one value or more");
      }
    }
  }
  return plan;
}

Experiment base_of(const Arguments& arguments) {
  Experiment base = Experiment::from_file(arguments.experiment);
  for (const std::string& set : arguments.sets) base.set(set);
  if (!arguments.world.empty()) base.set("sim.world=" + arguments.world, "--world");
  return base;
}

// Everything that can be refused before the first cell runs is.
std::vector<Cell> cells_of(const SweepPlan& plan, const Experiment& base) {
  std::vector<Cell> cells;
  for (const SweepCell& place : plan.cells()) {
    Cell cell{place, 0, 0, {}};
    const Experiment experiment = plan.experiment(base, place);
    try {
      const Setup setup = make_setup(experiment);
      cell.objects_a_page = std::uint64_t{setup.engine.storage_objects} * setup.engine.ranks;
      cell.page_bytes = setup.engine.shape.page_bytes() * setup.engine.ranks;
    } catch (const InputError& error) {
      throw InputError(plan.name_of(place) + ": " + error.what());
    } catch (const ModelError& error) {
      throw InputError(plan.name_of(place) + ": " + error.what());
    }
    cell.identity = identity_of(experiment, plan.warm_up);
    cells.push_back(std::move(cell));
  }
  return cells;
}

void run_cells(const SweepPlan& plan, const Experiment& base, const std::vector<Cell>& cells, std::size_t jobs,
               SweepFolder* folder, std::vector<Json>& rows) {
  std::vector<std::size_t> left;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (rows[i].is_null()) left.push_back(i);
  }
  if (left.size() < cells.size()) {
    std::fprintf(stderr, "%zu of %zu cells are there already\n", cells.size() - left.size(), cells.size());
  }
  const Progress progress(left.size());
  Children children;
  std::size_t next = 0, done = 0;
  while (done < left.size()) {
    while (next < left.size() && children.size() < jobs) {
      children.start(plan.experiment(base, cells[left[next]].place), plan.warm_up, left[next]);
      ++next;
    }
    const auto [cell, text] = children.wait();
    const Json report = report_of(text, plan.name_of(cells[cell].place));
    rows[cell] = row_of(plan, cells[cell], cell, figures_of(report, cells[cell]));
    if (folder != nullptr) folder->keep(rows[cell]);
    progress.done(++done);
  }
}

void check_show(const SweepPlan& plan, const Json& row) {
  std::vector<std::string> names;
  for (const auto& [name, value] : row.items()) {
    if (value.is_number()) names.push_back(name);
  }
  for (const std::string& figure : plan.show) {
    if (std::ranges::find(names, figure) == names.end()) {
      throw InputError(plan.show_origin() + ": " + unknown_name("figure", figure, names));
    }
  }
}

// For whoever draws it.
Json summary_json(const Arguments& arguments, const SweepPlan& plan, const std::vector<Crossover>& crossovers,
                  const std::string& sentence, std::size_t cells) {
  Json json{{"schema_version", 1},         {"kvtwin_version", kVersion},
            {"git_commit", kGitCommit},    {"experiment", arguments.experiment},
            {"title", plan.title},         {"along", plan.along},
            {"unit", unit_of(plan.along)}, {"show", plan.show},
            {"warm_up", plan.warm_up},     {"cells", cells}};
  json["axes"] = json["cases"] = json["pairs"] = json["crossovers"] = Json::array();
  for (const SweepAxis& axis : plan.axes) {
    Json values = Json::array();
    for (const SweepValue& value : axis.values) values.push_back(value.number ? Json(*value.number) : Json(value.text));
    json["axes"].push_back({{"name", axis.name}, {"unit", unit_of(axis.name)}, {"values", values}});
  }
  for (const SweepCase& one : plan.cases) json["cases"].push_back(one.name);
  for (const auto& [a, b] : plan.pairs) json["pairs"].push_back({a, b});
  for (const Crossover& one : crossovers) {
    Json settings = Json::object();
    for (std::size_t a = 0; a < plan.axes.size(); ++a) {
      if (!one.settings[a]) continue;
      const SweepValue& value = plan.axes[a].values[*one.settings[a]];
      settings[plan.axes[a].name] = value.number ? Json(*value.number) : Json(value.text);
    }
    static constexpr const char* kWhere[] = {"nowhere", "everywhere", "below", "above"};
    const bool bounded = one.slower == Slower::below || one.slower == Slower::above;
    json["crossovers"].push_back({{"slower", plan.pairs[one.pair].first},
                                  {"than", plan.pairs[one.pair].second},
                                  {"settings", settings},
                                  {"where", kWhere[static_cast<std::size_t>(one.slower)]},
                                  {"at", bounded ? Json(one.at) : Json()},
                                  {"ratio_first", one.first_ratio},
                                  {"ratio_last", one.last_ratio}});
  }
  json["sentence"] = sentence;
  return json;
}

void sweep(const Arguments& arguments) {
  const Experiment base = base_of(arguments);  // first, for its sentences about what isn't an experiment
  const SweepPlan plan = plan_of(arguments);
  const std::vector<Cell> cells = cells_of(plan, base);
  std::vector<Json> rows(cells.size());
  std::optional<SweepFolder> folder;
  if (!arguments.out.empty()) {
    folder.emplace(arguments.out, arguments.force);
    std::map<std::string, Json> earlier = folder->earlier();
    std::set<std::string> used;
    for (std::size_t i = 0; i < cells.size(); ++i) {
      const auto row = earlier.find(cells[i].identity);
      if (row == earlier.end()) continue;
      used.insert(row->first);
      Json figures;  // its place in this sweep may be another
      for (const auto& [name, value] : row->second.items()) {
        const bool of_place = name == "case" || name == "cell" || name == "seed" || name.find('.') != std::string::npos;
        if (!of_place) figures[name] = value;
      }
      rows[i] = row_of(plan, cells[i], i, figures);
    }
    if (used.size() < earlier.size()) {
      throw InputError("--out " + arguments.out + ": holds " + std::to_string(earlier.size() - used.size()) +
                       " cells that aren't of this sweep (of other settings, or of another build); name another "
                       "folder, or --force to begin anew");
    }
  }
  run_cells(plan, base, cells, static_cast<std::size_t>(arguments.jobs), folder ? &*folder : nullptr, rows);
  check_show(plan, rows.front());
  const std::vector<Crossover> crossovers = crossovers_of(plan, rows);
  const std::string sentence = sweep_sentence(plan, crossovers);
  const Json summary = summary_json(arguments, plan, crossovers, sentence, cells.size());
  std::string lines;
  for (const Json& row : rows) lines += row.dump() + "\n";
  if (folder) {
    folder->write("sweep.csv", csv_of(rows));
    folder->write("sweep.json", summary.dump(2) + "\n");
    folder->write("sweep.jsonl", lines);
    std::fprintf(stderr, "sweep folder: %s\n", arguments.out.c_str());
  }
  const std::string text = arguments.json ? lines + summary.dump() + "\n"
                                          : sweep_tables(plan, rows) + (sentence.empty() ? "" : sentence + "\n");
  std::fwrite(text.data(), 1, text.size(), stdout);
}

}  // namespace

void add_sweep(CLI::App& program) {
  static Arguments arguments;
  CLI::App* command = program.add_subcommand(
      "sweep", "Simulate an experiment under many settings: its [sweep], or lists given here; a cell each");
  command->footer(
      "Example: kvtwin sweep experiments/termination.toml --out out/termination\n"
      "         kvtwin figures out/termination\n"
      "         kvtwin sweep experiments/quickstart.toml --vary cache.eviction=lru,fifo --vary "
      "tiers.host.tokens=50000,100000\n"
      "Folder:  sweep.csv and sweep.jsonl (a row a cell), sweep.json (what varied, crossovers). A sweep that was ended "
      "goes on where it was.");
  command->add_option("experiment", arguments.experiment, "Experiment file (TOML)")->required();
  command->add_option("--set", arguments.sets, "key=value for all cells; may be repeated")->allow_extra_args(false);
  command
      ->add_option("--vary", arguments.lists,
                   "key=a,b,c: values to run with, instead of the file's for that key; key+key=a,b,c gives several "
                   "keys the same value; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--case", arguments.cases, "Only this case of the file's [sweep]; may be repeated")
      ->allow_extra_args(false);
  command->add_option("--jobs", arguments.jobs, "Cells simulated at once")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command->add_option("--out", arguments.out, "Folder to write")->check([](const std::string& path) {
    return std::string(path.empty() ? "must name a folder" : "");
  });
  command->add_flag("--force", arguments.force, "Begin anew, whatever the folder holds of an earlier sweep");
  command->add_flag("--json", arguments.json, "Print the rows as JSON lines, and last what sweep.json holds");
  command->add_option("--world", arguments.world, "simgrid or events; sets sim.world")
      ->check(CLI::IsMember({"simgrid", "events"}));
  command->callback([] { sweep(arguments); });
}

}  // namespace kvtwin
