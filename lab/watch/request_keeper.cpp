#include "lab/watch/request_keeper.hpp"

#include <algorithm>
#include <string>
#include <system_error>

#include "lab/error.hpp"
#include "lab/out_files.hpp"
#include "lab/watch/recording.hpp"

namespace kvtwin {

namespace fs = std::filesystem;

struct RequestKeeper::Engine {
  fs::path folder, file;
  std::unique_ptr<TraceWriter> writer;
  TimeNs begin = 0;
  Tokens block_tokens = 0;
  std::uint64_t requests = 0;
};

RequestKeeper::RequestKeeper(const fs::path& folder, std::size_t engines, std::uint64_t max_bytes)
    : max_bytes_(max_bytes) {
  const std::size_t before = engine_folders(folder).size();
  if (before != 0 && before != engines) {
    throw InputError("--out " + folder.string() + ": has the requests of " + std::to_string(before) +
                     " engines; give as many, or another folder");
  }
  for (std::size_t i = 0; i < engines; ++i) {
    engines_.push_back(std::make_unique<Engine>());
    engines_.back()->folder = folder / ("engine-" + std::to_string(i));
    std::error_code error;
    make_out_folder(engines_.back()->folder, error);
    if (error) throw WorkError("--out " + folder.string() + ": can't be written: " + error.message());
  }
  // An earlier watch may have ended above the limit, or had a larger one.
  for (const auto& engine : engines_) remove_oldest(*engine);
}

RequestKeeper::~RequestKeeper() = default;

// Completes the file that is being written, if there is one.
void RequestKeeper::end_file(Engine& engine) {
  if (engine.writer == nullptr) return;
  engine.writer->finish();
  engine.writer.reset();
  write_whole(engine.folder / "workload.toml",
              "# Requests that kvtwin watch saw. Give the model and the hardware, or the server's flags.\n[workload]\n"
              "trace = \"" +
                  engine.file.filename().string() + "\"\nblock_tokens = " + std::to_string(engine.block_tokens) + "\n");
  remove_oldest(engine);
}

void RequestKeeper::end() {
  try {
    for (const auto& engine : engines_) end_file(*engine);
  } catch (const TraceError& error) {
    throw WorkError(error.what());
  }
}

void RequestKeeper::begin_file(Engine& engine, TimeNs arrival, Tokens block_tokens) {
  end_file(engine);
  constexpr TimeNs kMillisecond = 1'000'000;
  engine.begin = arrival / kMillisecond * kMillisecond;
  engine.block_tokens = block_tokens;
  engine.requests = 0;
  std::error_code error;
  do {
    engine.file = engine.folder / RequestFileName{block_tokens, engine.begin}.text();
    engine.begin += kMillisecond;
  } while (fs::exists(engine.file, error));
  engine.begin -= kMillisecond;
  engine.writer = std::make_unique<TraceWriter>(engine.file.string());
}

void RequestKeeper::remove_oldest(const Engine& engine) const {
  const std::vector<fs::path> files = request_files(engine.folder);
  std::uint64_t sum = 0;
  for (std::size_t i = files.size(); i-- > 0;) {
    std::error_code error;
    sum += fs::file_size(files[i], error);
    if (sum > max_bytes_ / engines_.size()) fs::remove(files[i], error);
  }
}

void RequestKeeper::write(std::size_t at, const TraceRequest& request, Tokens block_tokens) {
  Engine& engine = *engines_[at];
  try {
    const bool is_full = engine.writer != nullptr && engine.writer->bytes() > max_bytes_ / engines_.size() / kFiles;
    if (engine.writer == nullptr || is_full || request.arrival + kNsPerSecond < engine.begin) {
      begin_file(engine, request.arrival, block_tokens);
    }
    TraceRequest kept = request;
    kept.arrival = std::max<TimeNs>(0, kept.arrival - engine.begin);
    engine.writer->write(kept);
    ++engine.requests;
  } catch (const TraceError& error) {
    throw WorkError(error.what());
  }
}

void RequestKeeper::flush() {
  try {
    for (const auto& engine : engines_) {
      if (engine->writer != nullptr) engine->writer->flush();
    }
  } catch (const TraceError& error) {
    throw WorkError(error.what());
  }
}

std::uint64_t RequestKeeper::bytes() const {
  std::uint64_t sum = 0;
  for (const auto& engine : engines_) {
    for (const fs::path& file : request_files(engine->folder)) {
      std::error_code error;
      sum += fs::file_size(file, error);
    }
  }
  return sum;
}

}  // namespace kvtwin
