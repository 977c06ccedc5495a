// Any bytes as a message of an engine, and as a line of a recording: each is read, or refused with a sentence. What was
// read of a message is a line that is read again.
// Input: 1 byte that picks which of the two, then the bytes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "lab/capture/kv_events.hpp"
#include "lab/error.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kvtwin;
  if (size == 0) return 0;
  if (data[0] % 2 == 0) {
    std::vector<std::string> lines;
    PassedOver passed_over;
    const auto take = [&](const KvEventLine& event) { lines.emplace_back(event.json); };
    const std::string problem = decode_kv_events({data + 1, size - 1}, take, passed_over);
    if (!problem.empty() && (!lines.empty() || !passed_over.empty())) std::abort();
    if (passed_over.text().size() > (PassedOver::kMaxNames + 1) * (PassedOver::kMaxNameBytes + 32)) std::abort();
    for (const std::string& line : lines) {
      if (line.size() > 7 * size + 256) std::abort();
      KvEvent read;
      parse_kv_event("{\"seq\":1," + line.substr(1), "fuzz", read);
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
