// kvtwin: the one program. Picks a world, reads files, arguments and the environment; nothing else does.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <iostream>
#include <memory_resource>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "cli/large_pages.hpp"
#include "cli/say.hpp"
#include "lab/error.hpp"
#include "lab/version.hpp"
#include "models/names.hpp"
#include "policy/base/check.hpp"

#if KVTWIN_SERVES_CUDA
#include "lab/run/cuda_devices.hpp"
#endif

namespace {

void print_failed_check(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "kvtwin: broken promise: %s (%s, %s:%d); this is a defect of kvtwin, please report it\n",
               sentence, condition, file, line);
}

int complain(const kvtwin::Ending& ending) {
  kvtwin::say(ending.sentence);
  return ending.code;
}

// Otherwise CLI11 would say that a command is missing, and not which word is none.
void check_command(const CLI::App& program, std::string_view word) {
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands(nullptr)) names.push_back(command->get_name());
  if (word.starts_with('-') || std::ranges::find(names, word) != names.end()) return;
  if (word == "plan") throw kvtwin::InputError("plan isn't served yet; kvtwin --help lists what is");
  throw kvtwin::InputError(kvtwin::unknown_name("command", word, names));
}

constexpr const char* kNoStdout = "stdout can't be written; is the disk full?";

// All that was written has gone out. A write that failed before shows in the stream's state only.
bool stdout_works() {
  std::cout.flush();
  return std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

// A disk tier keeps each of its segments open: more than the usual 1024 files.
void raise_file_limit() {
  constexpr rlim_t kMaxFiles = 1 << 20;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kMaxFiles) return;
  limit.rlim_cur = std::min(limit.rlim_max, kMaxFiles);
  setrlimit(RLIMIT_NOFILE, &limit);
}

// CLI11 asks for its help texts by exception.
void parse(CLI::App& program, int argc, char** argv) {
  if (argc > 1) check_command(program, argv[1]);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    program.exit(asked);
  }
  if (!stdout_works()) throw kvtwin::WorkError(kNoStdout);
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvtwin;
  set_check_handler(print_failed_check);
  std::signal(SIGXFSZ, SIG_IGN);  // a file beyond `ulimit -f` is an error of its write, as a full disk is
  raise_file_limit();
  std::pmr::set_default_resource(large_pages());
#if KVTWIN_SERVES_CUDA
  serve_cuda_devices({&cuda_presence, &cuda_device_bytes, &cuda_bytes_free, &make_cuda_device,
                      [](const std::string& library) { return CuFile::load(library); }});
#endif
  CLI::App program{
      "kvtwin: hierarchical KV caches for LLM serving, in simulation and for real, by one policy library.\n"
      "Example: kvtwin simulate experiments/quickstart.toml --out out/quickstart"};
  program.set_version_flag("--version", std::string(kVersion) + " (" + kGitCommit + ")");
  program.require_subcommand(1);
  program.footer(environment_help());
  add_simulate(program);
  add_run(program);
  add_replay(program);
  add_explain(program);
  add_compare(program);
  add_sweep(program);
  add_validate(program);
  add_hitrate(program);
  add_trace(program);
  add_presets(program);
  add_calibrate(program);
  add_figures(program);
  try {
    check_environment();
    parse(program, argc, argv);
    return 0;
  } catch (const CLI::ParseError& error) {
    return complain({2, std::string(error.what()) + "; see kvtwin --help"});
  } catch (const AlreadySaid& said) {
    return stdout_works() ? said.code : complain({1, kNoStdout});
  } catch (...) {
    return complain(ending_of(std::current_exception()));
  }
}
