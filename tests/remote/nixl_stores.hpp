// NIXL for tests: files of a folder, and buckets of an S3 server (SeaweedFS) that is a process on this machine.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "impl/remote/nixl_backend.hpp"
#include "tests/folder.hpp"
#include "tests/free_port.hpp"
#include "tests/remote/environment.hpp"
#include "tests/server_process.hpp"

namespace kvtwin::test {

inline NixlConfig nixl_files(const std::filesystem::path& folder) {
  NixlConfig config;
  config.folder = folder;
  config.library = remote_packages().string();
  config.timeout = 60 * kNsPerSecond;  // a test machine may be slow
  config.bytes_in_flight = 4096;       // several batches an operation
  return config;
}

class S3Server {
 public:
  S3Server() {
    std::ofstream(folder_ / "s3.json")
        << R"({"identities": [{"name": "test", "actions": ["Admin", "Read", "Write", "List"],
               "credentials": [{"accessKey": "access", "secretKey": "secret"}]}]})";
    for (int attempt = 0; attempt < 20; ++attempt) {
      if (start()) return;
    }
    throw std::runtime_error("SeaweedFS doesn't start:\n" + process_.output());
  }
  // Returns the configuration of a new bucket.
  NixlConfig new_bucket() {
    NixlConfig config;
    config.s3 = {"http://127.0.0.1:" + std::to_string(s3_port_), "bucket" + std::to_string(++buckets_), "us-east-1",
                 "access", "secret"};
    config.library = remote_packages().string();
    config.timeout = 60 * kNsPerSecond;  // a test machine may be slow
    constexpr long kTimeoutMs = 60'000, kOk = 200;
    const long status = request_s3(config.s3, "PUT", "", kTimeoutMs);
    if (status != kOk) throw std::runtime_error("SeaweedFS makes no bucket: " + std::to_string(status));
    return config;
  }
  // Returns the bytes of an object, by the server's own interface; empty if there is no such object.
  std::vector<std::byte> get(const NixlConfig& config, const std::string& name) const {
    const std::string answer = ask("GET", config, name, "");
    const std::size_t head = answer.find("\r\n\r\n");
    if (answer.find(" 200 ") > answer.find("\r\n") || head == std::string::npos) return {};
    const auto* bytes = reinterpret_cast<const std::byte*>(answer.data());
    return {bytes + head + 4, bytes + answer.size()};
  }
  void put(const NixlConfig& config, const std::string& name, const std::vector<std::byte>& value) const {
    const std::string body(reinterpret_cast<const char*>(value.data()), value.size());
    const std::string answer = ask("PUT", config, name, body);
    if (answer.find(" 201 ") > answer.find("\r\n")) throw std::runtime_error("SeaweedFS stores nothing: " + answer);
  }
  ServerProcess& process() { return process_; }

 private:
  bool start() {
    const std::string data = folder_ / ("data" + std::to_string(++starts_));
    std::filesystem::create_directory(data);
    std::vector<std::string> words = {(remote_packages() / "../../../bin/weed").string(),
                                      "server",
                                      "-dir=" + data,
                                      "-ip=127.0.0.1",
                                      "-ip.bind=127.0.0.1",
                                      "-filer",
                                      "-s3",
                                      "-s3.config=" + (folder_ / "s3.json"),
                                      "-s3.port.iceberg=0",
                                      "-s3.port.lance=0",
                                      "-volume.max=100000",
                                      "-master.volumeSizeLimitMB=64"};
    std::vector<FreePort> ports(8);
    const char* names[] = {"master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
                           "filer.port",  "filer.port.grpc",  "s3.port",     "s3.port.grpc"};
    for (std::size_t i = 0; i < ports.size(); ++i) {
      words.push_back("-" + std::string(names[i]) + "=" + std::to_string(ports[i].number()));
    }
    filer_port_ = ports[4].number();
    s3_port_ = ports[6].number();
    ports.clear();
    if (!process_.start(words, "bucket owner index ready")) return false;
    while (!accepts_connections(s3_port_)) std::this_thread::yield();
    return true;
  }
  std::string ask(const std::string& method, const NixlConfig& config, const std::string& name,
                  const std::string& body) const {
    return ask_port(filer_port_, method + " /buckets/" + config.s3.bucket + "/" + name +
                                     " HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }

  Folder folder_;
  int filer_port_ = 0, s3_port_ = 0, buckets_ = 0, starts_ = 0;
  ServerProcess process_;
};

}  // namespace kvtwin::test
