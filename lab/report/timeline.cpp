#include "lab/report/timeline.hpp"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <utility>

#include "lab/error.hpp"
#include "lab/out_files.hpp"

namespace kvtwin {
namespace {

// The first engine's lanes, the requests, then the lanes of further engines.
constexpr int kRequestProcess = 2;
int lane_process(std::size_t engine) { return engine == 0 ? 1 : static_cast<int>(engine) + kRequestProcess; }

unsigned lane_number(Lane lane) { return static_cast<unsigned>(lane); }

const char* transfer_name(Lane lane) {
  if (lane == Lane::h2d) return "load";
  if (lane == Lane::peer) return "hand-over";
  return lane == Lane::d2h ? "backup" : spec_of(lane).name.data();
}

const char* status_name(Status status) {
  switch (status) {
    case Status::done: return "done";
    case Status::cancelled: return "cancelled";
    case Status::failed: return "failed";
    case Status::gate_failed: return "gate_failed";
  }
  return "unknown";
}

// Returns the time in microseconds, the unit of the format, with three decimals.
std::string us(TimeNs time) {
  char text[40];
  std::snprintf(text, sizeof text, "%" PRId64 ".%03d", time / 1000, static_cast<int>(time % 1000));
  return text;
}

}  // namespace

// All names in the file are constants of kvtwin in ASCII without quotes, so no text needs escaping.
Timeline::Timeline(std::filesystem::path path, const std::vector<std::string>& engines, Observer* events)
    : path_(std::move(path)), out_(path_.string() + ".partial", std::ios::binary), events_(events) {
  if (!out_) throw cannot_write(path_, errno);
  out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";
  for (std::size_t number = 0; number < engines.size(); ++number) {
    Engine& engine = engines_.emplace_back();
    engine.timeline = this;
    engine.number = number;
    const std::string name = engines[number].empty() ? "lanes" : "lanes of " + engines[number];
    add(R"({"ph":"M","pid":%d,"name":"process_name","args":{"name":"%s"}})", lane_process(number), name.c_str());
    if (number > 0) continue;
    add(R"({"ph":"M","pid":%d,"name":"process_name","args":{"name":"requests"}})", kRequestProcess);
  }
  for (Engine& engine : engines_) {
    for (const Lane lane : {Lane::h2d, Lane::d2h, Lane::compute}) name_lane(engine, lane);
  }
}

LaneObserver* Timeline::lanes_of(std::size_t engine, LaneObserver* next) {
  engines_[engine].lanes = next;
  return &engines_[engine];
}

Observer* Timeline::events_of(std::size_t engine, Observer* next) {
  engines_[engine].events = next;
  return &engines_[engine];
}

void Timeline::Engine::count(const Event& event) {
  if (event.kind != EventKind::prefill_started) return;
  Prefill& prefill = prefills[event.operation];
  prefill.tokens += event.tokens;
  ++prefill.requests;
}

void Timeline::Engine::on_event(const Event& event) {
  count(event);
  if (events != nullptr) events->on_event(event);
}

void Timeline::add(const char* format, ...) {
  char line[512];
  std::va_list values;
  va_start(values, format);
  const int length = std::vsnprintf(line, sizeof line, format, values);
  va_end(values);
  out_ << (std::exchange(first_, false) ? "\n" : ",\n");
  out_.write(line, std::min<int>(length, sizeof line - 1));
}

void Timeline::name_lane(Engine& engine, Lane lane) {
  const std::uint32_t bit = 1U << lane_number(lane);
  if ((engine.named & bit) != 0) return;
  engine.named |= bit;
  add(R"({"ph":"M","pid":%d,"tid":%u,"name":"thread_name","args":{"name":"%s"}})", lane_process(engine.number),
      lane_number(lane), spec_of(lane).name.data());
}

void Timeline::add_span(Engine& engine, const LaneSpan& span) {
  if (span.received) {
    if (engine.lanes != nullptr) engine.lanes->on_lane(span);
    return;
  }
  name_lane(engine, span.lane);
  const int process = lane_process(engine.number);
  const std::string begin = us(span.begin), duration = us(span.end - span.begin);
  const auto id = static_cast<std::uint64_t>(span.id);
  if (span.lane != Lane::compute) {
    add(R"({"ph":"X","pid":%d,"tid":%u,"ts":%s,"dur":%s,"cat":"transfer","name":"%s","args":{"operation":%)" PRIu64
        R"(,"bytes":%)" PRIu64 R"(,"latency_us":%s,"status":"%s"}})",
        process, lane_number(span.lane), begin.c_str(), duration.c_str(), transfer_name(span.lane), id, span.bytes,
        us(std::clamp(span.flowing, span.begin, span.end) - span.begin).c_str(), status_name(span.status));
  } else {
    const auto prefill = engine.prefills.find(span.id);
    std::string more = "\"steps\":" + std::to_string(span.steps);
    if (prefill != engine.prefills.end()) {
      more += ",\"tokens\":" + std::to_string(prefill->second.tokens);
      more += ",\"requests\":" + std::to_string(prefill->second.requests);
    }
    add(R"({"ph":"X","pid":%d,"tid":%u,"ts":%s,"dur":%s,"cat":"pass","name":"%s","args":{"operation":%)" PRIu64
        R"(,%s,"stalled_us":%s,"status":"%s"}})",
        process, lane_number(span.lane), begin.c_str(), duration.c_str(),
        prefill != engine.prefills.end() ? "prefill" : "decode", id, more.c_str(), us(span.stalled_ns).c_str(),
        status_name(span.status));
    if (prefill != engine.prefills.end()) engine.prefills.erase(prefill);
    if (span.stalled_ns > 0) {
      add(R"({"ph":"X","pid":%d,"tid":%u,"ts":%s,"dur":%s,"cat":"stall","name":"stall","args":{"operation":%)" PRIu64
          "}}",
          process, lane_number(span.lane), begin.c_str(), us(std::min(span.stalled_ns, span.end - span.begin)).c_str(),
          id);
    }
  }
  if (engine.lanes != nullptr) engine.lanes->on_lane(span);
}

void Timeline::on_event(const Event& event) {
  if (event.kind == EventKind::prefill_started) {
    if (engines_.size() == 1) engines_.front().count(event);
  } else if (event.kind == EventKind::finished) {
    add_request(*event.record, event.engine);
  } else if (event.kind == EventKind::rejected || event.kind == EventKind::retracted) {
    add_instant(event.kind == EventKind::rejected ? "rejected" : "retracted", event);
  } else if (event.kind == EventKind::evicted && event.pool != 0) {
    add_evicted(event);
  }
  if (events_ != nullptr) events_->on_event(event);
}

void Timeline::add_request(const RequestRecord& r, std::size_t engine) {
  std::string where;
  if (engines_.size() > 1) where = ",\"engine\":" + std::to_string(engine);
  if (r.part == RequestPart::decode) where += ",\"prefill_engine\":" + std::to_string(r.peer);
  add(R"({"ph":"b","pid":%d,"tid":0,"cat":"request","id":%)" PRIu64 R"(,"ts":%s,"name":"request %)" PRIu64
      R"(","args":{"prompt_tokens":%)" PRIu64 R"(,"output_tokens":%)" PRIu64 R"(,"hit_device":%)" PRIu64
      R"(,"hit_host":%)" PRIu64 R"(,"miss":%)" PRIu64 R"(,"ttft_us":%s,"retractions":%u%s}})",
      kRequestProcess, r.request, us(r.arrival).c_str(), r.request, r.prompt_tokens, r.output_tokens,
      r.hit[Tier::device], r.hit[Tier::host], r.miss, us(r.first_token - r.arrival).c_str(), r.retractions,
      where.c_str());
  TimeNs at = r.arrival;
  for (const auto& [name, duration] : {std::pair{"queue", r.queue_ns}, std::pair{"prefetch wait", r.prefetch_wait_ns},
                                       std::pair{"load wait", r.load_wait_ns}, std::pair{"compute", r.compute_ns},
                                       std::pair{"hand-over", r.hand_over_ns}}) {
    add_part(r.request, name, at, at + duration);
    at += duration;
  }
  add_part(r.request, "decode", r.first_token, r.finished);
  add(R"({"ph":"e","pid":%d,"tid":0,"cat":"request","id":%)" PRIu64 R"(,"ts":%s,"name":"request %)" PRIu64 R"("})",
      kRequestProcess, r.request, us(r.finished).c_str(), r.request);
}

