// Any bytes as a message of an engine, and as a line of a recording: each is read, or refused with a sentence. What was
// read of a message is a line that is read again.
// Input: 1 byte that picks which of the two, then the bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "lab/capture/kv_events.hpp"
#include "lab/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvtwin;
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    const KvEventBatch batch = decode_kv_events({data + 1, size - 1});
    if (!batch.problem.empty() && !batch.events.empty()) std::abort();
    for (const nlohmann::ordered_json& event : batch.events) {
      nlohmann::ordered_json line{{"seq", 1}};
      line.update(event);
      KvEvent read;
      parse_kv_event(line.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace), "fuzz", read);
    }
    return 0;
  }
  try {
    KvEvent event;
    parse_kv_event(std::string(reinterpret_cast<const char*>(data) + 1, size - 1), "fuzz", event);
  } catch (const InputError&) {
  }
  return 0;
}
