// A world for a cache alone, in which every copy ends at once.
#pragma once

#include <stdexcept>
#include <utility>
#include <vector>

#include "policy/seam/substrate.hpp"

namespace kvtwin::test {

class InstantWorld final : public Substrate {
 public:
  TimeNs now() const override { return 0; }
  OperationId submit(const Operation&) override {
    const OperationId id{++last_};
    ends_.push_back(id);
    return id;
  }
  OperationId call_at(TimeNs) override { throw std::runtime_error("no timer is set"); }
  OperationId reduce_min(const ReduceVector&) override { throw std::runtime_error("no rank is asked"); }
  void cancel(OperationId) override {}
  std::vector<OperationId> take_ends() { return std::exchange(ends_, {}); }

 private:
  std::uint64_t last_ = 0;
  std::vector<OperationId> ends_;
};

}  // namespace kvtwin::test
