// An agent of NIXL with one plugin. It moves bytes between registered memory of this process and places of the plugin:
// files, objects, memory of other agents.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "impl/remote/nixl_library.hpp"

namespace kvtwin {

// Owns a handle of NIXL.
class OwnedNixlHandle {
 public:
  explicit OwnedNixlHandle(int (*destroy)(NixlFunctions::Handle)) : destroy_(destroy) {}
  OwnedNixlHandle(const OwnedNixlHandle&) = delete;
  OwnedNixlHandle& operator=(const OwnedNixlHandle&) = delete;
  ~OwnedNixlHandle() {
    if (handle != nullptr) destroy_(handle);
  }
  NixlFunctions::Handle handle = nullptr;

 private:
  int (*const destroy_)(NixlFunctions::Handle);
};

// Thread: any thread, after open(). Calls need not end in bounded time.
class NixlAgent {
 public:
  // A file, an object with a name, or memory of another agent.
  struct Place {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    std::uint64_t device = 0;
    std::string name = {};
  };
  // Ranges of registered memory, and a place of the same length for each.
  struct Transfer {
    std::vector<std::span<std::byte>> memory;
    std::vector<Place> places;
  };
  using Settings = std::vector<std::pair<std::string, std::string>>;

  NixlAgent(const NixlFunctions& functions, std::string name);
  ~NixlAgent();

  // Makes the agent, and registers `memory`, which outlives this object. `answers_others`: a thread of NIXL answers
  // other agents. Returns whether all steps succeeded.
  bool open(const char* plugin, const Settings& settings, std::vector<std::span<std::byte>> memory,
            bool answers_others = false);

  bool add(int kind, const Place& place) { return change_registration(kind, place, functions_.register_mem); }
  void remove(int kind, const Place& place) { change_registration(kind, place, functions_.deregister_mem); }

  // Executes transfers to or from places of one kind, all at the same time. `of`: the agent that has the places.
  // Returns whether each transfer succeeded, after all of them have ended.
  std::vector<bool> move(int operation, int kind, const std::string& of, const std::vector<Transfer>& transfers);

  // Appends to `there` whether each object exists. Returns false if the plugin cannot tell.
  bool exist(std::span<const std::string> objects, std::vector<bool>& there);

  // Returns bytes by which another agent reaches this one and its registered memory. Empty: NIXL reports an error.
  std::vector<std::byte> description() const;
  // Returns the name of the agent that is described; empty if NIXL refuses the bytes.
  std::string meet(std::span<const std::byte> description);

 private:
  bool change_registration(int kind, const Place& place,
                           int (*change)(NixlFunctions::Handle, NixlFunctions::Handle, NixlFunctions::Handle));
  NixlFunctions::Handle begin(int operation, int kind, const std::string& of, const Transfer& transfer, int& state);

  const NixlFunctions functions_;
  const std::string name_;
  OwnedNixlHandle agent_, backend_, arguments_;
  std::vector<std::span<std::byte>> memory_;  // registered
};

}  // namespace kvtwin
