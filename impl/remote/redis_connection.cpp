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

// hiredis writes into broken connections without MSG_NOSIGNAL. This code is a library and must not set the process's
// signal handlers, so it blocks SIGPIPE in the thread during the write.
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

// Commands are copied into hiredis' buffer at once. This limit keeps the buffer small.
constexpr std::size_t kMaxBufferedBytes = 64 << 10;

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

// One batch in progress.
class RedisExchange {
 public:
  explicit RedisExchange(RedisBatch& batch) : batch_(batch), context_(batch.connection->context_.get()) {}

  bool open() const { return batch_.trouble == RedisTrouble::none && batch_.answered < batch_.commands; }
  int descriptor() const { return context_->fd; }
  bool has_to_write() const { return commands_written_ < batch_.commands || flushing_; }
  void fail(RedisTrouble trouble) {
    batch_.trouble = trouble;
    batch_.connection->close();
  }

  void write() {
    std::size_t buffered = 0;
    while (!flushing_ && open() && commands_written_ < batch_.commands && buffered < kMaxBufferedBytes)
      buffered += write_command();
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
      // No command here is answered by an array or by a type of newer protocols. hiredis would allocate as many
      // elements as a server claims, so such replies are refused.
      const bool begins = reader.ridx == -1;
      if (begins && std::string_view("+-:$").find(reader.buf[reader.pos]) == std::string_view::npos) {
        return fail(RedisTrouble::garbled);
      }
      void* got = nullptr;
      if (redisGetReplyFromReader(context_, &got) != REDIS_OK) return fail(RedisTrouble::garbled);
      if (got == nullptr) break;
      const std::unique_ptr<redisReply, ReplyFreer> reply(static_cast<redisReply*>(got));
      const RedisTrouble trouble = batch_.on_reply(batch_.answered, *reply);
      if (trouble != RedisTrouble::none) return fail(trouble);
      ++batch_.answered;
    }
    // More bytes than expected, or a reply longer than any valid one: the connection is out of step.
    const std::size_t left = reader.len - reader.pos;
    if (open() ? left > batch_.connection->longest_reply_ : left > 0) fail(RedisTrouble::garbled);
  }

 private:
  std::size_t write_command() {
    words_.clear();
    batch_.write_command(commands_written_++, words_);
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

  RedisBatch& batch_;
  redisContext* context_;
  std::size_t commands_written_ = 0;
  bool flushing_ = false;
  RedisBatch::Words words_;
  std::vector<const char*> starts_;
  std::vector<std::size_t> lengths_;
};

void execute_batches(std::span<RedisBatch> batches, TimeNs timeout) {
  const NoBrokenPipe no_broken_pipe;
  const Steady::time_point deadline = Steady::now() + std::chrono::nanoseconds(timeout);
  std::vector<RedisExchange> exchanges;
  for (RedisBatch& one : batches) exchanges.emplace_back(one);
  for (;;) {
    std::vector<pollfd> waiting;
    std::vector<RedisExchange*> owners;
    for (RedisExchange& exchange : exchanges) {
      if (!exchange.open()) continue;
      const int events = POLLIN | (exchange.has_to_write() ? POLLOUT : 0);
      waiting.push_back({exchange.descriptor(), static_cast<short>(events), 0});
      owners.push_back(&exchange);
    }
    if (waiting.empty()) return;
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Steady::now());
    const int most = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000));
    const int ready = ::poll(waiting.data(), waiting.size(), most);
    if (ready < 0 && errno == EINTR) continue;
    // This also ends a batch whose bytes arrive one by one.
    if (ready <= 0 || left.count() <= 0) {
      for (RedisExchange* exchange : owners) exchange->fail(RedisTrouble::slow);
      return;
    }
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if ((waiting[i].revents & POLLOUT) != 0) owners[i]->write();
      if (owners[i]->open() && (waiting[i].revents & ~POLLOUT) != 0) owners[i]->read();
    }
  }
}

void RedisConnection::Closer::operator()(redisContext* context) const { redisFree(context); }

RedisConnection::RedisConnection(const RedisConfig& config, const RedisServer& server, std::shared_ptr<RedisTls> tls,
                                 Bytes longest_reply)
    : config_(&config), server_(server), tls_(std::move(tls)), longest_reply_(longest_reply) {}
RedisConnection::~RedisConnection() { close(); }
RedisConnection::RedisConnection(RedisConnection&&) noexcept = default;

// TLS writes a close message into the connection, even if the connection is broken.
void RedisConnection::close() {
  if (context_ == nullptr) return;
  const NoBrokenPipe no_broken_pipe;
  context_.reset();
}

RedisTrouble RedisConnection::ready() {
  if (context_ != nullptr) {
    // No command is open, so readable data means the end of the connection, or a server out of step after a restart.
    pollfd idle{context_->fd, POLLIN, 0};
    if (::poll(&idle, 1, 0) == 0) return RedisTrouble::none;
    close();
  }
  RedisTrouble trouble = connect();
  if (trouble == RedisTrouble::none) trouble = log_in();
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
  reader.maxbuf = 0;  // keeps the buffer of a page between replies
  redisSetTimeout(context_.get(), timeval_of(config_->connect_timeout));
  if (tls_ != nullptr && !tls_->shake_hands(*context_, server_.host)) return RedisTrouble::untrusted;
  // From here on, poll() waits, not hiredis.
  const int flags = ::fcntl(context_->fd, F_GETFL);
  if (flags < 0 || ::fcntl(context_->fd, F_SETFL, flags | O_NONBLOCK) < 0) return RedisTrouble::refused;
  ::fcntl(context_->fd, F_SETFD, FD_CLOEXEC);
  context_->flags &= ~REDIS_BLOCK;
  return RedisTrouble::none;
}

// Sends user, password and database.
RedisTrouble RedisConnection::log_in() {
  std::vector<RedisBatch::Words> commands;
  const std::string database = std::to_string(config_->database);
  if (!config_->user.empty() || !config_->password.empty()) {
    commands.push_back({"AUTH"});
    if (!config_->user.empty()) commands.back().push_back(config_->user);
    commands.back().push_back(config_->password);
  }
  if (config_->database != 0) commands.push_back({"SELECT", database});
  RedisBatch login;
  login.connection = this;
  login.commands = commands.size();
  login.write_command = [&](std::size_t i, RedisBatch::Words& words) { words = commands[i]; };
  login.on_reply = [](std::size_t, const redisReply& reply) {
    if (reply.type == REDIS_REPLY_STATUS) return RedisTrouble::none;
    return reply.type == REDIS_REPLY_ERROR ? trouble_of({reply.str, reply.len}) : RedisTrouble::garbled;
  };
  execute_batches({&login, 1}, config_->connect_timeout);
  return login.trouble;
}

}  // namespace kvtwin
