/* A host in C: puts a page into a store, gets it back, and compares it. Argument: the store's folder. */
#include <stdio.h>
#include <string.h>

#include "kvtwin/base.h"
#include "kvtwin/store.h"

int main(int count, char** arguments) {
  if (count != 2 || kvtwin_abi_version() / 1000 != KVTWIN_ABI_MAJOR) return 1;
  kvtwin_store_config config = {0};
  config.struct_size = sizeof config;
  config.kind = "disk";
  config.location = arguments[1];
  config.capacity_pages = 16;
  config.form.struct_size = sizeof config.form;
  config.form.layers = 2;
  config.form.planes = 2;
  config.form.heads = 1;
  config.form.head_bytes = 16;
  config.form.page_tokens = 8;
  config.form.layout = "page_first";
  config.identity.struct_size = sizeof config.identity;
  config.identity.model = "tiny";
  config.identity.revision = "fixed";
  config.identity.kv_dtype = "bfloat16";
  config.identity.tp = 1;
  config.identity.pp = 1;

  char text[256] = "";
  kvtwin_error error = {text, sizeof text};
  kvtwin_store* store = NULL;
  if (kvtwin_store_open(&config, &store, error) != KVTWIN_OK) {
    fprintf(stderr, "%s\n", text);
    return 1;
  }
  unsigned char keys_plane[256], values_plane[256], page[512];
  memset(keys_plane, 1, sizeof keys_plane);
  memset(values_plane, 2, sizeof values_plane);
  const kvtwin_key key = {{7}};
  const void* planes[] = {keys_plane, values_plane};
  const size_t lengths[] = {sizeof keys_plane, sizeof values_plane};
  void* whole[] = {page};
  const size_t length[] = {sizeof page};
  uint8_t status = KVTWIN_MISSING;
  int right = kvtwin_store_put(store, &key, 1, planes, lengths, 2, &status) == KVTWIN_OK && status == KVTWIN_OK;
  right = right && kvtwin_store_get(store, &key, 1, whole, length, 1, &status) == KVTWIN_OK && status == KVTWIN_OK;
  right = right && memcmp(page, keys_plane, 256) == 0 && memcmp(page + 256, values_plane, 256) == 0;
  kvtwin_store_close(store);
  puts(right ? "equal bytes" : "other bytes");
  return right ? 0 : 1;
}
