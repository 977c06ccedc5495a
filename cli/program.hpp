// The program kvtwin, without its CUDA devices (main.cpp).
#pragma once

namespace kvtwin {

// Parses the arguments, runs one subcommand and returns its exit code. Prints errors itself.
int run_program(int argc, char** argv);

// Prepares this process (limits, signals, memory, the handler of failed checks), and calls run_program().
int run_in_own_process(int argc, char** argv);

}  // namespace kvtwin
