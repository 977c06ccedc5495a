// Output of the program: sentences on stderr, results on stdout.
#pragma once

#include <string>
#include <string_view>

namespace kvtwin {

// Writes "kvtwin: SENTENCE" to stderr as one line. Control characters, for example from quoted input, become \xNN. On a
// terminal "kvtwin:" is red, unless the environment says otherwise (environment_colour()).
void say(std::string_view sentence);
// Returns "kvtwin: note:", on a terminal in yellow.
std::string note_mark();
// Writes the text to stdout unchanged.
void print(const std::string& text);

}  // namespace kvtwin
