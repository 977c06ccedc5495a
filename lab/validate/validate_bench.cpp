#include "lab/validate/validate_bench.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string_view>
#include <utility>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/formatted.hpp"
#include "lab/sglang/sglang_flags.hpp"
#include "lab/validate/validate_errors.hpp"
#include "models/json.hpp"
#include "models/text_file.hpp"
#include "policy/base/tiers.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kBlockTokens = 512;         // of a trace of lines with hash_ids
constexpr std::size_t kExportHeadBytes = 1U << 16;  // within which an export has its first metric
constexpr double kOtherLoad = 0.05;                 // relative difference of two loads that are not the same
constexpr double kAllAtOnce = 1e4;                  // requests/s of an arrival that is no queue's

struct BenchKey {
  const char* key;
  const char* figure;
  double factor;
};
constexpr BenchKey kBenchKeys[] = {{"mean_ttft_ms", "ttft_mean_s", 1e-3},
                                   {"median_ttft_ms", "ttft_p50_s", 1e-3},
                                   {"p90_ttft_ms", "ttft_p90_s", 1e-3},
                                   {"p95_ttft_ms", "ttft_p95_s", 1e-3},
                                   {"p99_ttft_ms", "ttft_p99_s", 1e-3},
                                   {"mean_tpot_ms", "tpot_mean_s", 1e-3},
                                   {"median_tpot_ms", "tpot_p50_s", 1e-3},
                                   {"p90_tpot_ms", "tpot_p90_s", 1e-3},
                                   {"p99_tpot_ms", "tpot_p99_s", 1e-3},
                                   {"mean_e2e_latency_ms", "e2e_mean_s", 1e-3},
                                   {"median_e2e_latency_ms", "e2e_p50_s", 1e-3},
                                   {"p90_e2e_latency_ms", "e2e_p90_s", 1e-3},
                                   {"p99_e2e_latency_ms", "e2e_p99_s", 1e-3},
                                   {"mean_e2el_ms", "e2e_mean_s", 1e-3},  // vLLM's name
                                   {"median_e2el_ms", "e2e_p50_s", 1e-3},
                                   {"p90_e2el_ms", "e2e_p90_s", 1e-3},
                                   {"p99_e2el_ms", "e2e_p99_s", 1e-3},
                                   {"request_throughput", "requests_per_second", 1},
                                   {"input_throughput", "prompt_tokens_per_second", 1},
                                   {"output_throughput", "output_tokens_per_second", 1}};

// The other keys that SGLang 0.5.23 (sglang/benchmark/serving.py) and vLLM 0.33.0 (vllm/benchmarks/serve.py) write.
// They are read elsewhere in this file, or say nothing about the figures that are compared.
constexpr std::string_view kOtherKeys[] = {"accept_length",
                                           "backend",
                                           "burstiness",
                                           "cache_report",
                                           "cached_tokens",
                                           "cached_tokens_details",
                                           "completed",
                                           "concurrency",
                                           "dataset_name",
                                           "date",
                                           "duration",
                                           "endpoint_type",
                                           "errors",
                                           "failed",
                                           "generated_texts",
                                           "input_lens",
                                           "itls",
                                           "label",
                                           "latencies",
                                           "max_concurrency",
                                           "max_concurrent_requests",
                                           "max_output_tokens_per_s",
                                           "model_id",
                                           "num_prompts",
                                           "output_lens",
                                           "queue_times",
                                           "ramp_up_end_rps",
                                           "ramp_up_start_rps",
                                           "ramp_up_strategy",
                                           "random_input_len",
                                           "random_output_len",
                                           "random_range_ratio",
                                           "request_goodput",
                                           "request_rate",
                                           "rtfx",
                                           "server_info",
                                           "server_queue_times",
                                           "server_ttfts",
                                           "sharegpt_output_len",
                                           "spec_decode_acceptance_length",
                                           "spec_decode_acceptance_rate",
                                           "spec_decode_accepted_tokens",
                                           "spec_decode_draft_tokens",
                                           "spec_decode_num_drafts",
                                           "spec_decode_per_position_acceptance_rates",
                                           "start_times",
                                           "tag",
                                           "tokenizer_id",
                                           "total_input_text_tokens",
                                           "total_input_tokens",
                                           "total_input_vision_tokens",
                                           "total_output_tokens",
                                           "total_output_tokens_retokenized",
                                           "total_throughput",
                                           "total_token_throughput",
                                           "ttfts"};

