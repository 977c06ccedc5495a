#if KVTWIN_HAVE_REDIS
#include <hiredis/hiredis.h>

#include <optional>

#include "impl/remote/redis_backend.hpp"
#include "impl/remote/remote_name.hpp"
#include "policy/index/page_key.hpp"
#include "tests/conformance.hpp"
#include "tests/redis_server.hpp"

namespace kvtwin::test {
namespace {

// One or several servers, which are started when a test opens the medium.
class RedisMedium final : public StorageMedium {
 public:
  explicit RedisMedium(std::size_t servers, bool seals = false) {
    config_.seal = seals ? &seal_ : nullptr;
    for (std::size_t i = 0; i < servers; ++i) {
      servers_.push_back(std::make_unique<RedisProcess>());
      config_.servers.push_back({"127.0.0.1", servers_.back()->port()});
    }
    // Machines under test are busy; what is late here is no matter of the medium's.
    config_.connect_timeout = config_.command_timeout = 60 * kNsPerSecond;
    config_.bytes_in_flight = 4096;  // several batches an operation
  }
  std::unique_ptr<StorageBackend> open(const PageForm& form, Pages) override {
    form_ = form;
    return make_redis_backend(config_, form);
  }
  std::vector<std::byte> stored(const PageKey& space, const PageKey& key) override {
    const Reply reply = ask(space, key, {"GET"});
    if (reply == nullptr || reply->type != REDIS_REPLY_STRING) return {};
    const auto* bytes = reinterpret_cast<const std::byte*>(reply->str);
    return {bytes, bytes + reply->len};
  }
  void overwrite(const PageKey& space, const PageKey& key, const std::vector<std::byte>& bytes) override {
    const Reply reply =
        ask(space, key, {"SET"}, std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
    EXPECT_TRUE(reply != nullptr && reply->type == REDIS_REPLY_STATUS);
  }

 private:
  struct Freer {
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
    void operator()(redisContext* context) const { redisFree(context); }
  };
  using Reply = std::unique_ptr<redisReply, Freer>;

  Reply ask(const PageKey& space, const PageKey& key, std::vector<std::string_view> words,
            std::optional<std::string_view> value = std::nullopt) {
    const PageKey stored_as = stored_page_key(form_, space, key);
    const std::string name = remote_name_of(stored_as, id_of(config_.seal));
    words.push_back(name);
    if (value) words.push_back(*value);
    std::vector<const char*> starts;
    std::vector<std::size_t> lengths;
    for (const std::string_view word : words) {
      starts.push_back(word.data());
      lengths.push_back(word.size());
    }
    const RedisServer& server = config_.servers[redis_server_of(config_.servers, stored_as)];
    const std::unique_ptr<redisContext, Freer> context(redisConnect(server.host.c_str(), server.port));
    return Reply(static_cast<redisReply*>(
        redisCommandArgv(context.get(), static_cast<int>(words.size()), starts.data(), lengths.data())));
  }

  std::vector<std::unique_ptr<RedisProcess>> servers_;
  const PageSeal seal_{"sixteen characters and more"};
  RedisConfig config_;
  PageForm form_;
};

BackendKind servers(const char* name, std::size_t count, bool seals = false) {
  return {.name = name,
          .medium = [=] { return std::make_unique<RedisMedium>(count, seals); },
          .bounded = false,  // by the server's memory, not by pages
          .persists = true};
}

KVTWIN_CONFORMS(Redis, servers("one_server", 1), servers("three_servers", 3), servers("with_a_secret", 1, true));

}  // namespace
}  // namespace kvtwin::test
#endif
