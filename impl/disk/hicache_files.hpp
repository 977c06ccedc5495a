// A disk tier in the format of SGLang HiCache's file back end. Names and bytes are equal, so each program reads the
// pages of the other. One file per page and rank, in one folder:
//
//   {64 hex digits of the page key}_{model, '/' as '-'}_{tp rank}_{tp size}.bin       (MLA: without the tp part)
//
// A file has only the page's bytes, without a checksum. A file of another length is a miss and is counted. Damaged
// bytes of the right length are delivered. The names do not contain the space (the identity of the KV). So a folder
// serves one space: pages of other spaces are misses. While pages exist, the lock file beside them contains their
// space; this does not hold for pages that only HiCache has stored. I/O is buffered, page by page, as in HiCache.
//
// kvtwin removes and replaces only pages that kvtwin has stored; a list beside the lock names these pages. They use the
// capacity. Pages of earlier runs can be read, and are removed, oldest first, when pages of this run need their room.
// HiCache's pages of this model and rank are read, use no capacity, and are never removed. Files of other models and
// ranks are not touched. A folder in which no file looks like HiCache's is refused.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "impl/storage/backend.hpp"

namespace kvtwin {

struct HiCacheFilesConfig {
  std::filesystem::path folder;  // created with mode 0700 if absent
  std::string model;             // e.g. "meta-llama/Llama-3.1-8B"
  std::uint32_t tp_rank = 0, tp_size = 1;
  PageKey space;
  Pages capacity = 0;
  bool stores = true;  // false: the files of another rank (MLA), only for reading
};

std::string hicache_file_name(const HiCacheFilesConfig& config, const PageForm& form, const PageKey& key);

// Errors: std::runtime_error, std::system_error: the model's name cannot be a part of a file name; the folder cannot be
// used, belongs to another user, is writable for others, or has other content; another process stores pages of this
// rank; the pages belong to another space.
std::unique_ptr<StorageBackend> make_hicache_files(const HiCacheFilesConfig& config, const PageForm& form);

}  // namespace kvtwin
