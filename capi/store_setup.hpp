// A store of the C interface as its configuration asks for: the pages, the pools beside them, and their back ends.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "capi/guard.hpp"
#include "impl/disk/pool_room.hpp"
#include "impl/disk/segment_store.hpp"
#include "kvtwin/store.h"
#include "policy/index/page_key.hpp"

namespace kvtwin::capi {

// The pages of a store, or a pool beside them.
struct StoredPool {
  std::string name;      // empty: the pages
  std::string identity;  // beyond that of the store
  PageForm form;
  PageKey space;
  std::unique_ptr<StorageBackend> backend;
};

// Disks of pools whose capacity is in bytes. Each has a folder, and a part of the capacity.
// Thread: one, that of the writes of all pools.
class SharedDisk {
 public:
  // Requires: `stores` outlive this object, and evict.
  SharedDisk(Bytes capacity, const std::vector<Bytes>& object_bytes, std::vector<SegmentStore*> stores);
  // Call before each put of a pool, with the number of objects that are not there.
  void make_room(std::size_t pool, Pages objects);
  // Call after each put and remove. `full`: a put found no room. The medium may turn out to have less than the
  // capacity.
  void fit(bool full);

 private:
  std::vector<Pages> used() const;
  void resize(const std::vector<Pages>& before);
  std::vector<Pages> parts() const;

  const std::vector<SegmentStore*> stores_;
  PoolRoom room_;
};

struct StoreSetup {
  std::string kind;
  std::unique_ptr<PageSeal> seal;  // null: none. Outlives the back ends
  std::deque<StoredPool> pools;    // the pages first
  std::optional<SharedDisk> disk;  // of kind disk, with pools
};

// Errors: BadArgument for a wrong configuration; std::runtime_error or std::system_error if the medium cannot be used.
StoreSetup open_store(const kvtwin_store_config& config);

// Returns a text that must not be empty. Errors: BadArgument with an example.
std::string required_text(const char* text, const char* name, const char* example);

}  // namespace kvtwin::capi
