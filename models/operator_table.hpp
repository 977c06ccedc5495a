// Measured operator times of one GPU and one engine: matrix products, attention, mixtures of experts, all-reduces.
// kvtwin import-ops writes the tables. docs/results/operators.md has their errors.
//
// The file (text, or text in one zstd frame):
//
//   kvtwin-operators 1
//   gpu h100_sxm
//   engine sglang
//   source aiconfigurator-core 0.12.0
//   date 2026-11-24
//   # a comment, also anywhere below
//   table gemm bf16
//   axis m 1 2 4 ...
//   axis n 32 64 ...
//   axis k 32 64 ...
//   ns 6100 6140 ...
//
// A table has one to three axes and a time, in nanoseconds, for each point of their product; the last axis varies
// fastest. An `ns` line has the times of one row of the last axis. kvtwin import-ops lists the names of the tables.
//
// Between points, time is linear along each axis. Beyond the last value of an axis, time grows in proportion, as a
// roofline does. Before the first value, time is that of the first value. Along axes of tokens, sequences and bytes,
// times never fall, in the file (checked) and between its points. Along n and k of a matrix product, times may fall: a
// larger product can have a faster kernel.
//
// Units: femtoseconds, in 128-bit integers, rounded down. Equal on all machines.
// Errors: ModelError with one sentence (file, line, a valid value).
// Cost: at_fs() is O(log points per axis).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/error.hpp"
#include "models/wide.hpp"

namespace kvtwin {

// Returns (low * (high_at - at) + high * (at - low_at)) / (high_at - low_at), rounded down.
// Requires: low_at <= at <= high_at, low_at < high_at.
Wide128 between_fs(std::uint64_t at, std::uint64_t low_at, std::uint64_t high_at, Wide128 low, Wide128 high);

class OperatorLattice {
 public:
  static constexpr std::size_t kMaxAxes = 3;

  // Returns the time at one position per axis; an axis that the lattice lacks is ignored. A position of 0 counts as 1.
  Wide128 at_fs(std::uint64_t x, std::uint64_t y = 1, std::uint64_t z = 1) const;

  const std::vector<std::uint64_t>& axis(std::size_t i) const { return axes_[i]; }
  std::size_t axes() const { return axes_.size(); }
  std::size_t points() const { return ns_.size(); }
  std::uint64_t ns(std::size_t point) const { return ns_[point]; }

 private:
  friend class OperatorTableReader;
  Wide128 inside_fs(std::size_t axis, std::size_t from, const std::array<std::uint64_t, kMaxAxes>& at) const;

  std::vector<std::vector<std::uint64_t>> axes_;
  std::vector<std::size_t> strides_;
  std::vector<std::uint64_t> ns_;
};

struct OperatorTable {
  std::string name;  // preset name or file
  std::string gpu, engine, source, date;
  std::map<std::string, OperatorLattice, std::less<>> lattices;  // by name, for example "gemm bf16"

  // Returns nullptr if there is none.
  const OperatorLattice* find(std::string_view lattice) const;
};

constexpr std::size_t kMaxOperatorPoints = std::size_t{1} << 22;

// `bytes`: the content of the file, compressed or not.
OperatorTable parse_operators(std::string_view bytes, const std::string& file);
OperatorTable operators_from_file(const std::string& path);
// A table of models/presets/operators. It is read once and stays. Thread: any.
const OperatorTable& operators_preset(std::string_view name);

}  // namespace kvtwin