void Timeline::add_part(RequestId request, std::string_view name, TimeNs begin, TimeNs end) {
  if (end <= begin) return;
  for (const auto& [phase, time] : {std::pair{"b", begin}, std::pair{"e", end}}) {
    add(R"({"ph":"%s","pid":%d,"tid":0,"cat":"request","id":%)" PRIu64 R"(,"ts":%s,"name":"%s"})", phase,
        kRequestProcess, request, us(time).c_str(), std::string(name).c_str());
  }
}

void Timeline::add_instant(std::string_view name, const Event& event) {
  add(R"({"ph":"i","s":"p","pid":%d,"tid":0,"ts":%s,"cat":"request","name":"%s","args":{"request":%)" PRIu64
      R"(,"reason":"%s"}})",
      kRequestProcess, us(event.time).c_str(), std::string(name).c_str(), event.record->request,
      std::string(name_of(event.reason)).c_str());
}

void Timeline::add_evicted(const Event& event) {
  Pages& sum = evicted_[{event.engine, event.tier, event.pool}];
  sum += event.pages;
  add(R"({"ph":"C","pid":%d,"ts":%s,"name":"evicted from pool %u, %s","args":{"slots":%)" PRIu64 "}}",
      lane_process(event.engine), us(event.time).c_str(), static_cast<unsigned>(event.pool),
      std::string(spec_of(event.tier).name).c_str(), sum);
}

void Timeline::finish() {
  errno = 0;
  out_ << "\n]}\n";
  out_.close();
  if (!out_) throw cannot_write(path_, errno);
  std::error_code error;
  std::filesystem::rename(path_.string() + ".partial", path_, error);
  if (error) throw cannot_write(path_, error.value());
}

}  // namespace kvtwin
