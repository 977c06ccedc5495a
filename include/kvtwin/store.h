/* A store of KV pages: kvtwin's storage tiers, for an engine that has tiers of its own for GPU and host memory.
 *
 * A page is one rank's KV of a fixed number of tokens. The caller says where the bytes of a page are by a list of
 * pieces (address, length); the store neither keeps the addresses nor reads them after the call. Each stored page
 * carries a check of its bytes, its key and its form. A page whose check fails is a miss: a get never returns KVTWIN_OK
 * for other bytes than were put under this key by a store with the same identity and form.
 *
 *   kind        medium                                        who may open it at the same time
 *   "disk"      segments in a folder, O_DIRECT and io_uring   one store (a second open fails)
 *   "shared_fs" a file a page, on a local or network mount    any number, on any number of machines
 *   "remote"    a Redis or Valkey server, a Mooncake Store    any number
 *
 * A store may have pools beside its pages (since 1.2), for models whose pages are not all that a prefix needs: windows
 * of sliding attention, states, keys of an indexer. An object of a pool belongs to the page with the same key. Pools
 * have names, and sizes of their own. A look-up says for which lengths of a prefix everything is there.
 *
 * A full store of kind "disk" or "shared_fs" evicts pages, so that a put finds room. If the medium has less room than
 * capacity_pages, the store keeps the pages that fit. An eviction never changes the bytes of a get in progress.
 *
 * After a kill, a page is either there with the right bytes, or missing. Pages of earlier runs are found again. A page
 * that was removed is not found again, neither in this run nor after kvtwin_store_close.
 *
 * Threads: any thread may call any function of one store, except close. One look-up, one get and one put or remove are
 * served at a time; further calls of the same sort wait. Calls block until their pages have ended.
 * The store has threads of its own: after fork(), only the parent can use it. In the child every call returns
 * KVTWIN_FAILED, and close does nothing.
 */
#ifndef KVTWIN_STORE_H
#define KVTWIN_STORE_H

#include "kvtwin/base.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct kvtwin_store kvtwin_store;

/* One rank's KV of one page has layers * planes * heads * head_bytes * page_tokens bytes. */
typedef struct kvtwin_page_form {
  uint32_t struct_size;
  uint32_t layers;      /* of this rank */
  uint32_t planes;      /* 2: K and V; 1: one latent vector a token (MLA) */
  uint32_t heads;       /* KV heads of this rank; 1 for MLA */
  uint32_t head_bytes;  /* bytes of one head of one token in one plane */
  uint32_t page_tokens; /* tokens of a page */
  const char* layout;   /* "layer_first", "page_first", "page_first_direct" or "page_head": the order of the bytes */
} kvtwin_page_form;

/* What the KV was computed with. Stores with different identities or forms never see, replace or remove each other's
 * pages. Texts are UTF-8 and end at their first zero byte: the caller must refuse longer names with such a byte. NULL
 * is empty; model, revision and kv_dtype must not be empty. Requires: 1 <= tp, 1 <= pp, rank < tp * pp. */
typedef struct kvtwin_identity {
  uint32_t struct_size;
  const char* model;
  const char* revision; /* of the weights: a commit, a text of your own, what kvtwin_weights_fingerprint() writes, or
                           "fixed" if the weights of this model name never change. Pages outlive the process */
  const char* kv_dtype; /* for example "bfloat16" */
  uint32_t tp;          /* parts into which tensor parallelism cuts a page; 1 if all ranks store equal bytes (MLA) */
  uint32_t pp;
  uint32_t rank;          /* number of this rank's part */
  const char* name_space; /* the user's own partition */
} kvtwin_identity;

/* Since 1.2. A pool beside the pages. Its objects have the form of pages, with the layers of this pool (a window of a
 * page), or a number of bytes (a state, keys of an indexer). */
typedef struct kvtwin_pool {
  uint32_t struct_size;
  const char* name;      /* 1 to 48 of a-z, 0-9, '_', '-'; each name once */
  kvtwin_page_form form; /* of an object; or struct_size 0: see object_bytes */
  uint64_t object_bytes; /* without a form: at most 2047 MiB; else 0 */
  const char* identity;  /* what the meaning of the bytes depends on, beside the store's identity; NULL: nothing */
} kvtwin_pool;

