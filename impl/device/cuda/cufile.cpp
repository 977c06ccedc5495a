#include "impl/device/cuda/cufile.hpp"

#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "impl/runtime/shared_library.hpp"

// Declares the used part of cuFile's binary interface. If cuFile's header is present, the build compares sizes and
// constants. The toolkit's basic packages do not contain the header.
#if __has_include(<cufile.h>) && __has_include(<cuda.h>)
#include <cufile.h>
#define KV_CUFILE_HEADER 1
#endif

namespace kvtwin {
namespace {

struct Error {
  int code = 0;    // 0 = none, else at least 5001
  int driver = 0;  // CUDA's error, if `code` says so
};
struct FileDescription {
  int type = 0;
  union {
    int descriptor;
    void* pointer;
  } handle{};
  const void* operations = nullptr;
};
struct DriverProperties {
  struct {
    unsigned major = 0, minor = 0;
    std::size_t poll_bytes = 0, max_direct_bytes = 0;
    unsigned status_flags = 0, control_flags = 0;
  } nvidia_fs;
  unsigned features = 0;
  unsigned sizes[5] = {};      // of caches, pinned memory and batches
  unsigned reserved[32] = {};  // later versions may write here
};
constexpr int kByDescriptor = 1;           // CU_FILE_HANDLE_TYPE_OPAQUE_FD
constexpr unsigned kP2pFeature = 1u << 4;  // CU_FILE_P2P_SUPPORTED, the number of a bit
constexpr int kMaxReadRetries = 1000;      // of a read that was interrupted or moved no byte
constexpr Bytes kBlock = 4096;             // a partial result continues at a multiple of this size

#ifdef KV_CUFILE_HEADER
static_assert(sizeof(Error) == sizeof(CUfileError_t) && sizeof(FileDescription) == sizeof(CUfileDescr_t) &&
              sizeof(DriverProperties) >= sizeof(CUfileDrvProps_t) && kByDescriptor == CU_FILE_HANDLE_TYPE_OPAQUE_FD);
#endif

using DriverCall = Error (*)();
using GetProperties = Error (*)(DriverProperties*);
using GetVersion = Error (*)(int*);
using RegisterFile = Error (*)(void** handle, FileDescription*);
using DeregisterFile = void (*)(void* handle);
using RegisterBuffer = Error (*)(const void* start, std::size_t bytes, int flags);
using DeregisterBuffer = Error (*)(const void* start);
using Read = ssize_t (*)(void* handle, void* start, std::size_t bytes, off_t offset, off_t at);
using ErrorText = const char* (*)(int code);

std::vector<std::string> cufile_places() { return {"libcufile.so.0", "/usr/local/cuda/lib64/libcufile.so.0"}; }

// Later headers rename this function to _v2.
DriverCall driver_closer(const SharedLibrary& file) {
  const auto later = file.find_optional<DriverCall>("cuFileDriverClose_v2");
  return later != nullptr ? later : file.find<DriverCall>("cuFileDriverClose");
}

}  // namespace

struct CuFile::Library {
  explicit Library(const std::vector<std::string>& places)
      : file("cuFile", places, "install GPUDirect Storage's libcufile, or name its file in real.cufile_library") {
    must(open_driver(), "cuFileDriverOpen");
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() { close_driver(); }

  void must(Error error, const char* call) const {
    if (error.code == 0) return;
    const char* words = text == nullptr ? nullptr : text(error.code);
    throw std::runtime_error(std::string(call) + " of " + file.name() +
                             " failed: " + (words == nullptr ? "error" : words) + " " + std::to_string(error.code) +
                             (error.driver == 0 ? "" : " (CUDA's " + std::to_string(error.driver) + ")"));
  }

  const SharedLibrary file;
  const DriverCall open_driver = file.find<DriverCall>("cuFileDriverOpen");
  const DriverCall close_driver = driver_closer(file);
  const GetProperties properties = file.find<GetProperties>("cuFileDriverGetProperties");
  const RegisterFile register_file = file.find<RegisterFile>("cuFileHandleRegister");
  const DeregisterFile deregister_file = file.find<DeregisterFile>("cuFileHandleDeregister");
  const RegisterBuffer register_buffer = file.find<RegisterBuffer>("cuFileBufRegister");
  const DeregisterBuffer deregister_buffer = file.find<DeregisterBuffer>("cuFileBufDeregister");
  const Read read = file.find<Read>("cuFileRead");
  // Older versions do not have this function.
  const GetVersion version = file.find_optional<GetVersion>("cuFileGetVersion");
  // Some versions define this function in the header.
  const ErrorText text = file.find_optional<ErrorText>("cufileop_status_error");
};

CuFile::CuFile(std::unique_ptr<Library> library) : library_(std::move(library)) {}
CuFile::~CuFile() = default;

std::shared_ptr<CuFile> CuFile::load(const std::string& library, const std::filesystem::path& nvidia_fs) {
  auto loaded = std::make_unique<Library>(library.empty() ? cufile_places() : std::vector<std::string>{library});
  DriverProperties properties;
  loaded->must(loaded->properties(&properties), "cuFileDriverGetProperties");
  int version = 0;  // 1000 * major + 10 * minor
  if (loaded->version != nullptr && loaded->version(&version).code != 0) version = 0;

  const auto result = std::shared_ptr<CuFile>(new CuFile(std::move(loaded)));
  std::error_code ignored;
  const bool module = std::filesystem::exists(nvidia_fs, ignored);
  const auto& fs = properties.nvidia_fs;
  std::string& text = result->description_;
  text = "cuFile ";
  if (version > 0) text += std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) + " ";
  text += "(" + result->library_->file.name() + "), ";
  if (module && (fs.major | fs.minor) != 0) {
    result->mode_ = Mode::nvidia_fs;
    text += "GPUDirect Storage by nvidia-fs " + std::to_string(fs.major) + "." + std::to_string(fs.minor);
  } else if ((properties.features & kP2pFeature) != 0) {
    result->mode_ = Mode::p2p_dma;
    text += "GPUDirect Storage by the kernel's PCI P2PDMA, where the disk takes part";
  } else {
    text += "in compatibility mode: through host memory inside cuFile, for the kernel has no nvidia-fs";
  }
  return result;
}

CuFile::Registered CuFile::register_file(int descriptor) {
  FileDescription description;
  description.type = kByDescriptor;
  description.handle.descriptor = descriptor;
  void* handle = nullptr;
  if (const Error error = library_->register_file(&handle, &description); error.code != 0) return {nullptr, error.code};
  return {std::shared_ptr<void>(handle, [self = shared_from_this()](void* it) { self->library_->deregister_file(it); }),
          0};
}

CuFile::Registered CuFile::register_buffer(std::byte* start, Bytes bytes) {
  if (const Error error = library_->register_buffer(start, bytes, 0); error.code != 0) return {nullptr, error.code};
  return {
      std::shared_ptr<void>(start, [self = shared_from_this()](void* it) { self->library_->deregister_buffer(it); }),
      0};
}

std::int64_t CuFile::read(void* file, std::byte* start, Bytes at, Bytes bytes, Bytes offset) const {
  Bytes done = 0;
  for (int retries = 0; retries < kMaxReadRetries; ++retries) {
    errno = 0;
    const ssize_t result =
        library_->read(file, start, bytes - done, static_cast<off_t>(offset + done), static_cast<off_t>(at + done));
    if (result < 0) {
      if (result != -1) return -EIO;  // cuFile's own error
      if (errno == EINTR || errno == EAGAIN) continue;
      return errno == 0 ? -EIO : -errno;
    }
    // Continues after a partial result at a whole block.
    const Bytes whole = done + static_cast<Bytes>(result);
    if (result == 0 || whole >= bytes) return static_cast<std::int64_t>(std::min(whole, bytes));
    done = whole / kBlock * kBlock;
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace kvtwin
