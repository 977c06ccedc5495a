#include "traces/clients.hpp"

#include <algorithm>
#include <functional>
#include <utility>

#include "policy/base/check.hpp"
#include "traces/random.hpp"

namespace kvtwin {
namespace {

constexpr std::uint64_t kStarts = std::uint64_t{4} << 60, kThinkTimes = std::uint64_t{5} << 60;  // streams of draws

}  // namespace

ClientSource::ClientSource(TraceSource& trace, const TraceInputOptions& options, ClientsConfig config)
    : trace_(trace), options_(options), config_(std::move(config)), maker_(trace.block_tokens(), options) {
  KV_CHECK(!config_.stages.empty(), "there is a stage");
  config_.start_spread_ns = scaled(config_.start_spread_ns, options.time_scale);
  config_.think_ns = scaled(config_.think_ns, options.time_scale);
}

// Returns a time of [0, most].
TimeNs ClientSource::draw(std::uint64_t stream, std::uint64_t number, TimeNs most) const {
  const std::uint64_t bits = mix64(mix64(config_.seed) ^ mix64(stream + number));
  return static_cast<TimeNs>(integer_from(bits, static_cast<std::uint64_t>(most)));
}

void ClientSource::add_sender(TimeNs time, std::uint64_t client) {
  const Sender sender{time, order_++, client};
  senders_.insert(std::ranges::upper_bound(senders_, sender, std::less<>()), sender);
}

// Reads the trace up to requests_[place]. Returns false if the stage or the trace has no such request.
bool ClientSource::has_request(std::size_t place) {
  if (stage().requests != 0 && sent_ + place >= stage().requests) return false;
  while (requests_.size() <= place && !at_end_) {
    TraceRequest request;
    at_end_ = (options_.limit != 0 && read_ == options_.limit) || !trace_.next(request);
    if (at_end_) break;
    KV_CHECK(!request.is_hint, "the trace has no hints");
    ++read_;
    requests_.push_back(std::move(request));
  }
  return place < requests_.size();
}

// Begins the next stage if all requests of the stage before have ended. Returns false if that stage is not over.
bool ClientSource::begin_stage() {
  if (begun_ && !is_sent()) return true;
  if (!client_of_running_.empty()) return false;
  if (begun_) {
    if (stage_ + 1 == config_.stages.size()) return false;
    first_client_ += stage().clients;
    ++stage_;
    senders_.clear();
  }
  sent_ = 0;
  begun_ = true;
  for (std::uint64_t client = first_client_; client < first_client_ + stage().clients; ++client) {
    senders_.push_back({last_end_ + draw(kStarts, client, config_.start_spread_ns), order_++, client});
  }
  std::ranges::sort(senders_, std::less<>());
  if (stage().clients == 0 && has_request(0)) {
    const TraceRequest& first = requests_.front();
    offset_ = last_end_ + front_end(first.input) - scaled(first.arrival, options_.time_scale);
    add_sender(last_end_ + front_end(first.input), 0);
  }
  return true;
}

// Sets earliest_ to the request that arrives first. Returns false if nobody has a request to send.
bool ClientSource::find_earliest() {
  if (!begin_stage()) return false;
  bool found = false;
  for (std::size_t place = 0; place < senders_.size(); ++place) {
    if (found && senders_[place].time >= earliest_.time) break;  // no later sender can be earlier
    if (!has_request(place)) break;
    const bool by_client = senders_[place].client != 0;
    const TimeNs time = senders_[place].time + (by_client ? front_end(requests_[place].input) : 0);
    if (found && time >= earliest_.time) continue;
    earliest_ = {place, time};
    found = true;
  }
  return found;
}

bool ClientSource::hold(Input& input) {
  held_.reset();
  if (!find_earliest()) return false;
  held_ = earliest_;
  TraceRequest& request = requests_[held_->place];
  request.session = senders_[held_->place].client;
  maker_.make(request, ordinal_, input);
  input.now = held_->time;
  client_of_running_[ordinal_] = request.session;
  return true;
}

// The world has processed the held arrival.
void ClientSource::take_held() {
  const auto place = static_cast<std::ptrdiff_t>(held_->place);
  held_.reset();
  ++ordinal_;
  ++sent_;
  senders_.erase(senders_.begin() + place);
  requests_.erase(requests_.begin() + place);
  if (stage().clients == 0 && has_request(0)) {
    add_sender(scaled(requests_.front().arrival, options_.time_scale) + offset_, 0);
  }
}

bool ClientSource::next(Input& input) {
  if (held_) take_held();
  return hold(input);
}

bool ClientSource::overtake(Input& held, bool has) {
  if (!has) return hold(held);
  // A new sender before the held one gets the held request, or moves it to the sender in between.
  const bool moved = senders_[held_->place].client != requests_[held_->place].session;
  if (!find_earliest() || (!moved && earliest_.time >= held_->time)) return false;
  return hold(held);
}

void ClientSource::answered(RequestId request, TimeNs time) {
  const auto ended = client_of_running_.find(request);
  if (ended == client_of_running_.end()) return;
  const std::uint64_t client = ended->second;
  client_of_running_.erase(ended);
  last_end_ = std::max(last_end_, time);
  if (client == 0) return;
  add_sender(time + draw(kThinkTimes, request, 2 * config_.think_ns), client);
}

}  // namespace kvtwin
