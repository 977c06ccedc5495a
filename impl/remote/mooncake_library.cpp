#include "impl/remote/mooncake_library.hpp"

#include <dlfcn.h>

#include <array>
#include <filesystem>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <type_traits>
#include <vector>

#include "impl/remote/library_settings.hpp"
#include "impl/runtime/shared_library.hpp"

namespace kvtwin {
namespace {

constexpr const char* kMooncakeAdvice =
    "give the place of Mooncake's library or of its Python package's folder (site-packages) as library=... in the URL";

MooncakeFunctions functions_of_library(const std::string& file) {
  const SharedLibrary library("Mooncake Store's C interface", {file}, kMooncakeAdvice);
  MooncakeFunctions functions;
  const auto find = [&library](auto& function, const char* name) {
    function = library.find<std::remove_reference_t<decltype(function)>>(name);
  };
  find(functions.create, "mooncake_store_create");
  find(functions.destroy, "mooncake_store_destroy");
  find(functions.setup, "mooncake_store_setup");
  find(functions.register_buffer, "mooncake_store_register_buffer");
  find(functions.unregister_buffer, "mooncake_store_unregister_buffer");
  find(functions.batch_is_exist, "mooncake_store_batch_is_exist");
  find(functions.batch_put_from, "mooncake_store_batch_put_from");
  find(functions.batch_get_into, "mooncake_store_batch_get_into");
  find(functions.get_size, "mooncake_store_get_size");
  find(functions.remove, "mooncake_store_remove");
  return functions;
}

// ---- the Python package

// Makes functions of C out of the package's methods by ctypes, and writes their addresses into MooncakeFunctions. The
// package releases the interpreter's lock during look-ups and transfers, but not during setup and close.
constexpr std::string_view kGlue = R"(
import ctypes, itertools, sys
c = ctypes
if SITE and SITE not in sys.path:
    sys.path.append(SITE)
from mooncake.store import MooncakeDistributedStore

def array(kind, count, address):
    return (kind * count).from_address(address) if count else []

def write(count, address, kind, results):
    to = array(kind, count, address)
    for i in range(count):
        to[i] = results[i] if i < len(results) else -1
    return 0

def names(count, address):
    return [name.decode() for name in array(c.c_char_p, count, address)]

def values(count, buffers, sizes):
    return [list(array(c.c_size_t, count, at)) for at in (buffers, sizes)]

def create():
    handle = next(NUMBERS)
    STORES[handle] = MooncakeDistributedStore()
    return handle

def destroy(handle):
    STORES.pop(handle).close()

def setup(handle, host, metadata, segment, buffer, protocol, device, master):
    return STORES[handle].setup(host.decode(), metadata.decode(), segment, buffer, protocol.decode(), device.decode(),
                                master.decode())

def register(handle, address, size):
    return STORES[handle].register_buffer(address, size)

def unregister(handle, address):
    return STORES[handle].unregister_buffer(address)

def exist(handle, keys, count, results):
    return write(count, results, c.c_int, STORES[handle].batch_is_exist(names(count, keys)))

def put(handle, keys, buffers, sizes, count, replicas, results):
    return write(count, results, c.c_int, STORES[handle].batch_put_from(names(count, keys), *values(count, buffers, sizes)))

def get(handle, keys, buffers, sizes, count, results):
    return write(count, results, c.c_int64,
                 STORES[handle].batch_get_into(names(count, keys), *values(count, buffers, sizes)))

def size(handle, key):
    return STORES[handle].get_size(key.decode())

def remove(handle, key, force):
    return STORES[handle].remove(key.decode(), bool(force))

def guarded(function, failure):
    def call(*arguments):
        try:
            return function(*arguments)
        except BaseException:
            return failure
    return call

STORES, NUMBERS = {}, itertools.count(1)
at, n, text, whole = c.c_size_t, c.c_size_t, c.c_char_p, c.c_int
FUNCTIONS = [c.CFUNCTYPE(result, *arguments)(guarded(function, failure)) for function, failure, result, *arguments in (
    (create, 0, at),
    (destroy, None, None, at),
    (setup, -1, whole, at, text, text, c.c_uint64, c.c_uint64, text, text, text),
    (register, -1, whole, at, at, n),
    (unregister, -1, whole, at, at),
    (exist, -1, whole, at, at, n, at),
    (put, -1, whole, at, at, at, at, n, at, at),
    (get, -1, whole, at, at, at, at, n, at),
    (size, -1, c.c_int64, at, text),
    (remove, -1, whole, at, text, whole))]
for i, function in enumerate(FUNCTIONS):
    c.c_size_t.from_address(TABLE + i * c.sizeof(c.c_size_t)).value = c.cast(function, c.c_void_p).value
)";
static_assert(sizeof(MooncakeFunctions) == 10 * sizeof(void*), "FUNCTIONS has as many entries, in the same order");
static_assert(sizeof(std::size_t) == sizeof(void*));

// Runs the glue. If it fails, ERROR receives the text of the error.
constexpr std::string_view kRunGlue = R"(
try:
    exec(compile(GLUE, "<kvtwin>", "exec"), globals())
except BaseException as error:
    import ctypes
    message = (type(error).__name__ + ": " + str(error)).encode()[:ERROR_BYTES - 1] + bytes(1)
    ctypes.memmove(ERROR, message, len(message))
)";

