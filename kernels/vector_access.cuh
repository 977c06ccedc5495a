// Loads and stores of 1 to 16 bytes with one instruction each, for the copy kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvtwin {

template <std::uint32_t kBytes>
struct VectorOf;
template <>
struct VectorOf<16> {
  using Type = uint4;
};
template <>
struct VectorOf<8> {
  using Type = uint2;
};
template <>
struct VectorOf<4> {
  using Type = std::uint32_t;
};
template <>
struct VectorOf<2> {
  using Type = std::uint16_t;
};
template <>
struct VectorOf<1> {
  using Type = unsigned char;
};

// Loads from GPU memory that nothing writes while the kernel runs. Does not allocate in L1, which stays free for other
// work. The read-only path (.nc) would be legal, but ptxas moves such loads down to the stores that use them, so only
// one load would be in flight instead of eight. ptxas must not move these loads over a store.
template <typename Vector>
__device__ inline Vector load_settled(const std::byte* at) {
  const auto address = __cvta_generic_to_global(at);
  if constexpr (sizeof(Vector) == 16) {
    uint4 v;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address)
                 : "memory");
    return v;
  } else if constexpr (sizeof(Vector) == 8) {
    uint2 v;
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address) : "memory");
    return v;
  } else if constexpr (sizeof(Vector) == 4) {
    std::uint32_t v;
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(v) : "l"(address) : "memory");
    return v;
  } else if constexpr (sizeof(Vector) == 2) {
    std::uint16_t v;
    asm volatile("ld.global.L1::no_allocate.u16 %0, [%1];" : "=h"(v) : "l"(address) : "memory");
    return v;
  } else {
    std::uint16_t v;
    asm volatile("ld.global.L1::no_allocate.u8 %0, [%1];" : "=h"(v) : "l"(address) : "memory");
    return static_cast<Vector>(v);
  }
}

// Loads from host memory. Neighbouring bytes can change while the kernel runs (storage threads, network cards), so this
// is a relaxed load at system scope, which no cache of the SM answers. Such loads are not ordered among each other, so
// many can be in flight.
template <typename Vector>
__device__ inline Vector load_shared_with_host(const std::byte* at) {
  const auto address = __cvta_generic_to_global(at);
  if constexpr (sizeof(Vector) == 16) {
    uint4 v;
    asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(address));
    return v;
  } else if constexpr (sizeof(Vector) == 8) {
    uint2 v;
    asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(address));
    return v;
  } else if constexpr (sizeof(Vector) == 4) {
    std::uint32_t v;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(address));
    return v;
  } else if constexpr (sizeof(Vector) == 2) {
    std::uint16_t v;
    asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v) : "l"(address));
    return v;
  } else {
    std::uint16_t v;
    asm volatile("ld.relaxed.sys.global.u8 %0, [%1];" : "=h"(v) : "l"(address));
    return static_cast<Vector>(v);
  }
}

// Ordinary stores that do not allocate in L1. The host sees them at the end of the stream's work.
template <typename Vector>
__device__ inline void store_once(std::byte* at, Vector v) {
  const auto address = __cvta_generic_to_global(at);
  if constexpr (sizeof(Vector) == 16) {
    asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
  } else if constexpr (sizeof(Vector) == 8) {
    asm volatile("st.global.L1::no_allocate.v2.u32 [%0], {%1, %2};" ::"l"(address), "r"(v.x), "r"(v.y) : "memory");
  } else if constexpr (sizeof(Vector) == 4) {
    asm volatile("st.global.L1::no_allocate.u32 [%0], %1;" ::"l"(address), "r"(v) : "memory");
  } else if constexpr (sizeof(Vector) == 2) {
    asm volatile("st.global.L1::no_allocate.u16 [%0], %1;" ::"l"(address), "h"(v) : "memory");
  } else {
    asm volatile("st.global.L1::no_allocate.u8 [%0], %1;" ::"l"(address), "h"(static_cast<std::uint16_t>(v))
                 : "memory");
  }
}

}  // namespace kvtwin
