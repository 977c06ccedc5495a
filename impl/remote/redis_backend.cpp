#include "impl/remote/redis_backend.hpp"

#include <hiredis/hiredis.h>
#include <xxhash.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>

#include "impl/remote/batched_look_ups.hpp"
#include "impl/remote/redis_connection.hpp"
#include "impl/remote/remote_name.hpp"
#include "policy/base/byte_order.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxPagesPerRedisBatch = 256;
constexpr std::size_t kMaxKeysPerRedisLookUp = 1024;
constexpr Bytes kReplySlackBytes = 64 << 10;  // bytes that hiredis reads at a time, and the frame of a reply

std::uint64_t score_of(const RedisServer& server, const PageKey& stored_as) {
  std::array<std::byte, 16> bytes;
  store_le64(store_le64(bytes.data(), stored_as.words[0]), stored_as.words[1]);
  const std::string name = server.name();
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), XXH3_64bits(name.data(), name.size()));
}

struct RedisPage {
  PageTask task;
  std::string name = {};
  std::size_t server = 0;
  bool answered = false;
  Cause cause = Cause::unreachable;
};
using RedisPages = std::vector<RedisPage*>;
using Words = RedisBatch::Words;

// Returns the trouble that an unexpected reply means.
RedisTrouble trouble_in(const redisReply& reply) {
  return reply.type == REDIS_REPLY_ERROR ? trouble_of({reply.str, reply.len}) : RedisTrouble::garbled;
}

bool is_error(const redisReply& reply, std::string_view word) {
  return reply.type == REDIS_REPLY_ERROR && std::string_view(reply.str, reply.len).starts_with(word);
}

class RedisBackend final : public StorageBackend {
 public:
  RedisBackend(const RedisConfig& config, const PageForm& form);

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override;
  Cause find(const PageKey& space, std::span<const PageKey> keys, std::vector<bool>& there) override;
  void read(PageWork& work) override;
  void write(PageWork& work) override;
  void finish() override;
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override;
  const PageSeal* seal() const override { return config_.seal; }

 private:
  using Connections = std::vector<RedisConnection>;  // of one thread; one per server
  using Count = std::atomic<std::uint64_t>;

  Bytes stored_bytes() const { return kPageHeaderBytes + form_.bytes(); }
  TimeNs now() const { return config_.now ? config_.now() : steady_now(); }
  RedisPage page_of(const PageTask& task) const;
  std::vector<RedisPage> begin_pages(PageWork& work) const;
  void send_commands(Connections& connections, const RedisPages& pages,
                     const std::function<void(const RedisPage&, Words&)>& write_command,
                     const std::function<RedisTrouble(RedisPage&, const redisReply&)>& on_reply);
  void find(Connections& connections, const RedisPages& pages);
  std::vector<RedisPage> find_first(const PageKey& space, std::span<const PageKey> keys);
  RedisTrouble take_value(PageWork& work, RedisPage& page, const redisReply& reply);
  void unlink(Connections& connections, const RedisPages& pages);
  void set(PageWork& work, const RedisPages& pages);

  const RedisConfig config_;
  const PageForm form_;
  std::deque<BackOff> back_offs_;
  Connections look_ups_, reads_, writes_;
  std::vector<std::vector<std::byte>> values_;  // writing thread: headers and payloads in flight
  Count got_ = 0, set_ = 0, there_ = 0, corrupt_ = 0, full_ = 0, backed_off_ = 0;
  std::array<Count, kRedisTroubles> troubles_{};
};

RedisBackend::RedisBackend(const RedisConfig& config, const PageForm& form) : config_(config), form_(form) {
  if (config.servers.empty()) throw std::runtime_error("A Redis tier needs a server.");
  const std::shared_ptr<RedisTls> tls = make_redis_tls(config);
  for (const RedisServer& server : config.servers) {
    back_offs_.emplace_back(config.back_off);
    for (Connections* side : {&look_ups_, &reads_, &writes_}) {
      side->emplace_back(config_, server, tls, stored_bytes() + kReplySlackBytes);
    }
  }
}

RedisPage RedisBackend::page_of(const PageTask& task) const {
  const PageKey stored_as = stored_page_key(form_, task.space, task.key);
  return {task, remote_name_of(stored_as, id_of(config_.seal)), redis_server_of(config_.servers, stored_as)};
}

