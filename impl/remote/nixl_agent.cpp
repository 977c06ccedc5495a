#include "impl/remote/nixl_agent.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <thread>

namespace kvtwin {
namespace {

using Handle = NixlFunctions::Handle;

constexpr std::chrono::microseconds kBetweenQuestions{20};

NixlAgent::Place place_of(std::span<std::byte> memory) {
  return {reinterpret_cast<std::uintptr_t>(memory.data()), memory.size()};
}

}  // namespace

NixlAgent::NixlAgent(const NixlFunctions& functions, std::string name)
    : functions_(functions),
      name_(std::move(name)),
      agent_(functions.destroy_agent),
      backend_(functions.destroy_backend),
      arguments_(functions.destroy_opt_args) {}

NixlAgent::~NixlAgent() {
  for (const std::span<std::byte> range : memory_) remove(kNixlDram, place_of(range));
}

bool NixlAgent::open(const char* plugin, const Settings& settings, std::vector<std::span<std::byte>> memory,
                     bool answers_others) {
  NixlFunctions::AgentConfig config;
  config.thread_sync = kNixlStrict;
  config.progress_thread = answers_others;
  config.progress_delay_us = answers_others ? 100'000 : 0;  // the longest sleep of the thread; events wake it earlier
  OwnedNixlHandle params(functions_.destroy_params), memories(functions_.destroy_mem_list);
  if (functions_.create_configured_agent(name_.c_str(), &config, &agent_.handle) != 0 ||
      functions_.get_plugin_params(agent_.handle, plugin, &memories.handle, &params.handle) != 0) {
    return false;
  }
  for (const auto& [key, value] : settings) {
    if (functions_.params_add(params.handle, key.c_str(), value.c_str()) != 0) return false;
  }
  if (functions_.create_backend(agent_.handle, plugin, params.handle, &backend_.handle) != 0 ||
      functions_.create_opt_args(&arguments_.handle) != 0 ||
      functions_.opt_args_add_backend(arguments_.handle, backend_.handle) != 0) {
    return false;
  }
  return std::ranges::all_of(memory, [this](std::span<std::byte> range) {
    if (!add(kNixlDram, place_of(range))) return false;
    memory_.push_back(range);
    return true;
  });
}

// Returns the request, and its state in `state`. Null: there is no request.
Handle NixlAgent::begin(int operation, int kind, const std::string& of, const Transfer& transfer, int& state) {
  OwnedNixlHandle local(functions_.destroy_xfer_dlist), remote(functions_.destroy_xfer_dlist);
  if (functions_.create_xfer_dlist(kNixlDram, &local.handle) != 0 ||
      functions_.create_xfer_dlist(kind, &remote.handle) != 0) {
    return nullptr;
  }
  for (std::size_t i = 0; i < transfer.memory.size(); ++i) {
    const Place memory = place_of(transfer.memory[i]);
    const Place& place = transfer.places[i];
    if (functions_.xfer_dlist_add_desc(local.handle, memory.address, memory.bytes, 0) != 0 ||
        functions_.xfer_dlist_add_desc(remote.handle, place.address, memory.bytes, place.device) != 0) {
      return nullptr;
    }
  }
  Handle request = nullptr;
  if (functions_.create_xfer_req(agent_.handle, operation, local.handle, remote.handle, of.c_str(), &request,
                                 arguments_.handle) != 0) {
    return nullptr;
  }
  state = functions_.post_xfer_req(agent_.handle, request, nullptr);
  return request;
}

std::vector<bool> NixlAgent::move(int operation, int kind, const std::string& of,
                                  const std::vector<Transfer>& transfers) {
  std::vector<Handle> requests(transfers.size(), nullptr);
  std::vector<int> states(transfers.size(), -1);
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    requests[i] = begin(operation, kind, of, transfers[i], states[i]);
  }
  const auto goes_on = [&states] { return std::ranges::count(states, kNixlInProgress) > 0; };
  while (goes_on()) {
    for (std::size_t i = 0; i < transfers.size(); ++i) {
      if (states[i] == kNixlInProgress) states[i] = functions_.get_xfer_status(agent_.handle, requests[i]);
    }
    // NIXL's interface has no call that waits for a transfer, so the thread asks again, and leaves the core meanwhile.
    if (goes_on()) std::this_thread::sleep_for(kBetweenQuestions);
  }
  std::vector<bool> done;
  for (std::size_t i = 0; i < transfers.size(); ++i) {
    done.push_back(states[i] == 0);
    if (requests[i] == nullptr) continue;
    functions_.release_xfer_req(agent_.handle, requests[i]);
    functions_.destroy_xfer_req(requests[i]);
  }
  return done;
}

bool NixlAgent::exist(std::span<const std::string> objects, std::vector<bool>& there) {
  OwnedNixlHandle list(functions_.destroy_reg_dlist), answers(functions_.destroy_query_resp_list);
  if (functions_.create_reg_dlist(kNixlObject, &list.handle) != 0 ||
      functions_.create_query_resp_list(&answers.handle) != 0) {
    return false;
  }
  for (const std::string& name : objects) {
    if (functions_.reg_dlist_add_desc(list.handle, 0, 0, 0, name.data(), name.size()) != 0) return false;
  }
  if (functions_.query_mem(agent_.handle, list.handle, answers.handle, arguments_.handle) != 0) return false;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    bool has_value = false;
    if (functions_.query_resp_list_has_value(answers.handle, i, &has_value) != 0) return false;
    there.push_back(has_value);
  }
  return true;
}

std::vector<std::byte> NixlAgent::description() const {
  void* data = nullptr;
  std::size_t bytes = 0;
  if (functions_.get_local_md(agent_.handle, &data, &bytes) != 0) return {};
  const std::unique_ptr<void, void (*)(void*)> owned(data, std::free);
  const auto* first = static_cast<const std::byte*>(data);
  return {first, first + bytes};
}

std::string NixlAgent::meet(std::span<const std::byte> description) {
  char* name = nullptr;
  if (functions_.load_remote_md(agent_.handle, description.data(), description.size(), &name) != 0) return "";
  const std::unique_ptr<char, void (*)(void*)> owned(name, [](void* text) { std::free(text); });
  return name;
}

bool NixlAgent::change_registration(int kind, const Place& place, int (*change)(Handle, Handle, Handle)) {
  OwnedNixlHandle list(functions_.destroy_reg_dlist);
  return functions_.create_reg_dlist(kind, &list.handle) == 0 &&
         functions_.reg_dlist_add_desc(list.handle, place.address, place.bytes, place.device, place.name.data(),
                                       place.name.size()) == 0 &&
         change(agent_.handle, list.handle, arguments_.handle) == 0;
}

}  // namespace kvtwin