// Statistics that are not compared, e.g. std_ttft_ms, p95_itl_ms, mean_queue_ms.
bool is_statistic(std::string_view key) {
  const std::string_view first = key.substr(0, key.find('_'));
  const bool percentile =
      first.size() > 1 && first[0] == 'p' && first.find_first_not_of("0123456789.", 1) == std::string_view::npos;
  return key.ends_with("_ms") && (percentile || first == "mean" || first == "median" || first == "std");
}

// Conditions of a run that the prediction has only if the experiment says so, and the value that means "without".
struct Condition {
  const char* key;
  double without;
  const char* meaning;
};
constexpr Condition kConditions[] = {{"accept_length", 1, "speculative decoding"},
                                     {"spec_decode_acceptance_length", 1, "speculative decoding"},
                                     {"burstiness", 1, "arrivals that are no Poisson process"},
                                     {"total_input_vision_tokens", 0, "images in the prompts"}};

std::string conditions_of(const Json& line) {
  std::string words;
  const auto add = [&words](const std::string& key, const std::string& value, const char* meaning) {
    words += (words.empty() ? "" : ", ") + std::string(meaning) + " (" + key + " " + value + ")";
  };
  for (const Condition& condition : kConditions) {
    const auto value = line.find(condition.key);
    if (value == line.end() || !value->is_number() || value->get<double>() == condition.without) continue;
    add(condition.key, value->dump(), condition.meaning);
  }
  const auto ramp = line.find("ramp_up_strategy");
  if (ramp != line.end() && ramp->is_string()) add("ramp_up_strategy", ramp->get<std::string>(), "a rate that rises");
  return words;
}

// Returns the mean time between the tokens of a request; 0 if the line does not have it.
double tpot_of(const Json& line, std::size_t request) {
  const auto times = line.find("itls"), lengths = line.find("output_lens");
  if (times == line.end() || lengths == line.end() || !times->is_array() || !lengths->is_array()) return 0;
  if (request >= times->size() || request >= lengths->size() || !(*times)[request].is_array()) return 0;
  const Json& length = (*lengths)[request];
  if (!length.is_number_unsigned() || length.get<std::uint64_t>() < 2) return 0;
  double sum = 0;  // an answer of several tokens has one time
  for (const Json& time : (*times)[request]) {
    if (!time.is_number()) return 0;
    sum += time.get<double>();
  }
  return sum / static_cast<double>(length.get<std::uint64_t>() - 1);
}

// Reads what the line says of its load.
BenchLoad load_of(const Json& line) {
  BenchLoad load;
  const auto number = [&](const char* key) -> std::optional<double> {
    const auto value = line.find(key);
    if (value == line.end() || !value->is_number() || value->get<double>() <= 0) return std::nullopt;
    return value->get<double>();
  };
  load.requests = number("completed");
  if (load.requests) {
    for (const auto& [key, mean] : {std::pair("total_input_tokens", &load.prompt_tokens),
                                    std::pair("total_output_tokens", &load.output_tokens)}) {
      if (const auto sum = number(key)) *mean = *sum / *load.requests;
    }
  }
  load.clients = number("max_concurrency");
  load.rate = number("request_rate");
  const auto rate = line.find("request_rate");
  const bool no_number = rate != line.end() && (rate->is_null() || (rate->is_string() && rate->text() == "inf"));
  if (no_number) load.rate = std::numeric_limits<double>::infinity();
  return load;
}