// Returns pages of one verb, as many as may be in flight. Empty: no page to begin.
std::vector<RedisPage> RedisBackend::begin_pages(PageWork& work) const {
  std::vector<RedisPage> pages;
  const std::size_t max_pages =
      std::clamp<std::size_t>(config_.bytes_in_flight / stored_bytes(), 1, kMaxPagesPerRedisBatch);
  PageTask task;
  while (pages.size() < max_pages && work.next(task)) pages.push_back(page_of(task));
  return pages;
}

// Sends one command per page to the page's server, to all servers at the same time. `answered` is set for each page
// with a valid reply.
void RedisBackend::send_commands(Connections& connections, const RedisPages& pages,
                                 const std::function<void(const RedisPage&, Words&)>& write_command,
                                 const std::function<RedisTrouble(RedisPage&, const redisReply&)>& on_reply) {
  std::vector<RedisPages> by_server(connections.size());
  for (RedisPage* page : pages) {
    page->answered = false;
    by_server[page->server].push_back(page);
  }
  struct Attempt {
    std::size_t server;
    std::uint64_t number;
  };
  std::vector<Attempt> attempts;
  std::vector<RedisBatch> batches;
  const auto fail = [this](const Attempt& attempt, RedisTrouble trouble) {
    back_offs_[attempt.server].fail(attempt.number, now());
    ++troubles_[static_cast<std::size_t>(trouble)];
  };
  for (std::size_t server = 0; server < connections.size(); ++server) {
    const RedisPages& own_pages = by_server[server];
    if (own_pages.empty()) continue;
    const std::optional<std::uint64_t> number = back_offs_[server].begin(now());
    if (!number) {
      backed_off_ += own_pages.size();
      continue;
    }
    const RedisTrouble trouble = connections[server].ready();
    if (trouble != RedisTrouble::none) {
      fail({server, *number}, trouble);
      continue;
    }
    attempts.push_back({server, *number});
    RedisBatch& one = batches.emplace_back();
    one.connection = &connections[server];
    one.commands = own_pages.size();
    one.write_command = [&own_pages, &write_command](std::size_t i, Words& words) {
      write_command(*own_pages[i], words);
    };
    one.on_reply = [&own_pages, &on_reply](std::size_t i, const redisReply& reply) {
      const RedisTrouble reply_trouble = on_reply(*own_pages[i], reply);
      own_pages[i]->answered = reply_trouble == RedisTrouble::none;
      return reply_trouble;
    };
  }
  execute_batches(batches, config_.command_timeout);
  for (std::size_t i = 0; i < batches.size(); ++i) {
    if (batches[i].trouble != RedisTrouble::none) {
      fail(attempts[i], batches[i].trouble);
    } else {
      back_offs_[attempts[i].server].succeed(attempts[i].number);
    }
  }
}

// Sets the cause of each page: `none` if present, `missing` otherwise. A page is present if the value has the page's
// length. EXISTS would count a truncated value as present, which could then never be stored again.
void RedisBackend::find(Connections& connections, const RedisPages& pages) {
  send_commands(
      connections, pages,
      [](const RedisPage& page, Words& words) {
        words = {"STRLEN", page.name};
      },
      [this](RedisPage& page, const redisReply& reply) {
        page.cause = Cause::missing;
        if (is_error(reply, "WRONGTYPE")) return RedisTrouble::none;
        if (reply.type != REDIS_REPLY_INTEGER) return trouble_in(reply);
        if (reply.integer == static_cast<long long>(stored_bytes())) page.cause = Cause::none;
        return RedisTrouble::none;
      });
  for (RedisPage* page : pages) {
    if (!page->answered) page->cause = Cause::unreachable;
  }
}

// Looks the first of the keys up, as many as one message may have.
std::vector<RedisPage> RedisBackend::find_first(const PageKey& space, std::span<const PageKey> keys) {
  std::vector<RedisPage> pages;
  for (const PageKey& key : keys.first(std::min(keys.size(), kMaxKeysPerRedisLookUp))) {
    pages.push_back(page_of({StorageVerb::look_up, space, key, 0}));
  }
  RedisPages list;
  for (RedisPage& page : pages) list.push_back(&page);
  find(look_ups_, list);
  return pages;
}

