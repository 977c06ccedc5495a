// KV_CHECK(condition, "sentence"): a broken promise between modules of this program. On in every build, because a cache
// that continues would serve wrong bytes. Bad input is never reported this way.
#pragma once

namespace kvtwin {

// Calls the handler, which must not return. By default it aborts, with the sentence on the debugger's stack.
[[noreturn]] void check_failed(const char* condition, const char* sentence, const char* file, int line);

// The program installs a handler that prints, because the policy does no I/O. Null restores the default.
using CheckHandler = void (*)(const char* condition, const char* sentence, const char* file, int line);
void set_check_handler(CheckHandler handler);

}  // namespace kvtwin

#define KV_CHECK(condition, sentence)                  \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::kvtwin::check_failed(#condition, sentence, __FILE__, __LINE__))
