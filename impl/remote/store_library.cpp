#include "impl/remote/store_library.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "impl/runtime/shared_library.hpp"
#include "kvtwin/store_library.h"

namespace kvtwin {
namespace {

constexpr std::string_view kLibraryScheme = "library:";
constexpr const char* kLibraryAdvice = "docs/storage.md says how a store library is built";

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw std::runtime_error(path + ": " + what);
}

const kvtwin_store_functions* load_store_library(const std::string& path) {
  std::error_code error;
  const std::string whole = std::filesystem::weakly_canonical(path, error).string();
  if (error || !std::filesystem::is_regular_file(whole, error)) {
    refuse(path, std::string("there is no such file; give the path of a store library; ") + kLibraryAdvice);
  }
  const SharedLibrary library("the store library " + path, {whole}, kLibraryAdvice);
  const auto* const functions = library.find_optional<const kvtwin_store_functions*>("kvtwin_store_library");
  if (functions == nullptr) {
    refuse(path, std::string("is no store library: it has no kvtwin_store_library; ") + kLibraryAdvice);
  }
  if (functions->version != KVTWIN_STORE_LIBRARY_VERSION) {
    refuse(path, "was built for another kvtwin: its version is " + std::to_string(functions->version) +
                     ", that of this program " + std::to_string(KVTWIN_STORE_LIBRARY_VERSION) +
                     "; build it again with the header of this kvtwin");
  }
  const bool is_whole = functions->struct_size >= sizeof(kvtwin_store_functions) && functions->open != nullptr &&
                        functions->close != nullptr && functions->look_up != nullptr && functions->get != nullptr &&
                        functions->put != nullptr && functions->remove != nullptr;
  if (!is_whole) refuse(path, "its kvtwin_store_library lacks a function, or its struct_size is wrong");
  return functions;
}

// The names of a StagedBackend are "kvtwin:", with a secret its id and ":", and 32 hex digits (remote_name.hpp). The
// library's name has the hash first, then the id.
kvtwin_key library_name(const std::string& name) {
  constexpr std::size_t kHashDigits = 32, kWordDigits = 16, kSecretDigits = 8;
  kvtwin_key key{};
  const auto put_hex = [&](std::size_t at, std::string_view digits) {
    for (std::size_t i = 0; i < digits.size(); i += 2) {
      std::from_chars(digits.data() + i, digits.data() + i + 2, key.bytes[at + i / 2], 16);
    }
  };
  const std::string_view text = name;
  const std::string_view hash = text.substr(text.size() - kHashDigits);
  put_hex(0, hash);
  const std::string_view rest = text.substr(0, text.size() - kHashDigits);
  if (rest.size() > kSecretDigits + 1)
    put_hex(kWordDigits, rest.substr(rest.size() - 1 - kSecretDigits, kSecretDigits));
  return key;
}

ValueAnswer value_answer(std::uint8_t answer) {
  switch (answer) {
    case KVTWIN_ANSWER_DONE: return ValueAnswer::done;
    case KVTWIN_ANSWER_MISSING: return ValueAnswer::missing;
    case KVTWIN_ANSWER_FULL: return ValueAnswer::full;
    case KVTWIN_ANSWER_OTHER: return ValueAnswer::strange;
    default: return ValueAnswer::failed;
  }
}

class LibraryStore final : public ValueStore {
 public:
  // `store`: of open(), closed by this object.
  LibraryStore(const kvtwin_store_functions* functions, void* store) : functions_(functions), store_(store) {}
  ~LibraryStore() override {
    try {
      functions_->close(store_);
    } catch (...) {  // nobody is left to be told
    }
  }

  void find(Names names, Answers answers) override {
    call(names, answers,
         [&](const kvtwin_key* keys, std::uint8_t* codes) { functions_->look_up(store_, keys, names.size(), codes); });
  }
  void get(Names names, Values values, Answers answers) override {
    std::vector<void*> memory;
    for (const std::span<std::byte> value : values) memory.push_back(value.data());
    call(names, answers, [&](const kvtwin_key* keys, std::uint8_t* codes) {
      functions_->get(store_, keys, names.size(), memory.data(), codes);
    });
  }
  void put(Names names, Values values, Answers answers) override {
    std::vector<const void*> memory;
    for (const std::span<std::byte> value : values) memory.push_back(value.data());
    call(names, answers, [&](const kvtwin_key* keys, std::uint8_t* codes) {
      functions_->put(store_, keys, names.size(), memory.data(), codes);
    });
  }
  void remove(Names names, Answers answers) override {
    call(names, answers,
         [&](const kvtwin_key* keys, std::uint8_t* codes) { functions_->remove(store_, keys, names.size(), codes); });
  }

 private:
  template <class Call>
  static void call(Names names, Answers answers, Call call) {
    std::vector<kvtwin_key> keys(names.size());
    std::ranges::transform(names, keys.begin(), library_name);
    std::vector<std::uint8_t> codes(names.size(), KVTWIN_ANSWER_FAILED);
    call(keys.data(), codes.data());
    std::ranges::transform(codes, answers.begin(), value_answer);
  }

  const kvtwin_store_functions* functions_;
  void* store_;
};

OpenedStore open_library(const kvtwin_store_functions* functions, const StoreLibraryConfig& config, Bytes value_bytes) {
  const kvtwin_store_terms terms{sizeof(kvtwin_store_terms), config.text.c_str(), config.password.c_str(),
                                 config.pool.c_str(), value_bytes};
  std::array<char, 512> text{};
  void* const store = functions->open(&terms, {text.data(), text.size()});
  if (store != nullptr) return {std::make_unique<LibraryStore>(functions, store), ""};
  text.back() = '\0';
  const std::string said = text.data();
  return {nullptr, "The store library " + config.library + " opens no store" + (said.empty() ? "." : ": " + said)};
}

}  // namespace

std::variant<StoreLibraryConfig, std::string> parse_library_url(std::string_view url) {
  constexpr const char* kWrong = "The URL of a store library is library:FILE[?TEXT], in characters of ASCII.";
  if (!url.starts_with(kLibraryScheme)) return kWrong;
  url.remove_prefix(kLibraryScheme.size());
  for (const char character : url) {
    if (character < ' ' || character > '~') return kWrong;
  }
  StoreLibraryConfig config;
  const std::size_t mark = std::min(url.find('?'), url.size());
  config.library = url.substr(0, mark);
  if (mark < url.size()) config.text = url.substr(mark + 1);
  if (config.library.empty()) return kWrong;
  return config;
}

std::unique_ptr<StagedBackend> make_library_backend(const StoreLibraryConfig& config, const PageForm& form) {
  const kvtwin_store_functions* const functions = load_store_library(config.library);
  StagedConfig staged{config};
  staged.open = [functions, config, bytes = kPageHeaderBytes + form.bytes()](std::span<std::byte>) {
    return open_library(functions, config, bytes);
  };
  return std::make_unique<StagedBackend>(std::move(staged), form);
}

}  // namespace kvtwin
