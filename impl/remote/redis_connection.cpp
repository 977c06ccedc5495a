#include "impl/remote/redis_connection.hpp"

#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "impl/remote/redis_tls.hpp"

namespace kvtwin {
namespace {

using Steady = std::chrono::steady_clock;

// hiredis writes into broken connections without asking for no signal. Ours is a library's thread: the process's
// handlers are not for us to set.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;
  ~NoBrokenPipe() {
    const timespec at_once{};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &at_once) < 0 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t pipe_, before_;
  bool was_pending_ = false;
};

timeval timeval_of(TimeNs time) {
  return {static_cast<time_t>(time / kNsPerSecond), static_cast<suseconds_t>(time % kNsPerSecond / 1000)};
}

struct ReplyFreer {
  void operator()(void* reply) const { freeReplyObject(reply); }
};

RedisTrouble trouble_of_context(const redisContext& context) {
  return context.err == REDIS_ERR_IO || context.err == REDIS_ERR_EOF ? RedisTrouble::closed : RedisTrouble::garbled;
}

// Words are copied at once into hiredis' buffer, so that few commands lie there at a time.
constexpr std::size_t kBufferedBytes = 64 << 10;

}  // namespace

std::string_view name_of(RedisTrouble trouble) {
  switch (trouble) {
    case RedisTrouble::none: return "none";
    case RedisTrouble::refused: return "refused";
    case RedisTrouble::untrusted: return "untrusted";
    case RedisTrouble::slow: return "slow";
    case RedisTrouble::closed: return "closed";
    case RedisTrouble::garbled: return "garbled";
    case RedisTrouble::denied: return "denied";
    case RedisTrouble::loading: return "loading";
    case RedisTrouble::read_only: return "read_only";
    case RedisTrouble::error: return "error";
  }
  return "?";
}

RedisTrouble trouble_of(std::string_view error) {
  const std::string_view word = error.substr(0, error.find(' '));
  if (word == "LOADING" || word == "BUSY" || word == "MASTERDOWN") return RedisTrouble::loading;
  if (word == "READONLY") return RedisTrouble::read_only;
  for (const std::string_view denied :
       {"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "ERR AUTH", "ERR Client sent AUTH", "ERR invalid password"}) {
    if (error.starts_with(denied)) return RedisTrouble::denied;
  }
  return RedisTrouble::error;
}

// One talk under way.
class RedisExchange {
 public:
  explicit RedisExchange(RedisTalk& talk) : talk_(talk), context_(talk.connection->context_.get()) {}

  bool open() const { return talk_.trouble == RedisTrouble::none && talk_.answered < talk_.commands; }
  int descriptor() const { return context_->fd; }
  bool has_to_say() const { return said_ < talk_.commands || flushing_; }
  void fail(RedisTrouble trouble) {
    talk_.trouble = trouble;
    talk_.connection->close();
  }

  void write() {
    std::size_t buffered = 0;
    while (!flushing_ && open() && said_ < talk_.commands && buffered < kBufferedBytes) buffered += say();
    if (!open()) return;
    flushing_ = true;
    int written = 0;
    if (redisBufferWrite(context_, &written) != REDIS_OK) return fail(trouble_of_context(*context_));
    flushing_ = written == 0;
  }
  void read() {
    if (redisBufferRead(context_) != REDIS_OK) return fail(trouble_of_context(*context_));
    const redisReader& reader = *context_->reader;
    while (open() && reader.len > reader.pos) {
      // Nothing that we ask is answered by an array or what newer protocols have; hiredis would make room for any
      // number of elements that a server claims.
      const bool begins = reader.ridx == -1;
      if (begins && std::string_view("+-:$").find(reader.buf[reader.pos]) == std::string_view::npos) {
        return fail(RedisTrouble::garbled);
      }
      void* got = nullptr;
      if (redisGetReplyFromReader(context_, &got) != REDIS_OK) return fail(RedisTrouble::garbled);
      if (got == nullptr) break;
      const std::unique_ptr<redisReply, ReplyFreer> reply(static_cast<redisReply*>(got));
      const RedisTrouble trouble = talk_.hear(talk_.answered, *reply);
      if (trouble != RedisTrouble::none) return fail(trouble);
      ++talk_.answered;
    }
    // More than was asked for, or a reply longer than any: out of step.
    const std::size_t left = reader.len - reader.pos;
    if (open() ? left > talk_.connection->longest_reply_ : left > 0) fail(RedisTrouble::garbled);
  }

 private:
  std::size_t say() {
    words_.clear();
    talk_.say(said_++, words_);
    lengths_.clear();
    starts_.clear();
    std::size_t bytes = 0;
    for (const std::string_view word : words_) {
      starts_.push_back(word.data());
      lengths_.push_back(word.size());
      bytes += word.size();
    }
    if (redisAppendCommandArgv(context_, static_cast<int>(words_.size()), starts_.data(), lengths_.data()) !=
        REDIS_OK) {
      fail(RedisTrouble::error);
    }
    return bytes;
  }

  RedisTalk& talk_;
  redisContext* context_;
  std::size_t said_ = 0;
  bool flushing_ = false;
  RedisTalk::Words words_;
  std::vector<const char*> starts_;
  std::vector<std::size_t> lengths_;
};

void talk(std::span<RedisTalk> talks, TimeNs timeout) {
  const NoBrokenPipe no_broken_pipe;
  const Steady::time_point deadline = Steady::now() + std::chrono::nanoseconds(timeout);
  std::vector<RedisExchange> exchanges;
  for (RedisTalk& one : talks) exchanges.emplace_back(one);
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<RedisExchange*> whose;
    for (RedisExchange& exchange : exchanges) {
      if (!exchange.open()) continue;
      const int events = POLLIN | (exchange.has_to_say() ? POLLOUT : 0);
      waiting.push_back({exchange.descriptor(), static_cast<short>(events), 0});
      whose.push_back(&exchange);
    }
    if (waiting.empty()) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now());
    const int most = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
    const int ready = ::poll(waiting.data(), waiting.size(), most);
    if (ready < 0 && errno == EINTR) continue;
    // Also while bytes drip in.
    if (ready <= 0 || left.count() <= 0) {
      for (RedisExchange* exchange : whose) exchange->fail(RedisTrouble::slow);
      return;
    }
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if ((waiting[i].revents & POLLOUT) != 0) whose[i]->write();
      if (whose[i]->open() && (waiting[i].revents & ~POLLOUT) != 0) whose[i]->read();
    }
  }
}

