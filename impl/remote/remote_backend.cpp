#include "impl/remote/remote_backend.hpp"

#include <algorithm>

#include "impl/remote/mooncake_backend.hpp"
#include "impl/remote/nixl_backend.hpp"
#include "impl/remote/peer_store.hpp"
#include "impl/remote/store_library.hpp"
#if KVTWIN_HAVE_REDIS
#include "impl/remote/redis_backend.hpp"
#endif

namespace kvtwin {
namespace {

using Opened = std::variant<RemoteBackend, std::string>;

#if KVTWIN_HAVE_REDIS
Opened open_redis(const RemoteTerms& terms, const PageForm& form) {
  auto parsed = parse_redis_url(terms.url);
  if (auto* wrong = std::get_if<std::string>(&parsed)) return std::move(*wrong);
  auto config = std::get<RedisConfig>(std::move(parsed));
  config.password = terms.password;
  config.seal = terms.seal;
  config.tls_ca_file = terms.tls_ca_file;
  if (terms.timeout != 0) {
    config.command_timeout = terms.timeout;
    config.connect_timeout = std::min(config.connect_timeout, config.command_timeout);
  }
  return RemoteBackend{make_redis_backend(config, form), [config] { return check_redis_servers(config); }};
}
#else
Opened open_redis(const RemoteTerms&, const PageForm&) { return "This build is without Redis (KVTWIN_REDIS=OFF)."; }
#endif

template <typename Config>
Config under(const RemoteTerms& terms, Config config) {
  config.seal = terms.seal;
  if (terms.timeout != 0) config.timeout = terms.timeout;
  return config;
}

RemoteBackend with_check(std::unique_ptr<StagedBackend> backend) {
  StagedBackend& staged = *backend;
  return {std::move(backend), [&staged] { return staged.check(); }};
}

Opened open_mooncake_url(const RemoteTerms& terms, const PageForm& form) {
  auto parsed = parse_mooncake_url(terms.url);
  if (auto* wrong = std::get_if<std::string>(&parsed)) return std::move(*wrong);
  auto config = std::get<MooncakeConfig>(std::move(parsed));
  return with_check(make_mooncake_backend(under(terms, config), form));
}

Opened open_nixl_url(const RemoteTerms& terms, const PageForm& form) {
  auto parsed = parse_nixl_url(terms.url);
  if (auto* wrong = std::get_if<std::string>(&parsed)) return std::move(*wrong);
  auto config = std::get<NixlConfig>(std::move(parsed));
  const std::size_t colon = std::min(terms.password.find(':'), terms.password.size());
  config.s3.access_key = terms.password.substr(0, colon);
  config.s3.secret_key = terms.password.substr(std::min(colon + 1, terms.password.size()));
  if (config.folder.empty() && (config.s3.access_key.empty() || config.s3.secret_key.empty())) {
    return "The keys of an S3 bucket are in the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (in "
           "the C and Python interfaces: the password \"ACCESS_KEY:SECRET_KEY\").";
  }
  return with_check(make_nixl_backend(under(terms, config), form));
}

Opened open_peer_url(const RemoteTerms& terms, const PageForm& form) {
  auto parsed = parse_peer_url(terms.url);
  if (auto* wrong = std::get_if<std::string>(&parsed)) return std::move(*wrong);
  if (!terms.pool) {
    return "nixl+ucx:// is the memory that the engines of one run lend to each other: take mpirun -np N kvtwin run "
           "with cluster.engines = N.";
  }
  auto config = std::get<PeerStoreConfig>(std::move(parsed));
  config.name = terms.pool->name;
  config.pages = terms.pool->pages;
  config.exchange = terms.pool->exchange;
  return with_check(make_peer_store(under(terms, config), terms.pool->processes, form));
}

Opened open_library_url(const RemoteTerms& terms, const PageForm& form) {
  auto parsed = parse_library_url(terms.url);
  if (auto* wrong = std::get_if<std::string>(&parsed)) return std::move(*wrong);
  auto config = std::get<StoreLibraryConfig>(std::move(parsed));
  config.password = terms.password;
  config.pool = terms.pool_name;
  return with_check(make_library_backend(under(terms, config), form));
}

}  // namespace

Opened open_remote_backend(const RemoteTerms& terms, const PageForm& form) {
  const auto begins_with = [&terms](const char* scheme) { return terms.url.starts_with(scheme); };
  if (begins_with("mooncake://")) return open_mooncake_url(terms, form);
  if (begins_with("redis://") || begins_with("rediss://")) return open_redis(terms, form);
  if (begins_with("nixl+posix://") || begins_with("nixl+obj://")) return open_nixl_url(terms, form);
  if (begins_with("nixl+ucx://")) return open_peer_url(terms, form);
  if (begins_with("library:")) return open_library_url(terms, form);
  return "The URL of a remote tier begins with redis://, rediss://, mooncake://, nixl+posix://, nixl+obj://, "
         "nixl+ucx:// "
         "or library:.";
}

}  // namespace kvtwin
