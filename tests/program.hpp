// Runs the program under test as a user does: with arguments, environment and working folder. Returns the exit code,
// stdout and stderr. The program is the result of the build, or $KVTWIN_PROGRAM. The program does not get the KVTWIN_*
// variables of the caller's environment, because test tools set some, and the program refuses unknown names.
//
// A test that is linked with the program's code runs it in a fork of the test. A start takes 25 ms of CPU, longer than
// the work of most tests: the dynamic linker relocates the libraries of SimGrid.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "models/json.hpp"
#include "tests/folder.hpp"
#include "tests/paths.hpp"

namespace kvtwin::test {

inline std::string text_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error(path.string() + ": can't be read");
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void write_text(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw std::runtime_error(path.string() + ": can't be written");
}

inline std::string program() {
  const char* other = std::getenv("KVTWIN_PROGRAM");
  return other == nullptr ? kBuiltProgram : other;
}

struct Outcome {
  int exit_code = -1;  // -1: a signal ended the program
  int signal = 0;
  std::string out, err;

  // `out` as JSON; throws after another exit code than 0.
  Json json() const {
    if (exit_code != 0) throw std::runtime_error("exit code " + std::to_string(exit_code) + ": " + err);
    return Json::parse(out);
  }
};

struct Surroundings {
  fs::path folder;                       // working folder; empty: the caller's
  std::vector<std::string> environment;  // "NAME=value", in addition to the caller's environment
  std::string out_file;                  // file for stdout; empty: stdout is captured
  std::vector<std::string> wrapper;      // a command that starts the program, for example nice -n 19
};

// A running program. The destructor kills the program if wait() was not called.
class Process {
 public:
  explicit Process(const std::vector<std::string>& arguments, const Surroundings& around = {}) {
    std::vector<std::string> words = around.wrapper;
    words.push_back(program());
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<std::string> environment = around.environment;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      if (!std::string_view(*entry).starts_with("KVTWIN_")) environment.emplace_back(*entry);
    }
    std::vector<char*> argv = pointers(words), envp = pointers(environment);

    out_ = memory_file("stdout");
    err_ = memory_file("stderr");
    // `validate` starts the program of its own process again, which must not be the test.
    const bool starts_itself = !arguments.empty() && arguments.front() == "validate";
    if (kBuiltMain != nullptr && words.front() == kBuiltProgram && !starts_itself) {
      fork_with(argv, envp.data(), around);
    } else {
      start(argv, envp.data(), around);
    }
  }
  ~Process() {
    if (id_ > 0) {
      kill();
      wait();
    }
    close(out_);
    close(err_);
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t id() const { return id_; }
  void kill() const { ::kill(id_, SIGKILL); }

  Outcome wait() {
    int status = 0;
    while (waitpid(id_, &status, 0) < 0 && errno == EINTR) {
    }
    id_ = -1;
    Outcome outcome;
    if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
    if (WIFSIGNALED(status)) outcome.signal = WTERMSIG(status);
    outcome.out = content(out_);
    outcome.err = content(err_);
    return outcome;
  }

 private:
  void start(const std::vector<char*>& argv, char** environment, const Surroundings& around) {
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    if (around.out_file.empty()) {
      posix_spawn_file_actions_adddup2(&actions, out_, STDOUT_FILENO);
    } else {
      posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, around.out_file.c_str(), O_WRONLY, 0);
    }
    posix_spawn_file_actions_adddup2(&actions, err_, STDERR_FILENO);
    // CTest waits until nobody has its pipe: a program that outlived a test would keep CTest from its time limit.
    posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    if (!around.folder.empty()) posix_spawn_file_actions_addchdir_np(&actions, around.folder.c_str());
    const int error = posix_spawnp(&id_, argv.front(), &actions, nullptr, argv.data(), environment);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0) throw std::system_error(error, std::generic_category(), argv.front());
  }

  // As start(), without a new program.
  void fork_with(std::vector<char*>& argv, char** environment, const Surroundings& around) {
    std::cout.flush();
    std::fflush(nullptr);
    id_ = fork();
    if (id_ < 0) throw std::system_error(errno, std::generic_category(), "fork");
    if (id_ > 0) return;
    constexpr int kNoSurroundings = 127;
    const int in = open("/dev/null", O_RDONLY);
    const int out = around.out_file.empty() ? out_ : open(around.out_file.c_str(), O_WRONLY);
    if (in < 0 || out < 0 || dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(err_, STDERR_FILENO) < 0 || (!around.folder.empty() && chdir(around.folder.c_str()) != 0)) {
      _exit(kNoSurroundings);
    }
    closefrom(STDERR_FILENO + 1);
    environ = environment;
    const int code = kBuiltMain(static_cast<int>(argv.size()) - 1, argv.data());
    std::cout.flush();
    std::fflush(nullptr);
    _exit(code);
  }

  static std::vector<char*> pointers(std::vector<std::string>& words) {
    std::vector<char*> list;
    for (std::string& word : words) list.push_back(word.data());
    list.push_back(nullptr);
    return list;
  }
  // A memory file needs no reader. A pipe would need one while the program runs.
  static int memory_file(const char* name) {
    const int file = memfd_create(name, MFD_CLOEXEC);
    if (file < 0) throw std::system_error(errno, std::generic_category(), name);
    return file;
  }
  static std::string content(int file) {
    std::string text(static_cast<std::size_t>(lseek(file, 0, SEEK_END)), '\0');
    std::size_t done = 0;
    while (done < text.size()) {
      const ssize_t got = pread(file, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (got <= 0) throw std::system_error(errno, std::generic_category(), "captured output");
      done += static_cast<std::size_t>(got);
    }
    return text;
  }

  pid_t id_ = -1;
  int out_ = -1, err_ = -1;
};

inline Outcome run(const std::vector<std::string>& arguments, const Surroundings& around = {}) {
  return Process(arguments, around).wait();
}

}  // namespace kvtwin::test
