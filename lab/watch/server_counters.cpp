#include "lab/watch/server_counters.hpp"

#include <charconv>
#include <cmath>
#include <string>

namespace kvtwin {
namespace {

// A line `name{label="value",...} number`.
struct Sample {
  std::string_view name, labels;
  double value = 0;

  // Returns the value of a label; empty if there is none. Values with escapes are not needed.
  std::string_view label(std::string_view wanted) const {
    const std::string begin = std::string(wanted) + "=\"";
    for (std::size_t at = labels.find(begin); at != std::string_view::npos; at = labels.find(begin, at + 1)) {
      if (at > 0 && labels[at - 1] != ',') continue;
      const std::string_view rest = labels.substr(at + begin.size());
      return rest.substr(0, rest.find('"'));
    }
    return {};
  }
};

std::optional<Sample> sample_of(std::string_view line) {
  Sample sample;
  const std::size_t name_end = line.find_first_of("{ ");
  if (line.empty() || line.front() == '#' || name_end == std::string_view::npos) return std::nullopt;
  sample.name = line.substr(0, name_end);
  std::string_view rest = line.substr(name_end);
  if (rest.front() == '{') {
    const std::size_t end = rest.rfind('}');
    if (end == std::string_view::npos) return std::nullopt;
    sample.labels = rest.substr(1, end - 1);
    rest = rest.substr(end + 1);
  }
  rest = rest.substr(std::min(rest.size(), rest.find_first_not_of(' ')));
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), sample.value);
  if (error != std::errc() || !std::isfinite(sample.value) || sample.value < 0 || sample.value > 9e15) {
    return std::nullopt;
  }
  return sample;
}

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Adds up the samples of a page.
class Page {
 public:
  void take(const Sample& sample) {
    const std::string_view name = sample.name;
    const auto tokens = static_cast<Tokens>(sample.value);
    if (name == "vllm:prefix_cache_queries_total" || name == "sglang:prompt_tokens_total") {
      sum_.looked_up = sum_.looked_up.value_or(0) + tokens;
    } else if (name == "vllm:prefix_cache_hits_total") {
      sum_.device_hits += tokens;
    } else if (name == "vllm:external_prefix_cache_hits_total") {
      external_ += tokens;
    } else if (name == "vllm:prompt_tokens_cached_by_source_total") {
      const std::string_view source = sample.label("source");
      if (source == "host") host_ += tokens;
      if (source == "disk") disk_ += tokens;
    } else if (name == "sglang:cached_tokens_total") {
      const std::string_view source = sample.label("cache_source");
      (source == "host" ? sum_.host_hits : source == "storage" ? sum_.storage_hits : sum_.device_hits) += tokens;
    } else if (name == "vllm:request_success_total" || name == "sglang:num_requests_total") {
      sum_.requests += tokens;
    } else if (name == "vllm:generation_tokens_total" || name == "sglang:generation_tokens_total") {
      sum_.answer_tokens += tokens;
    } else if (name == "sglang:max_total_num_tokens") {
      sum_.device_tokens = tokens;
    } else if (name == "vllm:cache_config_info") {
      const auto blocks = number_of(sample.label("num_gpu_blocks")), size = number_of(sample.label("block_size"));
      // The first block is not used for KV.
      if (blocks && size && *blocks > 1 && *blocks < (1ULL << 40) && *size < (1ULL << 20)) {
        sum_.device_tokens = (*blocks - 1) * *size;
      }
    }
  }

  ServerCounters sum() {
    // vLLM counts hits of its connectors as external ones, and newer versions tell the tier.
    sum_.host_hits += host_;
    sum_.storage_hits += disk_ + (external_ > host_ + disk_ ? external_ - host_ - disk_ : 0);
    return sum_;
  }

 private:
  ServerCounters sum_;
  Tokens external_ = 0, host_ = 0, disk_ = 0;
};

}  // namespace

ServerCounters parse_server_counters(std::string_view page, TimeNs time) {
  Page sums;
  while (!page.empty()) {
    const std::size_t end = page.find('\n');
    std::string_view line = page.substr(0, end);
    page = end == std::string_view::npos ? std::string_view() : page.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (const auto sample = sample_of(line)) sums.take(*sample);
  }
  ServerCounters counters = sums.sum();
  counters.time = time;
  return counters;
}

}  // namespace kvtwin
