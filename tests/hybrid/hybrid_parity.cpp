// hybrid_parity FILE...: runs sequences of requests on kvtwin's cache, and compares every outcome with the file's. Exit
// code 1, and the first difference of each file, if there is one.
#include <cstdio>
#include <exception>

#include "tests/hybrid/hybrid_server.hpp"

int main(int count, char** arguments) {
  if (count < 2) {
    std::fputs("usage: hybrid_parity FILE...\n", stderr);
    return 2;
  }
  int result = 0;
  for (int i = 1; i < count; ++i) {
    try {
      const std::string difference = kvtwin::test::first_difference(arguments[i]);
      std::printf("%s\n", difference.empty() ? (std::string(arguments[i]) + ": equal").c_str() : difference.c_str());
      if (!difference.empty()) result = 1;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      result = 2;
    }
  }
  return result;
}