// Reads the lists of --output-details: one element per request, in the order of sending.
void take_lists(const Json& line, const std::string& where, BenchRun& result) {
  RunFigures& run = result.figures;
  if (!line.contains("ttfts") || !line.contains("input_lens")) return;
  const Json &ttfts = line.at("ttfts"), &lengths = line.at("input_lens");
  const Json errors = line.value("errors", Json::array());
  if (!ttfts.is_array() || !lengths.is_array() || ttfts.size() != lengths.size()) {
    throw InputError(where + ": ttfts and input_lens: must be lists of one length; give what bench_serving wrote");
  }
  if (errors.is_array() && !errors.empty() && errors.size() != ttfts.size()) {
    throw InputError(where + ": errors: has " + std::to_string(errors.size()) + " entries, and ttfts " +
                     std::to_string(ttfts.size()) + "; give what bench_serving wrote");
  }
  std::vector<double> good;
  for (std::size_t i = 0; i < ttfts.size(); ++i) {
    if (!ttfts[i].is_number() || ttfts[i].get<double>() < 0 || !lengths[i].is_number_unsigned()) {
      throw InputError(where +
                       ": ttfts and input_lens: must hold numbers of at least 0; give what bench_serving wrote");
    }
    const bool failed = i < errors.size() && errors[i].is_string() && !errors[i].text().empty();
    if (failed) continue;  // a failed request has the time 0
    run.requests[i] = {lengths[i], ttfts[i], tpot_of(line, i)};
    good.push_back(ttfts[i]);
  }
  if (good.size() != ttfts.size()) {
    result.notes.push_back(std::to_string(ttfts.size() - good.size()) + " of " + std::to_string(ttfts.size()) +
                           " requests failed and are in no figure");
  }
  const Quantiles quantiles = quantiles_of(good);
  if (!good.empty()) run.figures.try_emplace("ttft_p90_s", quantiles.p90);
}

// Reads --cache-report: the sums, and with --output-details the hits of each request.
void take_hits(const Json& line, const std::string& where, BenchRun& result) {
  const auto tokens = [&](const Json& object, const char* key) -> std::uint64_t {
    const auto value = object.find(key);
    if (value == object.end() || value->is_null()) return 0;
    if (!value->is_number_unsigned()) throw InputError(where + ": " + key + ": must be a number of tokens");
    return *value;
  };
  const auto report = line.find("cache_report");
  if (report == line.end() || !report->is_object()) return;
  RequestHits& sum = result.hits;
  sum.prompt_tokens = tokens(*report, "total_prompt_tokens");
  sum.total = tokens(*report, "total_cached_tokens");
  const auto device = report->find("device_cached_tokens");
  sum.by_tier = device != report->end() && !device->is_null();
  sum.device = tokens(*report, "device_cached_tokens");
  sum.host = tokens(*report, "host_cached_tokens");
  sum.storage = tokens(*report, "storage_cached_tokens");
  const auto details = line.find("cached_tokens_details");
  if (details == line.end() || !details->is_array()) return;
  std::size_t without = 0;
  for (auto& [number, request] : result.figures.requests) {
    if (number >= details->size() || !details->at(number).is_object()) {
      ++without;
      continue;
    }
    const Json& one = details->at(number);
    RequestHits hits{request.prompt_tokens, 0, true};
    hits.device = tokens(one, "device");
    hits.host = tokens(one, "host");
    hits.storage = tokens(one, "storage");
    hits.total = hits.device + hits.host + hits.storage;
    result.figures.hits[number] = hits;
  }
  if (without != 0 && without != result.figures.requests.size()) {
    result.notes.push_back(std::to_string(without) +
                           " requests have no cached_tokens_details and are not compared one by one");
  }
}

