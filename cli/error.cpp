#include "cli/error.hpp"

#include <cstdio>
#include <new>

#include "models/error.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

Ending ending_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InputError& bad) {
    return {2, bad.what()};
  } catch (const TraceError& bad) {
    return {2, bad.what()};
  } catch (const ModelError& bad) {
    return {2, bad.what()};
  } catch (const std::bad_alloc&) {
    return {1, "out of memory"};
  } catch (const std::exception& failed) {
    return {1, failed.what()};
  }
}

void say(std::string_view sentence) {
  std::string line = "kvtwin: ";
  for (const char c : sentence) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7F) {
      line += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", byte);
      line += escaped;
    }
  }
  std::fflush(stdout);
  std::fprintf(stderr, "%s\n", line.c_str());
}

}  // namespace kvtwin
