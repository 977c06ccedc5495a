// Which engine a request is sent to if several engines serve one stream of requests (cluster.route). A cluster has one
// Router.
//
// A policy is one file, policy/route/NAME.cpp, that defines std::unique_ptr<Router> make_NAME_router(const
// RouterSetup&); the build finds the file by its name. A router is deterministic: it decides by the calls that it has
// received and by the seed, and breaks ties by the engines' numbers or by a draw. An Arrival also has the length of the
// answer; a router does not read that.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "policy/base/parameters.hpp"
#include "policy/seam/substrate.hpp"

namespace kvtwin {

struct RouterSetup {
  std::size_t engines = 1;
  // Engines with data parallelism of attention: so many consecutive engines are the groups of one. The router chooses
  // among these, by the sums of their groups, and a router of `group_policy`, of its own for each, then among its
  // groups.
  std::size_t groups = 1;
  std::string group_policy = "round_robin";
  Pages device_pages = 0, host_pages = 0;  // of each engine
  Pages shared_pages = 0;                  // capacity of the shared storage tiers together
  Tokens page_tokens = 1;
  std::uint64_t seed = 1;      // of power_of_two
  Parameters parameters = {};  // of the policy; its make function reads them
};

class Router {
 public:
  virtual ~Router() = default;
  // Called once for each arrival, in order. Returns the number of an engine.
  virtual std::size_t route(const Arrival& arrival) = 0;
  // A request that was sent to this engine has ended in any way.
  virtual void ended(std::size_t engine) = 0;

  // The engine is dead: it gets no further request. Its open requests are reported by ended(). A router that chooses it
  // nevertheless loses the choice to a living one.
  virtual void gone(std::size_t) {}

  // For routers that know more of the engines. A request with a prompt of so many tokens was admitted by the engine, or
  // no longer runs there: it has ended, or waits again after a retraction. The latter comes before ended().
  virtual void admitted(std::size_t, Tokens) {}
  virtual void left(std::size_t, Tokens) {}
  // True: stored(), removed() and stored_for_all() are called. The memory of both sides grows with the pages of all
  // engines.
  virtual bool follows_pages() const { return false; }
  // From now on, a prefix match of the engine finds these pages, or no longer finds them, on this tier (device or
  // host).
  virtual void stored(std::size_t, Tier, std::span<const PageKey>) {}
  virtual void removed(std::size_t, Tier, std::span<const PageKey>) {}
  // An engine has written these pages to a shared storage tier. No call follows when that tier drops them.
  virtual void stored_for_all(std::span<const PageKey>) {}
};

// Known names.
std::span<const std::string_view> route_names();
// `text`: a name, with parameters or without (policy/choices.hpp). Null for a text with a fault. Requires at least one
// engine, and a multiple of the groups.
std::unique_ptr<Router> make_router(std::string_view text, const RouterSetup& setup);

}  // namespace kvtwin
