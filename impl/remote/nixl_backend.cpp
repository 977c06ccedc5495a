#include "impl/remote/nixl_backend.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

#include "impl/disk/own_folder.hpp"
#include "impl/remote/remote_url.hpp"

namespace kvtwin {
namespace {

using Handle = NixlFunctions::Handle;
constexpr const char* kAgent = "kvtwin";
constexpr std::string_view kFilesForm = "nixl+posix:///FOLDER[?library=PLACE]";
constexpr std::string_view kObjectsForm = "nixl+obj://BUCKET?endpoint=http://HOST:PORT[&region=NAME][&library=PLACE]";

// Owns a handle of NIXL.
class Owned {
 public:
  explicit Owned(int (*destroy)(Handle)) : destroy_(destroy) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) destroy_(handle);
  }
  Handle handle = nullptr;

 private:
  int (*const destroy_)(Handle);
};

// An agent of NIXL with one plugin, which moves values between registered memory and places of the plugin.
class Nixl {
 public:
  explicit Nixl(const NixlFunctions& functions)
      : functions_(functions),
        agent_(functions.destroy_agent),
        backend_(functions.destroy_backend),
        arguments_(functions.destroy_opt_args) {}
  ~Nixl() {
    if (memory_.data() != nullptr) change_registration(kNixlDram, memory_place(), functions_.deregister_mem);
  }

  // A place of the plugin: a file, or an object with a name.
  struct Place {
    std::uintptr_t address = 0;
    std::size_t bytes = 0;
    std::uint64_t device = 0;
    std::string name = {};
  };

  // Returns whether all steps succeeded.
  bool open(const char* plugin, const std::vector<std::pair<std::string, std::string>>& settings,
            std::span<std::byte> memory) {
    NixlFunctions::AgentConfig config;
    config.thread_sync = kNixlStrict;
    Owned params(functions_.destroy_params), memories(functions_.destroy_mem_list);
    if (functions_.create_configured_agent(kAgent, &config, &agent_.handle) != 0 ||
        functions_.get_plugin_params(agent_.handle, plugin, &memories.handle, &params.handle) != 0) {
      return false;
    }
    for (const auto& [key, value] : settings) {
      if (functions_.params_add(params.handle, key.c_str(), value.c_str()) != 0) return false;
    }
    if (functions_.create_backend(agent_.handle, plugin, params.handle, &backend_.handle) != 0 ||
        functions_.create_opt_args(&arguments_.handle) != 0 ||
        functions_.opt_args_add_backend(arguments_.handle, backend_.handle) != 0) {
      return false;
    }
    const Place place{reinterpret_cast<std::uintptr_t>(memory.data()), memory.size()};
    if (!change_registration(kNixlDram, place, functions_.register_mem)) return false;
    memory_ = memory;
    return true;
  }

  bool add(int kind, const Place& place) { return change_registration(kind, place, functions_.register_mem); }
  void remove(int kind, const Place& place) { change_registration(kind, place, functions_.deregister_mem); }

