// The messages between the processes of a real run with several engines, as bytes: inputs from the router to the ranks
// of an engine, notices between engines, and events from engines to the report. All processes run the same program on
// machines of one kind.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "impl/runtime/hand_over_lane.hpp"
#include "policy/seam/event.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

enum class EngineMessage : char {
  input = 'i',   // to a rank: an arrival or a hint
  closed = 'c',  // to a rank: no input follows
  event = 'e',   // to process 0
  over = 'o',    // to process 0: the engine has ended, and no event follows
  notice = 'n',  // between the first ranks of engines with roles
  landed = 'w',  // from a rank of a prefill engine to the first rank of a decode engine: the last pages have landed
  passed = 'p',  // from the first rank of an engine to the others: a notice, in the order that all ranks get
  sealed = 's',  // the same: the first rank has been told that no input follows
  last = 'l',    // to all processes: this process has ended, and no message about notices follows
  lost = 'x',    // to all: an engine has died
};

// Requires: the message is not empty.
EngineMessage kind_of(std::string_view message);

std::string message_of(EngineMessage kind);                                                // closed, over, sealed, last
std::string message_of(const Input& input);                                                // an arrival or a hint
std::string message_of(const Notice& notice, EngineMessage kind = EngineMessage::notice);  // notice, passed
std::string message_of(const LandedPages& pages);
LandedPages landed_pages(std::string_view message);
std::string message_of_loss(std::size_t engine);
std::size_t lost_engine(std::string_view message);
// Leaves out the slots, which no report of several engines reads.
std::string message_of(const Event& event);

// An input or an event that owns what its spans and pointers refer to.
struct ReceivedInput {
  explicit ReceivedInput(std::string_view message);
  ReceivedInput(const ReceivedInput&) = delete;
  ReceivedInput& operator=(const ReceivedInput&) = delete;
  Input input;
  std::vector<PageKey> keys;
};
struct ReceivedNotice {
  explicit ReceivedNotice(std::string_view message);
  ReceivedNotice(const ReceivedNotice&) = delete;
  ReceivedNotice& operator=(const ReceivedNotice&) = delete;
  Notice notice;
  std::vector<SlotId> slots;
};
struct ReceivedEvent {
  explicit ReceivedEvent(std::string_view message);
  ReceivedEvent(const ReceivedEvent&) = delete;
  ReceivedEvent& operator=(const ReceivedEvent&) = delete;
  Event event;
  RequestRecord record;
  std::vector<PageKey> keys;
};

}  // namespace kvtwin
