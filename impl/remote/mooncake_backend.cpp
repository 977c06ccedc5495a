#include "impl/remote/mooncake_backend.hpp"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "impl/remote/mooncake_library.hpp"
#include "impl/remote/remote_url.hpp"

namespace kvtwin {
namespace {

constexpr std::string_view kMooncakeScheme = "mooncake://";
constexpr std::string_view kMooncakeForm =
    "mooncake://HOST[:PORT][?protocol=tcp|rdma][&device=NAME][&segment_mib=NUMBER][&metadata=ADDRESS][&library=PLACE]";

// Mooncake's error codes that kvtwin tells apart.
enum MooncakeError : std::int64_t {
  kSegmentNotFound = -101,
  kNoAvailableHandle = -200,
  kInvalidParams = -600,
  kReplicaIsNotReady = -703,
  kObjectNotFound = -704,
  kObjectAlreadyExists = -705,
  kObjectHasLease = -706,
  kLeaseExpired = -707,
  kObjectHasReplicationTask = -708,
  kReplicaIsGone = -712,
  kObjectReplicaBusy = -714
};

ValueAnswer answer_of(std::int64_t code) {
  if (code >= 0) return ValueAnswer::done;
  switch (code) {
    case kObjectAlreadyExists: return ValueAnswer::done;
    case kObjectNotFound:
    case kReplicaIsNotReady:
    case kReplicaIsGone: return ValueAnswer::missing;
    case kNoAvailableHandle:
    case kSegmentNotFound: return ValueAnswer::full;
    case kObjectHasLease:
    case kLeaseExpired:
    case kObjectHasReplicationTask:
    case kObjectReplicaBusy: return ValueAnswer::leased;
    default: return ValueAnswer::failed;
  }
}

// Connects to the master and closes the connection. Returns the own address of the connection, or an empty text. The
// library cannot be asked: it tries again and again, and keeps the interpreter's lock for this time.
std::string own_address(const MooncakeConfig& config) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (::getaddrinfo(config.host.c_str(), std::to_string(config.port).c_str(), &hints, &list) != 0) return "";
  std::string own;
  for (const addrinfo* at = list; at != nullptr && own.empty(); at = at->ai_next) {
    const int socket = ::socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (socket < 0) continue;
    bool connected = ::connect(socket, at->ai_addr, at->ai_addrlen) == 0;
    if (!connected && errno == EINPROGRESS) {
      pollfd wait{socket, POLLOUT, 0};
      int error = 0;
      socklen_t length = sizeof error;
      connected = ::poll(&wait, 1, static_cast<int>(std::max<TimeNs>(config.timeout / 1'000'000, 1))) == 1 &&
                  ::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
    }
    sockaddr_storage address{};
    socklen_t length = sizeof address;
    char host[NI_MAXHOST];
    if (connected && ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length) == 0 &&
        ::getnameinfo(reinterpret_cast<sockaddr*>(&address), length, host, sizeof host, nullptr, 0, NI_NUMERICHOST) ==
            0) {
      own = host;
    }
    ::close(socket);
  }
  ::freeaddrinfo(list);
  return own;
}

class MooncakeStore final : public ValueStore {
 public:
  explicit MooncakeStore(const MooncakeFunctions& functions) : functions_(functions), store_(functions.create()) {}
  ~MooncakeStore() override {
    if (store_ == nullptr) return;
    if (staging_ != nullptr) functions_.unregister_buffer(store_, staging_);
    functions_.destroy(store_);
  }

  // Returns an empty text, or a sentence about the failure.
  std::string set_up(const MooncakeConfig& config, const std::string& own_host, std::span<std::byte> staging) {
    if (store_ == nullptr) return "Mooncake makes no client.";
    const int code = functions_.setup(store_, own_host.c_str(), config.metadata.c_str(), config.segment_bytes, 0,
                                      config.rdma ? "rdma" : "tcp", config.device.c_str(), config.master().c_str());
    if (code != 0) {
      return "Mooncake's client can't be set up with the master at " + config.master() + " (error " +
             std::to_string(code) + ").";
    }
    if (functions_.register_buffer(store_, staging.data(), staging.size()) != 0) {
      return "Mooncake doesn't register " + std::to_string(staging.size()) + " bytes of memory.";
    }
    staging_ = staging.data();
    return "";
  }

  void find(Names names, Answers answers) override {
    std::vector<int> codes(names.size(), -1);
    if (functions_.batch_is_exist(store_, keys_of(names).data(), names.size(), codes.data()) != 0) return;
    for (std::size_t i = 0; i < names.size(); ++i) {
      answers[i] = codes[i] == 0 ? ValueAnswer::missing : answer_of(codes[i]);
    }
  }

