#include "impl/runtime/launcher.hpp"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

namespace kvtwin {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::array<std::string_view, 8> kLaunchers{"mpirun",  "mpiexec", "orterun", "orted",
                                                     "prterun", "prted",   "prte",    "hydra_pmi_proxy"};
// mpirun starts the processes of one machine within milliseconds of each other.
constexpr std::chrono::seconds kMaxIncomplete{5};
constexpr std::chrono::seconds kMaxStart{120};
constexpr std::chrono::milliseconds kBetweenLooks{20};
constexpr std::chrono::milliseconds kFlushPause{5}, kMaxFlush{1000};
constexpr std::chrono::seconds kMaxEnd{10};
constexpr int kMaxLauncherEndMs = 20'000;
constexpr std::chrono::seconds kBetweenSpeakers{3};

// Empty if the process has ended, also if it is not waited for yet, or is of another user.
fs::path program_of(pid_t process) {
  std::error_code error;
  return fs::read_symlink("/proc/" + std::to_string(process) + "/exe", error);
}

bool is_launcher(pid_t process) {
  return std::ranges::find(kLaunchers, program_of(process).filename().string()) != kLaunchers.end();
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// Without --enable-recovery (or the MCA parameter orte_enable_recovery), the launcher of Open MPI 4 ends the run after
// a death or an exit code. A signal at the same time can crash it (4.1.4, seen on a busy machine).
bool ends_runs_itself(pid_t launcher) {
  const std::string program = program_of(launcher).filename().string();
  if (program != "orterun" && program != "orted") return false;
  const fs::path facts = "/proc/" + std::to_string(launcher);
  const std::string terms = text_of(facts / "cmdline") + text_of(facts / "environ");
  return terms.find("enable-recovery") == std::string::npos && terms.find("enable_recovery") == std::string::npos;
}

std::vector<pid_t> children_of(pid_t process) {
  std::vector<pid_t> children;
  std::error_code error;
  for (const fs::directory_entry& thread :
       fs::directory_iterator("/proc/" + std::to_string(process) + "/task", error)) {
    std::ifstream in(thread.path() / "children");
    for (pid_t child = 0; in >> child;) children.push_back(child);
  }
  std::ranges::sort(children);
  return children;
}

// A process that dies while MPI_Init or MPI_Finalize waits for all may leave mpirun in a deadlock (PMIx 4.2), in which
// it ends its processes and then hangs. So another process, which outlives this one, looks after mpirun.
void kill_launcher_later(pid_t launcher) {
#if defined(SYS_pidfd_open) && defined(SYS_pidfd_send_signal)
  const auto descriptor = static_cast<int>(::syscall(SYS_pidfd_open, launcher, 0));
  if (descriptor < 0) return;
  if (::fork() == 0) {
    ::setsid();
    for (int file = 0; file < descriptor; ++file) ::close(file);
    pollfd polled{descriptor, POLLIN, 0};
    if (::poll(&polled, 1, kMaxLauncherEndMs) == 0) ::syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, nullptr, 0);
    ::_exit(0);
  }
  ::close(descriptor);
#endif
}

// Only mpirun and processes of the run: mpirun has started no daemon on another machine.
bool are_all_here(pid_t launcher) {
  if (program_of(launcher).filename().string().ends_with("ed")) return false;  // a daemon
  const fs::path own = program_of(::getpid());
  return std::ranges::all_of(children_of(launcher), [&](pid_t child) {
    const fs::path program = program_of(child);
    return program.empty() || program == own;
  });
}

}  // namespace

std::vector<pid_t> launched_processes() {
  const pid_t launcher = ::getppid();
  if (!is_launcher(launcher)) return {};
  std::vector<pid_t> processes = children_of(launcher);
  const fs::path own = program_of(::getpid());
  std::erase_if(processes, [&](pid_t child) { return program_of(child) != own; });
  return processes;
}

// The number of unread bytes can be asked at both ends of a pipe.
void flush_stderr() {
  std::fflush(stderr);
  for (const Clock::time_point end = Clock::now() + kMaxFlush; Clock::now() < end;) {
    int unread = 0;
    if (::ioctl(STDERR_FILENO, FIONREAD, &unread) != 0 || unread == 0) return;
    std::this_thread::sleep_for(kFlushPause);
  }
}

void end_launcher() {
  flush_stderr();
  const pid_t launcher = ::getppid();
  if (!is_launcher(launcher) || ends_runs_itself(launcher)) return;
  kill_launcher_later(launcher);
  if (::kill(launcher, SIGTERM) != 0) return;
  std::this_thread::sleep_for(kMaxEnd);
}

void wait_for_speakers(std::ptrdiff_t before) { std::this_thread::sleep_for(before * kBetweenSpeakers); }

StartWatch::StartWatch(std::size_t all) : all_(all), thread_([this] { loop(); }) {}

StartWatch::~StartWatch() {
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void StartWatch::loop() {
  const Clock::time_point begin = Clock::now();
  std::vector<pid_t> known;
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kBetweenLooks, [this] { return over_; })) {
    const std::vector<pid_t> living = launched_processes();
    const auto dead =
        std::ranges::find_if(known, [&](pid_t process) { return !std::ranges::binary_search(living, process); });
    if (dead != known.end()) {
      fail("a process of the run (PID " + std::to_string(*dead) + ") has died while the run started", living);
    }
    known = living;
    const Clock::duration waited = Clock::now() - begin;
    if (waited > kMaxIncomplete && !living.empty() && living.size() < all_ && are_all_here(::getppid())) {
      fail("the run needs " + std::to_string(all_) + " processes, and only " + std::to_string(living.size()) +
               " have started or are left; has one died?",
           living);
    }
    if (waited > kMaxStart) {
      fail("the processes of the run have not met within " + std::to_string(kMaxStart.count()) +
               " s; has one died, or been stopped?",
           living);
    }
  }
}

void StartWatch::fail(const std::string& sentence, const std::vector<pid_t>& living) {
  wait_for_speakers(std::ranges::count_if(living, [](pid_t process) { return process < ::getpid(); }));
  std::fprintf(stderr, "kvtwin: %s\n", sentence.c_str());
  end_launcher();
  std::_Exit(1);
}

}  // namespace kvtwin
