// Any bytes as the replies of a Redis server: every call of the backend must return, and every page that it returns
// must be the stored page. Input: one byte that chooses the verb and how many bytes later connections skip, then the
// bytes that the server sends.
#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "impl/remote/redis_backend.hpp"
#include "policy/index/page_key.hpp"

namespace {

using namespace kvtwin;

void require(bool condition) {
  if (!condition) std::abort();
}

constexpr PageForm kForm{{1, 2, 1, 4, 2}, Layout::page_first};
constexpr PageKey kSpace{{1, 2, 3, 4}};

PageKey key_of(std::uint64_t page) { return {{page, 5, 6, 7}}; }
std::vector<std::byte> payload_of(std::uint64_t page) { return std::vector<std::byte>(kForm.bytes(), std::byte(page)); }

// An operation with one verb on four pages. Aborts if a page with wrong bytes is returned.
class FourPages final : public PageWork {
 public:
  explicit FourPages(StorageVerb verb) : PageWork(kForm), verb_(verb) {}
  bool next(PageTask& task) override {
    if (begun_ == 4) return false;
    task = {verb_, kSpace, key_of(begun_), begun_};
    ++begun_;
    return true;
  }
  void take_bare(const PageTask& task, std::span<std::byte> payload) override {
    const std::vector<std::byte> page = payload_of(task.ticket);
    std::copy(page.begin(), page.end(), payload.begin());
  }
  Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override {
    require(verb_ == StorageVerb::get && payload.size() == kForm.bytes());
    // The corpus holds correct pages, so that this line is reached. Random bytes cannot have a valid checksum by
    // chance.
    const std::vector<std::byte> page = payload_of(task.ticket);
    require(std::equal(payload.begin(), payload.end(), page.begin()));
    given_[task.ticket] = true;
    return Cause::none;
  }
  void end(const PageTask& task, Cause cause) override {
    if (verb_ == StorageVerb::get) require((cause == Cause::none) == given_[task.ticket]);
    ++ended_;
  }
  bool all_ended() const { return ended_ == 4; }

 private:
  StorageVerb verb_;
  std::uint64_t begun_ = 0, ended_ = 0;
  bool given_[4] = {};
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 1 || size > 60'000) return 0;  // fits into the buffer of a socket
  const auto verb = static_cast<StorageVerb>(data[0] % 4);
  const std::size_t part = 1 + data[0] / 4;
  RedisConfig config;
  config.servers = {{"fuzz", 1}};
  // All bytes of the server and the end of its stream are written before the backend sends its request.
  std::vector<int> far;
  config.dial = [&](const RedisServer&) {
    int ends[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) == 0);
    // The first connection gets all bytes. Each further connection (opened after a corrupt page, for example) skips
    // `part` bytes more.
    const std::size_t skipped = std::min(size - 1, far.size() * part);
    require(::send(ends[1], data + 1 + skipped, size - 1 - skipped, 0) >= 0);
    ::shutdown(ends[1], SHUT_WR);
    far.push_back(ends[1]);
    return ends[0];
  };
  config.now = [time = TimeNs{0}]() mutable {
    return time += 100 * kNsPerSecond;
  };  // the time advances so fast that no server is in backoff
  {
    const std::unique_ptr<StorageBackend> backend = make_redis_backend(config, kForm);
    if (verb == StorageVerb::look_up) {
      const std::vector<PageKey> keys = {key_of(0), key_of(1), key_of(2), key_of(3)};
      const LookedUp found = backend->look_up(kSpace, keys);
      require((found.pages == 4) == (found.cause == Cause::none));
    } else {
      FourPages pages(verb);
      verb == StorageVerb::get ? backend->read(pages) : backend->write(pages);
      require(pages.all_ended());
    }
    backend->finish();
  }
  for (const int descriptor : far) ::close(descriptor);
  return 0;
}
