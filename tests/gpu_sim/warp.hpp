// What translated kernels (translate.py) use: the warp that runs, and the arithmetic of PTX where C++ has another one.
//
// A kernel is one function. A call executes one basic block for some lanes of a warp, one lane after another, and sets
// each lane's next block. The simulator chooses the warp, the block and the lanes (cta.cpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace kvtwin::gpu_sim {

class Cta;
class Warp;

struct Parameter {
  std::uint32_t at = 0, bytes = 0;
};

// A translated kernel.
struct Kernel {
  const char* name;  // mangled
  const char* file;  // of the PTX
  std::uint32_t architecture;
  void (*run)(Warp&);
  std::uint32_t register_bytes;  // of a lane
  std::uint32_t parameter_bytes;
  std::span<const Parameter> parameters;
  std::uint32_t shared_bytes;  // without dynamic shared memory
  std::uint32_t dynamic_alignment;
  std::uint32_t most_threads;                   // of a CTA
  std::span<const std::uint16_t> instructions;  // number of instructions of each block
};

// Adds kernels to those that can be launched. A later kernel replaces one of the same name and architecture.
class Registration {
 public:
  explicit Registration(std::span<const Kernel> kernels);
};

enum class Shuffle : std::uint8_t { idx, up, down, bfly };
enum class Reduce : std::uint8_t { min, max, add, bits };
enum class Atomic : std::uint8_t { add, min, max };

inline constexpr std::uint32_t kLanes = 32;

// Shared memory begins at this address of the shared space. In the generic space it lies where no host memory lies.
inline constexpr std::uint32_t kSharedBase = 1024;
inline constexpr std::uint64_t kSharedWindow = std::uint64_t{0x7A} << 56;

// `line` is the line of the instruction in the PTX. A function that takes the next block sends the lane there when its
// wait is over; result() is valid then.
class Warp {
 public:
  struct Lanes {
    const std::uint32_t *first, *last;
    const std::uint32_t* begin() const { return first; }
    const std::uint32_t* end() const { return last; }
  };

  // ---- control ----
  std::uint32_t block() const { return block_; }
  Lanes lanes() const { return {order_, order_ + lanes_}; }
  void go(std::uint32_t lane, std::uint32_t block) { next_[lane] = block; }
  void all_go(std::uint32_t block) {
    for (const std::uint32_t lane : lanes()) next_[lane] = block;
  }
  void leave(std::uint32_t lane);
  [[noreturn]] void trap(std::uint32_t lane, std::uint32_t line);

  // ---- registers and constants ----
  template <typename Registers>
  Registers& registers(std::uint32_t lane) {
    return *reinterpret_cast<Registers*>(registers_ + lane * register_stride_);
  }
  std::uint64_t result(std::uint32_t lane) const { return result_[lane]; }
  bool inside(std::uint32_t lane) const { return (inside_ >> lane & 1) != 0; }
  void set_result(std::uint32_t lane, std::uint64_t value) { result_[lane] = value; }
  std::uint32_t thread(std::uint32_t lane) const { return first_thread_ + lane; }
  std::uint32_t block_threads() const { return block_threads_; }
  std::uint32_t cta_number() const { return cta_number_; }
  std::uint32_t grid_ctas() const { return grid_ctas_; }
  std::uint64_t parameter(std::uint32_t at) const { return parameters_ + at; }
  std::uint32_t shared(std::uint32_t offset) const { return kSharedBase + offset; }
  std::uint32_t dynamic_shared() const { return kSharedBase + dynamic_; }
  std::uint64_t to_shared(std::uint64_t generic) const { return generic - kSharedWindow; }
  std::uint64_t from_shared(std::uint64_t shared) const { return shared + kSharedWindow; }

  // ---- memory ----
  template <std::uint32_t kBytes>
  void load_parameter(std::uint32_t lane, std::uint64_t at, void* to, std::uint32_t line) {
    if (at < parameters_ || at + kBytes > parameter_end_) no_parameter(lane, at, kBytes, line);
    std::memcpy(to, reinterpret_cast<const std::byte*>(at), kBytes);
  }
  template <std::uint32_t kBytes>
  void ld_global(std::uint32_t lane, std::uint64_t at, void* to, std::uint32_t line, bool strong = false) {
    std::memcpy(to, global(lane, at, kBytes, false, strong, line), kBytes);
  }
  template <std::uint32_t kBytes>
  void st_global(std::uint32_t lane, std::uint64_t at, const void* from, std::uint32_t line, bool strong = false) {
    std::memcpy(global(lane, at, kBytes, true, strong, line), from, kBytes);
  }
  template <std::uint32_t kBytes>
  void ld_shared(std::uint32_t lane, std::uint32_t at, void* to, std::uint32_t line, bool strong = false) {
    std::memcpy(to, shared_bytes(lane, at, kBytes, false, strong, line), kBytes);
  }
  template <std::uint32_t kBytes>
  void st_shared(std::uint32_t lane, std::uint32_t at, const void* from, std::uint32_t line, bool strong = false) {
    std::memcpy(shared_bytes(lane, at, kBytes, true, strong, line), from, kBytes);
  }
  template <std::uint32_t kBytes>
  void ld_generic(std::uint32_t lane, std::uint64_t at, void* to, std::uint32_t line, bool strong = false) {
    std::memcpy(to, generic(lane, at, kBytes, false, strong, line), kBytes);
  }
  template <std::uint32_t kBytes>
  void st_generic(std::uint32_t lane, std::uint64_t at, const void* from, std::uint32_t line, bool strong = false) {
    std::memcpy(generic(lane, at, kBytes, true, strong, line), from, kBytes);
  }
  template <typename T>
  T atomic(std::uint32_t lane, Atomic what, std::uint64_t at, T value, std::uint32_t line) {
    T before;
    std::byte* place = global(lane, at, sizeof(T), true, true, line);
    std::memcpy(&before, place, sizeof before);
    const T after = what == Atomic::add   ? static_cast<T>(before + value)
                    : what == Atomic::min ? std::min(before, value)
                                          : std::max(before, value);
    std::memcpy(place, &after, sizeof after);
    return before;
  }