// The requests of a data set whose prompts share nothing: their lengths and their arrivals say all.
void take_workload(const Json& line, BenchRun& result) {
  const std::string set = line.value("dataset_name", Json()).is_string() ? line.at("dataset_name") : "";
  const Json inputs = line.value("input_lens", Json()), outputs = line.value("output_lens", Json());
  const Json rate = line.value("request_rate", Json()), concurrency = line.value("max_concurrency", Json());
  result.drawn_arrivals = rate.is_number() && rate.get<double>() > 0;
  if (set != "random" && set != "random-ids") {
    result.no_workload =
        "the file does not say which prefixes the prompts of the data set " + (set.empty() ? "?" : set) + " share";
  } else if (!inputs.is_array() || !outputs.is_array() || inputs.size() != outputs.size() || inputs.empty()) {
    result.no_workload = "the file has no lengths of requests; run bench_serving with --output-details";
  } else if (rate.is_string() || (rate.is_number() && concurrency.is_number())) {
    result.no_workload = "the file does not say when the requests were sent";
  }
  if (!result.no_workload.empty()) return;
  result.closed = concurrency.is_number_unsigned() && concurrency.get<std::uint64_t>() > 0;
  const std::uint64_t clients = result.closed ? concurrency.get<std::uint64_t>() : 0;
  if (result.drawn_arrivals) {
    result.notes.push_back(
        "the line does not have the times of its requests: other arrivals are drawn at its request_rate, " +
        rate.dump());
  }
  const auto is_0 = [](const Json& length) { return length == 0; };
  const auto empty = std::ranges::count_if(inputs, is_0) + std::ranges::count_if(outputs, is_0);
  if (empty != 0) {
    result.notes.push_back(std::to_string(empty) +
                           " input_lens and output_lens of 0 (failed requests) are sent as 1 token");
  }
  Random random(1);  // of the arrivals; the client drew others at the same rate
  double arrival_s = 0;
  std::uint64_t block = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].is_number_unsigned() || !outputs[i].is_number_unsigned()) {
      result.no_workload = "input_lens and output_lens must hold numbers of tokens";
      result.workload.clear();
      return;
    }
    const std::uint64_t tokens = std::max<std::uint64_t>(1, inputs[i]);
    Json request{{"timestamp", static_cast<std::uint64_t>(arrival_s * 1e3)},
                 {"input_length", tokens},
                 {"output_length", std::max<std::uint64_t>(1, outputs[i])},
                 {"hash_ids", Json::array()}};
    for (std::uint64_t begin = 0; begin < tokens; begin += kBlockTokens) request["hash_ids"].push_back(block++);
    if (clients != 0) {
      request["session"] = i % clients + 1;
      request["turn"] = i / clients + 1;
    }
    result.workload += request.dump() + "\n";
    if (rate.is_number() && rate.get<double>() > 0) arrival_s += random.exponential(1 / rate.get<double>());
  }
}

// Python writes infinite rates and undefined figures as Infinity and NaN, which JSON does not have: null here.
std::string without_infinity(const std::string& text) {
  std::string result;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      result += text[i++];
    } else if (text[i] == '"') {
      in_string = !in_string;
    } else if (!in_string) {
      const std::string_view rest = std::string_view(text).substr(i);
      std::string_view word;
      for (const std::string_view name : {"-Infinity", "Infinity", "NaN"}) {
        if (word.empty() && rest.starts_with(name)) word = name;
      }
      if (!word.empty()) {
        result += "null";
        i += word.size() - 1;
        continue;
      }
    }
    result += text[i];
  }
  return result;
}

// ---- the export of AIPerf and genai-perf ---------------------------------------------------------------

// The times of the export, and the name that they have in a line of bench_serving. Its inter_token_latency is the mean
// of a request: the time after the first token, shared by the other tokens. So it is the TPOT.
constexpr std::pair<const char*, const char*> kExportedTimes[] = {
    {"time_to_first_token", "ttft"}, {"inter_token_latency", "tpot"}, {"request_latency", "e2e_latency"}};

bool looks_like_export(std::string_view text) {
  const std::string_view begin = text.substr(0, kExportHeadBytes);
  return begin.find("\"request_latency\"") != std::string_view::npos ||
         begin.find("\"time_to_first_token\"") != std::string_view::npos ||
         begin.find("\"request_throughput\": {") != std::string_view::npos;
}

