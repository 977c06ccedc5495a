// A storage tier in a folder that several runs use at once, on one machine or on a file system that machines share
// (Lustre, 3FS, NFS): one file a page, named by the hash of space and key, so that pages of all models lie side by
// side.
//
// A file holds a PageHeader, then the payload. It is written under a name of its own and renamed when whole: a reader
// sees a whole page or none, whatever becomes of the writer. A file that isn't the page it should be is a miss; it is
// counted and removed. What a killed writer leaves is removed an hour later. No lock, and no state but the files: runs
// may come and go at any time.
//
// Capacity: of all runs together, in files. Who stores a page beyond it lists the folder and removes the files that
// were used longest ago, to a minute: a sixteenth of the capacity at once. A run lists it too after each sixteenth that
// it has stored, as others store there: N runs hold up to N sixteenths more.
//
// All runs are one user's: the folder is made with mode 0700, and others may not write to it. Only files with names of
// this tier are ever removed.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "impl/storage/backend.hpp"

namespace kvtwin {

struct SharedFilesConfig {
  std::filesystem::path folder;    // made if it isn't there; its parent is
  Pages capacity = 0;              // files, of all runs together
  bool stores = true;              // false: only reads
  const PageSeal* seal = nullptr;  // pages carry its check; null: the one without a secret. Outlives the tier
};

// The file of a page (of storage_page_key). `secret`: its id; 0: none.
std::string shared_file_name(const PageKey& stored_as, std::uint32_t secret = 0);

// std::runtime_error, std::system_error: a folder that can't be used, that others own or may write to, or that holds
// other things.
std::unique_ptr<StorageBackend> make_shared_files(const SharedFilesConfig& config, const PageForm& form);

}  // namespace kvtwin