  // Moves values between memory and added places of one kind, all at the same time. Returns whether each succeeded.
  std::vector<bool> move(int operation, int kind, const std::vector<std::span<std::byte>>& values,
                         const std::vector<Place>& places) {
    std::vector<Handle> requests(values.size(), nullptr);
    std::vector<int> states(values.size(), -1);
    for (std::size_t i = 0; i < values.size(); ++i) {
      Owned local(functions_.destroy_xfer_dlist), remote(functions_.destroy_xfer_dlist);
      const auto address = reinterpret_cast<std::uintptr_t>(values[i].data());
      if (functions_.create_xfer_dlist(kNixlDram, &local.handle) != 0 ||
          functions_.xfer_dlist_add_desc(local.handle, address, values[i].size(), 0) != 0 ||
          functions_.create_xfer_dlist(kind, &remote.handle) != 0 ||
          functions_.xfer_dlist_add_desc(remote.handle, 0, values[i].size(), places[i].device) != 0 ||
          functions_.create_xfer_req(agent_.handle, operation, local.handle, remote.handle, kAgent, &requests[i],
                                     arguments_.handle) != 0) {
        continue;
      }
      states[i] = functions_.post_xfer_req(agent_.handle, requests[i], nullptr);
    }
    while (std::ranges::count(states, kNixlInProgress) > 0) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        if (states[i] == kNixlInProgress) states[i] = functions_.get_xfer_status(agent_.handle, requests[i]);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));  // NIXL can only be asked again
    }
    std::vector<bool> done;
    for (std::size_t i = 0; i < values.size(); ++i) {
      done.push_back(states[i] == 0);
      if (requests[i] == nullptr) continue;
      functions_.release_xfer_req(agent_.handle, requests[i]);
      functions_.destroy_xfer_req(requests[i]);
    }
    return done;
  }

  // Asks which objects there are. Returns false if the plugin cannot tell.
  bool exist(ValueStore::Names names, std::vector<bool>& there) {
    Owned list(functions_.destroy_reg_dlist), answers(functions_.destroy_query_resp_list);
    if (functions_.create_reg_dlist(kNixlObject, &list.handle) != 0 ||
        functions_.create_query_resp_list(&answers.handle) != 0) {
      return false;
    }
    for (const std::string& name : names) {
      if (functions_.reg_dlist_add_desc(list.handle, 0, 0, 0, name.data(), name.size()) != 0) return false;
    }
    if (functions_.query_mem(agent_.handle, list.handle, answers.handle, arguments_.handle) != 0) return false;
    for (std::size_t i = 0; i < names.size(); ++i) {
      bool has_value = false;
      if (functions_.query_resp_list_has_value(answers.handle, i, &has_value) != 0) return false;
      there.push_back(has_value);
    }
    return true;
  }

 private:
  Place memory_place() const { return {reinterpret_cast<std::uintptr_t>(memory_.data()), memory_.size()}; }
  bool change_registration(int kind, const Place& place, int (*change)(Handle, Handle, Handle)) {
    Owned list(functions_.destroy_reg_dlist);
    return functions_.create_reg_dlist(kind, &list.handle) == 0 &&
           functions_.reg_dlist_add_desc(list.handle, place.address, place.bytes, place.device, place.name.data(),
                                         place.name.size()) == 0 &&
           change(agent_.handle, list.handle, arguments_.handle) == 0;
  }

  const NixlFunctions functions_;
  Owned agent_, backend_, arguments_;
  std::span<std::byte> memory_;  // registered
};

// ---- files

class FileValues final : public ValueStore {
 public:
  FileValues(std::shared_ptr<const Descriptor> folder, const NixlFunctions& functions)
      : folder_(std::move(folder)), nixl_(functions) {}
  bool open(std::span<std::byte> memory) { return nixl_.open("POSIX", {}, memory); }

  void find(Names names, Answers answers) override {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (::faccessat(folder_->get(), names[i].c_str(), F_OK, 0) == 0) {
        answers[i] = ValueAnswer::done;
      } else if (errno == ENOENT) {
        answers[i] = ValueAnswer::missing;
      }
    }
  }

  void get(Names names, Values values, Answers answers) override {
    std::vector<Descriptor> files;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < names.size(); ++i) {
      Descriptor file(::openat(folder_->get(), names[i].c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
      struct stat found {};
      if (file.get() < 0) {
        if (errno == ENOENT) answers[i] = ValueAnswer::missing;
      } else if (::fstat(file.get(), &found) == 0 && static_cast<Bytes>(found.st_size) != values[i].size()) {
        answers[i] = ValueAnswer::strange;
      } else {
        files.push_back(std::move(file));
        which.push_back(i);
      }
    }
    move(kNixlRead, files, which, values, answers);
  }

  void put(Names names, Values values, Answers answers) override {
    std::vector<Descriptor> files;
    std::vector<std::size_t> which;
    std::vector<std::string> temporary(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      temporary[i] = names[i] + "." + std::to_string(::getpid()) + "." + std::to_string(++writes_) + ".tmp";
      Descriptor file(::openat(folder_->get(), temporary[i].c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                               S_IRUSR | S_IWUSR));
      if (file.get() < 0) continue;
      // Writes to reserved room do not fail because the disk is full.
      const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(values[i].size()));
      if (error == 0) {
        files.push_back(std::move(file));
        which.push_back(i);
        continue;
      }
      if (error == ENOSPC || error == EDQUOT || error == EFBIG) answers[i] = ValueAnswer::full;
      ::unlinkat(folder_->get(), temporary[i].c_str(), 0);
    }
    move(kNixlWrite, files, which, values, answers);
    for (const std::size_t i : which) {
      const char* name = temporary[i].c_str();
      if (answers[i] != ValueAnswer::done) {
        ::unlinkat(folder_->get(), name, 0);
      } else if (::renameat(folder_->get(), name, folder_->get(), names[i].c_str()) != 0) {
        answers[i] = ValueAnswer::failed;
      }
    }
  }

  void remove(Names names, Answers answers) override {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (::unlinkat(folder_->get(), names[i].c_str(), 0) == 0) {
        answers[i] = ValueAnswer::done;
      } else if (errno == ENOENT) {
        answers[i] = ValueAnswer::missing;
      }
    }
  }

 private:
  void move(int operation, const std::vector<Descriptor>& files, const std::vector<std::size_t>& which, Values values,
            Answers answers) {
    std::vector<std::span<std::byte>> memory;
    std::vector<Nixl::Place> places;
    std::vector<std::size_t> moved;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::span<std::byte> value = values[which[i]];
      const Nixl::Place place{0, value.size(), static_cast<std::uint64_t>(files[i].get())};
      if (!nixl_.add(kNixlFile, place)) continue;
      memory.push_back(value);
      places.push_back(place);
      moved.push_back(which[i]);
    }
    const std::vector<bool> done = nixl_.move(operation, kNixlFile, memory, places);
    for (std::size_t i = 0; i < moved.size(); ++i) {
      if (done[i]) answers[moved[i]] = ValueAnswer::done;
      nixl_.remove(kNixlFile, places[i]);
    }
  }

  const std::shared_ptr<const Descriptor> folder_;
  Nixl nixl_;
  std::atomic<std::uint64_t> writes_ = 0;
};