// Returns the export as a line of bench_serving.
Json line_of_export(const Json& exported, const std::string& where) {
  Json line = Json::object();
  const auto metric = [&](const char* name) -> const Json* {
    const auto at = exported.find(name);
    return at == exported.end() || !at->is_object() ? nullptr : &*at;
  };
  const auto statistic = [&](const char* name, const char* which) -> std::optional<double> {
    const Json* const one = metric(name);
    if (one == nullptr || !one->contains(which) || !one->at(which).is_number()) return std::nullopt;
    return one->at(which).get<double>();
  };
  for (const auto& [name, as] : kExportedTimes) {
    const Json* const one = metric(name);
    if (one == nullptr) continue;
    const Json unit = one->value("unit", Json());
    const double factor = unit == "ms"                   ? 1
                          : unit == "ns"                 ? 1e-6
                          : unit == "us"                 ? 1e-3
                          : unit == "s" || unit == "sec" ? 1e3
                                                         : 0;
    if (factor == 0) {
      throw InputError(where + ": " + name + ": has the unit " + unit.dump() + "; ns, us, ms and s are read");
    }
    for (const auto& [which, prefix] : {std::pair("avg", "mean_"), std::pair("p50", "median_"),
                                        std::pair("p90", "p90_"), std::pair("p95", "p95_"), std::pair("p99", "p99_")}) {
      if (const auto value = statistic(name, which)) line[std::string(prefix) + as + "_ms"] = *value * factor;
    }
  }
  if (!line.contains("mean_ttft_ms")) {
    throw InputError(where +
                     ": is an export of AIPerf or genai-perf without a mean time_to_first_token; measure with "
                     "--streaming");
  }
  const auto requests = statistic("request_count", "avg");
  for (const auto& [name, key] :
       {std::pair("request_throughput", "request_throughput"),
        std::pair("output_token_throughput", "output_throughput"), std::pair("request_count", "completed")}) {
    if (const auto value = statistic(name, "avg")) line[key] = *value;
  }
  for (const auto& [name, key] : {std::pair("input_sequence_length", "total_input_tokens"),
                                  std::pair("output_sequence_length", "total_output_tokens")}) {
    const auto mean = statistic(name, "avg");
    if (mean && requests) line[key] = *mean * *requests;
  }
  // AIPerf's configuration, and genai-perf's.
  for (const char* path : {"/input_config/loadgen/concurrency", "/input_config/perf_analyzer/stimulus/concurrency"}) {
    const Json* const clients = exported.find_path(path);
    if (clients != nullptr && clients->is_number()) line["max_concurrency"] = *clients;
  }
  for (const char* path : {"/input_config/loadgen/request_rate", "/input_config/perf_analyzer/stimulus/request_rate"}) {
    const Json* const rate = exported.find_path(path);
    if (rate != nullptr && rate->is_number()) line["request_rate"] = *rate;
  }
  if (line.contains("max_concurrency") && !line.contains("request_rate")) line["request_rate"] = nullptr;
  if (exported.value("was_cancelled", Json()) == true) {
    throw InputError(
        where + ": was_cancelled: the run was stopped, so its figures are not those of its load; give a whole run");
  }
  return line;
}

