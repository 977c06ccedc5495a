#include "lab/past_run/compare_runs.hpp"

// Two child processes decide the two runs again, because SimGrid has one world per process. The decisions come back
// through pipes and are compared one by one, so memory does not grow with the length of the runs.
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/past_run/past_run.hpp"
#include "lab/report/counting_terms.hpp"
#include "lab/report/metrics.hpp"
#include "lab/run/front_end.hpp"
#include "lab/run/run_folder.hpp"
#include "models/error.hpp"
#include "models/json.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

// ---- messages of a child -----------------------------------------------------------------------------

// One message from a child. The bytes are the struct as in memory, because both processes are one program. The last
// message has no decision, and JSON text follows it.
struct Message {
  bool is_decision = false;
  Decision decision;
  TimeNs at = 0;
};
static_assert(std::is_trivially_copyable_v<Message>);

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

class DecisionSender final : public RerunObserver {
 public:
  DecisionSender(std::FILE* out, CountingTerms terms) : metrics(nullptr, nullptr, std::move(terms)), out_(out) {}
  void handle(const Input& input) override { now_ = input.now; }
  void decided(const Decision& decision) override { send({true, decision, now_}); }
  void on_event(const Event& event) override { front_end->on_event(event); }
  void finish(const Json& last) {
    send({});
    const std::string text = last.dump();
    std::fwrite(text.data(), 1, text.size(), out_);
    std::fflush(out_);
  }

  Metrics metrics;
  std::optional<FrontEnd> front_end;  // to the metrics; set before the rerun

 private:
  void send(const Message& message) {
    // Writing fails if the parent has closed the pipe, for example because the other run cannot be read.
    if (std::fwrite(&message, sizeof message, 1, out_) != 1) _exit(1);
  }
  std::FILE* out_;
  TimeNs now_ = 0;
};

Json rerun_json(const PastRun& run, DecisionSender& sender) {
  try {
    const ServingTimes serving = run.is_simulation() ? setup_for_rerun(run.experiment()).serving : ServingTimes{};
    sender.front_end.emplace(serving, sender.metrics);
    const Rerun rerun(run, run.experiment(), &sender);
    sender.metrics.finish();
    RunFacts facts;
    facts.simulated_ns = rerun.result().now;
    facts.measured = sender.metrics.rates(facts.simulated_ns);
    const Json figures = Json::parse(report_json(facts, sender.metrics, DecisionMark{}, {}));
    const std::string sentence = rerun.verdict() == RerunVerdict::equal ? "" : rerun.sentence();
    return {{"exit", rerun.exit_code()},
            {"verdict", name_of(rerun.verdict())},
            {"sentence", sentence},
            {"report", figures}};
  } catch (const InputError& error) {
    return {{"exit", 2}, {"sentence", error.what()}};
  } catch (const TraceError& error) {
    return {{"exit", 2}, {"sentence", error.what()}};
  } catch (const ModelError& error) {
    return {{"exit", 2}, {"sentence", error.what()}};
  } catch (const std::exception& error) {
    return {{"exit", 1}, {"sentence", error.what()}};
  }
}

// A child process that decides a run again, and the parent's end of its pipe.
class RerunChild {
 public:
  explicit RerunChild(const PastRun& run) : run_(run) {
    CountingTerms terms = counting_terms(run.experiment());
    std::array<int, 2> ends{};
    if (pipe2(ends.data(), O_CLOEXEC) != 0) throw WorkError(std::string("compare: no pipe: ") + std::strerror(errno));
    child_ = fork();
    if (child_ < 0) {
      close(ends[0]);
      close(ends[1]);
      throw WorkError(std::string("compare: no process: ") + std::strerror(errno));
    }
    if (child_ == 0) {
      close(ends[0]);
      File out(fdopen(ends[1], "wb"));
      DecisionSender sender(out.get(), std::move(terms));
      sender.finish(rerun_json(run, sender));
      _exit(0);
    }
    close(ends[1]);
    in_.reset(fdopen(ends[0], "rb"));
  }
  ~RerunChild() {
    if (child_ <= 0) return;
    in_.reset();
    kill(child_, SIGKILL);  // its other messages are not needed
    reap();
  }
  RerunChild(const RerunChild&) = delete;
  RerunChild& operator=(const RerunChild&) = delete;

