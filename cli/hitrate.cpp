#include "cli/commands.hpp"
namespace kvtwin { void add_hitrate(CLI::App&) {} void add_trace(CLI::App&) {} }