void RedisConnection::Closer::operator()(redisContext* context) const { redisFree(context); }

RedisConnection::RedisConnection(const RedisConfig& config, const RedisServer& server, std::shared_ptr<RedisTls> tls,
                                 Bytes longest_reply)
    : config_(&config), server_(server), tls_(std::move(tls)), longest_reply_(longest_reply) {}
RedisConnection::~RedisConnection() { close(); }
RedisConnection::RedisConnection(RedisConnection&&) noexcept = default;

// TLS says goodbye into the connection, broken or not.
void RedisConnection::close() {
  if (context_ == nullptr) return;
  const NoBrokenPipe no_broken_pipe;
  context_.reset();
}

RedisTrouble RedisConnection::ready() {
  if (context_ != nullptr) {
    // Nothing has been asked, so anything to read is an end or a server out of step: as after its restart.
    pollfd idle{context_->fd, POLLIN, 0};
    if (::poll(&idle, 1, 0) == 0) return RedisTrouble::none;
    close();
  }
  RedisTrouble trouble = connect();
  if (trouble == RedisTrouble::none) trouble = introduce();
  if (trouble != RedisTrouble::none) close();
  return trouble;
}

RedisTrouble RedisConnection::connect() {
  const NoBrokenPipe no_broken_pipe;
  if (config_->dial) {
    const int descriptor = config_->dial(server_);
    if (descriptor < 0) return RedisTrouble::refused;
    context_.reset(redisConnectFd(descriptor));
  } else {
    context_.reset(redisConnectWithTimeout(server_.host.c_str(), server_.port, timeval_of(config_->connect_timeout)));
  }
  if (context_ == nullptr || context_->err != 0) return RedisTrouble::refused;
  redisReader& reader = *context_->reader;
  reader.maxbuf = 0;  // a page's buffer isn't given back between pages
  redisSetTimeout(context_.get(), timeval_of(config_->connect_timeout));
  if (tls_ != nullptr && !tls_->shake_hands(*context_, server_.host)) return RedisTrouble::untrusted;
  // From here on poll() waits, not hiredis.
  const int flags = ::fcntl(context_->fd, F_GETFL);
  if (flags < 0 || ::fcntl(context_->fd, F_SETFL, flags | O_NONBLOCK) < 0) return RedisTrouble::refused;
  ::fcntl(context_->fd, F_SETFD, FD_CLOEXEC);
  context_->flags &= ~REDIS_BLOCK;
  return RedisTrouble::none;
}

// Who we are, and which database we mean.
RedisTrouble RedisConnection::introduce() {
  std::vector<RedisTalk::Words> commands;
  const std::string database = std::to_string(config_->database);
  if (!config_->user.empty() || !config_->password.empty()) {
    commands.push_back({"AUTH"});
    if (!config_->user.empty()) commands.back().push_back(config_->user);
    commands.back().push_back(config_->password);
  }
  if (config_->database != 0) commands.push_back({"SELECT", database});
  RedisTalk introduction;
  introduction.connection = this;
  introduction.commands = commands.size();
  introduction.say = [&](std::size_t i, RedisTalk::Words& words) { words = commands[i]; };
  introduction.hear = [](std::size_t, const redisReply& reply) {
    if (reply.type == REDIS_REPLY_STATUS) return RedisTrouble::none;
    return reply.type == REDIS_REPLY_ERROR ? trouble_of({reply.str, reply.len}) : RedisTrouble::garbled;
  };
  talk({&introduction, 1}, config_->connect_timeout);
  return introduction.trouble;
}

}  // namespace kvtwin
