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
#include <random>
#include <stdexcept>
#include <utility>

#include "impl/disk/own_folder.hpp"
#include "impl/remote/nixl_agent.hpp"
#include "impl/remote/remote_url.hpp"

namespace kvtwin {
namespace {

constexpr const char* kAgent = "kvtwin";
constexpr std::string_view kFilesForm = "nixl+posix:///FOLDER[?library=PLACE]";
constexpr std::string_view kObjectsForm = "nixl+obj://BUCKET?endpoint=http://HOST:PORT[&region=NAME][&library=PLACE]";

// ---- files

class FileValues final : public ValueStore {
 public:
  FileValues(std::shared_ptr<const Descriptor> folder, const NixlFunctions& functions)
      : folder_(std::move(folder)), nixl_(functions, kAgent) {}
  bool open(std::span<std::byte> memory) { return nixl_.open("POSIX", {}, {memory}); }

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
      temporary[i] = names[i] + "." + writer_ + "." + std::to_string(++writes_) + ".tmp";
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
    std::vector<NixlAgent::Transfer> transfers;
    std::vector<std::size_t> moved;
    for (std::size_t i = 0; i < files.size(); ++i) {
      const std::span<std::byte> value = values[which[i]];
      const NixlAgent::Place place{0, value.size(), static_cast<std::uint64_t>(files[i].get())};
      if (!nixl_.add(kNixlFile, place)) continue;
      transfers.push_back({{value}, {place}});
      moved.push_back(which[i]);
    }
    const std::vector<bool> done = nixl_.move(operation, kNixlFile, kAgent, transfers);
    for (std::size_t i = 0; i < moved.size(); ++i) {
      if (done[i]) answers[moved[i]] = ValueAnswer::done;
      nixl_.remove(kNixlFile, transfers[i].places.front());
    }
  }

  const std::shared_ptr<const Descriptor> folder_;
  NixlAgent nixl_;
  // Not the number of the process: other machines have the same ones, and a killed process may have left files.
  const std::string writer_ = std::to_string(std::random_device()());
  std::atomic<std::uint64_t> writes_ = 0;
};

// ---- objects

class ObjectValues final : public ValueStore {
 public:
  ObjectValues(const S3Account& account, long timeout_ms, const NixlFunctions& functions)
      : account_(account), timeout_ms_(timeout_ms), nixl_(functions, kAgent) {}
  bool open(std::span<std::byte> memory) {
    return nixl_.open("OBJ",
                      {{"bucket", account_.bucket},
                       {"endpoint_override", account_.endpoint},
                       {"scheme", account_.endpoint.starts_with("https") ? "https" : "http"},
                       {"region", account_.region},
                       {"access_key", account_.access_key},
                       {"secret_key", account_.secret_key}},
                      {memory});
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
    std::vector<NixlAgent::Transfer> transfers;
    for (std::size_t i = 0; i < names.size(); ++i) {
      transfers.push_back({{memory[i]}, {{0, memory[i].size(), ++objects_, names[i]}}});
      nixl_.add(kNixlObject, transfers.back().places.front());
    }
    const std::vector<bool> done = nixl_.move(operation, kNixlObject, kAgent, transfers);
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (done[i]) answers[i] = ValueAnswer::done;
      nixl_.remove(kNixlObject, transfers[i].places.front());
    }
  }

  const S3Account account_;
  const long timeout_ms_;
  NixlAgent nixl_;
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
  StagedConfig staged{config};
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
  return std::make_unique<StagedBackend>(std::move(staged), form);
}

}  // namespace kvtwin
