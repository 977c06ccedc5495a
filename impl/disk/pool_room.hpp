// Divides the room of a store among its pools, whose objects have different sizes. Each pool has a part of its own,
// and evicts by itself within it; this class moves room between the parts.
//
// While the store is not full, a pool gets what it needs. In a full store, a pool that is put to takes room from the
// pool that has most beyond its share. A share is the pool's part of the bytes that were put lately. So all pools'
// objects stay about equally long, as in one queue of all objects.
//
// Thread: one. Deterministic.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

class PoolRoom {
 public:
  // `object_bytes`: of each pool. Requires: the capacity has room for an object of each pool.
  PoolRoom(Bytes capacity, std::vector<Bytes> object_bytes);

  // Objects are about to be put into `pool`. `used`: the objects of each pool now. Changes the parts.
  void make_room(std::size_t pool, Pages objects, std::span<const Pages> used);
  // Each pool gets what it has. If that is too much together, the largest pool gives the rest up.
  void adopt(std::span<const Pages> used);
  // The medium has less room than the capacity: it has no room beyond these objects.
  void limit_to(std::span<const Pages> used);

  // Returns the objects that the pool may have.
  Pages part(std::size_t pool) const { return parts_[pool]; }
  Bytes capacity() const { return capacity_; }

 private:
  Bytes bytes(std::size_t pool) const { return parts_[pool] * sizes_[pool]; }
  Bytes free() const;
  Bytes share(std::size_t pool) const;
  void count_put(std::size_t pool, Bytes bytes);

  Bytes capacity_;
  const std::vector<Bytes> sizes_;
  std::vector<Pages> parts_;
  std::vector<Bytes> put_;  // bytes put lately: halved together
};

}  // namespace kvtwin