  void get(Names names, Values values, Answers answers) override {
    std::vector<std::int64_t> codes(names.size(), -1);
    Buffers buffers(values);
    if (functions_.batch_get_into(store_, keys_of(names).data(), buffers.starts.data(), buffers.sizes.data(),
                                  names.size(), codes.data()) != 0) {
      return;
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      answers[i] = answer_of(codes[i]);
      if (codes[i] >= 0 && static_cast<Bytes>(codes[i]) != values[i].size()) answers[i] = ValueAnswer::strange;
      // A longer value does not fit into the buffer.
      if (codes[i] == kInvalidParams) {
        const std::int64_t size = functions_.get_size(store_, names[i].c_str());
        if (size >= 0 && static_cast<Bytes>(size) != values[i].size()) answers[i] = ValueAnswer::strange;
      }
    }
  }

  void put(Names names, Values values, Answers answers) override {
    std::vector<int> codes(names.size(), -1);
    Buffers buffers(values);
    if (functions_.batch_put_from(store_, keys_of(names).data(), buffers.starts.data(), buffers.sizes.data(),
                                  names.size(), nullptr, codes.data()) != 0) {
      return;
    }
    for (std::size_t i = 0; i < names.size(); ++i) answers[i] = answer_of(codes[i]);
  }

  void remove(Names names, Answers answers) override {
    constexpr int kInSpiteOfLeases = 1;
    for (std::size_t i = 0; i < names.size(); ++i) {
      answers[i] = answer_of(functions_.remove(store_, names[i].c_str(), kInSpiteOfLeases));
      if (answers[i] == ValueAnswer::failed) return;  // a master that is gone is asked once
    }
  }

 private:
  struct Buffers {
    explicit Buffers(Values values) {
      for (const std::span<std::byte> value : values) {
        starts.push_back(value.data());
        sizes.push_back(value.size());
      }
    }
    std::vector<void*> starts;
    std::vector<std::size_t> sizes;
  };
  static std::vector<const char*> keys_of(Names names) {
    std::vector<const char*> keys;
    for (const std::string& name : names) keys.push_back(name.c_str());
    return keys;
  }

  const MooncakeFunctions functions_;
  const MooncakeFunctions::Store store_;
  void* staging_ = nullptr;  // registered
};

}  // namespace

std::variant<MooncakeConfig, std::string> parse_mooncake_url(std::string_view url) {
  const auto parsed = parse_remote_url(url, kMooncakeScheme, kMooncakeForm);
  if (const auto* wrong = std::get_if<std::string>(&parsed)) return *wrong;
  const auto& parts = std::get<RemoteUrl>(parsed);
  MooncakeConfig config;
  std::string_view host = parts.place;
  const std::size_t colon = host.rfind(':');
  const bool has_port = colon != std::string_view::npos && host.find(']', colon) == std::string_view::npos;
  if (has_port) {
    const auto port = parse_number(host.substr(colon + 1), 1, 65'535);
    if (!port) return "The port of a Mooncake master is a number from 1 to 65535.";
    config.port = static_cast<int>(*port);
    host = host.substr(0, colon);
  }
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  constexpr std::string_view kHost = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:";
  if (host.empty() || host.find_first_not_of(kHost) != std::string_view::npos) {
    return "The host of a Mooncake master is a name or an address.";
  }
  config.host = host;
  const std::string protocol = parts.setting("protocol", "tcp");
  if (protocol != "tcp" && protocol != "rdma") return "Mooncake's protocol is tcp or rdma.";
  config.rdma = protocol == "rdma";
  config.device = parts.setting("device", "");
  if (!config.device.empty() && !config.rdma) return "Mooncake's device is for protocol=rdma.";
  const auto mib = parse_number(parts.setting("segment_mib", "0"), 0, 1LL << 30);
  if (!mib || (*mib != 0 && *mib < 16)) return "segment_mib is 0, or at least 16 (MiB that kvtwin lends to the store).";
  config.segment_bytes = static_cast<Bytes>(*mib) << 20;
  config.metadata = parts.setting("metadata", config.metadata);
  config.library = parts.setting("library", "");
  return config;
}

OpenedStore open_mooncake(const MooncakeConfig& config, std::span<std::byte> staging) {
  const std::string own = own_address(config);
  if (own.empty()) return {nullptr, "No Mooncake master answers at " + config.master() + "."};
  auto store = std::make_unique<MooncakeStore>(load_mooncake(config.library, config.timeout));
  std::string error = store->set_up(config, own, staging);
  if (!error.empty()) return {nullptr, std::move(error)};
  return {std::move(store), ""};
}

std::unique_ptr<StagedBackend> make_mooncake_backend(const MooncakeConfig& config, const PageForm& form) {
  load_mooncake(config.library, config.timeout);
  StagedConfig staged{config};
  staged.open = [config](std::span<std::byte> staging) { return open_mooncake(config, staging); };
  return std::make_unique<StagedBackend>(std::move(staged), form);
}

}  // namespace kvtwin
