#include "models/store_fit.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "models/json.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kStoreTerms = 3;  // call, object, byte
using StoreTerms = std::array<double, kStoreTerms>;

struct StoreSample {
  StoreTerms work{1, 0, 0};  // 1, objects, bytes
  double seconds = 0;        // median
};

std::vector<StoreSample> store_samples(const Measurements& all, StorageVerb verb) {
  std::map<std::pair<double, double>, std::vector<double>> times;  // by objects and bytes
  for (const Measurement& one : all.list) {
    if (one.what != Measured::storage || one.work.tier != Tier::remote || one.work.verb != verb) continue;
    if (!(one.seconds > 0)) continue;
    const double objects = static_cast<double>(one.work.pages) * one.work.objects;
    const double bytes = static_cast<double>(one.work.pages) * static_cast<double>(one.work.page_bytes);
    times[{objects, verb == StorageVerb::look_up ? 0 : bytes}].push_back(one.seconds);
  }
  std::vector<StoreSample> samples;
  for (auto& [work, list] : times) {
    std::ranges::sort(list);
    samples.push_back({{1, work.first, work.second}, list[list.size() / 2]});
  }
  return samples;
}

// Solves the normal equations for the terms of `used`; the others are 0. Nothing: they have no unique solution.
std::optional<StoreTerms> solved_terms(const std::vector<StoreSample>& samples, unsigned used) {
  std::vector<std::size_t> terms;
  for (std::size_t i = 0; i < kStoreTerms; ++i) {
    if ((used >> i & 1U) != 0) terms.push_back(i);
  }
  const std::size_t n = terms.size();
  std::array<std::array<double, kStoreTerms + 1>, kStoreTerms> m{};
  for (const StoreSample& sample : samples) {
    for (std::size_t r = 0; r < n; ++r) {
      const double row = sample.work[terms[r]] / sample.seconds;
      for (std::size_t c = 0; c < n; ++c) m[r][c] += row * sample.work[terms[c]] / sample.seconds;
      m[r][n] += row;
    }
  }
  for (std::size_t k = 0; k < n; ++k) {
    const double scale = m[k][k];
    if (!(scale > 0)) return std::nullopt;
    for (std::size_t c = k; c <= n; ++c) m[k][c] /= scale;
    for (std::size_t r = 0; r < n; ++r) {
      if (r == k) continue;
      const double factor = m[r][k];
      for (std::size_t c = k; c <= n; ++c) m[r][c] -= factor * m[k][c];
    }
  }
  StoreTerms found{};
  for (std::size_t k = 0; k < n; ++k) found[terms[k]] = m[k][n];
  return found;
}

double terms_error(const std::vector<StoreSample>& samples, const StoreTerms& terms) {
  double sum = 0;
  for (const StoreSample& sample : samples) {
    double predicted = 0;
    for (std::size_t i = 0; i < kStoreTerms; ++i) predicted += terms[i] * sample.work[i];
    const double error = predicted / sample.seconds - 1;
    sum += error * error;
  }
  return sum;
}

// Returns the terms with the least error of all that have no negative one. There are few, so each set of terms is
// tried.
StoreTerms fitted_terms(const std::vector<StoreSample>& samples, unsigned possible) {
  StoreTerms best{};
  double least = -1;
  for (unsigned used = 1; used < 1U << kStoreTerms; ++used) {
    if ((used & ~possible) != 0) continue;
    const std::optional<StoreTerms> found = solved_terms(samples, used);
    if (!found || std::ranges::any_of(*found, [](double term) { return !(term >= 0); })) continue;
    const double error = terms_error(samples, *found);
    if (least >= 0 && error >= least) continue;
    least = error;
    best = *found;
  }
  return best;
}

// Four digits are more than a measurement has.
double four_digits(double value) {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%.4g", value);
  return std::strtod(text.data(), nullptr);
}

}  // namespace

StoreFitTerms store_kind(std::string_view url) {
  StoreFitTerms terms;
  terms.kind = std::string(url.substr(0, url.find("://")));
  if (terms.kind == "rediss") terms.kind = "redis";
  if (terms.kind == "redis") terms.preset = "redis";
  if (terms.kind == "nixl+posix") terms.preset = "nixl_posix";
  if (terms.kind == "mooncake") {
    terms.preset = url.find("protocol=rdma") == std::string_view::npos ? "mooncake_tcp" : "mooncake";
  }
  return terms;
}

std::string fitted_store(const Measurements& measurements, const StoreFitTerms& terms) {
  constexpr unsigned kCallAndObject = 3, kAll = 7;
  const auto samples = [&](StorageVerb verb) {
    std::vector<StoreSample> found = store_samples(measurements, verb);
    if (found.empty()) {
      throw ModelError("no " + std::string(name_of(verb)) +
                       " of the remote tier was measured; a store file needs some.");
    }
    return found;
  };
  const StoreTerms look_up = fitted_terms(samples(StorageVerb::look_up), kCallAndObject);
  const StoreTerms get = fitted_terms(samples(StorageVerb::get), kAll),
                   set = fitted_terms(samples(StorageVerb::set), kAll);

  Json numbers = Json::object();
  const auto add = [&](const char* key, double value, const char* unit) {
    numbers[key] = {{"value", four_digits(value)}, {"unit", unit}, {"source", terms.source}, {"date", terms.date}};
  };
  constexpr double kMicro = 1e6, kLeastUs = 0.001;  // a call has a time
  add("look_up_call", std::max(kLeastUs, look_up[0] * kMicro), "us");
  if (look_up[1] > 0) add("look_up_key", look_up[1] * kMicro, "us");
  constexpr double kMaxGb = 1000;  // of a store file
  const auto stream = [](const StoreTerms& t) { return t[2] > 1e-12 ? 1e-9 / t[2] : kMaxGb; };
  const auto add_way = [&](const StoreTerms& t, const char* call, const char* object, const char* rate) {
    add(call, std::max(kLeastUs, t[0] * kMicro), "us");
    if (t[1] > 0) add(object, t[1] * kMicro, "us");
    add(rate, stream(t), "GB/s");
  };
  add_way(get, "get_call", "get_object", "stream_read_bandwidth");
  add_way(set, "set_call", "set_object", "stream_write_bandwidth");

  bool evicts = terms.kind != "nixl+obj";
  if (!terms.preset.empty()) {
    const StoreSpec preset = store_preset(terms.preset);
    evicts = preset.evicts;
    for (const HardwareNumber& number : preset.numbers) {
      if (number.key != "lease" && !number.key.starts_with("node_")) continue;
      numbers[number.key] = {{"value", Json::parse(number.value)},
                             {"unit", number.unit},
                             {"source", number.source},
                             {"date", number.date}};
    }
    // A server moves at least one stream.
    const double fastest = std::max(stream(get), stream(set));
    if (preset.figures.node_bandwidth < fastest * 1e9) add("node_bandwidth", fastest, "GB/s");
  }
  Json file;
  file["description"] = "measured " + terms.kind + " store";
  file["evicts"] = evicts;
  file["numbers"] = numbers;
  std::string text = file.dump(2) + "\n";
  static_cast<void>(parse_store(text, "the measured store"));  // checks its ranges
  return text;
}

}  // namespace kvtwin
