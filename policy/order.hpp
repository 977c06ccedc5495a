// The order in which waiting requests are considered for admission (scheduler.order). Each engine has one RequestOrder.
//
// The queue is in order of arrival. A step of the scheduler ranks the first scheduler.order_window requests of the
// queue, and admits from the largest rank down until a request has no room. The order decides nothing else: a request
// that others have overtaken scheduler.overtake_limit times comes before all ranks, so no request starves.
//
// A policy is one file, policy/order/NAME.cpp, that defines std::unique_ptr<RequestOrder> make_NAME_order(const
// Parameters&); the build finds the file by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/parameters.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

// What is known about a waiting request, agreed by all ranks. Never the length of the answer.
struct WaitingRequest {
  Tokens prompt_tokens = 0;
  Pages device_pages = 0, host_pages = 0;  // of the longest cached prefix, by tier
  std::int32_t priority = 0;               // larger matters more
  Tokens prefill_tokens = 0;               // the prompt and, after a retraction, the answer so far
  Tokens cached_tokens = 0;                // of the longest cached prefix, both tiers; less than prefill_tokens
  Tokens computed_tokens = 0;  // prefill tokens that the engine has computed since the request began to wait
};

class RequestOrder {
 public:
  virtual ~RequestOrder() = default;
  // False: order of arrival. Then rank() is never called, and a step does not look up the prefixes of the queue.
  virtual bool reorders() const { return true; }
  // The request with the largest rank is admitted first; among equals the one that arrived first.
  virtual std::uint64_t rank(const WaitingRequest& request) const = 0;
};

// Known names.
std::span<const std::string_view> request_order_names();
// `text`: a name, with parameters or without (policy/choices.hpp). Null for a text with a fault.
std::unique_ptr<RequestOrder> make_request_order(std::string_view text);

}  // namespace kvtwin
