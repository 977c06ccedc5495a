// Random engines and random traffic for them: requests that continue earlier ones.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "policy/engine.hpp"
#include "policy/substrate.hpp"
#include "tests/policy_test_support.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

