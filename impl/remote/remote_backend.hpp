// The back end of a remote tier, by the scheme of its URL: redis:// and rediss:// (redis_backend.hpp), mooncake://
// (mooncake_backend.hpp), nixl+posix:// and nixl+obj:// (nixl_backend.hpp), nixl+ucx:// (peer_store.hpp), library:
// (store_library.hpp).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "impl/storage/backend.hpp"

namespace kvtwin {

// This process in the pool that the processes of a run lend memory to (nixl+ucx://). See PeerStoreConfig.
struct PoolMember {
  std::string name;
  std::size_t processes = 1;
  Pages pages = 0;
  std::function<std::vector<std::string>(const std::string&)> exchange;
};

struct RemoteTerms {
  std::string url;
  std::string password;                 // of Redis; of S3 "ACCESS_KEY:SECRET_KEY"; empty = none
  std::string tls_ca_file;              // of Redis with TLS; empty = the system's certificates
  TimeNs timeout = 0;                   // 0 = the back end's default
  const PageSeal* seal = nullptr;       // outlives the back end
  std::optional<PoolMember> pool = {};  // nothing: there is no such pool here
  std::string pool_name = {};           // of library: the name of the pool of KV; empty = pages
};

struct RemoteBackend {
  std::unique_ptr<StorageBackend> backend;
  // Returns an empty text if all servers answer, else a sentence about one that does not. Valid as long as the back
  // end.
  std::function<std::string()> check;
};

// Returns the back end, or one sentence about a wrong URL; the sentence does not contain the URL. No server must be
// present.
// Errors: std::runtime_error if a library cannot be loaded, or the build lacks a feature.
std::variant<RemoteBackend, std::string> open_remote_backend(const RemoteTerms& terms, const PageForm& form);

}  // namespace kvtwin
