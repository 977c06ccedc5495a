// A Mooncake Store for tests: master and storage nodes of Mooncake's Python package, as processes on this machine.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "impl/remote/mooncake_backend.hpp"
#include "impl/remote/mooncake_library.hpp"
#include "tests/free_port.hpp"
#include "tests/remote/environment.hpp"
#include "tests/server_process.hpp"

namespace kvtwin::test {

class MooncakeMaster {
 public:
  explicit MooncakeMaster(std::vector<std::string> options = {}) : options_(std::move(options)) {
    // Another process may take a port before the master does.
    for (int attempt = 0; attempt < 20; ++attempt) {
      port_ = FreePort().number();
      if (start()) return;
    }
    throw std::runtime_error("mooncake_master doesn't start:\n" + process_.output());
  }
  int port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  std::string url() const { return "mooncake://" + address() + "?library=" + remote_packages().string(); }
  MooncakeConfig config() const {
    MooncakeConfig config;
    config.host = "127.0.0.1";
    config.port = port_;
    config.library = remote_packages().string();
    config.timeout = 60 * kNsPerSecond;  // a test machine may be slow
    return config;
  }
  // Starts a new, empty master at the same port.
  void restart() {
    process_.kill();
    if (!start()) throw std::runtime_error("mooncake_master doesn't start again:\n" + process_.output());
  }
  ServerProcess& process() { return process_; }

 private:
  bool start() {
    std::vector<std::string> words = {"/usr/bin/env",
                                      "MC_LOG_LEVEL=INFO",
                                      (remote_packages() / "mooncake/mooncake_master").string(),
                                      "-rpc_port=" + std::to_string(port_),
                                      "-rpc_address=127.0.0.1",
                                      "-metrics_port=" + std::to_string(FreePort().number()),
                                      "-metrics_host=127.0.0.1",
                                      "-client_ttl=2"};
    words.insert(words.end(), options_.begin(), options_.end());
    if (!process_.start(words, "Master admin server started")) return false;
    while (!accepts_connections(port_)) std::this_thread::yield();  // its other port is open already
    return true;
  }

  std::vector<std::string> options_;
  int port_ = 0;
  ServerProcess process_;
};

// A process that lends memory to the store, and with `drives`, a folder, also this: with the option -enable_offload of
// the master, what the memory evicts goes there.
class MooncakeNode {
 public:
  MooncakeNode(const MooncakeMaster& master, int mib, const std::string& drives = "") {
    for (int attempt = 0; attempt < 20; ++attempt) {
      std::vector<std::string> words = {"/usr/bin/env", "MC_LOG_LEVEL=INFO"};
      if (!drives.empty()) {
        words.insert(words.end(),
                     {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=" + drives, "MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS=1",
                      "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES=67108864",
                      "MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES=1048576",  // what is written at once
                      "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT=16"});
      }
      words.insert(words.end(), {(remote_packages() / "mooncake/mooncake_client").string(), "-host=127.0.0.1",
                                 "-master_server_address=" + master.address(), "-metadata_server=P2PHANDSHAKE",
                                 "-protocol=tcp", "-global_segment_size=" + std::to_string(mib) + "MB",
                                 "-port=" + std::to_string(FreePort().number())});
      if (!drives.empty()) words.emplace_back("-enable_offload=true");
      if (process_.start(words, "Starting real client service")) return;
    }
    throw std::runtime_error("mooncake_client doesn't start:\n" + process_.output());
  }
  ServerProcess& process() { return process_; }

 private:
  ServerProcess process_;
};

// A client that stores and loads any values.
class MooncakeClient {
 public:
  explicit MooncakeClient(const MooncakeMaster& master)
      : functions_(load_mooncake(remote_packages().string(), 60 * kNsPerSecond)),
        store_(functions_.create()),
        memory_(1 << 20) {
    if (functions_.setup(store_, "127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", master.address().c_str()) != 0 ||
        functions_.register_buffer(store_, memory_.data(), memory_.size()) != 0) {
      throw std::runtime_error("no client of Mooncake");
    }
  }
  MooncakeClient(const MooncakeClient&) = delete;
  MooncakeClient& operator=(const MooncakeClient&) = delete;
  ~MooncakeClient() {
    functions_.unregister_buffer(store_, memory_.data());
    functions_.destroy(store_);
  }
  // Returns nothing if there is no such value.
  std::vector<std::byte> get(const std::string& name) {
    const char* key = name.c_str();
    void* buffer = memory_.data();
    const std::size_t room = memory_.size();
    std::int64_t bytes = -1;
    functions_.batch_get_into(store_, &key, &buffer, &room, 1, &bytes);
    if (bytes < 0) return {};
    return {memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(bytes)};
  }
  void put(const std::string& name, const std::vector<std::byte>& value) {
    std::ranges::copy(value, memory_.begin());
    const char* key = name.c_str();
    void* buffer = memory_.data();
    const std::size_t bytes = value.size();
    int result = -1;
    functions_.batch_put_from(store_, &key, &buffer, &bytes, 1, nullptr, &result);
    if (result != 0) throw std::runtime_error("Mooncake stores nothing: " + std::to_string(result));
  }
  void remove(const std::string& name) { functions_.remove(store_, name.c_str(), 1); }
  bool has(const std::string& name) {
    const char* key = name.c_str();
    int there = 0;
    functions_.batch_is_exist(store_, &key, 1, &there);
    return there == 1;
  }

 private:
  const MooncakeFunctions functions_;
  const MooncakeFunctions::Store store_;
  std::vector<std::byte> memory_;
};

}  // namespace kvtwin::test