LookedUp RedisBackend::look_up(const PageKey& space, std::span<const PageKey> keys) {
  return look_up_in_batches(keys, [&](std::span<const PageKey> rest) { return find_first(space, rest); });
}

Cause RedisBackend::find(const PageKey& space, std::span<const PageKey> keys, std::vector<bool>& there) {
  return find_in_batches(keys, there, [&](std::span<const PageKey> rest) { return find_first(space, rest); });
}

// The reply to GETRANGE, which limits the cost of a value of any length. An empty reply means no value, or an empty
// one.
RedisTrouble RedisBackend::take_value(PageWork& work, RedisPage& page, const redisReply& reply) {
  if (is_error(reply, "WRONGTYPE")) {
    page.cause = Cause::corrupt;
    return RedisTrouble::none;
  }
  if (reply.type != REDIS_REPLY_STRING) return trouble_in(reply);
  if (reply.len > stored_bytes() + 1) return RedisTrouble::garbled;  // more bytes than requested
  if (reply.len == stored_bytes()) {
    const std::span<const std::byte> value(reinterpret_cast<const std::byte*>(reply.str), reply.len);
    page.cause = work.give(page.task, value.first<kPageHeaderBytes>(), value.subspan(kPageHeaderBytes));
  } else {
    page.cause = reply.len == 0 ? Cause::missing : Cause::corrupt;
  }
  return RedisTrouble::none;
}

void RedisBackend::unlink(Connections& connections, const RedisPages& pages) {
  send_commands(
      connections, pages,
      [](const RedisPage& page, Words& words) {
        words = {"UNLINK", page.name};
      },
      [](RedisPage&, const redisReply& reply) {
        return reply.type == REDIS_REPLY_INTEGER ? RedisTrouble::none : trouble_in(reply);
      });
}

void RedisBackend::read(PageWork& work) {
  const std::string last = std::to_string(stored_bytes());  // one byte more than a page has
  for (;;) {
    std::vector<RedisPage> pages = begin_pages(work);
    if (pages.empty()) return;
    RedisPages all, corrupt;
    for (RedisPage& page : pages) all.push_back(&page);
    send_commands(
        reads_, all,
        [&](const RedisPage& page, Words& words) {
          words = {"GETRANGE", page.name, "0", last};
        },
        [&](RedisPage& page, const redisReply& reply) { return take_value(work, page, reply); });
    for (RedisPage* page : all) {
      if (!page->answered) page->cause = Cause::unreachable;
      if (page->cause == Cause::corrupt) corrupt.push_back(page);
      if (page->cause == Cause::none) ++got_;
    }
    // A corrupt value is removed; otherwise it could never be stored again. If the writer has just stored a right page
    // there, the next get is a miss.
    corrupt_ += corrupt.size();
    unlink(reads_, corrupt);
    for (const RedisPage& page : pages) work.end(page.task, page.cause);
  }
}

void RedisBackend::set(PageWork& work, const RedisPages& pages) {
  find(writes_, pages);
  RedisPages fresh;
  for (RedisPage* page : pages) {
    if (page->cause == Cause::none) ++there_;
    if (page->cause == Cause::missing) fresh.push_back(page);
  }
  if (values_.size() < fresh.size()) values_.resize(fresh.size(), std::vector<std::byte>(stored_bytes()));
  std::vector<const std::byte*> value_of(pages.size());
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    PageHeader header;
    work.take(fresh[i]->task, header, std::span(values_[i]).subspan(kPageHeaderBytes));
    std::ranges::copy(header, values_[i].begin());
    value_of[static_cast<std::size_t>(fresh[i] - pages.front())] = values_[i].data();
  }
  send_commands(
      writes_, fresh,
      [&](const RedisPage& page, Words& words) {
        const std::byte* value = value_of[static_cast<std::size_t>(&page - pages.front())];
        words = {"SET", page.name, {reinterpret_cast<const char*>(value), stored_bytes()}};
      },
      [](RedisPage& page, const redisReply& reply) {
        page.cause = is_error(reply, "OOM") ? Cause::full : Cause::none;
        if (page.cause == Cause::full) return RedisTrouble::none;
        const bool done = reply.type == REDIS_REPLY_STATUS && std::string_view(reply.str, reply.len) == "OK";
        return done ? RedisTrouble::none : trouble_in(reply);
      });
  for (RedisPage* page : fresh) {
    if (!page->answered) page->cause = Cause::unreachable;
    if (page->cause == Cause::none) ++set_;
    if (page->cause == Cause::full) ++full_;
  }
}

