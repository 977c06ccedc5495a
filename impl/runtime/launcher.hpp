// The program that has started the processes of a run on this machine: mpirun, or its daemon.
//
// Under Open MPI's --enable-recovery, neither MPI_Abort nor an exit code ends the other processes, and mpirun exits
// with code 0. There, a signal to the launcher ends all processes, and mpirun's exit code is 1. A launcher that does
// not end within 20 s is killed. Without --enable-recovery, mpirun ends the run itself after MPI_Abort or an exit code.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace kvtwin {

// Returns the living processes of this program that the launcher has started on this machine, this one included, in
// ascending order. Empty if the parent of this process is no launcher.
std::vector<pid_t> launched_processes();

// Waits until the launcher has read what this process has written to stderr, but at most a second. Otherwise the
// sentence of a process that ends may be lost.
void flush_stderr();

// Ends all processes of the run on this machine, this one too, by a signal to the launcher. Returns if the parent of
// this process is no launcher, if the launcher ends a run itself when the caller exits or calls MPI_Abort, or if it
// lets this process live for ten seconds.
void end_launcher();

// Waits for the `before` living processes that say ahead of this one why the run ends, and end it: 3 s for each. They
// end this process meanwhile, unless they have been stopped.
void wait_for_speakers(std::ptrdiff_t before);

// Until it is deleted: ends the run if another process of the run dies, or if `all` processes do not start. For the
// time in which the processes do not know each other: MPI_Init waits for a dead process for ever.
//
// A process that has died before this one looked for it is known as missing: so many living processes are too few for
// five seconds, and all are on this machine. Where the launcher is not known, and for processes of other machines,
// there is a limit of two minutes.
class StartWatch {
 public:
  explicit StartWatch(std::size_t all);
  ~StartWatch();
  StartWatch(const StartWatch&) = delete;
  StartWatch& operator=(const StartWatch&) = delete;

 private:
  void loop();
  [[noreturn]] void fail(const std::string& sentence, const std::vector<pid_t>& living);

  std::size_t all_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace kvtwin