  // ---- waits ----
  void wait_for_cta(std::uint32_t lane, std::uint32_t next, std::uint32_t line);
  void wait_for_warp(std::uint32_t lane, std::uint32_t members, std::uint32_t next, std::uint32_t line);
  void shuffle(std::uint32_t lane, Shuffle how, std::uint32_t value, std::uint32_t b, std::uint32_t c,
               std::uint32_t members, std::uint32_t next, std::uint32_t line);
  void reduce(std::uint32_t lane, Reduce how, std::uint32_t value, std::uint32_t members, std::uint32_t next,
              std::uint32_t line);

  // ---- mbarriers and bulk copies ----
  void barrier_init(std::uint32_t lane, std::uint32_t at, std::uint32_t arrivals, std::uint32_t line);
  void barrier_arrive(std::uint32_t lane, std::uint32_t at, std::uint32_t line);
  void barrier_expect(std::uint32_t lane, std::uint32_t at, std::uint32_t bytes, std::uint32_t line);
  void barrier_wait(std::uint32_t lane, std::uint32_t at, std::uint32_t parity, std::uint32_t next, std::uint32_t line);
  void bulk_load(std::uint32_t lane, std::uint32_t to, std::uint64_t from, std::uint32_t bytes, std::uint32_t barrier,
                 std::uint32_t line);
  void bulk_store(std::uint32_t lane, std::uint64_t to, std::uint32_t from, std::uint32_t bytes, std::uint32_t line);
  void bulk_commit(std::uint32_t lane);
  void bulk_wait(std::uint32_t lane, std::uint32_t most, bool reads_only, std::uint32_t next, std::uint32_t line);
  void fence_proxy(std::uint32_t lane);

 private:
  friend class Cta;

  [[noreturn]] void no_parameter(std::uint32_t lane, std::uint64_t at, std::uint32_t bytes, std::uint32_t line);
  // The place of `bytes` bytes that the lane may access. Errors: Fault.
  std::byte* global(std::uint32_t lane, std::uint64_t at, std::uint32_t bytes, bool write, bool strong,
                    std::uint32_t line);
  std::byte* shared_bytes(std::uint32_t lane, std::uint32_t at, std::uint32_t bytes, bool write, bool strong,
                          std::uint32_t line);
  std::byte* generic(std::uint32_t lane, std::uint64_t at, std::uint32_t bytes, bool write, bool strong,
                     std::uint32_t line);

  // The operation of the warp that a lane waits in.
  struct Meeting {
    std::uint32_t members = 0, arrived = 0;  // sets of lanes
    std::uint32_t block = 0;                 // of the instruction
  };
  // Returns true if the lane is the last of the members; then the operation happens.
  bool meet(std::uint32_t lane, std::uint32_t members, std::uint32_t line);

  Cta* cta_ = nullptr;
  std::byte* registers_ = nullptr;
  std::size_t register_stride_ = 0;
  std::uint64_t parameters_ = 0, parameter_end_ = 0;
  std::uint32_t first_thread_ = 0, block_threads_ = 0, cta_number_ = 0, grid_ctas_ = 0, dynamic_ = 0;
  std::uint32_t block_ = 0, lanes_ = 0, chosen_ = 0;  // chosen_: the lanes as a set
  std::uint32_t order_[kLanes] = {};                  // the lanes that run now
  std::uint32_t next_[kLanes] = {};                   // the next block of each lane
  std::uint64_t result_[kLanes] = {};
  std::uint32_t inside_ = 0;            // a set of lanes
  std::uint32_t ready_ = 0, live_ = 0;  // sets of lanes
  Meeting meeting_[kLanes];             // of the set of members that begins with this lane
  struct Operand {
    std::uint32_t value = 0, b = 0, c = 0;
  };
  Operand operand_[kLanes];
};

inline float as_float(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
inline std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
// A division by zero has no defined value in PTX, and no error.
template <typename T>
T quotient(T a, T b) {
  static_assert(std::is_unsigned_v<T>);
  return b == 0 ? static_cast<T>(~T{0}) : static_cast<T>(a / b);
}
template <typename T>
T remainder(T a, T b) {
  static_assert(std::is_unsigned_v<T>);
  return b == 0 ? static_cast<T>(~T{0}) : static_cast<T>(a % b);
}
// Shifts by more than the width give 0 or the sign.
template <typename T>
T shifted_left(T value, std::uint32_t by) {
  return by >= 8 * sizeof(T) ? T{0} : static_cast<T>(std::uint64_t{value} << by);
}
template <typename T>
T shifted_right(T value, std::uint32_t by) {
  if (by < 8 * sizeof(T)) return static_cast<T>(value >> by);
  return value < 0 ? static_cast<T>(-1) : T{0};
}

// bfi: the low `bits` bits of a, in the place of those of b that begin at `place`.
template <typename T>
T inserted(T a, T b, std::uint32_t place, std::uint32_t bits) {
  constexpr std::uint32_t kWidth = 8 * sizeof(T);
  place &= 0xFF, bits &= 0xFF;
  if (place >= kWidth || bits == 0) return b;
  bits = std::min(bits, kWidth - place);
  const T mask = static_cast<T>((bits >= kWidth ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << bits) - 1)) << place);
  return static_cast<T>((b & ~mask) | (static_cast<T>(a << place) & mask));
}

}  // namespace kvtwin::gpu_sim
