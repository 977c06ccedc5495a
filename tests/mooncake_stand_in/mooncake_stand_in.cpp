#include "tests/mooncake_stand_in/mooncake_stand_in.hpp"

#include <algorithm>
#include <cstring>

extern "C" {
kvtwin::test::MooncakeStandIn kvtwin_mooncake_stand_in;
}

namespace {

kvtwin::test::MooncakeStandIn& store_of_all = kvtwin_mooncake_stand_in;

struct Client {
  bool set_up = false;
  std::map<std::uintptr_t, std::size_t> memory;  // registered
  bool has(const void* at, std::size_t bytes) const {
    const auto address = reinterpret_cast<std::uintptr_t>(at);
    return std::ranges::any_of(
        memory, [&](const auto& one) { return address >= one.first && address + bytes <= one.first + one.second; });
  }
};

Client* client_of(void* store) { return static_cast<Client*>(store); }

// Returns whether the client may make calls now; otherwise, and for each buffer outside registered memory, counts a
// misuse. Requires: the mutex is held.
bool may_call(void* store) {
  const bool right = store != nullptr && client_of(store)->set_up;
  if (!right) ++store_of_all.misuses;
  return right;
}
bool may_use(void* store, const void* at, std::size_t bytes) {
  const bool right = client_of(store)->has(at, bytes);
  if (!right) ++store_of_all.misuses;
  return right;
}

int error_of(const std::string& key) {
  if (const int error = store_of_all.call_error; error != 0) return error;
  const auto found = store_of_all.errors.find(key);
  return found == store_of_all.errors.end() ? 0 : found->second;
}

}  // namespace

extern "C" {

void* mooncake_store_create() {
  const std::lock_guard lock(store_of_all.mutex);
  ++store_of_all.clients;
  return new Client;
}

void mooncake_store_destroy(void* store) {
  store_of_all.on_call("destroy");
  const std::lock_guard lock(store_of_all.mutex);
  if (!client_of(store)->memory.empty()) ++store_of_all.misuses;
  delete client_of(store);
  --store_of_all.clients;
  store_of_all.on_destroyed();
}

int mooncake_store_setup(void* store, const char* host, const char* metadata, std::uint64_t segment,
                         std::uint64_t buffer, const char* protocol, const char* device, const char* master) {
  store_of_all.on_call("setup");
  const std::lock_guard lock(store_of_all.mutex);
  ++store_of_all.setups;
  store_of_all.last_setup = std::string(host) + " " + metadata + " " + std::to_string(segment) + " " +
                            std::to_string(buffer) + " " + protocol + " '" + device + "' " + master;
  if (store_of_all.setup_error != 0) return store_of_all.setup_error;
  client_of(store)->set_up = true;
  return 0;
}

int mooncake_store_register_buffer(void* store, void* buffer, std::size_t bytes) {
  const std::lock_guard lock(store_of_all.mutex);
  if (!may_call(store)) return -1;
  client_of(store)->memory[reinterpret_cast<std::uintptr_t>(buffer)] = bytes;
  return 0;
}

int mooncake_store_unregister_buffer(void* store, void* buffer) {
  const std::lock_guard lock(store_of_all.mutex);
  return client_of(store)->memory.erase(reinterpret_cast<std::uintptr_t>(buffer)) == 1 ? 0 : -1;
}

int mooncake_store_batch_is_exist(void* store, const char** keys, std::size_t count, int* results) {
  store_of_all.on_call("exist");
  const std::lock_guard lock(store_of_all.mutex);
  if (!may_call(store)) return -1;
  for (std::size_t i = 0; i < count; ++i) {
    const int error = store_of_all.call_error;
    results[i] = error != 0 ? error : static_cast<int>(store_of_all.values.contains(keys[i]));
  }
  return 0;
}

int mooncake_store_batch_put_from(void* store, const char** keys, void** buffers, const std::size_t* sizes,
                                  std::size_t count, const void*, int* results) {
  store_of_all.on_call("put");
  const std::lock_guard lock(store_of_all.mutex);
  if (!may_call(store)) return -1;
  for (std::size_t i = 0; i < count; ++i) {
    if (sizes[i] == 0 || !may_use(store, buffers[i], sizes[i])) {
      results[i] = -600;
    } else if (const int error = error_of(keys[i]); error != 0) {
      results[i] = error;
    } else if (store_of_all.values.contains(keys[i])) {
      results[i] = 0;  // as Mooncake: the stored value stays
    } else if (store_of_all.values.size() >= store_of_all.capacity) {
      results[i] = -200;
    } else {
      const auto* at = static_cast<const std::byte*>(buffers[i]);
      store_of_all.values.emplace(keys[i], std::vector<std::byte>(at, at + sizes[i]));
      results[i] = 0;
    }
  }
  return 0;
}

int mooncake_store_batch_get_into(void* store, const char** keys, void** buffers, const std::size_t* sizes,
                                  std::size_t count, std::int64_t* results) {
  store_of_all.on_call("get");
  const std::lock_guard lock(store_of_all.mutex);
  if (!may_call(store)) return -1;
  // As Mooncake: if a key is there twice, its value is read into the last buffer only, and all succeed.
  std::map<std::string, void*> buffer_of;
  for (std::size_t i = 0; i < count; ++i) buffer_of[keys[i]] = buffers[i];
  for (std::size_t i = 0; i < count; ++i) {
    const auto found = store_of_all.values.find(keys[i]);
    if (const int error = error_of(keys[i]); error != 0) {
      results[i] = error;
    } else if (found == store_of_all.values.end()) {
      results[i] = -704;
    } else if (found->second.size() > sizes[i] || !may_use(store, buffers[i], sizes[i])) {
      results[i] = -600;
    } else {
      std::memcpy(buffer_of[keys[i]], found->second.data(), found->second.size());
      results[i] = static_cast<std::int64_t>(found->second.size());
    }
  }
  return 0;
}

std::int64_t mooncake_store_get_size(void* store, const char* key) {
  const std::lock_guard lock(store_of_all.mutex);
  if (!may_call(store)) return -1;
  const auto found = store_of_all.values.find(key);
  return found == store_of_all.values.end() ? -704 : static_cast<std::int64_t>(found->second.size());
}

int mooncake_store_remove(void* store, const char* key, int force) {
  store_of_all.on_call("remove");
  const std::lock_guard lock(store_of_all.mutex);
  if (!may_call(store)) return -1;
  if (force == 0) ++store_of_all.misuses;  // Mooncake refuses it for some seconds after each look-up
  if (store_of_all.call_error != 0) return store_of_all.call_error;
  if (store_of_all.busy.contains(key)) return -714;
  return store_of_all.values.erase(key) == 1 ? 0 : -704;
}

}  // extern "C"
