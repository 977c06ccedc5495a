// Tells when other processes of this machine end, by themselves or killed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

namespace kvtwin {

class ProcessWatch {
 public:
  // Calls `ended` once for each process that ends or has ended, with its index, on a thread of its own. A process that
  // the kernel does not let us watch (Linux before 5.3) counts as running.
  ProcessWatch(const std::vector<pid_t>& processes, std::function<void(std::size_t process)> ended);
  // No call begins afterwards.
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

 private:
  void loop();

  std::function<void(std::size_t)> ended_;
  std::vector<std::pair<std::size_t, int>> watched_;  // index, descriptor
  std::vector<std::size_t> gone_;                     // have ended before
  int stop_ = -1;
  std::thread thread_;
};

}  // namespace kvtwin
