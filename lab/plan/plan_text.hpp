// Words for the screen of a plan.
#pragma once

#include <string>

#include "lab/plan/plan.hpp"

namespace kvtwin {

std::string money(double amount, const std::string& currency);  // "USD 9,523"
std::string currency_of(const Trial& trial);                    // empty without a price
// Returns the figures of the goals: "ttft_p90_s 0.8 (at most 1)".
std::string goal_values(const PurchasePlan& plan, const Trial& trial);

}  // namespace kvtwin
