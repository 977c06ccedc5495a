#include "tests/hybrid/hybrid_server.hpp"

#include <fstream>
#include <stdexcept>

#include "tests/hybrid/tokens.hpp"

namespace kvtwin::test {

std::unique_ptr<HybridServer> make_hybrid_server(const Json& head) {
  const std::string engine = head.at("engine");
  if (engine == "sglang") return make_sglang_server(head.at("config"));
  if (engine == "vllm") return make_vllm_server(head.at("config"));
  if (engine == "vllm-offloading") return make_offload_server(head.at("config"));
  throw std::runtime_error("unknown engine " + engine);
}

std::string first_difference(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line)) throw std::runtime_error(path + ": cannot be read");
  const std::unique_ptr<HybridServer> server = make_hybrid_server(Json::parse(line));
  for (std::size_t number = 2; std::getline(file, line); ++number) {
    const Json wanted = Json::parse(line);
    Json got = wanted;
    try {
      got.update(server->run(wanted));
      server->check();
    } catch (const std::exception& error) {
      return path + ":" + std::to_string(number) + ": " + error.what();
    }
    for (const auto& [key, value] : wanted.items()) {
      if (got.at(key) != value) {
        return path + ":" + std::to_string(number) + ": " + wanted.at("op").get<std::string>() + " of request " +
               (wanted.contains("id") ? wanted.at("id") : wanted.at("session")).dump() + ": " + key + " is " +
               got.at(key).dump() + ", the engine has " + value.dump();
      }
    }
  }
  return "";
}

}  // namespace kvtwin::test