  // Reads the next decision. Returns false at the end, and sets `last`.
  bool next(Message& message) {
    if (over_) return false;
    if (std::fread(&message, sizeof message, 1, in_.get()) != 1) throw_broken();
    if (message.is_decision) {
      ++decisions;
      return true;
    }
    over_ = true;
    std::string text;
    std::array<char, 4096> piece{};
    while (const std::size_t got = std::fread(piece.data(), 1, piece.size(), in_.get())) text.append(piece.data(), got);
    last = Json::parse_or_discard(text);
    if (last.is_discarded()) throw_broken();
    reap();
    if (last.contains("verdict")) return false;
    const std::string sentence = last.at("sentence");
    if (last.at("exit") == 2) throw InputError(sentence);
    throw WorkError(run_.path().string() + ": " + sentence);
  }

  std::uint64_t decisions = 0;
  Json last;

 private:
  [[noreturn]] void throw_broken() { throw WorkError(run_.path().string() + ": deciding it again broke off"); }
  void reap() {
    int status = 0;
    while (waitpid(child_, &status, 0) < 0 && errno == EINTR) {
    }
    child_ = -1;
  }

  const PastRun& run_;
  pid_t child_ = -1;
  File in_;
  bool over_ = false;
};

// ---- comparing the decisions -------------------------------------------------------------------------

bool same(const Decision& a, const Decision& b) {
  return a.kind == b.kind && a.reason == b.reason && a.request == b.request && a.key == b.key && a.pages == b.pages;
}

struct Difference {
  std::uint64_t ordinal = 0;    // number of the decision, from 1
  std::optional<Message> a, b;  // nothing: this run has ended
};

struct ComparedDecisions {
  std::uint64_t equal = 0;
  std::deque<std::pair<Message, Message>> before;  // the last equal decisions
  std::optional<Difference> difference;
};

ComparedDecisions compare_decisions(RerunChild& a, RerunChild& b) {
  constexpr std::size_t kContext = 2;
  ComparedDecisions compared;
  Message of_a, of_b;
  for (;;) {
    const bool more_a = a.next(of_a), more_b = b.next(of_b);
    if (!more_a && !more_b) return compared;
    if (!compared.difference && more_a && more_b && same(of_a.decision, of_b.decision)) {
      ++compared.equal;
      compared.before.emplace_back(of_a, of_b);
      if (compared.before.size() > kContext) compared.before.pop_front();
    } else if (!compared.difference) {
      compared.difference.emplace();
      compared.difference->ordinal = compared.equal + 1;
      if (more_a) compared.difference->a = of_a;
      if (more_b) compared.difference->b = of_b;
    }
  }
}

bool is_truncated(const RerunChild& side) { return side.last.at("verdict") == name_of(RerunVerdict::truncated); }

// Returns whether the only difference is that one run is cut short.
bool differs_only_by_cut(const ComparedDecisions& compared, const RerunChild& a, const RerunChild& b) {
  if (!compared.difference) return is_truncated(a) || is_truncated(b);
  return (!compared.difference->a && is_truncated(a)) || (!compared.difference->b && is_truncated(b));
}

// ---- figures -----------------------------------------------------------------------------------------

struct Figure {
  std::string name;
  std::optional<double> a, b;
  int decimals = 0;
};