// ---- objects

class ObjectValues final : public ValueStore {
 public:
  ObjectValues(const S3Account& account, long timeout_ms, const NixlFunctions& functions)
      : account_(account), timeout_ms_(timeout_ms), nixl_(functions) {}
  bool open(std::span<std::byte> memory) {
    return nixl_.open("OBJ",
                      {{"bucket", account_.bucket},
                       {"endpoint_override", account_.endpoint},
                       {"scheme", account_.endpoint.starts_with("https") ? "https" : "http"},
                       {"region", account_.region},
                       {"access_key", account_.access_key},
                       {"secret_key", account_.secret_key}},
                      memory);
  }

  void find(Names names, Answers answers) override {
    std::vector<bool> there;
    if (!nixl_.exist(names, there)) return;
    for (std::size_t i = 0; i < names.size(); ++i) answers[i] = there[i] ? ValueAnswer::done : ValueAnswer::missing;
  }

  // NIXL reports success for objects that are shorter or longer than the value. Therefore the bytes at the value's end
  // and behind it are known before: a shorter object leaves the first ones, which fails the page's check, and a longer
  // one changes the others.
  void get(Names names, Values values, Answers answers) override {
    std::vector<std::span<std::byte>> memory;
    for (const std::span<std::byte> value : values) {
      const std::size_t tail = std::min(value.size(), kValueSlackBytes);
      std::memset(value.data() + value.size() - tail, kFiller, tail + kValueSlackBytes);
      memory.emplace_back(value.data(), value.size() + kValueSlackBytes);
    }
    move(kNixlRead, names, memory, answers);
    std::vector<std::string> unread;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto behind = memory[i].subspan(values[i].size());
      const bool longer = std::ranges::any_of(behind, [](std::byte byte) { return byte != std::byte{kFiller}; });
      if (answers[i] == ValueAnswer::done && longer) answers[i] = ValueAnswer::strange;
      if (answers[i] == ValueAnswer::failed) {
        unread.push_back(names[i]);
        which.push_back(i);
      }
    }
    // The reason of a failure is not told.
    std::vector<bool> there;
    if (unread.empty() || !nixl_.exist(unread, there)) return;
    for (std::size_t i = 0; i < unread.size(); ++i) {
      // An empty object has no range of bytes that could be read.
      answers[which[i]] = there[i] ? ValueAnswer::strange : ValueAnswer::missing;
    }
  }

  void put(Names names, Values values, Answers answers) override {
    move(kNixlWrite, names, {values.begin(), values.end()}, answers);
  }

  void remove(Names names, Answers answers) override {
    for (std::size_t i = 0; i < names.size(); ++i) {
      constexpr long kOk = 200, kNoContent = 204, kNotFound = 404;
      const long status = request_s3(account_, "DELETE", names[i], timeout_ms_);
      if (status != kOk && status != kNoContent && status != kNotFound) return;
      answers[i] = ValueAnswer::done;
    }
  }

 private:
  static constexpr unsigned char kFiller = 0xA5;

  void move(int operation, Names names, const std::vector<std::span<std::byte>>& memory, Answers answers) {
    std::vector<Nixl::Place> places;
    for (std::size_t i = 0; i < names.size(); ++i) {
      places.push_back({0, memory[i].size(), ++objects_, names[i]});
      nixl_.add(kNixlObject, places.back());
    }
    const std::vector<bool> done = nixl_.move(operation, kNixlObject, memory, places);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (done[i]) answers[i] = ValueAnswer::done;
      nixl_.remove(kNixlObject, places[i]);
    }
  }

  const S3Account account_;
  const long timeout_ms_;
  Nixl nixl_;
  std::atomic<std::uint64_t> objects_ = 0;  // NIXL tells objects apart by numbers
};

