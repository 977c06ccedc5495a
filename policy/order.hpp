// The order in which waiting requests are considered for admission (scheduler.order). Each engine has one RequestOrder.
//
// A step of the scheduler ranks the first scheduler.order_window requests of the queue, which is in order of arrival,
// and admits them from the largest rank on until one has no room. The order decides nothing else: a request that others
// have overtaken scheduler.overtake_limit times precedes all ranks, so that none starves.
//
// A policy is one file, policy/order/NAME.cpp, that defines std::unique_ptr<RequestOrder> make_NAME_order(); the build
// finds the file by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/types.hpp"

namespace kvtwin {

// What is known of a waiting request, agreed by all ranks; never the length of its answer.
struct WaitingRequest {
  Tokens prompt_tokens = 0;
  Pages device_pages = 0, host_pages = 0;  // of its longest cached prefix, by tier
  std::int32_t priority = 0;               // larger matters more
};

class RequestOrder {
 public:
  virtual ~RequestOrder() = default;
  // False: order of arrival. Then rank() is never called, and a step doesn't look up the queue's prefixes.
  virtual bool reorders() const { return true; }
  // The larger is admitted first, of equals the one that arrived first.
  virtual std::uint64_t rank(const WaitingRequest& request) const = 0;
};

// Known names.
std::span<const std::string_view> request_order_names();
// Null for an unknown name.
std::unique_ptr<RequestOrder> make_request_order(std::string_view name);

}  // namespace kvtwin
