// What belongs to the process of the program, not to its commands.
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <memory_resource>

#include "cli/large_pages.hpp"
#include "cli/program.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

void print_failed_check(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "kvtwin: broken promise: %s (%s, %s:%d); this is a defect of kvtwin, please report it\n",
               sentence, condition, file, line);
}

// Raises the limit of open files: a disk tier keeps every segment open, which may be more than the usual 1,024.
void raise_file_limit() {
  constexpr rlim_t kMaxFiles = 1 << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kMaxFiles) return;
  limit.rlim_cur = std::min(limit.rlim_max, kMaxFiles);
  setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int run_in_own_process(int argc, char** argv) {
  set_check_handler(print_failed_check);
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond `ulimit -f` then fails like a write to a full disk
  raise_file_limit();
  std::pmr::set_default_resource(large_pages());
  return run_program(argc, argv);
}

}  // namespace kvtwin