std::optional<double> number_at(const Json& report, const std::string& pointer) {
  const Json* const found = report.find_path(pointer);
  if (found == nullptr || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

// Returns report.json of the run; no object if there is none.
Json report_of(const PastRun& run) { return Json::parse_or_discard(run.report()); }

// Returns the figures of a rerun with the rates of the report. Deciding again does not know the measured window.
Json with_rates(Json figures, const Json& report) {
  if (report.is_object() && report.contains("throughput")) figures["throughput"] = report.at("throughput");
  return figures;
}

std::vector<Figure> figures_of(const Json& rerun_a, const Json& rerun_b, const PastRun& run_a, const PastRun& run_b) {
  const Json report_a = report_of(run_a), report_b = report_of(run_b);
  const Json a = with_rates(rerun_a, report_a), b = with_rates(rerun_b, report_b);
  struct Row {
    std::string name;
    std::string pointer;
    int decimals = 0;
    bool if_any = false;
  };
  std::vector<Row> rows = {{"requests completed", "/requests/completed", 0},
                           {"requests rejected", "/requests/rejected", 0},
                           {"requests failed", "/requests/failed", 0},
                           {"share rejected", "/requests/rejected_share", 4},
                           {"share failed", "/requests/failed_share", 4},
                           {"retractions", "/requests/retractions", 0},
                           {"prompt tokens", "/tokens/prompt", 0}};
  for (const TierSpec& spec : kTierSpecs) {
    rows.push_back(
        {"hit " + std::string(spec.where), "/tokens/" + std::string(spec.hit_column), 0, is_storage(spec.tier)});
  }
  const Row more[] = {{"miss", "/tokens/miss", 0},
                      {"TTFT mean, s", "/ttft_seconds/mean", 4},
                      {"TTFT p50, s", "/ttft_seconds/p50", 4},
                      {"TTFT p99, s", "/ttft_seconds/p99", 4},
                      {"queue, s", "/ttft_parts_seconds/queue", 4},
                      {"prefetch wait, s", "/ttft_parts_seconds/prefetch_wait", 4, true},
                      {"load wait, s", "/ttft_parts_seconds/load_wait", 4},
                      {"compute, s", "/ttft_parts_seconds/compute", 4},
                      {"TPOT mean, s", "/tpot_seconds/mean", 4},
                      {"requests/s", "/throughput/requests_per_second", 2},
                      {"prompt tokens/s", "/throughput/prompt_tokens_per_second", 0},
                      {"output tokens/s", "/throughput/output_tokens_per_second", 0},
                      {"evicted from device", "/tiers/0/evicted_pages", 0},
                      {"evicted from host", "/tiers/1/evicted_pages", 0},
                      {"duration, s", "/simulated_seconds", 1}};
  std::vector<Figure> figures;
  rows.insert(rows.end(), std::begin(more), std::end(more));
  for (const Row& row : rows) {
    Figure figure{row.name, number_at(a, row.pointer), number_at(b, row.pointer), row.decimals};
    if (!row.if_any || figure.a.value_or(0) != 0 || figure.b.value_or(0) != 0) figures.push_back(figure);
  }
  // Deciding again moves no bytes, so the lanes come from the reports of the runs.
  const auto lanes = [](const Json& report) {
    return report.is_object() ? report.value("lanes", Json::array()) : Json::array();
  };
  const auto add = [&](const Json& list, std::optional<double> Figure::*side) {
    for (const Json& lane : list) {
      const std::string name = lane.value("name", "") + ", bytes";
      if (lane.value("bytes", 0.0) == 0) continue;
      auto figure = std::ranges::find(figures, name, &Figure::name);
      if (figure == figures.end()) figure = figures.insert(figures.end(), {name, std::nullopt, std::nullopt, 0});
      (*figure).*side = lane.value("bytes", 0.0);
    }
  };
  add(lanes(report_a), &Figure::a);
  add(lanes(report_b), &Figure::b);
  return figures;
}

struct KeyThatDiffers {
  std::string_view key;
  std::string a, b;
};

std::vector<KeyThatDiffers> differing_keys(const Experiment& a, const Experiment& b) {
  std::vector<KeyThatDiffers> keys;
  for (const ExperimentKey& key : experiment_keys()) {
    const std::string of_a = a.as_toml(key.name), of_b = b.as_toml(key.name);
    if (of_a != of_b) keys.push_back({key.name, of_a, of_b});
  }
  return keys;
}

// ---- output ------------------------------------------------------------------------------------------

std::string cell(std::optional<double> value, int decimals) {
  if (!value) return "-";
  char text[40];
  std::snprintf(text, sizeof text, "%.*f", decimals, *value);
  return text;
}

std::string message_text(const std::optional<Message>& message) {
  if (!message) return "has ended";
  return decision_text(message->decision) + ", at " + seconds_text(message->at) + " s";
}

std::string text_of(const std::array<const PastRun*, 2>& runs, const std::array<const RerunChild*, 2>& sides,
                    const std::vector<KeyThatDiffers>& keys, const std::vector<Figure>& figures,
                    const ComparedDecisions& compared) {
  std::string text = "a          " + runs[0]->path().string() + "\nb          " + runs[1]->path().string() + "\n";
  for (std::size_t i = 0; i < 2; ++i) {
    const std::string sentence = sides[i]->last.at("sentence");
    if (!sentence.empty()) text += "note       " + sentence + "\n";
  }
  for (const KeyThatDiffers& key : keys)
    text += "key        " + std::string(key.key) + ": " + key.a + " | " + key.b + "\n";
  char line[256];
  std::snprintf(line, sizeof line, "%-22s %18s %18s %9s\n", "", "a", "b", "b/a");
  text += line;
  for (const Figure& figure : figures) {
    const bool ratio = figure.a && figure.b && *figure.a != 0;
    std::snprintf(line, sizeof line, "%-22s %18s %18s %9s\n", figure.name.c_str(),
                  cell(figure.a, figure.decimals).c_str(), cell(figure.b, figure.decimals).c_str(),
                  cell(ratio ? std::optional(*figure.b / *figure.a) : std::nullopt, 3).c_str());
    text += line;
  }
  if (!compared.difference) return text + "decisions  equal (" + std::to_string(compared.equal) + ")\n";
  if (differs_only_by_cut(compared, *sides[0], *sides[1])) {
    return text + "decisions  equal (" + std::to_string(compared.equal) + ") up to where " +
           (compared.difference->a ? "b" : "a") + " is cut\n";
  }
  text += "decisions  differ from the " + std::to_string(compared.difference->ordinal) + ". on, after " +
          std::to_string(compared.equal) + " equal ones\n";
  for (const auto& [a, b] : compared.before)
    text += "both       " + message_text(a) + " | " + seconds_text(b.at) + " s\n";
  text += "a          " + message_text(compared.difference->a) + "\n";
  return text + "b          " + message_text(compared.difference->b) + "\n";
}

Json message_json(const std::optional<Message>& message) {
  if (!message) return {};
  Json json = decision_json(message->decision);
  json["at_s"] = static_cast<double>(message->at) / 1e9;
  return json;
}

Json json_of(const std::array<const PastRun*, 2>& runs, const std::array<const RerunChild*, 2>& sides,
             const std::vector<KeyThatDiffers>& keys, const std::vector<Figure>& figures,
             const ComparedDecisions& compared) {
  Json json;
  const char* names[] = {"a", "b"};
  for (std::size_t i = 0; i < 2; ++i) {
    json[names[i]] = {{"path", runs[i]->path().string()},
                      {"from", runs[i]->has_journal() ? "journal" : "simulation"},
                      {"verdict", sides[i]->last.at("verdict")},
                      {"sentence", sides[i]->last.at("sentence")},
                      {"decisions", sides[i]->decisions}};
  }
  json["keys"] = json["figures"] = Json::array();
  for (const KeyThatDiffers& key : keys) json["keys"].push_back({{"key", key.key}, {"a", key.a}, {"b", key.b}});
  for (const Figure& figure : figures) {
    const auto value = [](std::optional<double> number) { return number ? Json(*number) : Json(); };
    json["figures"].push_back({{"name", figure.name}, {"a", value(figure.a)}, {"b", value(figure.b)}});
  }
  json["equal_decisions"] = compared.equal;
  json["equal"] = !compared.difference;
  if (!compared.difference) return json;
  json["first_difference"] = {{"ordinal", compared.difference->ordinal},
                              {"a", message_json(compared.difference->a)},
                              {"b", message_json(compared.difference->b)}};
  json["before"] = Json::array();
  for (const auto& [a, b] : compared.before) json["before"].push_back({{"a", message_json(a)}, {"b", message_json(b)}});
  return json;
}

}  // namespace

RunComparison compare_runs(const std::string& path_a, const std::string& path_b, bool json) {
  const PastRun run_a(path_a), run_b(path_b);
  RerunChild a(run_a), b(run_b);
  const ComparedDecisions compared = compare_decisions(a, b);
  const std::vector<KeyThatDiffers> keys = differing_keys(run_a.experiment(), run_b.experiment());
  std::vector<Figure> figures;
  try {
    figures = figures_of(a.last.at("report"), b.last.at("report"), run_a, run_b);
  } catch (const Json::exception& error) {
    throw InputError(run_a.path().string() + " or " + run_b.path().string() +
                     ": report.json isn't one that kvtwin wrote: " + error.what());
  }
  RunComparison result;
  result.text = json ? json_of({&run_a, &run_b}, {&a, &b}, keys, figures, compared).dump(2) + "\n"
                     : text_of({&run_a, &run_b}, {&a, &b}, keys, figures, compared);
  // If a rerun does not have the decisions of its run, the compared decisions are not those of the run.
  const bool reruns_match = a.last.at("exit") != 3 && b.last.at("exit") != 3;
  if (reruns_match && differs_only_by_cut(compared, a, b)) {
    result.cut = (is_truncated(a) ? a : b).last.at("sentence").get<std::string>();
  } else {
    result.equal = reruns_match && !compared.difference;
  }
  return result;
}

}  // namespace kvtwin
