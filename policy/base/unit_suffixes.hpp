// The suffixes of numbers in texts: 4Ki, 60k, 250ms. A number with the suffix counts factor * 10^power_of_10 of the
// unit that stands for itself: one, or a second.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvtwin {

struct UnitSuffix {
  std::string_view text;
  int power_of_10 = 0;
  std::uint64_t factor = 1;
};

inline constexpr UnitSuffix kCountSuffixes[] = {{"", 0, 1},
                                                {"k", 3, 1},
                                                {"M", 6, 1},
                                                {"G", 9, 1},
                                                {"T", 12, 1},
                                                {"P", 15, 1},
                                                {"Ki", 0, std::uint64_t{1} << 10},
                                                {"Mi", 0, std::uint64_t{1} << 20},
                                                {"Gi", 0, std::uint64_t{1} << 30},
                                                {"Ti", 0, std::uint64_t{1} << 40},
                                                {"Pi", 0, std::uint64_t{1} << 50}};

inline constexpr UnitSuffix kTimeSuffixes[] = {{"ns", -9, 1},  {"us", -6, 1}, {"ms", -3, 1},  {"s", 0, 1},
                                               {"min", 0, 60}, {"m", 0, 60},  {"h", 0, 3600}, {"d", 0, 86'400}};

}  // namespace kvtwin
