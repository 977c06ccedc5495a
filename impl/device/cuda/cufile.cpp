#include "impl/device/cuda/cufile.hpp"

#include <dlfcn.h>
#include <sys/types.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <stdexcept>
#include <vector>

// What we use of cuFile's binary interface is declared here; where its header is at hand, sizes and numbers are
// compared. The header is not in the toolkit's basic packages.
#if __has_include(<cufile.h>) && __has_include(<cuda.h>)
#include <cufile.h>
#define KV_CUFILE_HEADER 1
#endif

namespace kvtwin {
namespace {

struct Error {
  int code = 0;    // 0: none; else 5001 and up
  int driver = 0;  // CUDA's, if the code says so
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
    std::size_t poll_bytes = 0, most_direct_bytes = 0;
    unsigned status_flags = 0, control_flags = 0;
  } nvidia_fs;
  unsigned features = 0;
  unsigned sizes[5] = {};      // of caches, pinned memory and batches
  unsigned reserved[32] = {};  // what later versions may write
};
constexpr int kByDescriptor = 1;           // CU_FILE_HANDLE_TYPE_OPAQUE_FD
constexpr unsigned kP2pFeature = 1u << 4;  // CU_FILE_P2P_SUPPORTED, a bit's number
constexpr int kMostRetries = 1000;         // of a read that was interrupted, or moved nothing
constexpr Bytes kBlock = 4096;             // where a read that came in part goes on

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

std::string last_dl_error() {
  const char* text = dlerror();
  return text == nullptr ? "unknown" : text;
}

std::vector<std::string> usual_places() { return {"libcufile.so.0", "/usr/local/cuda/lib64/libcufile.so.0"}; }

}  // namespace

struct CuFile::Library {
  std::string name;
  void* file = nullptr;
  bool open = false;
  DriverCall open_driver = nullptr, close_driver = nullptr;
  GetProperties properties = nullptr;
  GetVersion version = nullptr;  // may be missing: older ones have none
  RegisterFile register_file = nullptr;
  DeregisterFile deregister_file = nullptr;
  RegisterBuffer register_buffer = nullptr;
  DeregisterBuffer deregister_buffer = nullptr;
  Read read = nullptr;
  ErrorText text = nullptr;  // may be missing: in some versions it is the header's

  Library() = default;
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library() {
    if (open) close_driver();
    if (file != nullptr) dlclose(file);
  }

  void load(const std::vector<std::string>& places) {
    std::string tried;
    for (const std::string& place : places) {
      // Never unloaded: it has threads and exit handlers of its own.
      file = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
      if (file != nullptr) {
        name = place;
        return;
      }
      tried += (tried.empty() ? "" : "; ") + last_dl_error();
    }
    throw std::runtime_error("cuFile can't be loaded (" + tried +
                             "); install GPUDirect Storage's libcufile, or name its file in real.cufile_library");
  }
  template <typename Function>
  bool find(Function& function, const char* symbol) {
    function = reinterpret_cast<Function>(dlsym(file, symbol));
    return function != nullptr;
  }
  template <typename Function>
  void need(Function& function, const char* symbol) {
    if (!find(function, symbol)) {
      throw std::runtime_error(name + " has no " + symbol + ": it isn't the cuFile we know");
    }
  }
  void find_all() {
    need(open_driver, "cuFileDriverOpen");
    // Later headers say _v2 where they say the name without.
    if (!find(close_driver, "cuFileDriverClose_v2")) need(close_driver, "cuFileDriverClose");
    need(properties, "cuFileDriverGetProperties");
    need(register_file, "cuFileHandleRegister");
    need(deregister_file, "cuFileHandleDeregister");
    need(register_buffer, "cuFileBufRegister");
    need(deregister_buffer, "cuFileBufDeregister");
    need(read, "cuFileRead");
    find(version, "cuFileGetVersion");
    find(text, "cufileop_status_error");
  }
  void must(Error error, const char* call) const {
    if (error.code == 0) return;
    const char* words = text == nullptr ? nullptr : text(error.code);
    throw std::runtime_error(std::string(call) + " of " + name + " failed: " + (words == nullptr ? "error" : words) +
                             " " + std::to_string(error.code) +
                             (error.driver == 0 ? "" : " (CUDA's " + std::to_string(error.driver) + ")"));
  }
};

CuFile::CuFile(std::unique_ptr<Library> library) : library_(std::move(library)) {}
CuFile::~CuFile() = default;

std::shared_ptr<CuFile> CuFile::load(const std::string& library, const std::filesystem::path& nvidia_fs) {
  auto loaded = std::make_unique<Library>();
  loaded->load(library.empty() ? usual_places() : std::vector<std::string>{library});
  loaded->find_all();
  loaded->must(loaded->open_driver(), "cuFileDriverOpen");
  loaded->open = true;
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
  text += "(" + result->library_->name + "), ";
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
  for (int retries = 0; retries < kMostRetries; ++retries) {
    errno = 0;
    const ssize_t result =
        library_->read(file, start, bytes - done, static_cast<off_t>(offset + done), static_cast<off_t>(at + done));
    if (result < 0) {
      if (result != -1) return -EIO;  // one of its own
      if (errno == EINTR || errno == EAGAIN) continue;
      return errno == 0 ? -EIO : -errno;
    }
    // What came in part goes on at a whole block.
    const Bytes whole = done + static_cast<Bytes>(result);
    if (result == 0 || whole >= bytes) return static_cast<std::int64_t>(std::min(whole, bytes));
    done = whole / kBlock * kBlock;
  }
  return static_cast<std::int64_t>(done);
}

}  // namespace kvtwin
