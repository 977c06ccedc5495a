// The choice of an engine, and then of its group of attention (RouterSetup::groups).
#pragma once

#include <memory>
#include <string_view>

#include "policy/route.hpp"

namespace kvtwin {

// Null for a text with a fault, of either router.
std::unique_ptr<Router> make_grouped_router(std::string_view text, const RouterSetup& setup);

}  // namespace kvtwin
