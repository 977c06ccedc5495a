// kvtwin: the one program. Picks a world, reads files, arguments and the environment; nothing else does.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>

#include "cli/commands.hpp"
#include "cli/environment.hpp"
#include "cli/error.hpp"
#include "kvtwin_version.hpp"
#include "models/error.hpp"
#include "policy/check.hpp"
#include "traces/trace.hpp"

namespace {

void print_failed_check(const char* condition, const char* sentence, const char* file, int line) {
  std::fprintf(stderr, "kvtwin: broken promise: %s (%s, %s:%d); this is a defect of kvtwin, please report it\n", sentence,
               condition, file, line);
}

int complain(const std::exception& error, int code) {
  std::fflush(stdout);
  std::fprintf(stderr, "kvtwin: %s\n", error.what());
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace kvtwin;
  set_check_handler(print_failed_check);
  CLI::App program{
      "kvtwin: hierarchical KV caches for LLM serving, in simulation and for real, by one policy library.\n"
      "Example: kvtwin simulate experiments/quickstart.toml --out out/quickstart"};
  program.set_version_flag("--version", std::string(kVersion) + " (" + kGitCommit + ")");
  program.require_subcommand(1);
  program.footer(environment_help());
  add_simulate(program);
  add_hitrate(program);
  add_trace(program);
  add_presets(program);
  add_figures(program);
  try {
    check_environment();
    program.parse(argc, argv);
    if (std::fflush(stdout) != 0) throw WorkError("stdout can't be written; is the disk full?");
    return 0;
  } catch (const CLI::CallForHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForAllHelp& help) {
    return program.exit(help);
  } catch (const CLI::CallForVersion& version) {
    return program.exit(version);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "kvtwin: %s; see kvtwin --help\n", error.what());
    return 2;
  } catch (const InputError& error) {
    return complain(error, 2);
  } catch (const TraceError& error) {
    return complain(error, 2);
  } catch (const ModelError& error) {
    return complain(error, 2);
  } catch (const std::exception& error) {
    return complain(error, 1);
  }
}
