/* What every header of the C interface uses: the version, results, page keys.
 *
 * Link with libkvtwin.so. No function throws, ends the process, prints, or reads the environment. A function that can
 * fail returns a kvtwin_status; if it takes `error`, it writes one sentence there: what is wrong, and what would be
 * right. Structures that a caller fills begin with struct_size; set it to sizeof the structure. A later version of the
 * library appends fields, and takes the missing fields of an earlier version's structure as 0.
 * A text ends at its first zero byte. A caller whose texts can contain such a byte must refuse them: the library would
 * see equal texts where the caller has different ones.
 */
#ifndef KVTWIN_BASE_H
#define KVTWIN_BASE_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif

#define KVTWIN_API __attribute__((visibility("default")))

/* The version of this interface. A library serves programs that were compiled with the same major version, and with the
 * same or an older minor version. */
#define KVTWIN_ABI_MAJOR 1
#define KVTWIN_ABI_MINOR 2

/* Returns KVTWIN_ABI_MAJOR * 1000 + KVTWIN_ABI_MINOR of the library. */
KVTWIN_API uint32_t kvtwin_abi_version(void);
/* Returns the version of kvtwin, for example "0.2.0". */
KVTWIN_API const char* kvtwin_version(void);

typedef enum kvtwin_status {
  KVTWIN_OK = 0,
  /* Of a page. The page was not read or not stored; nothing else is wrong with the call. */
  KVTWIN_MISSING = 1,     /* not there */
  KVTWIN_CORRUPT = 2,     /* there, but with other bytes than were stored; the page is now a miss */
  KVTWIN_IO_ERROR = 3,    /* the medium reported an error */
  KVTWIN_UNREACHABLE = 4, /* the server did not answer */
  KVTWIN_FULL = 5,        /* no room */
  /* Of a call. Nothing was done. */
  KVTWIN_BAD_ARGUMENT = 16,
  KVTWIN_NO_MEMORY = 17,
  KVTWIN_FAILED = 18 /* any other failure; the text says which */
} kvtwin_status;

/* Returns the name of a status, for example "missing"; "unknown" for a number that is no status. */
KVTWIN_API const char* kvtwin_status_name(int status);

/* The name of a page: for token pages SGLang's SHA-256 digest (32 bytes, not text). Equal keys mean equal tokens from
 * the beginning of the sequence. */
typedef struct kvtwin_key {
  uint8_t bytes[32];
} kvtwin_key;

/* Where a function writes an error: at most `size` bytes, with a zero at the end. May be NULL. */
typedef struct kvtwin_error {
  char* text;
  size_t size;
} kvtwin_error;

#if defined(__cplusplus)
}
#endif

#endif
