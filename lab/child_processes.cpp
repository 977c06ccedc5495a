#include "lab/child_processes.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <string_view>
#include <thread>
#include <utility>

namespace kvtwin {
namespace {

// Writes the text to the pipe. Stops without an error if the other end is closed.
void send(int pipe, std::string_view text) {
  while (!text.empty()) {
    const ssize_t sent = write(pipe, text.data(), text.size());
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(sent));
  }
}

// Runs in the child. Sends the result and exits with 0, or sends the sentence of the error and exits with its code.
[[noreturn]] void run_child(const std::function<std::string()>& work, int out, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // a command that is killed leaves no child
  if (getppid() != parent) _exit(1);
  Ending ending;
  try {
    send(out, work());
  } catch (...) {
    ending = ending_of(std::current_exception());
    send(out, ending.sentence);
  }
  _exit(ending.code);
}

ChildEnd end_of(std::size_t number, std::string text, int status) {
  if (WIFSIGNALED(status)) {
    const int signal = WTERMSIG(status);
    const std::string name = std::to_string(signal) + " (" + strsignal(signal) + ")";
    return {number, std::move(text), {1, "its process was ended by signal " + name}};
  }
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
  if (code == 0) return {number, std::move(text), {}};
  return {number, {}, {code, text.empty() ? "its process broke off" : std::move(text)}};
}

}  // namespace

ChildProcesses::~ChildProcesses() {
  for (Child& child : list_) {
    kill(child.id, SIGKILL);  // an error ended the command early
    end(child);
  }
}

void ChildProcesses::start(const std::function<std::string()>& work, std::size_t number) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) throw WorkError(std::string("no pipe: ") + std::strerror(errno));
  const pid_t parent = getpid(), id = fork();
  if (id < 0) {
    const int error = errno;
    close(ends[0]);
    close(ends[1]);
    throw WorkError(std::string("no process: ") + std::strerror(error));
  }
  if (id == 0) run_child(work, ends[1], parent);
  close(ends[1]);
  list_.push_back({id, ends[0], number, {}});
}

ChildEnd ChildProcesses::wait(const std::function<bool()>& stopped) {
  constexpr int kAskEveryMs = 100;
  for (;;) {
    if (stopped && stopped()) throw Stopped();
    std::vector<pollfd> polls;
    for (const Child& child : list_) polls.push_back({child.pipe, POLLIN, 0});
    if (poll(polls.data(), polls.size(), stopped ? kAskEveryMs : -1) < 0 && errno != EINTR) {
      throw WorkError(std::string("poll: ") + std::strerror(errno));
    }
    for (std::size_t i = 0; i < polls.size(); ++i) {
      if (polls[i].revents == 0) continue;
      std::array<char, 1 << 16> piece{};
      const ssize_t got = read(list_[i].pipe, piece.data(), piece.size());
      if (got > 0) {
        list_[i].text.append(piece.data(), static_cast<std::size_t>(got));
      } else if (got == 0 || errno != EINTR) {
        Child done = std::move(list_[i]);
        list_.erase(list_.begin() + static_cast<std::ptrdiff_t>(i));
        const int status = end(done);
        return end_of(done.number, std::move(done.text), status);
      }
    }
  }
}

int ChildProcesses::end(Child& child) {
  close(child.pipe);
  int status = 0;
  while (waitpid(child.id, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void run_children(std::size_t count, std::size_t at_once, const std::function<std::string(std::size_t number)>& work,
                  const std::function<void(ChildEnd end)>& ended) {
  ChildProcesses children;
  std::size_t next = 0;
  for (std::size_t done = 0; done < count; ++done) {
    for (; next < count && children.size() < at_once; ++next) children.start([&] { return work(next); }, next);
    ended(children.wait());
  }
}

std::size_t children_at_once(int jobs) {
  if (jobs != 0) return static_cast<std::size_t>(jobs);
  return std::clamp<std::size_t>(std::thread::hardware_concurrency(), 1, 64);
}

}  // namespace kvtwin
