// A real run whose trace comes through a pipe: the test determines how long the run serves requests.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>

#include "tests/real_run.hpp"

namespace kvtwin::test {

// Returns one request of ten alternating conversations. A conversation continues when small tiers have already evicted
// it. After six turns, a new conversation replaces it. Blocks of 16 tokens, two milliseconds between requests.
inline std::string fed_request(std::uint64_t number) {
  constexpr std::uint64_t kLive = 10, kTurns = 6;
  const std::uint64_t turn = number / kLive % kTurns;
  const std::uint64_t conversation = number / (kLive * kTurns) * kLive + number % kLive;
  const std::uint64_t blocks = 4 + 2 * turn;
  const Json line{{"timestamp", 2 * number},
                  {"input_length", 16 * blocks},
                  {"output_length", 4},
                  {"hash_ids", ids(100 * (conversation + 1), blocks)}};
  return line.dump();
}

// A device and a host tier; the caller adds storage tiers. A page and a block have 16 tokens. No tier holds all live
// conversations.
inline Settings fed_settings(const Folder& folder) {
  return small_model(folder) + Settings{"workload.block_tokens=16", "workload.time_scale=1",
                                        "cache.page_tokens=16",     "cache.prefetch_min_tokens=16",
                                        "tiers.device.tokens=800",  "tiers.host.tokens=800",
                                        "scheduler.max_running=4",  "cache.prefetch_policy=wait_complete"};
}

class FedRun {
 public:
  // Returns when the program has opened the pipe.
  FedRun(const Folder& folder, const Settings& settings, const std::string& out = "run")
      : pipe_name_(folder / (out + "_pipe.jsonl")),
        journal_(folder.path() / out / "journal.kvj"),
        process_((make_pipe(), run_arguments(folder, settings + Settings{"workload.trace=" + pipe_name_}, out))) {
    std::signal(SIGPIPE, SIG_IGN);  // feed() throws if the run has ended
    while ((pipe_ = ::open(pipe_name_.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK)) < 0) {
      if (errno != ENXIO || ended()) throw std::runtime_error("the run didn't begin: " + process_.wait().err);
      std::this_thread::yield();
    }
    ::fcntl(pipe_, F_SETFL, 0);  // from now on, writes block
  }
  FedRun(const FedRun&) = delete;
  FedRun& operator=(const FedRun&) = delete;
  ~FedRun() {
    if (pipe_ >= 0) ::close(pipe_);
  }

  // Writes one more request.
  void feed() { feed(fed_); }
  // Writes one more request: fed_request(number). Requires: `number` grows from call to call. The line is padded to 2
  // KiB, because the program reads 64 KiB at a time and the pipe holds another 64 KiB: without padding, hundreds of
  // requests would wait there.
  void feed(std::uint64_t number) {
    std::string line = fed_request(number);
    text_ += line + "\n";
    line.resize(2047, ' ');
    line += '\n';
    for (std::size_t at = 0; at < line.size();) {
      const ssize_t written = ::write(pipe_, line.data() + at, line.size() - at);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) throw std::runtime_error("the run has ended: " + process_.wait().err);
      at += static_cast<std::size_t>(written);
    }
    ++fed_;
  }
  template <typename Fact>
  void feed_until(const Fact& fact) {
    while (!fact()) feed();
  }
  // Feeds requests until the journal has grown by `bytes`, which shows that the run still serves requests.
  void feed_and_see_progress(std::uintmax_t bytes = 40'000) {
    const std::uintmax_t before = journal_bytes();
    feed_until([&] { return journal_bytes() >= before + bytes; });
  }
  std::uintmax_t journal_bytes() const {
    std::error_code error;
    const std::uintmax_t bytes = fs::file_size(journal_, error);
    return error ? 0 : bytes;
  }

  pid_t process() const { return process_.id(); }
  std::uint64_t fed() const { return fed_; }
  // Returns the trace of all requests so far, to serve the same requests again.
  const std::string& text() const { return text_; }
  // Ends the trace.
  Outcome end() {
    ::close(pipe_);
    pipe_ = -1;
    return process_.wait();
  }
  Outcome kill() {
    process_.kill();
    return process_.wait();
  }

 private:
  void make_pipe() const {
    if (::mkfifo(pipe_name_.c_str(), 0600) != 0) throw std::runtime_error("no pipe: " + pipe_name_);
  }
  bool ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(process_.id()), &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  }

  std::string pipe_name_;
  fs::path journal_;
  Process process_;
  int pipe_ = -1;
  std::uint64_t fed_ = 0;
  std::string text_;
};

// Expects that the run completed all requests, read no wrong bytes, and that a replay gives the same decisions.
inline Json expect_served(const Folder& folder, const Outcome& outcome, std::uint64_t requests,
                          const std::string& out = "run") {
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  if (outcome.exit_code != 0) return {};
  Json report = outcome.json();
  EXPECT_EQ(report.at("requests").at("completed"), requests);
  EXPECT_EQ(report.at("requests").at("failed"), 0);
  EXPECT_EQ(report.at("requests").at("rejected"), 0);
  EXPECT_EQ(report.at("real").at("verified").at("wrong_reads"), 0);
  const Json again = run({"replay", folder / out, "--json"}).json();
  EXPECT_EQ(again.at("verdict"), "equal");
  EXPECT_EQ(again.at("decisions"), report.at("decisions"));
  return report;
}

// Serves the same requests in two runs, one after the other, and returns the report of the second one. In the first
// run, a slow store may receive every page after the last look-up; the second run finds these pages.
inline Json serve_twice(const Folder& folder, const Settings& settings, std::uint64_t requests) {
  Json report;
  for (const char* out : {"first", "second"}) {
    FedRun real(folder, settings, out);
    while (real.fed() < requests) real.feed();
    report = expect_served(folder, real.end(), requests, out);
  }
  return report;
}

inline std::uint64_t count_of(const Json& counts, const std::string& name) {
  return counts.contains(name) ? counts.at(name).get<std::uint64_t>() : 0;
}

// Returns the number of calls that a server did not answer, over all causes.
inline std::uint64_t unreachable_in(const Json& counters) {
  std::uint64_t sum = 0;
  for (const auto& [name, count] : counters.items()) {
    if (name.starts_with("unreachable_")) sum += count.get<std::uint64_t>();
  }
  return sum;
}

}  // namespace kvtwin::test