// Returns an empty text if the status is that of a bucket that can be listed, else a sentence.
std::string error_of_bucket(const S3Account& account, long status) {
  constexpr long kNoAnswer = 0, kOk = 200, kForbidden = 403, kNotFound = 404;
  const std::string server = "The S3 server " + account.endpoint;
  switch (status) {
    case kOk: return "";
    case kNoAnswer: return server + " doesn't answer.";
    case kForbidden: return server + " refuses these keys.";
    case kNotFound: return server + " has no such bucket.";
    default: return server + " answers a listing of the bucket with status " + std::to_string(status) + ".";
  }
}

}  // namespace

std::variant<NixlConfig, std::string> parse_nixl_url(std::string_view url) {
  constexpr std::string_view kFiles = "nixl+posix://", kObjects = "nixl+obj://";
  const bool files = url.starts_with(kFiles);
  const auto parsed = parse_remote_url(url, files ? kFiles : kObjects, files ? kFilesForm : kObjectsForm);
  if (const auto* wrong = std::get_if<std::string>(&parsed)) return *wrong;
  const auto& parts = std::get<RemoteUrl>(parsed);
  NixlConfig config;
  config.library = parts.setting("library", "");
  if (files) {
    config.folder = parts.place;
    if (!config.folder.is_absolute()) return "The folder in " + std::string(kFilesForm) + " begins with '/'.";
    return config;
  }
  config.s3.bucket = parts.place;
  config.s3.endpoint = parts.setting("endpoint", "");
  config.s3.region = parts.setting("region", "us-east-1");
  constexpr std::string_view kBucket = "abcdefghijklmnopqrstuvwxyz0123456789.-";
  if (config.s3.bucket.empty() || config.s3.bucket.find_first_not_of(kBucket) != std::string::npos) {
    return "The bucket in " + std::string(kObjectsForm) + " is made of small letters, digits, '.' and '-'.";
  }
  if (!config.s3.endpoint.starts_with("http://") && !config.s3.endpoint.starts_with("https://")) {
    return "The endpoint in " + std::string(kObjectsForm) + " begins with http:// or https://.";
  }
  if (config.s3.endpoint.ends_with('/')) config.s3.endpoint.pop_back();
  return config;
}

std::unique_ptr<StagedBackend> make_nixl_backend(const NixlConfig& config, const PageForm& form) {
  const NixlFunctions functions = load_nixl(config.library);
  StagedConfig staged;
  if (config.folder.empty()) {
    staged.keys_per_look_up = 64;  // each is a request of its own
    staged.open = [config, functions](std::span<std::byte> staging) -> OpenedStore {
      const auto timeout_ms = static_cast<long>(std::max<TimeNs>(config.timeout / 1'000'000, 1));
      std::string error = error_of_bucket(config.s3, request_s3(config.s3, "GET", "", timeout_ms));
      if (!error.empty()) return {nullptr, std::move(error)};
      auto values = std::make_unique<ObjectValues>(config.s3, timeout_ms, functions);
      if (values->open(staging)) return {std::move(values), ""};
      return {nullptr, "NIXL's plugin OBJ can't be used."};
    };
  } else {
    auto folder = std::make_shared<const Descriptor>(open_own_folder(config.folder, "remote tier"));
    staged.open = [folder, functions](std::span<std::byte> staging) -> OpenedStore {
      auto values = std::make_unique<FileValues>(folder, functions);
      if (values->open(staging)) return {std::move(values), ""};
      return {nullptr, "NIXL's plugin POSIX can't be used."};
    };
  }
  staged.timeout = config.timeout;
  staged.back_off = config.back_off;
  staged.bytes_in_flight = config.bytes_in_flight;
  staged.seal = config.seal;
  staged.now = config.now;
  return std::make_unique<StagedBackend>(std::move(staged), form);
}

}  // namespace kvtwin
