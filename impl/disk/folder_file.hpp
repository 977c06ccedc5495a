// A file of a real folder, as the queues use it.
#pragma once

#include <cstdint>

#include "impl/disk/files.hpp"

namespace kvtwin {

class FolderFile final : public BlockFile {
 public:
  FolderFile(int descriptor, bool is_folder);  // takes over the descriptor
  ~FolderFile() override;
  FolderFile(const FolderFile&) = delete;
  FolderFile& operator=(const FolderFile&) = delete;

  int descriptor() const override { return descriptor_; }
  std::uint64_t serial() const { return serial_; }  // number among all open files of this process; never reused
  bool is_folder() const { return is_folder_; }
  void set_removed() { removed_ = true; }

 private:
  int descriptor_;
  bool is_folder_;
  std::uint64_t serial_;
  bool removed_ = false;
};

}  // namespace kvtwin
