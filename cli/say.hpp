// Output of the program: sentences on stderr, results on stdout.
#pragma once

#include <string>
#include <string_view>

namespace kvtwin {

// Writes "kvtwin: SENTENCE" to stderr as one line. Control characters, for example from quoted input, become \xNN.
void say(std::string_view sentence);
// Writes the text to stdout unchanged.
void print(const std::string& text);

}  // namespace kvtwin