typedef struct kvtwin_store_config {
  uint32_t struct_size;
  const char* kind;     /* "disk", "shared_fs" or "remote" */
  const char* location; /* a folder (made if absent; its parent must exist), or redis:// or mooncake://HOST:PORT, or
                           library:FILE?TEXT (store_library.h) */
  kvtwin_page_form form;
  kvtwin_identity identity;
  uint64_t capacity_pages; /* of one rank; at least 1. "shared_fs": of all stores of the folder together. "remote": 0,
                              the server has its own limit */
  const char* secret;   /* at least 16 bytes: pages carry a keyed check, and only such pages are accepted. NULL: none */
  const char* password; /* "remote": of the server; NULL: none */
  uint32_t timeout_ms;  /* "remote": of one batch of commands; 0 = 1000 */
  /* Since 1.1. "disk": the eviction policy, one of kvtwin_policy_names(); NULL = "lru". The other kinds: NULL; a full
   * "shared_fs" evicts the files that were used longest ago, and a remote server evicts by its own rules. */
  const char* eviction;
  /* Since 1.2. The pools beside the pages; NULL and 0: none. Pools are known by their names: their order may change,
   * and on a disk, a store that is opened without a pool leaves the pool's objects as they are, beside its capacity. */
  const kvtwin_pool* pools;
  size_t pool_count;
  /* Bytes of pages and objects of all pools together, with their headers, in place of capacity_pages. A store with
   * pools needs it, unless its kind is "remote". At least the largest object. A pool that is put to takes room from the
   * others; in a full store, the pools' shares follow the bytes that were put lately. */
  uint64_t capacity_bytes;
} kvtwin_store_config;

/* Writes a name of the weights in a checkpoint folder, or in a file of weights: "weights-" and 32 hex digits, a hash of
 * the files' names, lengths and a sample of their bytes. Copies of a checkpoint have the same name on all machines. The
 * sample covers files of up to 1 MiB whole, and of longer ones the first and last 64 KiB and 64 pieces of 4 KiB.
 * Errors: KVTWIN_BAD_ARGUMENT if the place has no weights, or if `size` is below 41; KVTWIN_FAILED if a file cannot be
 * read. */
KVTWIN_API kvtwin_status kvtwin_weights_fingerprint(const char* checkpoint, char* text, size_t size,
                                                    kvtwin_error error);

/* Opens a store. Errors: KVTWIN_BAD_ARGUMENT for a bad configuration, KVTWIN_FAILED if the medium cannot be used;
 * *store is then NULL. */
KVTWIN_API kvtwin_status kvtwin_store_open(const kvtwin_store_config* config, kvtwin_store** store, kvtwin_error error);

/* Ends the threads, makes stored pages durable if the medium can, and frees the store. No other call may be in progress
 * or follow. NULL is allowed. */
KVTWIN_API void kvtwin_store_close(kvtwin_store* store);

/* Returns the bytes of one page. */
KVTWIN_API uint64_t kvtwin_store_page_bytes(const kvtwin_store* store);

/* Sets *pages to the number of leading keys whose pages are there. Returns KVTWIN_OK, or the reason why the store could
 * not look (KVTWIN_UNREACHABLE, KVTWIN_IO_ERROR); *pages is then the number that is certain. */
KVTWIN_API kvtwin_status kvtwin_store_look_up(kvtwin_store* store, const kvtwin_key* keys, size_t count, size_t* pages);

/* Since 1.2. What a prefix needs of a pool to be usable: the objects of its last `trailing` pages. */
typedef struct kvtwin_need {
  uint32_t struct_size;
  uint32_t pool;       /* 1: the first of kvtwin_store_config.pools */
  uint64_t trailing;   /* 1 of a state; of a window, its pages; 0: all pages */
  uint32_t from_start; /* not 0: a prefix with fewer pages needs as many objects as it has; 0: it is not usable */
  uint64_t longest;    /* is set by the call: the longest prefix for which this need is met, whatever the others are */
} kvtwin_need;

