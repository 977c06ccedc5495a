#include "lab/run/engine_messages.hpp"

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <variant>

#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

template <typename Value>
void put(std::string& bytes, const Value& value) {
  static_assert(std::is_trivially_copyable_v<Value>);
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <typename Element>
void put_all(std::string& bytes, std::span<const Element> elements) {
  static_assert(std::is_trivially_copyable_v<Element>);
  put(bytes, std::uint64_t{elements.size()});
  bytes.append(reinterpret_cast<const char*>(elements.data()), elements.size_bytes());
}

class Reader {
 public:
  // Begins after the kind.
  explicit Reader(std::string_view message) : rest_(message.substr(1)) {}

  template <typename Value>
  void get(Value& value) {
    static_assert(std::is_trivially_copyable_v<Value>);
    copy(&value, sizeof value);
  }
  template <typename Element>
  void get_all(std::vector<Element>& elements) {
    static_assert(std::is_trivially_copyable_v<Element>);
    std::uint64_t count = 0;
    get(count);
    KV_CHECK(count <= rest_.size() / sizeof(Element), "a message holds its elements");
    elements.resize(count);
    copy(elements.data(), count * sizeof(Element));
  }
  void finish() const { KV_CHECK(rest_.empty(), "a message holds nothing else"); }

 private:
  void copy(void* to, std::size_t bytes) {
    KV_CHECK(bytes <= rest_.size(), "a message is whole");
    if (bytes != 0) std::memcpy(to, rest_.data(), bytes);
    rest_.remove_prefix(bytes);
  }

  std::string_view rest_;
};

}  // namespace

// A new member of these must travel, too.
static_assert(sizeof(Arrival) == 72 && sizeof(Notice) == 48 && sizeof(Event) == 120);

EngineMessage kind_of(std::string_view message) {
  KV_CHECK(!message.empty(), "a message has a kind");
  return static_cast<EngineMessage>(message.front());
}

std::string message_of(EngineMessage kind) { return {static_cast<char>(kind)}; }

std::string message_of(const Input& input) {
  std::string bytes = message_of(EngineMessage::input);
  const auto* arrival = std::get_if<Arrival>(&input.what);
  put(bytes, input.now);
  put(bytes, arrival != nullptr);
  if (arrival == nullptr) {
    put(bytes, std::get<Hint>(input.what));
    return bytes;
  }
  put(bytes, arrival->request);
  put(bytes, arrival->prompt_tokens);
  put(bytes, arrival->output_tokens);
  put(bytes, arrival->priority);
  put(bytes, arrival->session);
  put_all(bytes, arrival->keys);
  put(bytes, arrival->part);
  put(bytes, arrival->attempt);
  put(bytes, arrival->peer);
  return bytes;
}

ReceivedInput::ReceivedInput(std::string_view message) {
  Reader reader(message);
  bool arrives = false;
  reader.get(input.now);
  reader.get(arrives);
  if (arrives) {
    Arrival arrival;
    reader.get(arrival.request);
    reader.get(arrival.prompt_tokens);
    reader.get(arrival.output_tokens);
    reader.get(arrival.priority);
    reader.get(arrival.session);
    reader.get_all(keys);
    arrival.keys = keys;
    reader.get(arrival.part);
    reader.get(arrival.attempt);
    reader.get(arrival.peer);
    input.what = arrival;
  } else {
    Hint hint;
    reader.get(hint);
    input.what = hint;
  }
  reader.finish();
}

std::string message_of_loss(std::size_t engine) {
  std::string bytes = message_of(EngineMessage::lost);
  put(bytes, engine);
  return bytes;
}

std::size_t lost_engine(std::string_view message) {
  std::size_t engine = 0;
  Reader reader(message);
  reader.get(engine);
  reader.finish();
  return engine;
}

std::string message_of(const Notice& notice) {
  std::string bytes = message_of(EngineMessage::notice);
  put(bytes, notice.kind);
  put(bytes, notice.request);
  put(bytes, notice.attempt);
  put(bytes, notice.peer);
  put(bytes, notice.first);
  put_all(bytes, notice.slots);
  return bytes;
}

ReceivedNotice::ReceivedNotice(std::string_view message) {
  Reader reader(message);
  reader.get(notice.kind);
  reader.get(notice.request);
  reader.get(notice.attempt);
  reader.get(notice.peer);
  reader.get(notice.first);
  reader.get_all(slots);
  notice.slots = slots;
  reader.finish();
}

std::string message_of(const Event& event) {
  std::string bytes = message_of(EngineMessage::event);
  put(bytes, event.kind);
  put(bytes, event.time);
  put(bytes, event.tier);
  put(bytes, event.reason);
  put(bytes, event.pages);
  put(bytes, event.tokens);
  put(bytes, event.duration_ns);
  put(bytes, event.cause);
  put(bytes, event.operation);
  put(bytes, event.request);
  put(bytes, event.record != nullptr);
  if (event.record != nullptr) put(bytes, *event.record);
  put_all(bytes, event.keys);
  return bytes;
}

ReceivedEvent::ReceivedEvent(std::string_view message) {
  Reader reader(message);
  bool has_record = false;
  reader.get(event.kind);
  reader.get(event.time);
  reader.get(event.tier);
  reader.get(event.reason);
  reader.get(event.pages);
  reader.get(event.tokens);
  reader.get(event.duration_ns);
  reader.get(event.cause);
  reader.get(event.operation);
  reader.get(event.request);
  reader.get(has_record);
  if (has_record) {
    reader.get(record);
    event.record = &record;
  }
  reader.get_all(keys);
  event.keys = keys;
  reader.finish();
}

}  // namespace kvtwin
