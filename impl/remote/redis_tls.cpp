#include "impl/remote/redis_tls.hpp"

#include <stdexcept>

#if KVTWIN_HAVE_REDIS_TLS
#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <hiredis/hiredis_ssl.h>
#include <openssl/ssl.h>
#endif

namespace kvtwin {

#if KVTWIN_HAVE_REDIS_TLS
namespace {

bool is_address(const std::string& host) {
  unsigned char bytes[16];
  return inet_pton(AF_INET, host.c_str(), bytes) == 1 || inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

class OpenSslTls final : public RedisTls {
 public:
  explicit OpenSslTls(const std::string& ca_file) : context_(SSL_CTX_new(TLS_client_method())) {
    if (context_ == nullptr) throw std::runtime_error("OpenSSL makes no TLS context.");
    SSL_CTX_set_min_proto_version(context_, TLS1_2_VERSION);
    SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    const bool loaded = ca_file.empty() ? SSL_CTX_set_default_verify_paths(context_) == 1
                                        : SSL_CTX_load_verify_locations(context_, ca_file.c_str(), nullptr) == 1;
    if (loaded) return;
    SSL_CTX_free(context_);
    throw std::runtime_error("The certificates that Redis servers are checked against can't be read.");
  }
  OpenSslTls(const OpenSslTls&) = delete;
  OpenSslTls& operator=(const OpenSslTls&) = delete;
  ~OpenSslTls() override { SSL_CTX_free(context_); }

  bool shake_hands(redisContext& context, const std::string& host) override {
    SSL* ssl = SSL_new(context_);
    if (ssl == nullptr) return false;
    const bool named = is_address(host)
                           ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1
                           : SSL_set1_host(ssl, host.c_str()) == 1 && SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
    if (!named || redisInitiateSSL(&context, ssl) != REDIS_OK) {
      SSL_free(ssl);  // hiredis takes `ssl` over only on success
      return false;
    }
    return true;
  }

 private:
  SSL_CTX* context_;
};

}  // namespace

std::shared_ptr<RedisTls> make_redis_tls(const RedisConfig& config) {
  if (!config.tls) return nullptr;
  return std::make_shared<OpenSslTls>(config.tls_ca_file);
}
#else
std::shared_ptr<RedisTls> make_redis_tls(const RedisConfig& config) {
  if (config.tls) {
    throw std::runtime_error(
        "TLS to Redis servers needs hiredis 1.0 or newer with hiredis_ssl, which this build hasn't got.");
  }
  return nullptr;
}
#endif

}  // namespace kvtwin
