// The program's sentences on stderr, and its results on stdout.
#pragma once

#include <string>
#include <string_view>

namespace kvtwin {

// On stderr, in one line, whatever bytes the input had that it quotes.
void say(std::string_view sentence);
// On stdout, as it is.
void print(const std::string& text);

}  // namespace kvtwin
