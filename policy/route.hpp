// Which engine a request is sent to if several engines serve one stream of requests (cluster.route). A cluster has one
// Router.
//
// A policy is one file, policy/route/NAME.cpp, that defines std::unique_ptr<Router> make_NAME_router(std::size_t
// engines); the build finds the file by its name. A router is deterministic: it decides by the calls that it has
// received, and breaks ties by the engines' numbers. An Arrival also has the length of the answer; a router does not
// read that.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "policy/seam/substrate.hpp"

namespace kvtwin {

class Router {
 public:
  virtual ~Router() = default;
  // Called once for each arrival, in order. Returns the number of an engine.
  virtual std::size_t route(const Arrival& arrival) = 0;
  // A request that was sent to this engine has ended in any way.
  virtual void ended(std::size_t engine) = 0;
};

// Known names.
std::span<const std::string_view> route_names();
// Null for an unknown name. Requires at least one engine.
std::unique_ptr<Router> make_router(std::string_view name, std::size_t engines);

}  // namespace kvtwin
