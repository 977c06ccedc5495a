#include "lab/names.hpp"

namespace kvtwin {

std::string_view name_of(Tier tier) {
  switch (tier) {
    case Tier::device: return "device";
    case Tier::host: return "host";
    case Tier::disk: return "disk";
    case Tier::remote: return "remote";
  }
  return "unknown";
}

}  // namespace kvtwin
