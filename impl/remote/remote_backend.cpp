#include "impl/remote/remote_backend.hpp"

#include <algorithm>

#include "impl/remote/mooncake_backend.hpp"
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

Opened open_mooncake_url(const RemoteTerms& terms, const PageForm& form) {
  auto parsed = parse_mooncake_url(terms.url);
  if (auto* wrong = std::get_if<std::string>(&parsed)) return std::move(*wrong);
  auto config = std::get<MooncakeConfig>(std::move(parsed));
  config.seal = terms.seal;
  if (terms.timeout != 0) config.timeout = terms.timeout;
  std::unique_ptr<StagedBackend> backend = make_mooncake_backend(config, form);
  StagedBackend& staged = *backend;
  return RemoteBackend{std::move(backend), [&staged] { return staged.check(); }};
}

}  // namespace

Opened open_remote_backend(const RemoteTerms& terms, const PageForm& form) {
  const auto begins_with = [&terms](const char* scheme) { return terms.url.starts_with(scheme); };
  if (begins_with("mooncake://")) return open_mooncake_url(terms, form);
  if (begins_with("redis://") || begins_with("rediss://")) return open_redis(terms, form);
  return "The URL of a remote tier begins with redis://, rediss:// or mooncake://.";
}

}  // namespace kvtwin
