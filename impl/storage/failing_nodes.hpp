// Wraps a back end. The medium behaves like the nodes of a pool, which fail as planned (faults = node(...)). While a
// node is down, its pages are unreachable. Afterwards they are missing until they are stored again.
//
// A page's node is pool_node_of() of its name, so the same pages fail as in a simulation. If a page is stored as
// several objects, each object has a node of its own.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "impl/storage/backend.hpp"
#include "models/planned_faults.hpp"

namespace kvtwin {

// Requires: `nodes` is not 0; start() is called before all other calls. Adds the counters planned_unreachable and
// planned_lost (objects).
std::unique_ptr<StorageBackend> make_failing_nodes(std::unique_ptr<StorageBackend> medium, std::uint32_t nodes,
                                                   std::vector<NodeDown> downs);

}  // namespace kvtwin
