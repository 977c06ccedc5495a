// The questions that follow from a recommendation, answered with its parts and policies:
//   load        the highest load at the goals, by bisection of the multiple of the traffic up to 8
//   spare       one engine less, and the price of one more (N+1)
//   load x N    the number of engines for twice and four times the traffic
//   no tiers    the cheapest setting without any KV tier below the device: what the tiers are worth
//   pool        a cheaper setting with a remote pool, or one without it
//   mixed chunks  a cheaper setting whose passes mix prefill and decode, if the engine is SGLang and does not mix them
//   GPU NAME    a cheaper setting with another GPU, if the GPU does not vary
// The load is the number of users, or the rate of the requests; of a trace and of traffic with a rate of its own, the
// times are divided by the multiple.
#pragma once

#include "lab/plan/plan.hpp"
#include "lab/plan/simulations.hpp"
#include "lab/prices/price_list.hpp"

namespace kvtwin {

// Adds to plan.follow_ups. Requires: plan.winner. Errors: those of Simulations::trials_of().
void ask_follow_ups(Simulations& simulations, const PriceList& prices, PurchasePlan& plan);

// Returns the keys that multiply the load of the experiment.
std::vector<std::string> load_settings(const Experiment& base, double times);

}  // namespace kvtwin
