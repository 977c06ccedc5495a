// A file of a real folder, as its queues see it.
#pragma once

#include <cstdint>

#include "impl/disk/files.hpp"

namespace kvtwin {

class FolderFile final : public BlockFile {
 public:
  explicit FolderFile(int descriptor);  // owns it
  ~FolderFile() override;
  FolderFile(const FolderFile&) = delete;
  FolderFile& operator=(const FolderFile&) = delete;

  int descriptor() const { return descriptor_; }
  std::uint64_t serial() const { return serial_; }  // of this process's open files; never reused
  void set_removed() { removed_ = true; }

 private:
  int descriptor_;
  std::uint64_t serial_;
  bool removed_ = false;
};

}  // namespace kvtwin
