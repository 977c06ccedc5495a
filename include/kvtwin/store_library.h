/* A storage tier of one's own: a shared library that kvtwin loads, without a build of kvtwin.
 *
 *   kvtwin run ... --set tiers.remote.url=library:/path/mine.so?a-text-of-your-own
 *
 * In the C interface, the same text is kvtwin_store_config.location of a store of kind "remote". kvtwin.Store of
 * Python, and kvtwin's storage in SGLang and vLLM, take it too.
 *
 * The library keeps values of one length under names of 32 bytes. What a value means is kvtwin's business: each carries
 * a header with a check, so a value that was lost in part, mixed up or changed is a miss, and is never used. The
 * library needs this header only, and no function of kvtwin. It has one symbol:
 *
 *   const kvtwin_store_functions kvtwin_store_library = {sizeof(kvtwin_store_functions),
 *                                                        KVTWIN_STORE_LIBRARY_VERSION, open, close, ...};
 *
 * Threads: of one store, kvtwin calls look_up from one thread, get and remove from another, and look_up, put and remove
 * from a third, at the same time: values that a get finds wrong are removed at once. open and close are called when no
 * other call of this store is in progress. Stores may be open at the same time: one for each pool of a model, of each
 * process.
 * Time: a call that takes longer than tiers.remote.timeout_s counts as failed. It may go on; its memory stays valid,
 * and until it ends, no further call comes from its thread. kvtwin then uses the store less often, up to every 10 s.
 * Errors: an answer that is no kvtwin_answer counts as KVTWIN_ANSWER_FAILED. Exceptions of C++ end the call.
 * A library runs with the rights of the program: load only libraries that you trust.
 */
#ifndef KVTWIN_STORE_LIBRARY_H
#define KVTWIN_STORE_LIBRARY_H

#include "kvtwin/base.h"

#if defined(__cplusplus)
extern "C" {
#endif

/* Changes if an older library cannot be used any more. Fields that are appended do not change it. */
#define KVTWIN_STORE_LIBRARY_VERSION 1

typedef enum kvtwin_answer {
  KVTWIN_ANSWER_DONE = 0,    /* there, read, stored or removed */
  KVTWIN_ANSWER_MISSING = 1, /* there is no such value */
  KVTWIN_ANSWER_FULL = 2,    /* no room; of put */
  KVTWIN_ANSWER_FAILED = 3,  /* no answer from the medium, or an error */
  KVTWIN_ANSWER_OTHER = 4    /* a value of another length is there; kvtwin removes it */
} kvtwin_answer;

/* What a store is opened for. Valid during the call of open. */
typedef struct kvtwin_store_terms {
  uint32_t struct_size;
  const char* text;     /* what follows the '?' of the URL; never NULL */
  const char* password; /* of the environment or of kvtwin_store_config; empty: none */
  const char* pool;     /* empty: pages; else the pool: "pool1" or "draft" of kvtwin run, or kvtwin_pool.name */
  uint64_t value_bytes; /* of each value of this store */
} kvtwin_store_terms;

typedef struct kvtwin_store_functions {
  uint32_t struct_size; /* sizeof(kvtwin_store_functions) */
  uint32_t version;     /* KVTWIN_STORE_LIBRARY_VERSION */

  /* Returns a store for the other calls, or NULL: then writes a sentence to `error`. Called again after failures. */
  void* (*open)(const kvtwin_store_terms* terms, kvtwin_error error);
  void (*close)(void* store);

  /* Sets answers[i] for each of the `count` names, which are all different. An answer that is not set is FAILED. */
  void (*look_up)(void* store, const kvtwin_key* names, size_t count, uint8_t* answers);
  /* Reads value i into memory[i], which has value_bytes bytes. DONE only if the whole value is there. */
  void (*get)(void* store, const kvtwin_key* names, size_t count, void* const* memory, uint8_t* answers);
  /* Stores value i from memory[i]. A name that is there already may keep its value. */
  void (*put)(void* store, const kvtwin_key* names, size_t count, const void* const* memory, uint8_t* answers);
  /* A value that is not there is DONE or MISSING. */
  void (*remove)(void* store, const kvtwin_key* names, size_t count, uint8_t* answers);
} kvtwin_store_functions;

/* What a library defines. */
KVTWIN_API extern const kvtwin_store_functions kvtwin_store_library;

#if defined(__cplusplus)
}
#endif

#endif
