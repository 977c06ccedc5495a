// Any bytes as a trace: reading ends, or is refused with a TraceError; what was read is a proper trace and pages.
// Input: 2 bytes that pick block and page size, and maybe the format, then the file.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>

#include "policy/seam/substrate.hpp"
#include "traces/info.hpp"
#include "traces/paging.hpp"
#include "traces/trace.hpp"

namespace {

using namespace kvtwin;

void require(bool condition) {
  if (!condition) std::abort();
}

class CheckedReader final : public TraceSource {
 public:
  CheckedReader(std::span<const char> bytes, const TraceOptions& options) : reader_("fuzz", bytes, options) {}

  bool next(TraceRequest& request) override {
    if (!reader_.next(request)) return false;
    require(begun_ ? request.arrival >= last_ : request.arrival == 0);
    begun_ = true;
    last_ = request.arrival;
    if (request.is_hint) {
      require(request.hint.subject != 0 && request.blocks.empty());
    } else {
      require(request.input >= 1 && request.output >= 1);
      require(request.blocks.size() == (request.input - 1) / block_tokens() + 1);
    }
    return true;
  }
  Tokens block_tokens() const override { return reader_.block_tokens(); }

 private:
  TraceReader reader_;
  bool begun_ = false;
  TimeNs last_ = 0;
};

template <class Read>
bool accepted(Read read) {
  try {
    read();
    return true;
  } catch (const TraceError& error) {
    require(std::string(error.what()).ends_with('.'));
    return false;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::span<const char> file(reinterpret_cast<const char*>(data) + 2, size - 2);
  TraceOptions options;
  options.block_tokens = data[0] % 4 == 0 ? 512 : 1 + data[0];
  options.max_line_bytes = 4'096;    // small, so that the limit is met
  options.max_window_log = 20;       // a frame may ask for its window; not for gigabytes here
  options.max_input_tokens = 1'000;  // a short line may ask for any number of blocks
  // Mostly told from the first line.
  if (data[1] % 4 == 3) options.format = trace_format_names()[data[1] / 4 % trace_format_names().size()];
  const bool read = accepted([&] {
    CheckedReader reader(file, options);
    const TraceInfo info = trace_info(reader);
    require(info.ideal_hit_blocks + info.unique_blocks == info.blocks);
    require(info.ideal_hit_tokens <= info.input.total);
    trace_info_text(info);
    trace_info_json(info);
  });
  const bool paged = accepted([&] {
    CheckedReader reader(file, options);
    TraceInputOptions inputs;
    // At least an eighth of a block, so that an input's pages stay few.
    inputs.page_tokens = reader.block_tokens() / 8 + 1 + data[1];
    TraceInputSource source(reader, inputs);
    Input input;
    while (source.next(input)) {
      const auto* const arrival = std::get_if<Arrival>(&input.what);
      if (arrival == nullptr) continue;
      require(arrival->keys.size() >= arrival->prompt_tokens / inputs.page_tokens);
      require(arrival->keys.size() <= (arrival->prompt_tokens + arrival->output_tokens) / inputs.page_tokens);
    }
  });
  require(read == paged);
  return 0;
}
