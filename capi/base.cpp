#include "kvtwin/base.h"

extern "C" {

uint32_t kvtwin_abi_version(void) { return KVTWIN_ABI_MAJOR * 1000 + KVTWIN_ABI_MINOR; }

const char* kvtwin_version(void) { return KVTWIN_VERSION; }

const char* kvtwin_status_name(int status) {
  switch (status) {
    case KVTWIN_OK: return "ok";
    case KVTWIN_MISSING: return "missing";
    case KVTWIN_CORRUPT: return "corrupt";
    case KVTWIN_IO_ERROR: return "io_error";
    case KVTWIN_UNREACHABLE: return "unreachable";
    case KVTWIN_FULL: return "full";
    case KVTWIN_BAD_ARGUMENT: return "bad_argument";
    case KVTWIN_NO_MEMORY: return "no_memory";
    case KVTWIN_FAILED: return "failed";
    default: return "unknown";
  }
}

}  // extern "C"