// The few functions of libpython that start an interpreter, or enter a running one, and run text in it.
struct Python {
  int (*is_initialized)();
  void (*initialize)(int installs_signal_handlers);
  void* (*release_lock)();
  int (*enter)();
  void (*leave)(int);
  void* (*module_named)(const char*);
  void* (*dictionary_of)(void* module);
  void* (*run)(const char* text, int start, void* globals, void* locals);
  void (*forget)(void*);
  void (*clear_error)();
};

// Requires: libpython is loaded, and its symbols are visible to everybody.
Python loaded_python() {
  Python python;
  const auto find = [](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(RTLD_DEFAULT, name));
    if (function == nullptr)
      throw std::runtime_error("This process has a Python interpreter without " + std::string(name) + ".");
  };
  find(python.is_initialized, "Py_IsInitialized");
  find(python.initialize, "Py_InitializeEx");
  find(python.release_lock, "PyEval_SaveThread");
  find(python.enter, "PyGILState_Ensure");
  find(python.leave, "PyGILState_Release");
  find(python.module_named, "PyImport_AddModule");
  find(python.dictionary_of, "PyModule_GetDict");
  find(python.run, "PyRun_String");
  find(python.forget, "Py_DecRef");
  find(python.clear_error, "PyErr_Clear");
  return python;
}

// Returns the names of libpython for packages in `site`: .../lib/pythonX.Y/site-packages.
std::vector<std::string> libpython_for(const std::filesystem::path& site) {
  for (const std::filesystem::path& part : site) {
    const std::string name = part.string();
    if (name.starts_with("python3.")) return {"lib" + name + ".so.1.0", "lib" + name + ".so"};
  }
  throw std::runtime_error("The folder " + site.string() +
                           " is no folder of Python packages (.../lib/python3.N/site-packages); " + kMooncakeAdvice +
                           ".");
}

std::string python_text(std::string_view text) {  // as a literal of Python
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string hex;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    hex += kHex[byte >> 4];
    hex += kHex[byte & 15];
  }
  return "bytes.fromhex('" + hex + "').decode()";
}

MooncakeFunctions functions_of_package(const Python& python, const std::string& site) {
  MooncakeFunctions functions;
  std::array<char, 512> error{};
  std::string text = "TABLE = " + std::to_string(reinterpret_cast<std::uintptr_t>(&functions));
  text += "\nERROR = " + std::to_string(reinterpret_cast<std::uintptr_t>(error.data()));
  text += "\nERROR_BYTES = " + std::to_string(error.size());
  text += "\nSITE = " + python_text(site) + "\nGLUE = " + python_text(kGlue);
  text += kRunGlue;
  const int lock = python.enter();
  void* const globals = python.dictionary_of(python.module_named("_kvtwin_mooncake"));
  constexpr int kFileInput = 257;  // Py_file_input
  if (void* const result = python.run(text.c_str(), kFileInput, globals, globals)) {
    python.forget(result);
  } else {
    python.clear_error();
    std::string_view("the interpreter can't run kvtwin's code").copy(error.data(), error.size() - 1);
  }
  python.leave(lock);
  if (error[0] != '\0') {
    throw std::runtime_error("Mooncake's Python package can't be used (" + std::string(error.data()) + "); " +
                             kMooncakeAdvice + ".");
  }
  return functions;
}

bool python_runs() {
  void* const found = dlsym(RTLD_DEFAULT, "Py_IsInitialized");
  return found != nullptr && reinterpret_cast<int (*)()>(found)() != 0;
}

}  // namespace

MooncakeFunctions load_mooncake(const std::string& place, TimeNs timeout) {
  static std::mutex mutex;
  static std::map<std::string, MooncakeFunctions> loaded;  // the glue runs once in a process
  const std::lock_guard lock(mutex);
  set_mooncake_variables(timeout);
  const bool runs = python_runs();
  const bool is_package = place.empty() ? runs : std::filesystem::is_directory(place);
  const std::string key = is_package ? "" : place;
  if (const auto found = loaded.find(key); found != loaded.end()) return found->second;
  if (!is_package) return loaded[key] = functions_of_library(place.empty() ? "libmooncake_store.so" : place);
  if (!runs) {
    const SharedLibrary library("Python", libpython_for(std::filesystem::absolute(place)),
                                "install it (Debian: apt-get install libpython3-dev)", true);
    const Python python = loaded_python();
    python.initialize(0);
    python.release_lock();
  }
  return loaded[key] = functions_of_package(loaded_python(), place);
}

}  // namespace kvtwin
