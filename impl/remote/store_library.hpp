// A storage back end on a store library (include/kvtwin/store_library.h): a shared library of the user's own, which
// keeps values under names. See staged_backend.hpp for errors and deadlines.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "impl/remote/staged_backend.hpp"

namespace kvtwin {

struct StoreLibraryConfig : StagedTerms {
  std::string library;   // path of the file
  std::string text;      // for the library
  std::string password;  // for the library; empty = none
  std::string pool;      // name of the pool; empty = pages
};

// Parses "library:/path/file.so[?text]". Returns one sentence if the URL is wrong; the sentence does not contain it.
std::variant<StoreLibraryConfig, std::string> parse_library_url(std::string_view url);

// Loads the library, which stays loaded until the process ends. The store is opened at its first use.
// Errors: std::runtime_error, one sentence, if there is no such store library.
std::unique_ptr<StagedBackend> make_library_backend(const StoreLibraryConfig& config, const PageForm& form);

}  // namespace kvtwin
