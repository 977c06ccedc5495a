#include "tests/nixl_stand_in/nixl_stand_in.hpp"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "impl/remote/nixl_library.hpp"

using kvtwin::test::NixlStandIn;
using Agent = NixlStandIn::Agent;
using Mode = NixlStandIn::Mode;
using Range = NixlStandIn::Range;
using Request = NixlStandIn::Request;
using Handle = void*;

extern "C" {
NixlStandIn kvtwin_nixl_stand_in;
}

namespace {

NixlStandIn& all = kvtwin_nixl_stand_in;
constexpr int kInProgress = 1, kError = -1;

using List = std::vector<Range>;
List& list_of(Handle handle) { return *static_cast<List*>(handle); }
Agent& agent_of(Handle handle) { return *static_cast<Agent*>(handle); }

int misuse() {
  ++all.misuses;
  return kError;
}
bool has(const Agent& agent, const Range& range) {
  return std::ranges::any_of(agent.memory, [&](const auto& one) {
    return range.data >= one.first && range.data + range.bytes <= one.first + one.second;
  });
}
bool overlap(const Range& a, const Range& b) { return a.data < b.data + b.bytes && b.data < a.data + a.bytes; }

int new_list(Handle* list) {
  *list = new List;
  return 0;
}
int delete_list(Handle list) {
  delete static_cast<List*>(list);
  return 0;
}
int add_to(Handle list, std::uintptr_t address, std::size_t bytes) {
  list_of(list).push_back({reinterpret_cast<std::byte*>(address), bytes});
  return 0;
}
int nothing(Handle) { return 0; }

// Requires: the mutex is held.
int step(Request& request) {
  if (request.state != kInProgress) return request.state;
  const Mode mode = all.modes[request.peer];
  if (mode == Mode::hold) return kInProgress;
  all.in_progress.remove(&request);
  const bool goes = mode == Mode::go && all.agents.contains(request.peer);
  if (goes) all.move(request);
  if (!goes && mode == Mode::fail) all.failed.push_back(request);
  request.state = goes ? 0 : kError;
  return request.state;
}

}  // namespace