BenchRun bench_run(const std::string& text, const std::string& where) {
  std::string repeated;
  Json line = parse_json(without_infinity(text), repeated);
  if (!repeated.empty()) throw InputError(where + ": " + repeated + ": is given twice; give what bench_serving wrote");
  if (!line.is_object()) throw InputError(where + ": is no JSON object; give what bench_serving --output-file wrote");
  const bool exported = looks_like_export(text);
  if (exported) line = line_of_export(line, where);
  BenchRun result;
  RunFigures& run = result.figures;
  for (const BenchKey& key : kBenchKeys) {
    if (!line.contains(key.key) || line.at(key.key).is_null()) continue;
    if (!line.at(key.key).is_number() || line.at(key.key).get<double>() < 0) {
      throw InputError(where + ": " + key.key + ": must be a number of at least 0");
    }
    run.figures[key.figure] = line.at(key.key).get<double>() * key.factor;
  }
  if (line.value("completed", Json()) == 0) throw InputError(where + ": completed: is 0, so the run has no times");
  if (!run.figures.contains("ttft_mean_s")) {
    const bool of_seconds = line.contains("mean_ttft");  // a row of InferenceMAX
    throw InputError(where + ": mean_ttft_ms: is missing; give what bench_serving --output-file wrote" +
                     (of_seconds ? ", or the figures, which are in seconds, as a table (--published)" : ""));
  }
  const bool streamed = run.figures.at("ttft_mean_s") > 0;
  if (!streamed) {
    std::erase_if(run.figures, [](const auto& figure) {
      return figure.first.starts_with("ttft_") || figure.first.starts_with("tpot_");
    });
    result.notes.emplace_back(
        "mean_ttft_ms is 0: the client did not see a first token (no streaming), so TTFT and TPOT are not compared");
  }
  for (const auto& [key, value] : line.items()) {
    const bool is_figure = std::ranges::find(kBenchKeys, key, [](const BenchKey& one) {
                             return std::string(one.key);
                           }) != std::end(kBenchKeys);
    const bool is_known =
        is_figure || is_statistic(key) || std::ranges::find(kOtherKeys, std::string_view(key)) != std::end(kOtherKeys);
    if (!is_known) result.passed_over.add(key);
  }
  if (const std::string words = conditions_of(line); !words.empty()) {
    result.notes.push_back("was measured with " + words + "; the prediction has this only if the experiment says so");
  }
  if (streamed) take_lists(line, where, result);
  result.load = load_of(line);
  take_hits(line, where, result);
  if (const auto info = line.find("server_info"); info != line.end() && info->is_object()) {
    result.server_info = info->dump(-1, Json::BadBytes::replace);
  }
  take_workload(line, result);
  if (exported) result.no_workload = "the export does not have the requests";
  return result;
}

}  // namespace

bool looks_like_bench_serving(std::string_view text) {
  return text.substr(0, text.find('\n')).find("\"mean_ttft_ms\"") != std::string_view::npos;
}

std::vector<BenchRun> read_bench_serving(const fs::path& file) {
  std::vector<BenchRun> runs;
  const std::string text = read_text_file(file, "give what bench_serving --output-file wrote", kMaxRowsBytes);
  // One JSON object over many lines: an export, or a line that was indented.
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_object = first != std::string::npos && text[first] == '{';
  if (is_object && text.find_first_not_of(" \t\r", first + 1) == text.find('\n', first)) {
    runs.push_back(bench_run(text, file.string()));
    return runs;
  }
  std::size_t begin = 0;
  for (std::size_t line = 1; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    const std::string one = text.substr(begin, end - begin);
    begin = end + 1;
    if (one.find_first_not_of(" \t\r") == std::string::npos) continue;
    runs.push_back(bench_run(one, file.string() + ":" + std::to_string(line)));
  }
  if (runs.empty()) throw InputError(file.string() + ": is empty; give what bench_serving --output-file wrote");
  return runs;
}

std::vector<std::string> bench_notes(const std::vector<BenchRun>& runs, const std::string& file) {
  std::vector<std::string> notes;
  PassedOver passed_over;
  const auto add = [&](const std::string& sentence) {
    if (std::ranges::find(notes, sentence) == notes.end()) notes.push_back(sentence);
  };
  for (const BenchRun& run : runs) {
    for (const std::string& note : run.notes) add(file + ": " + note);
    passed_over.add(run.passed_over);
  }
  if (!passed_over.empty()) add(file + ": keys that kvtwin does not read were passed over: " + passed_over.text());
  return notes;
}

void check_one_server(const std::vector<BenchRun>& runs, const std::string& file) {
  const BenchRun& first = runs.front();
  if (first.server_info.empty()) {
    throw InputError(file + ": has no server_info; give --experiment, the file that says what was served and by what");
  }
  if (Json::parse(first.server_info).contains("decode")) {
    throw InputError(file + ": server_info is of servers that only prefill and decode; give --experiment");
  }
  const auto served_by = [&](const BenchRun& run) {
    Experiment experiment = Experiment::from_text("", file);
    apply_sglang_server_info_text(experiment, run.server_info, file);
    return identity_of_run(experiment);
  };
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (!runs[i].server_info.empty() && served_by(runs[i]) == served_by(first)) continue;
    throw InputError(file + ": run " + std::to_string(i + 1) + " has another server than run 1; give each a file");
  }
}

