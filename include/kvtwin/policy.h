/* kvtwin's eviction policies, for an engine that has a cache of its own ("host"): the engine keeps its pages, its tree
 * and its transfers, reports what happens to them, and receives victims.
 *
 * A kvtwin_policy is a radix tree over page keys with one eviction policy for the device tier (GPU memory) and one for
 * the host tier (CPU memory), if the engine has that tier. A node is a run of pages with one state; its number stays
 * the same until the node has left both tiers. A split gives the upper part a new number, and the lower part keeps the
 * old one. Node 0 is the root.
 *
 * For each request, a host makes these calls, in this order:
 *
 * - kvtwin_policy_queue when the request begins to wait (for policies that look ahead);
 * - kvtwin_policy_match to find the cached prefix; or the host walks its own tree, and reports its splits;
 * - kvtwin_policy_unqueue, _visit, _touch and _lease when the request is admitted;
 * - kvtwin_policy_victim and _evict as often as the host needs room;
 * - kvtwin_policy_visit, _insert, _touch and _release when pages were computed.
 *
 * A host may evict another node than the victim: kvtwin_policy_evict takes each node that is on offer, and
 * kvtwin_policy_drop the copies that leave for another reason than a lack of room.
 *
 * Errors: KVTWIN_BAD_ARGUMENT for a call that does not fit the state; nothing has then changed.
 * kvtwin_policy_error() returns the sentence. KVTWIN_FAILED after an error inside kvtwin: every later call of this
 * policy fails too.
 * Threads: one thread at a time for each policy. A call journal may be shared by threads.
 * Cost: O(nodes on the path) for each call, and O(pages) for keys that are passed.
 */
#ifndef KVTWIN_POLICY_H
#define KVTWIN_POLICY_H

#include "kvtwin/base.h"

