#include "traces/info.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <span>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "traces/random.hpp"

namespace kvtwin {
namespace {

// The prefix tree of all blocks, as a hash table (parent, id) -> node with open addressing, at most half full. Exact:
// the table compares ids, not hashes.
class BlockTree {
 public:
  static constexpr std::uint32_t kNone = 0;  // as `parent`: the root of the default tenant; as `node`: an empty slot

  BlockTree() : slots_(std::size_t{1} << 16) {}

  // Returns the node of the block, counted from 1. Adds a node if the block is new.
  std::uint32_t find_or_add(std::uint32_t parent, std::uint64_t id) {
    if (2 * (count_ + 1) > slots_.size()) grow();
    Slot& slot = find(slots_, parent, id);
    if (slot.node == kNone) {
      if (count_ == std::numeric_limits<std::uint32_t>::max() - 1) throw TraceError("more than 2^32 different blocks.");
      slot = {id, parent, static_cast<std::uint32_t>(++count_)};
    }
    return slot.node;
  }

  std::uint64_t count() const { return count_; }

 private:
  struct Slot {
    std::uint64_t id = 0;
    std::uint32_t parent = 0, node = kNone;
  };

  static Slot& find(std::span<Slot> slots, std::uint32_t parent, std::uint64_t id) {
    const std::size_t mask = slots.size() - 1;
    auto i = static_cast<std::size_t>(mix64(id + 0x9e3779b97f4a7c15ULL * parent)) & mask;
    while (slots[i].node != kNone && (slots[i].id != id || slots[i].parent != parent)) i = (i + 1) & mask;
    return slots[i];
  }

  void grow() {
    std::vector<Slot> larger(2 * slots_.size());
    for (const Slot& slot : slots_) {
      if (slot.node != kNone) find(larger, slot.parent, slot.id) = slot;
    }
    slots_.swap(larger);
  }

  std::vector<Slot> slots_;
  std::uint64_t count_ = 0;
};

class Counter {
 public:
  explicit Counter(Tokens block_tokens) { info_.block_tokens = block_tokens; }

  void add(const TraceRequest& request);
  TraceInfo result();

 private:
  // A request, until the whole trace is known.
  struct Served {
    TimeNs gap = -1;  // since the last request of the session, or the last use of the last hit block; below 0: none
    Tokens hit_tokens = 0;
    std::uint32_t input = 0;     // tokens
    std::uint32_t last_hit = 0;  // node; 0 = no hit
    bool named = false;          // the session is known
  };

  void count_blocks(const TraceRequest& request, Served& served);
  bool continues(const Served& served) const;
  TraceAverages averages() const;
  static LengthStatistics statistics(std::vector<std::uint32_t>& lengths);

