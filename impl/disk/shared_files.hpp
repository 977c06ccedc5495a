// A storage tier in a folder that several runs use at the same time, on one machine or on a file system that machines
// share (Lustre, 3FS, NFS). One file per page. The file name is the hash of space, key and form, so pages of all models
// can share a folder.
//
// A file has a PageHeader and the payload. It is written under a temporary name and renamed when complete. So a reader
// sees a complete page or none, even if the writer is killed. A file with a wrong page is a miss, is counted, and is
// removed. Temporary files of killed writers are removed after an hour. There is no lock, and no state except the
// files: runs may start and end at any time.
//
// Capacity: counts the bytes of the files of all runs, and of all forms of pages, together. A run that stores a page
// beyond the capacity lists the folder and removes the least recently used files, at once a sixteenth of the capacity.
// Last uses have a resolution of a minute. A run also lists the folder after every sixteenth of the capacity that it
// has stored, because others store pages too. So N runs can exceed the capacity by N sixteenths. If the medium is full
// earlier, a run that stores a page removes the least recently used sixteenth of the files.
//
// All runs belong to one user: the folder has mode 0700, and others must not be able to write to it. Only files with
// names of this tier are removed.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "impl/storage/backend.hpp"

namespace kvtwin {

struct SharedFilesConfig {
  std::filesystem::path folder;    // created if absent; the parent must exist
  Bytes capacity = 0;              // of the files of all runs together; see shared_file_bytes()
  bool stores = true;              // false: only reads
  const PageSeal* seal = nullptr;  // keyed check of all pages; null = check without a secret. Outlives the tier
};

// Returns the bytes of the file of a page.
inline Bytes shared_file_bytes(const PageForm& form) { return kPageHeaderBytes + form.bytes(); }

// Returns the file name of a page. `stored_as`: stored_page_key. `secret`: id of the secret; 0 = none.
std::string shared_file_name(const PageKey& stored_as, std::uint32_t secret = 0);

// Errors: std::runtime_error, std::system_error: the folder cannot be used, belongs to another user, is writable for
// others, or has other content.
std::unique_ptr<StorageBackend> make_shared_files(const SharedFilesConfig& config, const PageForm& form);

}  // namespace kvtwin