#if defined(__cplusplus)
extern "C" {
#endif

typedef struct kvtwin_policy kvtwin_policy;
typedef struct kvtwin_call_journal kvtwin_call_journal;

typedef uint32_t kvtwin_node;
#define KVTWIN_ROOT ((kvtwin_node)0)
#define KVTWIN_NO_NODE ((kvtwin_node)0xFFFFFFFFu)

typedef uint32_t kvtwin_tier;
enum { KVTWIN_DEVICE = 0, KVTWIN_HOST = 1 };

typedef struct kvtwin_policy_config {
  uint32_t struct_size;
  const char* name;         /* of the eviction policy, see kvtwin_policy_names(); with parameters or without:
                               "slru(protected=3)" */
  uint64_t device_pages;    /* capacity; at least 1 */
  uint64_t host_pages;      /* capacity; 0: the engine has no such tier */
  uint32_t page_tokens;     /* tokens of a page */
  uint32_t whole_nodes;     /* 1: the engine evicts whole nodes; 0: it can evict the last pages of a node */
  uint32_t split_refreshes; /* 1: a split counts as an access of the lower part, as in SGLang */
  uint32_t hits_by_count;   /* 1: a node enters without a hit, and kvtwin_policy_count() adds hits, as in SGLang; 0: a
                               node enters with one hit, and each access adds one */
  uint64_t doubling_tokens; /* depth at which computing a token costs twice what the first one does; 0: the default */
  /* Of earlier versions; 0 if the name has parameters. */
  uint32_t slru_protected_touches; /* "slru(protected=...)"; 0: the default */
  uint64_t tlru_threshold_tokens;  /* "tlru(threshold=..., next_prompt=...)" */
  uint64_t tlru_next_prompt_tokens;
  kvtwin_call_journal* journal; /* records every call until it is closed; NULL: none */
} kvtwin_policy_config;

/* Returns the names of the eviction policies, with NULL at the end. The memory is the library's. */
KVTWIN_API const char* const* kvtwin_policy_names(void);

KVTWIN_API kvtwin_status kvtwin_policy_create(const kvtwin_policy_config* config, kvtwin_policy** policy,
                                              kvtwin_error error);
/* NULL is allowed. */
KVTWIN_API void kvtwin_policy_destroy(kvtwin_policy* policy);
/* Returns what was wrong with the last call that failed; valid until the next call. */
KVTWIN_API const char* kvtwin_policy_error(const kvtwin_policy* policy);

/* The longest cached prefix: the first device_pages pages are on the device, the next host_pages only on the host. */
typedef struct kvtwin_match {
  kvtwin_node end; /* the node that ends with the last matched page */
  uint64_t device_pages, host_pages;
} kvtwin_match;
/* Finds the longest prefix of `keys`, and splits the node in which it ends. */
KVTWIN_API kvtwin_status kvtwin_policy_match(kvtwin_policy* policy, const kvtwin_key* keys, size_t count,
                                             kvtwin_match* match);

/* Adds a node below `parent`; its pages are on `tier`. None of the keys may be in the tree. The device's part of the
 * tree is closed upwards: the parent must be on the device too. */
KVTWIN_API kvtwin_status kvtwin_policy_insert(kvtwin_policy* policy, kvtwin_node parent, const kvtwin_key* keys,
                                              size_t count, kvtwin_tier tier, int32_t priority, kvtwin_node* node);
/* Sets *pages to the number of leading pages that may form one node: the policy remembers the same history for them.
 * A host that wants the policy's best choices inserts them as a node of their own. */
KVTWIN_API kvtwin_status kvtwin_policy_share(kvtwin_policy* policy, const kvtwin_key* keys, size_t count,
                                             uint64_t* pages);
/* The first `pages` pages become a node of their own, *upper. */
KVTWIN_API kvtwin_status kvtwin_policy_split(kvtwin_policy* policy, kvtwin_node node, uint64_t pages,
                                             kvtwin_node* upper);
/* The node's pages have been copied to the tier, or have left the tier. With its last copy, the node goes. */
KVTWIN_API kvtwin_status kvtwin_policy_place(kvtwin_policy* policy, kvtwin_node node, kvtwin_tier tier);
KVTWIN_API kvtwin_status kvtwin_policy_drop(kvtwin_policy* policy, kvtwin_node node, kvtwin_tier tier);

typedef uint32_t kvtwin_touch;
enum {
  KVTWIN_TOUCH_RECENCY = 0,   /* the visiting request uses the path */
  KVTWIN_TOUCH_ACCESS = 1,    /* the same, and counts a hit of each node (see hits_by_count) */
  KVTWIN_TOUCH_STAMP = 2,     /* a request looks at the path, and may never use it: only the recency changes */
  KVTWIN_TOUCH_STAMP_NODE = 3 /* the same, of the last node alone */
};
/* Makes the path that ends at `end` the most recently used one. */
KVTWIN_API kvtwin_status kvtwin_policy_touch(kvtwin_policy* policy, kvtwin_node end, kvtwin_touch kind);
/* Counts a hit of this node. */
KVTWIN_API kvtwin_status kvtwin_policy_count(kvtwin_policy* policy, kvtwin_node node);
/* Raises the priority of the nodes on the path to at least `priority`. */
KVTWIN_API kvtwin_status kvtwin_policy_raise(kvtwin_policy* policy, kvtwin_node end, int32_t priority);

/* While a path is leased on a tier, its copies there are no victims. Each lease is released once. */
KVTWIN_API kvtwin_status kvtwin_policy_lease(kvtwin_policy* policy, kvtwin_node end, kvtwin_tier tier);
KVTWIN_API kvtwin_status kvtwin_policy_release(kvtwin_policy* policy, kvtwin_node end, kvtwin_tier tier);

typedef struct kvtwin_visit {
  uint32_t struct_size;
  uint32_t is_further;    /* 0: the request's first visit, when it is admitted; 1: it has computed more pages */
  uint64_t request;       /* a number of the host's choice, different for each request */
  int64_t time_ns;        /* from any origin; never decreases */
  uint64_t session;       /* 0: none */
  uint64_t prompt_tokens; /* of the request */
  uint64_t output_tokens; /* so far */
  const kvtwin_key* keys; /* of the request's pages so far */
  size_t count;
} kvtwin_visit;
/* A request is at work. Comes before the touches, inserts and evictions that the request causes. */
KVTWIN_API kvtwin_status kvtwin_policy_visit(kvtwin_policy* policy, const kvtwin_visit* visit);
/* The request begins to wait, or no longer waits. */
KVTWIN_API kvtwin_status kvtwin_policy_queue(kvtwin_policy* policy, uint64_t request, const kvtwin_key* keys,
                                             size_t count);
KVTWIN_API kvtwin_status kvtwin_policy_unqueue(kvtwin_policy* policy, uint64_t request);

typedef uint32_t kvtwin_hint;
enum {
  KVTWIN_SESSION_END = 0,       /* no further request of the session is expected */
  KVTWIN_TOOL_CALL_PENDING = 1, /* the next request comes when a tool has answered */
  KVTWIN_PIN = 2,               /* keep the pages that the session used last: for `value` ms, or if 0, until unpin */
  KVTWIN_UNPIN = 3
};
KVTWIN_API kvtwin_status kvtwin_policy_hint(kvtwin_policy* policy, kvtwin_hint hint, uint64_t session, int64_t value,
                                            int64_t time_ns);

/* Sets *node to the next victim of the tier; KVTWIN_NO_NODE if nothing may be evicted. Evicts nothing. */
KVTWIN_API kvtwin_status kvtwin_policy_victim(kvtwin_policy* policy, kvtwin_tier tier, kvtwin_node* node);
/* The last `pages` pages of the node leave the tier, to make room. The node must be on offer: on the device without a
 * child and a lease there, or only on the host without a child and a lease. */
KVTWIN_API kvtwin_status kvtwin_policy_evict(kvtwin_policy* policy, kvtwin_node node, kvtwin_tier tier, uint64_t pages);
/* Every node and every waiting request has gone. */
KVTWIN_API kvtwin_status kvtwin_policy_clear(kvtwin_policy* policy);

typedef struct kvtwin_policy_stats {
  uint32_t struct_size;                              /* set it before the call */
  uint64_t nodes;                                    /* without the root */
  uint64_t device_pages, host_pages;                 /* a page on both tiers counts on both */
  uint64_t evictable_device_pages;                   /* that evictions could free now */
  uint64_t calls, failed_calls;                      /* so far */
  uint64_t victims, victims_digest;                  /* choices so far, and a digest of them */
  uint64_t device_evicted_pages, host_evicted_pages; /* by kvtwin_policy_evict() */
  uint64_t looks_ahead, takes_hints;                 /* 1: the policy uses the queue; the hints */
} kvtwin_policy_stats;
KVTWIN_API kvtwin_status kvtwin_policy_get_stats(const kvtwin_policy* policy, kvtwin_policy_stats* stats);
/* Compares every count and set of the tree with a computation from scratch; KVTWIN_FAILED if one is wrong. O(pages);
 * for tests. */
KVTWIN_API kvtwin_status kvtwin_policy_check(kvtwin_policy* policy);

/* Makes the key before the first page of a namespace, for `prior` of kvtwin_policy_keys(). `extra_key` and `salt` may
 * contain any bytes, also zero bytes; NULL: absent. Returns KVTWIN_MISSING if both are absent: there is no such key. */
KVTWIN_API kvtwin_status kvtwin_policy_namespace(const char* extra_key, size_t extra_key_bytes, const char* salt,
                                                 size_t salt_bytes, kvtwin_key* key);

/* Makes a key for each whole page of `tokens`: a 128-bit hash (XXH3) over the page before and the page's tokens. `keys`
 * has count / page_tokens places. `prior`: the key of the page before the first one; NULL: none. `extra_key` and `salt`
 * are the namespace of a first page (SGLang's names); NULL: absent. These keys are quick to make, and not those of
 * SGLang's storage tier. */
KVTWIN_API kvtwin_status kvtwin_policy_keys(const int64_t* tokens, size_t count, uint32_t page_tokens,
                                            const kvtwin_key* prior, const char* extra_key, const char* salt,
                                            kvtwin_key* keys);

/* A file with every call of a policy and every call of the host's storage back end: `kvtwin replay`, `kvtwin explain`
 * and `kvtwin calibrate --from` read it. `host`: a name, for example "sglang 0.5.23". An existing file is replaced.
 * If the disk fails later, recording stops; kvtwin_call_journal_close() then returns KVTWIN_IO_ERROR.
 * In a child of fork(), nothing is recorded, and the file stays as the parent writes it. */
KVTWIN_API kvtwin_status kvtwin_call_journal_open(const char* path, const char* host, kvtwin_call_journal** journal,
                                                  kvtwin_error error);
typedef uint32_t kvtwin_storage_verb;
enum { KVTWIN_GET = 0, KVTWIN_PUT = 1, KVTWIN_LOOK_UP = 2 };
/* A call of the storage back end has ended: `ok` of `pages` pages were moved or found, `bytes` bytes, in `ns`
 * nanoseconds. Any thread may call it. NULL is allowed. */
KVTWIN_API void kvtwin_call_journal_storage_call(kvtwin_call_journal* journal, kvtwin_storage_verb verb, uint64_t pages,
                                                 uint64_t ok, uint64_t bytes, uint64_t ns);
/* Writes what is buffered to the file. NULL is allowed. */
KVTWIN_API kvtwin_status kvtwin_call_journal_flush(kvtwin_call_journal* journal);
/* Ends the file. No other call with the journal may be in progress or follow; later calls of its policies are not
 * recorded. NULL is allowed. */
KVTWIN_API kvtwin_status kvtwin_call_journal_close(kvtwin_call_journal* journal);

#if defined(__cplusplus)
}
#endif

#endif