  TraceInfo info_;
  BlockTree tree_;
  std::vector<bool> used_again_;  // by node: the block was used at least twice
  double hit_fractions_ = 0.0;
  std::vector<std::uint32_t> inputs_, outputs_;         // tokens; 32 bits are enough for kMaxTraceTokens
  std::vector<TimeNs> last_use_;                        // by node
  std::vector<std::uint32_t> uses_;                     // by node: number of requests
  std::vector<Served> served_;                          // by request
  std::unordered_map<std::uint64_t, TimeNs> sessions_;  // the last arrival
  std::unordered_set<std::uint64_t> tenants_;
};

void Counter::add(const TraceRequest& request) {
  if (request.is_hint) {
    ++info_.hints;
    return;
  }
  if (info_.requests++ == 0) info_.first_ns = request.arrival;
  info_.last_ns = request.arrival;
  inputs_.push_back(static_cast<std::uint32_t>(request.input));
  outputs_.push_back(static_cast<std::uint32_t>(request.output));
  tenants_.insert(request.tenant);
  Served& served = served_.emplace_back();
  served.input = static_cast<std::uint32_t>(request.input);
  count_blocks(request, served);
  if (request.session != 0) {
    ++info_.requests_with_session;
    const auto [last, first] = sessions_.try_emplace(request.session, request.arrival);
    served.named = true;
    served.gap = first ? -1 : std::max<TimeNs>(0, request.arrival - last->second);
    last->second = request.arrival;
  }
}

void Counter::count_blocks(const TraceRequest& request, Served& served) {
  // The root of a tenant's tree is a node with a parent (2^32 - 1) that no block of a request has.
  std::uint32_t node = request.tenant == 0 ? BlockTree::kNone : tree_.find_or_add(BlockTree::kNone - 1, request.tenant);
  const auto nodes = std::max<std::size_t>(used_again_.size(), static_cast<std::size_t>(tree_.count()) + 1);
  used_again_.resize(nodes, true);
  uses_.resize(nodes);
  last_use_.resize(nodes);
  std::uint64_t hits = 0;
  const std::uint64_t blocks = request.held_blocks(info_.block_tokens);
  for (const std::uint64_t id : std::span(request.blocks).first(blocks)) {
    const std::uint64_t known = tree_.count();
    node = tree_.find_or_add(node, id);
    if (node > known) {
      used_again_.push_back(false);
      uses_.push_back(1);
      last_use_.push_back(request.arrival);
      ++info_.blocks_used_once;
      continue;
    }
    ++hits;
    ++uses_[node];
    served.last_hit = node;
    served.gap = std::max<TimeNs>(0, request.arrival - last_use_[node]);
    last_use_[node] = request.arrival;
    if (!used_again_[node]) {
      used_again_[node] = true;
      --info_.blocks_used_once;
    }
  }
  info_.blocks += blocks;
  info_.ideal_hit_blocks += hits;
  served.hit_tokens = std::min(request.input, hits * info_.block_tokens);
  info_.ideal_hit_tokens += served.hit_tokens;
  if (blocks != 0) hit_fractions_ += static_cast<double>(hits) / static_cast<double>(blocks);
  if (hits == 0) ++info_.zero_hit_requests;
}

TraceInfo Counter::result() {
  const auto ratio = [](std::uint64_t part, std::uint64_t whole) {
    return whole == 0 ? 0.0 : static_cast<double>(part) / static_cast<double>(whole);
  };
  info_.duration_seconds = static_cast<double>(info_.last_ns - info_.first_ns) / static_cast<double>(kNsPerSecond);
  if (info_.duration_seconds > 0.0) {
    info_.requests_per_second = static_cast<double>(info_.requests) / info_.duration_seconds;
  }
  info_.input = statistics(inputs_);
  info_.output = statistics(outputs_);
  info_.sessions = sessions_.size();
  info_.tenants = tenants_.size();
  info_.unique_blocks = tree_.count() - (tenants_.size() - tenants_.count(0));
  info_.ideal_block_hit_ratio = ratio(info_.ideal_hit_blocks, info_.blocks);
  info_.ideal_token_hit_ratio = ratio(info_.ideal_hit_tokens, info_.input.total);
  if (info_.requests > 0) info_.mean_request_hit_fraction = hit_fractions_ / static_cast<double>(info_.requests);
  info_.averages = averages();
  return info_;
}

bool Counter::continues(const Served& served) const {
  if (served.named) return served.gap >= 0;
  return served.last_hit != 0 && uses_[served.last_hit] < std::max<std::uint64_t>(50, info_.requests / 100);
}

// Returns the value that `share` of the values do not exceed (nearest rank). Reorders `values`.
template <class Value>
double quantile(std::vector<Value>& values, double share) {
  const auto rank = static_cast<std::size_t>(std::ceil(share * static_cast<double>(values.size())));
  const auto at = values.begin() + static_cast<std::ptrdiff_t>(std::max<std::size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return static_cast<double>(*at);
}

template <class Value>
double mean_of(const std::vector<Value>& values) {
  double sum = 0;
  for (const Value& value : values) sum += static_cast<double>(value);
  return sum / static_cast<double>(values.size());
}

TraceAverages Counter::averages() const {
  TraceAverages a;
  if (info_.requests == 0) return a;
  std::vector<TimeNs> gaps;
  std::vector<Tokens> new_tokens;
  double shared = 0;
  for (const Served& served : served_) {
    if (continues(served)) {
      gaps.push_back(served.gap);
    } else {
      shared += static_cast<double>(served.hit_tokens);
      new_tokens.push_back(served.input - served.hit_tokens);
    }
  }
  a.requests_per_second = info_.requests_per_second;
  a.prompt_tokens = info_.input.mean;
  a.output_tokens = info_.output.mean;
  const auto begun = static_cast<double>(new_tokens.size());
  a.turns = begun == 0 ? 0 : static_cast<double>(info_.requests) / begun;
  if (begun > 0) {
    a.prefix_tokens = shared / begun;
    const double mean = mean_of(new_tokens), median = quantile(new_tokens, 0.5);
    if (median >= 1 && mean > median) a.length_spread = std::min(3.0, std::sqrt(2.0 * log_of(mean / median)));
  }
  if (gaps.empty()) return a;
  constexpr double kSecond = static_cast<double>(kNsPerSecond);
  const double p10 = quantile(gaps, 0.1) / kSecond, p50 = quantile(gaps, 0.5) / kSecond,
               p90 = quantile(gaps, 0.9) / kSecond;
  // With a least value s, (p50 - s)^2 = (p10 - s) (p90 - s), as the logarithms of p10 and p90 are equally far from p50.
  if (p90 - p50 > p50 - p10) {
    a.service_s = std::clamp((p10 * p90 - p50 * p50) / (p10 + p90 - 2.0 * p50), 0.0, p10);
    constexpr double kP90OfNormal = 1.2815515655446004;
    if (p50 > a.service_s) a.think_spread = log_of((p90 - a.service_s) / (p50 - a.service_s)) / kP90OfNormal;
    a.think_spread = std::min(3.0, a.think_spread);
  }
  a.think_s = std::max(0.0, mean_of(gaps) / kSecond - a.service_s);
  return a;
}

LengthStatistics Counter::statistics(std::vector<std::uint32_t>& lengths) {
  LengthStatistics s;
  if (lengths.empty()) return s;
  std::sort(lengths.begin(), lengths.end());
  for (const std::uint32_t length : lengths) s.total += length;
  s.mean = static_cast<double>(s.total) / static_cast<double>(lengths.size());
  const auto percentile = [&lengths](std::size_t p) -> Tokens {
    const std::size_t rank = (lengths.size() * p + 99) / 100;  // from 1
    return lengths[std::max<std::size_t>(rank, 1) - 1];
  };
  s.min = lengths.front();
  s.p1 = percentile(1), s.p10 = percentile(10), s.p25 = percentile(25), s.p50 = percentile(50), s.p75 = percentile(75);
  s.p90 = percentile(90), s.p95 = percentile(95), s.p99 = percentile(99);
  s.max = lengths.back();
  return s;
}

std::string decimal(double value, int digits) {
  std::array<char, 400> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed, digits).ptr;
  return {text.data(), end};
}

// 1234567 -> "1,234,567"
std::string grouped(std::uint64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

void append_lengths(std::string& text, const char* title, const LengthStatistics& s) {
  text.append(title).append(decimal(s.mean, 1)).append(" tokens on average; p1/10/25/50/75/90/95/99/max ");
  const Tokens values[] = {s.p1, s.p10, s.p25, s.p50, s.p75, s.p90, s.p95, s.p99, s.max};
  for (const Tokens& value : values) text.append(&value == values ? "" : " / ").append(grouped(value));
  text += '\n';
}

class JsonText {
 public:
  void add(std::string_view key, std::uint64_t value) { raw(key, std::to_string(value)); }
  void add(std::string_view key, double value) {
    std::array<char, 64> text{};
    const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
    raw(key, {text.data(), static_cast<std::size_t>(end - text.data())});
  }
  void raw(std::string_view key, std::string_view value) {
    text_.append(text_.empty() ? "{\"" : ",\"").append(key).append("\":").append(value);
  }
  std::string close() { return text_ + '}'; }

 private:
  std::string text_;
};

std::string lengths_json(const LengthStatistics& s) {
  JsonText json;
  json.add("mean", s.mean);
  const std::pair<const char*, Tokens> values[] = {{"min", s.min}, {"p1", s.p1},   {"p10", s.p10},    {"p25", s.p25},
                                                   {"p50", s.p50}, {"p75", s.p75}, {"p90", s.p90},    {"p95", s.p95},
                                                   {"p99", s.p99}, {"max", s.max}, {"total", s.total}};
  for (const auto& [key, value] : values) json.add(key, value);
  return json.close();
}

std::string averages_json(const TraceAverages& a) {
  JsonText json;
  const std::pair<const char*, double> values[] = {{"requests_per_second", a.requests_per_second},
                                                   {"prompt_tokens", a.prompt_tokens},
                                                   {"output_tokens", a.output_tokens},
                                                   {"turns", a.turns},
                                                   {"think_s", a.think_s},
                                                   {"prefix_tokens", a.prefix_tokens},
                                                   {"length_spread", a.length_spread},
                                                   {"think_spread", a.think_spread},
                                                   {"service_s", a.service_s}};
  for (const auto& [key, value] : values) json.add(key, value);
  return json.close();
}

}  // namespace

TraceInfo trace_info(TraceSource& trace, std::uint64_t limit) {
  Counter counter(trace.block_tokens());
  TraceRequest request;
  std::uint64_t requests = 0;
  while ((limit == 0 || requests < limit) && trace.next(request)) {
    counter.add(request);
    if (!request.is_hint) ++requests;
  }
  return counter.result();
}

std::string trace_info_text(const TraceInfo& info) {
  std::string text;
  const auto add = [&text](std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) text.append(part);
  };
  add({"requests     ", grouped(info.requests), " in ", decimal(info.duration_seconds, 1), " s (",
       decimal(info.requests_per_second, 2), " requests/s), hints ", grouped(info.hints), "\n"});
  append_lengths(text, "input        ", info.input);
  append_lengths(text, "output       ", info.output);
  add({"blocks       ", grouped(info.blocks), " of ", grouped(info.block_tokens), " tokens, ",
       grouped(info.unique_blocks), " different, ", grouped(info.blocks_used_once), " used once\n"});
  add({"ideal hits   ", decimal(info.ideal_block_hit_ratio, 4), " of blocks, ", decimal(info.ideal_token_hit_ratio, 4),
       " of tokens (infinite cache); ", grouped(info.zero_hit_requests), " requests hit nothing\n"});
  if (info.sessions == 0) {
    add({"sessions     not named by the trace\n"});
  } else {
    const double each = static_cast<double>(info.requests_with_session) / static_cast<double>(info.sessions);
    add({"sessions     ", grouped(info.sessions), ", ", decimal(each, 2), " requests each\n"});
  }
  add({"tenants      ", grouped(info.tenants), "\n"});
  const TraceAverages& a = info.averages;
  add({"averages     of workload.generate.kind=sessions: requests_per_second=", decimal(a.requests_per_second, 3),
       " prompt_tokens=", decimal(a.prompt_tokens, 0), " output_tokens=", decimal(a.output_tokens, 0),
       " turns=", decimal(a.turns, 2), " think_s=", decimal(a.think_s, 1),
       " prefix_tokens=", decimal(a.prefix_tokens, 0), " length_spread=", decimal(a.length_spread, 2),
       " think_spread=", decimal(a.think_spread, 2), "; workload.service_s=", decimal(a.service_s, 1), "\n"});
  return text;
}

std::string trace_info_json(const TraceInfo& info) {
  JsonText json;
  json.add("requests", info.requests);
  json.add("hints", info.hints);
  json.raw("first_ns", std::to_string(info.first_ns));
  json.raw("last_ns", std::to_string(info.last_ns));
  json.add("duration_seconds", info.duration_seconds);
  json.add("requests_per_second", info.requests_per_second);
  json.raw("input", lengths_json(info.input));
  json.raw("output", lengths_json(info.output));
  json.add("block_tokens", info.block_tokens);
  json.add("blocks", info.blocks);
  json.add("unique_blocks", info.unique_blocks);
  json.add("blocks_used_once", info.blocks_used_once);
  json.add("ideal_hit_blocks", info.ideal_hit_blocks);
  json.add("ideal_hit_tokens", info.ideal_hit_tokens);
  json.add("ideal_block_hit_ratio", info.ideal_block_hit_ratio);
  json.add("ideal_token_hit_ratio", info.ideal_token_hit_ratio);
  json.add("mean_request_hit_fraction", info.mean_request_hit_fraction);
  json.add("zero_hit_requests", info.zero_hit_requests);
  json.add("sessions", info.sessions);
  json.add("requests_with_session", info.requests_with_session);
  json.add("tenants", info.tenants);
  json.raw("averages", averages_json(info.averages));
  return json.close();
}

}  // namespace kvtwin
