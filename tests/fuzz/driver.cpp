// Runs a fuzz target without libFuzzer, hence with any compiler: seeded mutations of a corpus, no coverage feedback.
//   NAME_driver [--runs N] [--seconds S] [--seed X] CORPUS...     (a corpus is a file or a folder of files)
// Each run mutates one corpus entry. A failing input is left in ./crash-SEED-RUN: give it back as the corpus, with
// --runs 0, to repeat it. (A sanitizer that ends the process itself leaves none: repeat the seed in a plain build.)
#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "traces/random.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;
using kvtwin::Random;

constexpr std::size_t kLongest = std::size_t{64} << 10;

Bytes bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "cannot read corpus %s\n", path.c_str());
    std::exit(2);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

std::size_t place_in(const Bytes& bytes, Random& random) {
  return bytes.empty() ? 0 : static_cast<std::size_t>(random.integer(0, bytes.size() - 1));
}

void mutate_once(Bytes& bytes, const Bytes& other, Random& random) {
  static const std::string kWords[] = {
      "-1", "0",  "1e9",      "18446744073709551616", "null", "\"",           "\\u0000", "{", "}", "[", "]", ",",
      ":",  "\n", "\"hint\"", "\"session\"",          "0.5",  "\xEF\xBB\xBF", "\xFF"};
  const auto at = static_cast<std::ptrdiff_t>(place_in(bytes, random));
  const auto begin = bytes.begin() + at;
  switch (random.integer(0, 6)) {
    case 0:
      if (!bytes.empty()) *begin = static_cast<std::uint8_t>(*begin ^ (1U << random.integer(0, 7)));
      break;
    case 1:
      if (!bytes.empty()) *begin = static_cast<std::uint8_t>(random.next());
      break;
    case 2: bytes.insert(begin, static_cast<std::uint8_t>(random.next())); break;
    case 3: {  // drop a stretch
      const auto length =
          std::min<std::ptrdiff_t>(bytes.end() - begin, static_cast<std::ptrdiff_t>(random.integer(1, 16)));
      bytes.erase(begin, begin + length);
      break;
    }
    case 4: bytes.resize(static_cast<std::size_t>(at)); break;  // cut off
    case 5: {
      const std::string& word = kWords[random.integer(0, std::size(kWords) - 1)];
      bytes.insert(begin, word.begin(), word.end());
      break;
    }
    default: {  // a stretch of another entry
      const auto from = other.begin() + static_cast<std::ptrdiff_t>(place_in(other, random));
      const auto length =
          std::min<std::ptrdiff_t>(other.end() - from, static_cast<std::ptrdiff_t>(random.integer(1, 200)));
      bytes.insert(begin, from, from + length);
    }
  }
  bytes.resize(std::min(bytes.size(), kLongest));
}

struct Arguments {
  std::uint64_t runs = ~std::uint64_t{0}, seed = 1;
  double seconds = 10.0;
  std::vector<Bytes> corpus;
};

Arguments parse(int count, char** values) {
  Arguments arguments;
  bool limited = false;
  for (int i = 1; i < count; ++i) {
    const std::string name = values[i];
    const bool has_value = i + 1 < count;
    if (name == "--runs" && has_value) {
      arguments.runs = std::strtoull(values[++i], nullptr, 10), limited = true;
    } else if (name == "--seconds" && has_value) {
      arguments.seconds = std::strtod(values[++i], nullptr), limited = false;
    } else if (name == "--seed" && has_value) {
      arguments.seed = std::strtoull(values[++i], nullptr, 10);
    } else if (std::filesystem::is_directory(name)) {
      std::vector<std::filesystem::path> files;
      for (const auto& entry : std::filesystem::directory_iterator(name)) files.push_back(entry.path());
      std::sort(files.begin(), files.end());  // the same runs on every file system
      for (const auto& file : files) arguments.corpus.push_back(bytes_of(file));
    } else {
      arguments.corpus.push_back(bytes_of(name));
    }
  }
  if (limited) arguments.seconds = 1e9;
  if (arguments.corpus.empty()) {
    std::fprintf(stderr, "usage: %s [--runs N] [--seconds S] [--seed X] CORPUS...\n", values[0]);
    std::exit(2);
  }
  return arguments;
}

// The input under test, for the handler of whatever ends the program.
Bytes current;
std::string current_name;

void keep_current() {
  std::ofstream(current_name, std::ios::binary)
      .write(reinterpret_cast<const char*>(current.data()), static_cast<std::streamsize>(current.size()));
  std::fprintf(stderr, "the failing input is %s\n", current_name.c_str());
}

void run_current() {
  try {
    LLVMFuzzerTestOneInput(current.data(), current.size());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "exception: %s\n", error.what());
    keep_current();
    std::exit(1);
  }
}

}  // namespace

int main(int count, char** values) {
  const Arguments arguments = parse(count, values);
  // A failed check aborts. Writing a file in a signal handler is not safe, but the process is lost anyway.
  for (const int signal : {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGILL}) {
    std::signal(signal, [](int number) {
      std::signal(number, SIG_DFL);
      keep_current();
      std::raise(number);
    });
  }
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < arguments.corpus.size(); ++i) {
    current = arguments.corpus[i];
    current_name = "crash-corpus-" + std::to_string(i);
    run_current();
  }
  std::uint64_t run = 0;
  for (; run < arguments.runs; ++run) {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    if (spent.count() >= arguments.seconds) break;
    Random random(kvtwin::mix64(arguments.seed) ^ run);
    const auto pick = [&]() -> const Bytes& {
      return arguments.corpus[static_cast<std::size_t>(random.integer(0, arguments.corpus.size() - 1))];
    };
    current = pick();
    for (std::uint64_t n = random.integer(1, 5); n > 0; --n) mutate_once(current, pick(), random);
    current_name = "crash-" + std::to_string(arguments.seed) + "-" + std::to_string(run);
    run_current();
  }
  std::printf("%llu runs, no failure\n", static_cast<unsigned long long>(run));
  return 0;
}