/* As kvtwin_store_look_up, and sets usable[i] to 1 if the first i + 1 pages and all that they need are there, else to
 * 0. `usable` has room for `count` bytes. After another result than KVTWIN_OK, more may be there than these say.
 * Returns KVTWIN_BAD_ARGUMENT if a need names no pool of the store. */
KVTWIN_API kvtwin_status kvtwin_store_look_up_usable(kvtwin_store* store, const kvtwin_key* keys, size_t count,
                                                     kvtwin_need* needs, size_t need_count, uint8_t* usable,
                                                     size_t* pages);

/* Puts or gets `count` pages. Page i is pieces_per_page pieces, from addresses[i * pieces_per_page] on, in the order of
 * the form's layout. The lengths of a page sum to kvtwin_store_page_bytes. status[i] is set for every page: KVTWIN_OK
 * if page i is stored (or was there already), or if it was read and is right. After any other status of a get, the
 * page's memory has undefined content. Two pages of one get must not share memory. Returns KVTWIN_OK, whatever the
 * pages' statuses are; KVTWIN_BAD_ARGUMENT if a length is wrong (`status` is untouched); KVTWIN_NO_MEMORY (every status
 * is then KVTWIN_NO_MEMORY, or the page's). */
KVTWIN_API kvtwin_status kvtwin_store_put(kvtwin_store* store, const kvtwin_key* keys, size_t count,
                                          const void* const* addresses, const size_t* lengths, size_t pieces_per_page,
                                          uint8_t* status);
KVTWIN_API kvtwin_status kvtwin_store_get(kvtwin_store* store, const kvtwin_key* keys, size_t count,
                                          void* const* addresses, const size_t* lengths, size_t pieces_per_page,
                                          uint8_t* status);
/* Removes pages. A page that is not there is KVTWIN_OK. After a crash, pages of a disk that were removed since the last
 * kvtwin_store_close may be found again. */
KVTWIN_API kvtwin_status kvtwin_store_remove(kvtwin_store* store, const kvtwin_key* keys, size_t count,
                                             uint8_t* status);

/* Since 1.2. The same for the objects of a pool: 0 the pages, 1 the first of kvtwin_store_config.pools. The lengths of
 * an object sum to kvtwin_store_object_bytes. KVTWIN_BAD_ARGUMENT also if there is no such pool. */
KVTWIN_API uint64_t kvtwin_store_object_bytes(const kvtwin_store* store, size_t pool);
KVTWIN_API kvtwin_status kvtwin_store_put_objects(kvtwin_store* store, size_t pool, const kvtwin_key* keys,
                                                  size_t count, const void* const* addresses, const size_t* lengths,
                                                  size_t pieces_per_object, uint8_t* status);
KVTWIN_API kvtwin_status kvtwin_store_get_objects(kvtwin_store* store, size_t pool, const kvtwin_key* keys,
                                                  size_t count, void* const* addresses, const size_t* lengths,
                                                  size_t pieces_per_object, uint8_t* status);
KVTWIN_API kvtwin_status kvtwin_store_remove_objects(kvtwin_store* store, size_t pool, const kvtwin_key* keys,
                                                     size_t count, uint8_t* status);

/* Writes the store's counters as one JSON object to `text` (at most `size` bytes, with a zero at the end), and sets
 * *needed to the bytes that the whole text needs. Waits for the calls in progress.
 * "medium" of a disk has "pages_evicted" and "capacity_pages", which is lower than configured on a small medium; that
 * of a shared file system has "evicted_pages".
 * {"kind", "look_ups": {"calls", "pages", "found", "seconds"}, "gets": {"calls", "pages", "ok", "bytes", "seconds",
 * "missing", "corrupt", "io_error", "unreachable"}, "puts": {..., "full"}, "removes": {...}, "medium": {name: count}}
 * A store with pools has "pools": [{"name", "object_bytes", "gets", "puts", "removes", "medium"}] in addition.
 */
KVTWIN_API kvtwin_status kvtwin_store_stats(kvtwin_store* store, char* text, size_t size, size_t* needed);

#if defined(__cplusplus)
}
#endif

#endif
