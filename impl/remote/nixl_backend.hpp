// A storage back end whose pages NIXL moves: to files of a folder (plugin POSIX), or to objects of an S3 bucket (plugin
// OBJ). See staged_backend.hpp for errors and deadlines.
//
// Files: a file is written under another name and renamed when it is complete. So a reader sees a whole page or none.
// The folder belongs to the user, as that of a shared file system.
//
// Neither medium removes pages by itself: nobody makes room in the folder; a bucket can have rules of its own. Objects
// are removed by libcurl, because NIXL has no such call.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <variant>

#include "impl/remote/nixl_library.hpp"
#include "impl/remote/staged_backend.hpp"

namespace kvtwin {

struct NixlConfig : StagedTerms {
  std::filesystem::path folder;  // of files; empty = S3
  S3Account s3;
  std::string library;  // place for load_nixl
};

// Parses "nixl+posix:///folder[?library=...]" or
// "nixl+obj://bucket?endpoint=http://host:port[&region=...][&library=...]". The keys of the account are not part of the
// URL, because run folders contain URLs. Returns one sentence if the URL is wrong; the sentence does not contain the
// URL.
std::variant<NixlConfig, std::string> parse_nixl_url(std::string_view url);

// Errors: std::runtime_error if NIXL cannot be loaded, or the folder cannot be used. No server must be present.
std::unique_ptr<StagedBackend> make_nixl_backend(const NixlConfig& config, const PageForm& form);

}  // namespace kvtwin
