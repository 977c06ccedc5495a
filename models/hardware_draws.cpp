#include "models/hardware_draws.hpp"

#include <algorithm>
#include <charconv>

namespace kvtwin {
namespace {

constexpr double kIntervalInDeviations = 1.96;

std::uint64_t mixed(std::uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31);
}

// Returns a nearly normal number with mean 0 and deviation 1: the sum of twelve uniform ones.
double normal_draw(std::string_view key, std::uint64_t draw) {
  std::uint64_t state = mixed(draw);
  for (const char c : key) state = mixed(state ^ static_cast<unsigned char>(c));
  double sum = -6;
  for (std::uint64_t i = 0; i < 12; ++i) sum += static_cast<double>(mixed(state + i) >> 11) / 9007199254740992.0;
  return sum;
}

// Returns the interval of a number, from the file or else from `spread`.
UncertainNumber interval_of(const HardwareSpec& hardware, const HardwareField& field, const HardwareNumber& number,
                            double spread) {
  UncertainNumber found{number.key, 0, hardware.*field.member, 0};
  double written = 0;
  std::from_chars(number.value.data(), number.value.data() + number.value.size(), written);
  if (number.low > 0) {
    found.low = found.value * (number.low / written);
    found.high = found.value * (number.high / written);
  } else {
    found.low = field.varies ? found.value / (1 + spread) : found.value;
    found.high = field.varies ? found.value * (1 + spread) : found.value;
  }
  found.high = std::max(found.value, std::min(found.high, field.most));
  return found;
}

struct Movable {
  const HardwareField* field = nullptr;
  UncertainNumber number;
};

std::vector<Movable> movable_numbers(const HardwareSpec& hardware, double spread) {
  std::vector<Movable> list;
  const std::span<const HardwareField> fields = hardware_fields();
  for (const HardwareNumber& number : hardware.numbers) {
    const auto field = std::ranges::find(fields, number.key, &HardwareField::key);
    UncertainNumber interval = interval_of(hardware, *field, number, spread);
    if (interval.low < interval.high) list.push_back({&*field, std::move(interval)});
  }
  return list;
}

}  // namespace

std::vector<UncertainNumber> uncertain_numbers(const HardwareSpec& hardware, double spread) {
  std::vector<UncertainNumber> list;
  for (Movable& it : movable_numbers(hardware, spread)) list.push_back(std::move(it.number));
  return list;
}

void move_to_draw(HardwareSpec& hardware, std::uint64_t draw, double spread) {
  for (const auto& [field, number] : movable_numbers(hardware, spread)) {
    const double deviation = normal_draw(number.key, draw) / kIntervalInDeviations;
    // Moves by ratios, so that the number stays above 0.
    const double moved = deviation >= 0 ? number.value * (1 + deviation * (number.high / number.value - 1))
                                        : number.value / (1 - deviation * (number.value / number.low - 1));
    hardware.*(field->member) = std::min(moved, field->most);
  }
}

bool move_to_end(HardwareSpec& hardware, std::string_view key, bool high, double spread) {
  for (const auto& [field, number] : movable_numbers(hardware, spread)) {
    if (number.key != key) continue;
    hardware.*(field->member) = high ? number.high : number.low;
    return true;
  }
  return false;
}

}  // namespace kvtwin
