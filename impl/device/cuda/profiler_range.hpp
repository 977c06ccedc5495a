// Marks an operation in the time line of a profiler (NVTX; Nsight Systems shows the domain "kvtwin"). Without a
// profiler a mark is two calls through a null pointer. A toolkit without NVTX's headers: no marks.
#pragma once

#include <cstdint>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define KV_NVTX 1
#endif

namespace kvtwin {

class ProfilerRange {
 public:
#ifdef KV_NVTX
  // `name`: a literal. `number`: e.g. of the operation.
  ProfilerRange(const char* name, std::uint64_t number) {
    nvtxEventAttributes_t attributes{};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    attributes.payload.ullValue = number;
    range_ = nvtxDomainRangeStartEx(domain(), &attributes);
  }
  ~ProfilerRange() { nvtxDomainRangeEnd(domain(), range_); }
#else
  ProfilerRange(const char*, std::uint64_t) {}
  ~ProfilerRange() {}
#endif
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;

#ifdef KV_NVTX
 private:
  static nvtxDomainHandle_t domain() {
    static const nvtxDomainHandle_t made = nvtxDomainCreateA("kvtwin");
    return made;
  }
  nvtxRangeId_t range_ = 0;
#endif
};

}  // namespace kvtwin
