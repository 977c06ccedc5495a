// KV_CHECK(condition, "sentence"): a broken promise between our own modules. On in every build, because a
// cache that goes on after one would serve wrong bytes. Bad input is never reported this way.
#pragma once

namespace kvtwin {

// Calls the handler, which must not return; by default it aborts with the sentence on the debugger's stack.
[[noreturn]] void check_failed(const char* condition, const char* sentence, const char* file, int line);

// The program installs a printer (policy itself does no I/O); null restores the default.
using CheckHandler = void (*)(const char* condition, const char* sentence, const char* file, int line);
void set_check_handler(CheckHandler handler);

}  // namespace kvtwin

#define KV_CHECK(condition, sentence)                  \
  (static_cast<bool>(condition) ? static_cast<void>(0) \
                                : ::kvtwin::check_failed(#condition, sentence, __FILE__, __LINE__))