void check_one_workload(const std::vector<BenchRun>& runs, const std::string& file) {
  for (std::size_t i = 1; i < runs.size(); ++i) {
    if (runs[i].workload == runs.front().workload) continue;
    throw InputError(file + ": run " + std::to_string(i + 1) + " has other requests than run 1; give each a file");
  }
}

std::string other_requests(const BenchLoad& load, const RunFigures& predicted, const Experiment& e) {
  std::string words;
  const auto differ = [](double a, double b) { return std::abs(a - b) > kOtherLoad * std::max(a, b); };
  const auto add = [&](const std::string& of_file, const std::string& simulated) {
    words += (words.empty() ? "" : "; ") + of_file + ", " + simulated;
  };
  const auto compare = [&](const std::optional<double>& of_file, double simulated, const char* what) {
    if (!of_file || !(simulated > 0) || !differ(*of_file, simulated)) return;
    add(formatted("%.4g %s", *of_file, what), formatted("%.4g simulated", simulated));
  };
  double prompt_tokens = 0;
  for (const auto& [number, request] : predicted.requests) prompt_tokens += static_cast<double>(request.prompt_tokens);
  const auto completed = static_cast<double>(predicted.requests.size());
  compare(load.requests, completed, "requests");
  compare(load.prompt_tokens, completed > 0 ? prompt_tokens / completed : 0, "prompt tokens a request");
  const auto tokens = predicted.figures.find("output_tokens_per_second"),
             requests = predicted.figures.find("requests_per_second");
  if (tokens != predicted.figures.end() && requests != predicted.figures.end() && requests->second > 0) {
    compare(load.output_tokens, tokens->second / requests->second, "answer tokens a request");
  }
  const bool closed = e.text("workload.loop") == "closed";
  if (load.clients && !closed) {
    add(formatted("%.4g clients that wait for their answers", *load.clients),
        "arrivals that wait for nothing simulated (workload.loop = open)");
  }
  if (!load.clients && load.rate && closed) {
    add(*load.rate < kAllAtOnce ? formatted("%.4g requests/s", *load.rate) : "all requests at once",
        "clients that wait for their answers simulated (workload.loop = closed)");
  }
  const bool generated = e.text("workload.trace").empty() && predicted.load.empty();  // and no stage
  if (generated && closed && e.integer("workload.generate.concurrency") > 0) {
    compare(load.clients, static_cast<double>(e.integer("workload.generate.concurrency")), "clients");
  }
  if (generated && !closed && !load.clients && load.rate && e.is_given("workload.generate.requests_per_second")) {
    const double simulated = e.number("workload.generate.requests_per_second");
    if (*load.rate < kAllAtOnce) {
      compare(load.rate, simulated, "requests/s");
    } else if (simulated < kAllAtOnce) {
      add("all requests at once", formatted("%.4g requests/s simulated", simulated));
    }
  }
  return words;
}

void add_hit_shares(const RequestHits& hits, const Experiment& experiment, RunFigures& run) {
  if (hits.prompt_tokens == 0) return;
  const auto share = [&](std::uint64_t tokens) {
    return static_cast<double>(tokens) / static_cast<double>(hits.prompt_tokens);
  };
  run.figures["hit_ratio"] = share(hits.total);
  if (!hits.by_tier) return;
  const Setup setup = make_setup(experiment);
  const Tier storage = setup.has_storage() ? setup.engine.storage.front().tier : Tier::disk;
  run.figures[std::string(spec_of(Tier::device).hit_column)] = share(hits.device);
  run.figures[std::string(spec_of(Tier::host).hit_column)] = share(hits.host);
  run.figures[std::string(spec_of(storage).hit_column)] = share(hits.storage);
}

}  // namespace kvtwin
