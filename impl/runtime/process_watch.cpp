#include "impl/runtime/process_watch.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <system_error>

namespace kvtwin {

ProcessWatch::ProcessWatch(const std::vector<pid_t>& processes, std::function<void(std::size_t)> ended)
    : ended_(std::move(ended)), stop_(::eventfd(0, EFD_CLOEXEC)) {
  if (stop_ < 0) throw std::system_error(errno, std::generic_category(), "watching the processes of the run");
  for (std::size_t process = 0; process < processes.size(); ++process) {
#ifdef SYS_pidfd_open
    const auto descriptor = static_cast<int>(::syscall(SYS_pidfd_open, processes[process], 0));
    if (descriptor >= 0) watched_.emplace_back(process, descriptor);
    if (descriptor < 0 && errno == ESRCH) gone_.push_back(process);
#endif
  }
  thread_ = std::thread([this] { loop(); });
}

ProcessWatch::~ProcessWatch() {
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_, &one, sizeof one);
  thread_.join();
  for (const auto& [process, descriptor] : watched_) ::close(descriptor);
  ::close(stop_);
}

void ProcessWatch::loop() {
  for (const std::size_t process : gone_) ended_(process);
  for (;;) {
    std::vector<pollfd> polled{{stop_, POLLIN, 0}};
    for (const auto& [process, descriptor] : watched_) polled.push_back({descriptor, POLLIN, 0});
    if (::poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) return;
    if (polled[0].revents != 0) return;
    for (std::size_t i = watched_.size(); i-- > 0;) {
      if (polled[i + 1].revents == 0) continue;
      const auto [process, descriptor] = watched_[i];
      ::close(descriptor);
      watched_.erase(watched_.begin() + static_cast<std::ptrdiff_t>(i));
      ended_(process);
    }
  }
}

}  // namespace kvtwin
