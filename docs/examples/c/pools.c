/* A store for a hybrid model: pages of full attention, windows of the sliding layers, and states. Stores a prefix of
 * eight pages whose state is kept every fourth page, and asks which lengths can be used again.
 *
 *   cc pools.c -lkvtwin -o pools && ./pools FOLDER
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <kvtwin/store.h>

enum { PAGES = 8, WINDOW = 1, STATE = 2, STATE_BYTES = 100000 };

static void fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

/* Puts or gets one object that lies in one piece of memory. */
static int move(kvtwin_store* store, int puts, size_t pool, const kvtwin_key* key, unsigned char* bytes) {
  size_t length = (size_t)kvtwin_store_object_bytes(store, pool);
  void* address = bytes;
  const void* source = bytes;
  uint8_t status = KVTWIN_FAILED;
  if (puts) {
    if (kvtwin_store_put_objects(store, pool, key, 1, &source, &length, 1, &status) != KVTWIN_OK) fail("bad put");
  } else {
    if (kvtwin_store_get_objects(store, pool, key, 1, &address, &length, 1, &status) != KVTWIN_OK) fail("bad get");
  }
  return status;
}

int main(int count, char** arguments) {
  const char* folder = count == 2 ? arguments[1] : "pools-store";
  kvtwin_pool pools[2] = {{sizeof(kvtwin_pool), "window", {0, 0, 0, 0, 0, 0, NULL}, 0, NULL},
                          {sizeof(kvtwin_pool), "state", {0, 0, 0, 0, 0, 0, NULL}, STATE_BYTES, "float32"}};
  kvtwin_store_config config;
  memset(&config, 0, sizeof config);
  config.struct_size = sizeof config;
  config.kind = "disk";
  config.location = folder;
  /* 6 layers of full attention: K and V, 2 heads of 128 bytes, pages of 16 tokens. */
  config.form.struct_size = sizeof config.form;
  config.form.layers = 6;
  config.form.planes = 2;
  config.form.heads = 2;
  config.form.head_bytes = 128;
  config.form.page_tokens = 16;
  config.form.layout = "page_first";
  pools[0].form = config.form; /* 18 layers with windows */
  pools[0].form.layers = 18;
  config.identity.struct_size = sizeof config.identity;
  config.identity.model = "a-hybrid";
  config.identity.revision = "fixed";
  config.identity.kv_dtype = "bfloat16";
  config.identity.tp = config.identity.pp = 1;
  config.pools = pools;
  config.pool_count = 2;
  config.capacity_bytes = (uint64_t)64 << 20;

  char text[512] = "";
  kvtwin_error error = {text, sizeof text};
  kvtwin_store* store = NULL;
  if (kvtwin_store_open(&config, &store, error) != KVTWIN_OK) fail(text);

  kvtwin_key keys[PAGES];
  memset(keys, 0, sizeof keys);
  for (int page = 0; page < PAGES; ++page) keys[page].bytes[0] = (uint8_t)(page + 1); /* of an engine: hashes */
  size_t largest = 0;
  for (size_t pool = 0; pool <= STATE; ++pool) {
    if (kvtwin_store_object_bytes(store, pool) > largest) largest = (size_t)kvtwin_store_object_bytes(store, pool);
  }
  unsigned char* bytes = malloc(largest);
  if (bytes == NULL) fail("no memory");
  for (int page = 0; page < PAGES; ++page) {
    memset(bytes, page, largest);
    if (move(store, 1, 0, &keys[page], bytes) != KVTWIN_OK) fail("a page was not stored");
    if (move(store, 1, WINDOW, &keys[page], bytes) != KVTWIN_OK) fail("a window was not stored");
    if (page % 4 == 3 && move(store, 1, STATE, &keys[page], bytes) != KVTWIN_OK) fail("a state was not stored");
  }

  /* A prefix needs the windows of its last two pages, and the state at its end. */
  kvtwin_need needs[2];
  memset(needs, 0, sizeof needs);
  needs[0].struct_size = needs[1].struct_size = sizeof needs[0];
  needs[0].pool = WINDOW;
  needs[0].trailing = 2;
  needs[0].from_start = 1;
  needs[1].pool = STATE;
  needs[1].trailing = 1;
  uint8_t usable[PAGES];
  size_t pages = 0;
  if (kvtwin_store_look_up_usable(store, keys, PAGES, needs, 2, usable, &pages) != KVTWIN_OK) fail("no look-up");
  printf("%d pages are there; usable:", (int)pages);
  for (int page = 0; page < PAGES; ++page) {
    if (usable[page]) printf(" %d", page + 1);
  }
  printf("\n");
  if (move(store, 0, STATE, &keys[3], bytes) != KVTWIN_OK || bytes[0] != 3) fail("the state was not read");
  free(bytes);
  kvtwin_store_close(store);
  return 0;
}
