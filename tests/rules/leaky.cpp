// Calls of functions that the policy must not need, so that check_symbols_test.py can test that each is found; and of
// functions that the policy may need. The file is compiled and never run.
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <mutex>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>

#include <openssl/evp.h>
#include <sys/time.h>
#include <unistd.h>
#include <xxhash.h>

extern "C" int cudaMalloc(void** pointer, unsigned long bytes);
extern "C" int cuInit(unsigned flags);
extern "C" int io_uring_queue_init(unsigned entries, void* ring, unsigned flags);
namespace simgrid::s4u {
double engine_clock();
}
namespace kvtwin {
int of_another_module();
}

namespace leaky {

double clocks() {
  timespec spec{};
  clock_gettime(CLOCK_MONOTONIC, &spec);
  timeval value{};
  gettimeofday(&value, nullptr);
  return static_cast<double>(std::chrono::steady_clock::now().time_since_epoch().count() + spec.tv_sec + time(nullptr));
}
void threads(std::mutex& mutex, std::condition_variable& condition) {
  std::thread([] {}).detach();
  const std::lock_guard lock(mutex);
  condition.notify_all();
  usleep(1);
}
std::string files(const char* path) {
  std::ifstream stream(path);
  std::FILE* file = std::fopen(path, "r");
  char byte = 0;
  if (read(0, &byte, 1) == 1) std::cout << byte;
  std::ostringstream text;
  text << (file != nullptr);
  std::printf("%s", path);
  return text.str();
}
const char* environment() { return std::getenv("HOME"); }
unsigned chance() { return std::random_device{}() + static_cast<unsigned>(std::rand()); }
double maths(double x) { return std::exp(x) + std::log(x) + std::pow(x, x) + std::sin(x) + std::log2(x); }
float maths(float x) { return std::exp(x); }
int worlds(void** pointer) {
  return cudaMalloc(pointer, 1) + cuInit(0) + io_uring_queue_init(1, nullptr, 0) +
         static_cast<int>(simgrid::s4u::engine_clock());
}
int other_modules() { return kvtwin::of_another_module(); }

// ---- allowed
double root(double x) { return std::sqrt(x); }
std::size_t containers(const std::string& text) {
  std::map<std::string, int> tree{{text, 1}};
  std::unordered_map<std::string, int> table;
  table[text + std::to_string(tree.size())] = 1;
  if (table.empty()) throw std::out_of_range("empty");
  return table.size();
}
unsigned long hashes(const void* data, std::size_t size) {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  EVP_MD_CTX_free(context);
  return XXH3_64bits(data, size);
}

}  // namespace leaky
