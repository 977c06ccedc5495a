#include "lab/run/engine_messages.hpp"

#include <cstdint>
#include <cstring>
#include <span>
#include <tuple>
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

// The members that travel as they are, in one order for the sender and the receiver. The others own memory.
constexpr std::tuple kOfArrival{&Arrival::request,  &Arrival::prompt_tokens, &Arrival::output_tokens,
                                &Arrival::priority, &Arrival::session,       &Arrival::system_tokens,
                                &Arrival::part,     &Arrival::attempt,       &Arrival::peer};
constexpr std::tuple kOfNotice{&Notice::kind, &Notice::request, &Notice::attempt, &Notice::peer, &Notice::first};
constexpr std::tuple kOfLandedPages{&LandedPages::request, &LandedPages::attempt, &LandedPages::write};
constexpr std::tuple kOfEvent{&Event::kind,      &Event::time,    &Event::tier,        &Event::reason,
                              &Event::pages,     &Event::tokens,  &Event::duration_ns, &Event::cause,
                              &Event::operation, &Event::request, &Event::pool};
// A new member must travel, too. Notice::beside is for the sender's world only.
static_assert(sizeof(Arrival) == 80 && sizeof(Notice) == 64 && sizeof(LandedPages) == 24 && sizeof(Event) == 120);

template <typename Of, typename Members>
void put_members(std::string& bytes, const Of& of, const Members& members) {
  std::apply([&](const auto&... member) { (put(bytes, of.*member), ...); }, members);
}
template <typename Of, typename Members>
void get_members(Reader& reader, Of& of, const Members& members) {
  std::apply([&](const auto&... member) { (reader.get(of.*member), ...); }, members);
}

}  // namespace

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
  put_members(bytes, *arrival, kOfArrival);
  put_all(bytes, arrival->keys);
  return bytes;
}

ReceivedInput::ReceivedInput(std::string_view message) {
  Reader reader(message);
  bool arrives = false;
  reader.get(input.now);
  reader.get(arrives);
  if (arrives) {
    Arrival arrival;
    get_members(reader, arrival, kOfArrival);
    reader.get_all(keys);
    arrival.keys = keys;
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

std::string message_of(const Notice& notice, EngineMessage kind) {
  std::string bytes = message_of(kind);
  put_members(bytes, notice, kOfNotice);
  put_all(bytes, notice.slots);
  return bytes;
}

ReceivedNotice::ReceivedNotice(std::string_view message) {
  Reader reader(message);
  get_members(reader, notice, kOfNotice);
  reader.get_all(slots);
  notice.slots = slots;
  reader.finish();
}

std::string message_of(const LandedPages& pages) {
  std::string bytes = message_of(EngineMessage::landed);
  put_members(bytes, pages, kOfLandedPages);
  return bytes;
}

LandedPages landed_pages(std::string_view message) {
  LandedPages pages;
  Reader reader(message);
  get_members(reader, pages, kOfLandedPages);
  reader.finish();
  return pages;
}

std::string message_of(const Event& event) {
  std::string bytes = message_of(EngineMessage::event);
  put_members(bytes, event, kOfEvent);
  put(bytes, event.record != nullptr);
  if (event.record != nullptr) put(bytes, *event.record);
  put_all(bytes, event.keys);
  return bytes;
}

ReceivedEvent::ReceivedEvent(std::string_view message) {
  Reader reader(message);
  bool has_record = false;
  get_members(reader, event, kOfEvent);
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