extern "C" {

int nixl_capi_create_configured_agent(const char* name, const kvtwin::NixlFunctions::AgentConfig*, Handle* agent) {
  const std::lock_guard lock(all.mutex);
  auto* const made = new Agent{name, {}};
  if (!all.agents.emplace(name, made).second) ++all.misuses;
  *agent = made;
  return 0;
}
int nixl_capi_destroy_agent(Handle handle) {
  const std::lock_guard lock(all.mutex);
  Agent* const agent = &agent_of(handle);
  if (!agent->memory.empty()) ++all.misuses;
  all.failed.remove_if([agent](const Request& request) { return request.agent == agent; });
  all.agents.erase(agent->name);
  delete agent;
  return 0;
}
int nixl_capi_get_plugin_params(Handle, const char*, Handle* memories, Handle* params) {
  return new_list(memories) + new_list(params);
}
int nixl_capi_destroy_mem_list(Handle list) { return delete_list(list); }
int nixl_capi_params_add(Handle, const char*, const char*) { return 0; }
int nixl_capi_destroy_params(Handle list) { return delete_list(list); }
int nixl_capi_create_backend(Handle agent, const char*, Handle, Handle* backend) {
  const std::lock_guard lock(all.mutex);
  if (!all.starts) return kError;
  *backend = agent;
  return 0;
}
int nixl_capi_destroy_backend(Handle backend) { return nothing(backend); }
int nixl_capi_create_opt_args(Handle* arguments) { return new_list(arguments); }
int nixl_capi_opt_args_add_backend(Handle, Handle) { return 0; }
int nixl_capi_destroy_opt_args(Handle list) { return delete_list(list); }
int nixl_capi_create_reg_dlist(int, Handle* list) { return new_list(list); }
int nixl_capi_reg_dlist_add_desc(Handle list, std::uintptr_t address, std::size_t bytes, std::uint64_t, const void*,
                                 std::size_t) {
  return add_to(list, address, bytes);
}
int nixl_capi_destroy_reg_dlist(Handle list) { return delete_list(list); }
int nixl_capi_register_mem(Handle agent, Handle list, Handle) {
  const std::lock_guard lock(all.mutex);
  for (const Range& range : list_of(list)) agent_of(agent).memory[range.data] = range.bytes;
  return 0;
}
int nixl_capi_deregister_mem(Handle agent, Handle list, Handle) {
  const std::lock_guard lock(all.mutex);
  for (const Range& range : list_of(list)) {
    if (agent_of(agent).memory.erase(range.data) != 1) return misuse();
    for (const Request* request : all.in_progress) {
      const auto uses = [&](const Range& one) { return overlap(one, range); };
      if (request->agent == &agent_of(agent) && std::ranges::any_of(request->own, uses)) ++all.misuses;
    }
  }
  return 0;
}
int nixl_capi_create_xfer_dlist(int, Handle* list) { return new_list(list); }
int nixl_capi_xfer_dlist_add_desc(Handle list, std::uintptr_t address, std::size_t bytes, std::uint64_t) {
  return add_to(list, address, bytes);
}
int nixl_capi_destroy_xfer_dlist(Handle list) { return delete_list(list); }
int nixl_capi_create_xfer_req(Handle agent, int operation, Handle own, Handle theirs, const char* peer, Handle* request,
                              Handle) {
  const std::lock_guard lock(all.mutex);
  if (all.modes[peer] == Mode::refuse) return kError;
  const auto found = all.agents.find(peer);
  if (found == all.agents.end()) return kError;
  const List& from = list_of(own);
  const List& to = list_of(theirs);
  if (from.size() != to.size() || from.empty()) return misuse();
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from[i].bytes != to[i].bytes || !has(agent_of(agent), from[i]) || !has(*found->second, to[i])) return misuse();
  }
  *request = new Request{&agent_of(agent), peer, operation == 1, from, to};
  return 0;
}
int nixl_capi_post_xfer_req(Handle, Handle handle, Handle) {
  const std::lock_guard lock(all.mutex);
  auto& request = *static_cast<Request*>(handle);
  if (request.was_posted) return misuse();
  request.was_posted = true;
  request.state = kInProgress;
  all.in_progress.push_back(&request);
  return step(request);
}
int nixl_capi_get_xfer_status(Handle, Handle handle) {
  const std::lock_guard lock(all.mutex);
  return step(*static_cast<Request*>(handle));
}
int nixl_capi_release_xfer_req(Handle, Handle handle) {
  const std::lock_guard lock(all.mutex);
  return static_cast<Request*>(handle)->state == kInProgress ? misuse() : 0;
}
int nixl_capi_destroy_xfer_req(Handle handle) {
  delete static_cast<Request*>(handle);
  return 0;
}
int nixl_capi_create_query_resp_list(Handle* list) { return new_list(list); }
int nixl_capi_query_resp_list_has_value(Handle, std::size_t, bool*) { return kError; }
int nixl_capi_destroy_query_resp_list(Handle list) { return delete_list(list); }
int nixl_capi_query_mem(Handle, Handle, Handle, Handle) { return kError; }
int nixl_capi_get_local_md(Handle agent, void** description, std::size_t* bytes) {
  const std::string& name = agent_of(agent).name;
  *bytes = name.size();
  *description = std::malloc(name.size());
  std::memcpy(*description, name.data(), name.size());
  return 0;
}
int nixl_capi_load_remote_md(Handle, const void* description, std::size_t bytes, char** name) {
  const std::string text(static_cast<const char*>(description), bytes);
  const std::lock_guard lock(all.mutex);
  if (all.modes[text] == Mode::refuse) return kError;
  *name = ::strdup(text.c_str());
  return 0;
}

}  // extern "C"
