// The choice of an engine, and then of its group of attention (RouterSetup::groups).
#pragma once

#include <memory>
#include <string_view>

#include "policy/route.hpp"

namespace kvtwin {

// Null for an unknown name of either router.
std::unique_ptr<Router> make_grouped_router(std::string_view name, const RouterSetup& setup);

}  // namespace kvtwin
