#include "tests/cufile_stand_in/cufile_stand_in.hpp"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <set>

// Not in an unnamed namespace, because the functions that use these types are exported and looked up by name.
namespace kvtwin::test::cufile {

struct Error {
  int code, driver;
};
struct FileDescription {
  int type;
  union {
    int descriptor;
    void* pointer;
  } handle;
  const void* operations;
};
struct DriverProperties {
  unsigned major, minor;
  std::size_t poll_bytes, most_direct_bytes;
  unsigned status_flags, control_flags, features, sizes[5];
};

}  // namespace kvtwin::test::cufile

using namespace kvtwin::test::cufile;

namespace {

constexpr std::size_t kBlock = 4096;

struct File {
  int descriptor;
};

std::mutex mutex;
std::set<File*> known;  // protected by `mutex`

}  // namespace

extern "C" {

kvtwin::test::CuFileStandIn kvtwin_cufile_stand_in;

Error cuFileDriverOpen() {
  const int error = kvtwin_cufile_stand_in.driver_error;
  if (error == 0) ++kvtwin_cufile_stand_in.drivers;
  return {error, 0};
}
Error cuFileDriverClose_v2() {
  if (kvtwin_cufile_stand_in.files != 0 || kvtwin_cufile_stand_in.buffers != 0) ++kvtwin_cufile_stand_in.misuses;
  --kvtwin_cufile_stand_in.drivers;
  return {0, 0};
}
Error cuFileDriverGetProperties(DriverProperties* properties) {
  *properties = {};
  properties->major = kvtwin_cufile_stand_in.nvidia_fs_major;
  properties->minor = 26;
  if (properties->major == 0) properties->minor = 0;
  properties->features = kvtwin_cufile_stand_in.features;
  return {0, 0};
}
Error cuFileGetVersion(int* version) {
  *version = 1150;
  return {0, 0};
}
Error cuFileHandleRegister(void** handle, FileDescription* description) {
  const int error = kvtwin_cufile_stand_in.file_error;
  if (error != 0) return {error, 0};
  if (description->type != 1 || description->handle.descriptor < 0) ++kvtwin_cufile_stand_in.misuses;
  auto* file = new File{description->handle.descriptor};
  const std::lock_guard lock(mutex);
  known.insert(file);
  ++kvtwin_cufile_stand_in.files;
  ++kvtwin_cufile_stand_in.files_ever;
  *handle = file;
  return {0, 0};
}
void cuFileHandleDeregister(void* handle) {
  const std::lock_guard lock(mutex);
  auto* file = static_cast<File*>(handle);
  if (known.erase(file) == 0) {
    ++kvtwin_cufile_stand_in.misuses;
    return;
  }
  // The caller must not close the file descriptor before this call.
  if (lseek(file->descriptor, 0, SEEK_CUR) < 0) ++kvtwin_cufile_stand_in.misuses;
  delete file;
  --kvtwin_cufile_stand_in.files;
}
Error cuFileBufRegister(const void*, std::size_t, int) {
  const int error = kvtwin_cufile_stand_in.buffer_error;
  if (error == 0) ++kvtwin_cufile_stand_in.buffers;
  return {error, 0};
}
Error cuFileBufDeregister(const void*) {
  --kvtwin_cufile_stand_in.buffers;
  return {0, 0};
}
#ifndef KVTWIN_CUFILE_WITHOUT_READ
// Takes one of the remaining events. Safe for several threads: they never take more events than there are.
static bool take_one(std::atomic<int>& left) {
  int before = left;
  while (before > 0 && !left.compare_exchange_weak(before, before - 1)) {
  }
  return before > 0;
}
ssize_t cuFileRead(void* handle, void* start, std::size_t bytes, off_t offset, off_t at) {
  ++kvtwin_cufile_stand_in.reads;
  int descriptor = -1;
  {
    const std::lock_guard lock(mutex);
    if (known.contains(static_cast<File*>(handle))) descriptor = static_cast<File*>(handle)->descriptor;
  }
  if (descriptor < 0 || bytes % kBlock != 0 || offset % static_cast<off_t>(kBlock) != 0) {
    ++kvtwin_cufile_stand_in.misuses;
    return -5007;
  }
  if (take_one(kvtwin_cufile_stand_in.failing_reads)) {
    const int error = kvtwin_cufile_stand_in.read_error;
    if (error < 0) return error;
    errno = error;
    return -1;
  }
  if (take_one(kvtwin_cufile_stand_in.empty_reads)) return 0;
  const std::unique_ptr<void, decltype(&std::free)> copy(std::aligned_alloc(kBlock, bytes), &std::free);
  const auto most = std::min(bytes, static_cast<std::size_t>(kvtwin_cufile_stand_in.max_bytes.load()));
  const ssize_t result = pread(descriptor, copy.get(), most, offset);
  if (result > 0) std::memcpy(static_cast<std::byte*>(start) + at, copy.get(), static_cast<std::size_t>(result));
  return result;
}
#endif

}  // extern "C"
