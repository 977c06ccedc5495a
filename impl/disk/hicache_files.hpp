// A disk tier in the form of SGLang HiCache's file back end, name for name and byte for byte, so that either reads what
// the other wrote: one file a page and rank in one folder,
//
//   {64 hex digits of the page key}_{model, '/' as '-'}_{tp rank}_{tp size}.bin       (MLA: without the tp part)
//
// which holds the page's bytes and nothing else. Nothing vouches for them: a file of another length is a miss and
// counted, but damaged bytes of the right length are served. The names don't say what the KV is KV of, so that a
// folder is for one space: pages of any other are missing, and as long as there are pages, the lock beside them says of
// which space (not so of those that HiCache alone has stored). Buffered I/O, page by page, as HiCache's.
//
// Only pages that kvtwin has stored are ever removed or replaced; a list beside the lock names them. They take room up
// to `capacity`: those of earlier lives can be read, and go, oldest first, where those of this life want their room.
// What HiCache stored of this model and rank is read, takes no room of the capacity, and stays, whatever it holds.
// Files of other models and ranks are left alone, and so is a folder where nothing looks like HiCache's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "impl/storage/backend.hpp"

namespace kvtwin {

struct HiCacheFilesConfig {
  std::filesystem::path folder;  // made, for its owner only, if it isn't there
  std::string model;             // e.g. "meta-llama/Llama-3.1-8B"
  std::uint32_t tp_rank = 0, tp_size = 1;
  PageKey space;
  Pages capacity = 0;
  bool stores = true;  // false: another rank's files (MLA), which are only read
};

std::string hicache_file_name(const HiCacheFilesConfig& config, const PageForm& form, const PageKey& key);

// std::runtime_error, std::system_error: a model whose name can't be part of a file's, a folder that can't be used,
// that others own or may write to, that holds other things, in which somebody else stores the same rank's pages, or
// with pages of another space.
std::unique_ptr<StorageBackend> make_hicache_files(const HiCacheFilesConfig& config, const PageForm& form);

}  // namespace kvtwin
