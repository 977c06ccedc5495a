// Child processes that each compute a text, for commands that need many simulations: SimGrid has one world per process.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "lab/error.hpp"

namespace kvtwin {

// The end of a child.
struct ChildEnd {
  std::size_t number = 0;  // as passed to start()
  std::string text;        // the result; if the child failed, incomplete or empty
  Ending failure;          // code 0: the child succeeded
};

// Running children. The destructor kills children that still run.
class ChildProcesses {
 public:
  ChildProcesses() = default;
  ~ChildProcesses();
  ChildProcesses(const ChildProcesses&) = delete;
  ChildProcesses& operator=(const ChildProcesses&) = delete;

  std::size_t size() const { return list_.size(); }
  // Forks a child that calls `work`. An exception of `work` becomes the failure of the child.
  // Errors: WorkError if no process can be started.
  void start(const std::function<std::string()>& work, std::size_t number);
  // Waits for the next child that ends. `stopped`: asked every 100 ms; may be empty. Requires: size() > 0.
  // Errors: Stopped, if `stopped` returns true.
  ChildEnd wait(const std::function<bool()>& stopped = {});

 private:
  struct Child {
    pid_t id = -1;
    int pipe = -1;
    std::size_t number = 0;
    std::string text;
  };
  static int end(Child& child);  // returns the status of waitpid()
  std::vector<Child> list_;
};

// Runs the children 0 to `count` - 1, at most `at_once` at the same time, and passes each end to `ended`, in the order
// in which they end. Errors: those of start(); an exception of `ended` ends all children.
void run_children(std::size_t count, std::size_t at_once, const std::function<std::string(std::size_t number)>& work,
                  const std::function<void(ChildEnd end)>& ended);

// Returns the number of children to run at the same time. `jobs`: 0 = one per core.
std::size_t children_at_once(int jobs);

}  // namespace kvtwin