void RedisBackend::write(PageWork& work) {
  for (;;) {
    std::vector<RedisPage> pages = begin_pages(work);
    if (pages.empty()) return;
    RedisPages all;
    for (RedisPage& page : pages) all.push_back(&page);
    if (pages.front().task.verb == StorageVerb::set) {
      set(work, all);
    } else {
      unlink(writes_, all);
      for (RedisPage& page : pages) page.cause = page.answered ? Cause::none : Cause::unreachable;
    }
    for (const RedisPage& page : pages) work.end(page.task, page.cause);
  }
}

void RedisBackend::finish() {
  for (Connections* side : {&look_ups_, &reads_, &writes_}) {
    for (RedisConnection& connection : *side) connection.close();
  }
}

std::vector<std::pair<std::string, std::uint64_t>> RedisBackend::counters() const {
  std::vector<std::pair<std::string, std::uint64_t>> list = {
      {"got_pages", got_},         {"set_pages", set_},   {"set_pages_there_already", there_},
      {"corrupt_pages", corrupt_}, {"full_pages", full_}, {"pages_not_asked_for_in_back_off", backed_off_}};
  for (std::size_t i = 1; i < kRedisTroubles; ++i) {
    list.emplace_back("unreachable_" + std::string(name_of(static_cast<RedisTrouble>(i))), troubles_[i]);
  }
  return list;
}

}  // namespace

std::size_t redis_server_of(const std::vector<RedisServer>& servers, const PageKey& stored_as) {
  std::size_t best = 0;
  std::uint64_t best_score = 0;
  for (std::size_t i = 0; i < servers.size(); ++i) {
    const std::uint64_t score = score_of(servers[i], stored_as);
    const bool tie = i > 0 && score == best_score && servers[i].name() < servers[best].name();
    if (i == 0 || score > best_score || tie) {
      best = i;
      best_score = score;
    }
  }
  return best;
}

std::string check_redis_servers(const RedisConfig& config) {
  const std::shared_ptr<RedisTls> tls = make_redis_tls(config);
  for (const RedisServer& server : config.servers) {
    RedisConnection connection(config, server, tls, kReplySlackBytes);
    RedisTrouble trouble = connection.ready();
    RedisBatch ping;
    ping.connection = &connection;
    ping.commands = 1;
    ping.write_command = [](std::size_t, Words& words) { words = {"PING"}; };
    ping.on_reply = [](std::size_t, const redisReply& reply) {
      if (reply.type == REDIS_REPLY_STATUS) return RedisTrouble::none;
      return reply.type == REDIS_REPLY_ERROR ? trouble_of({reply.str, reply.len}) : RedisTrouble::garbled;
    };
    if (trouble == RedisTrouble::none) {
      execute_batches({&ping, 1}, config.command_timeout);
      trouble = ping.trouble;
    }
    switch (trouble) {
      case RedisTrouble::none: break;
      case RedisTrouble::refused: return "The Redis server " + server.name() + " can't be connected to.";
      case RedisTrouble::untrusted: return "The Redis server " + server.name() + " shows no TLS certificate to trust.";
      case RedisTrouble::slow: return "The Redis server " + server.name() + " doesn't answer in time.";
      case RedisTrouble::denied: return "The Redis server " + server.name() + " denies this user or password.";
      case RedisTrouble::loading: return "The Redis server " + server.name() + " is still loading.";
      case RedisTrouble::error:
        return "The Redis server " + server.name() + " refuses its service (is its database there?).";
      default: return "What answers at " + server.name() + " is no Redis server that serves.";
    }
  }
  return "";
}

std::unique_ptr<StorageBackend> make_redis_backend(const RedisConfig& config, const PageForm& form) {
  return std::make_unique<RedisBackend>(config, form);
}

}  // namespace kvtwin
