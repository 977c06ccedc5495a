#if KVTWIN_HAVE_SIMGRID
#include "sim/simgrid_compat.hpp"

#include <simgrid/version.h>

#include <array>
#include <csignal>
#include <simgrid/s4u/Engine.hpp>
#include <simgrid/s4u/NetZone.hpp>
#include <string>

namespace kvtwin::simgrid_compat {
namespace {

// SimGrid installs handlers for these signals to print reports. start_engine() restores the program's own handlers.
constexpr std::array<int, 3> kSignals = {SIGINT, SIGSEGV, SIGBUS};

void set_options() {
  using simgrid::s4u::Engine;
  Engine::set_config(std::string("network/model:CM02"));  // no TCP overheads
  Engine::set_config(std::string("network/crosstraffic:0"));
  Engine::set_config(std::string("network/TCP-gamma:0"));  // no TCP window
#if SIMGRID_VERSION >= 33400
  Engine::set_config(std::string("precision/timing:1e-12"));
  Engine::set_config(std::string("precision/work-amount:1e-9"));
#else
  Engine::set_config(std::string("surf/precision:1e-12"));   // seconds
  Engine::set_config(std::string("maxmin/precision:1e-9"));  // relative to a link's capacity
#endif
  Engine::set_config(std::string("debug/clean-atexit:0"));
}

}  // namespace

void start_engine(const std::shared_ptr<simgrid::kernel::resource::Model>& model) {
  std::array<struct sigaction, kSignals.size()> handlers{};
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], nullptr, &handlers[i]);

  std::string name = "kvtwin";
  std::string quiet = "--log=root.thresh:critical";
  std::array<char*, 3> arguments = {name.data(), quiet.data(), nullptr};
  int count = 2;
  // Never deleted: SimGrid allows one engine per process, which lives until the process ends.
  auto* engine = new simgrid::s4u::Engine(&count, arguments.data());
  set_options();
  engine->add_model(model);
  simgrid::s4u::create_full_zone("kvtwin")->seal();  // the engine needs a root zone

  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &handlers[i], nullptr);
}

void run_engine() { simgrid::s4u::Engine::get_instance()->run(); }

}  // namespace kvtwin::simgrid_compat
#endif
