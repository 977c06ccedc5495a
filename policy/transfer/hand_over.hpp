// The bytes and writes of a hand-over: pages that go from the device slots of a prefill engine to those of a decode
// engine. Symbolic, like a Plan: the simulator charges it, an executor expands it. The engines may have different
// numbers of ranks and, where pages are staged in host memory, different layouts. docs/internals/hand-over.md has the
// formulas.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "policy/base/types.hpp"
#include "policy/transfer/layout.hpp"

namespace kvtwin {

// Both: serves whole requests only. A prefill engine computes prompts and writes their pages to a decode engine.
enum class EngineRole : std::uint8_t { both, prefill, decode };

// When the pages of a prompt are written: after the prompt's last pass; after each pass; or beside each pass, group by
// group of its layers.
enum class HandOverUnit : std::uint8_t { whole, chunks, layers };
constexpr std::string_view name_of(HandOverUnit unit) {
  switch (unit) {
    case HandOverUnit::whole: return "whole";
    case HandOverUnit::chunks: return "chunks";
    case HandOverUnit::layers: return "layers";
  }
  return "";
}

// The pool that a hand-over reads or writes. `layout`: layer_first for device memory; staged, that of the host pool.
struct HandOverSide {
  KvShape shape;  // of one rank
  std::uint32_t ranks = 1;
  Layout layout = Layout::layer_first;
  std::vector<KvShape> beside = {};   // of one rank's slot in each pool beside pool 0: windows and states
  std::optional<KvShape> draft = {};  // of one rank: KV of a draft model in the same slots, which goes with the pages
};

struct HandOverWork {
  Pages pages = 0;
  Bytes bytes = 0;            // over the network, of all ranks together
  std::uint64_t writes = 0;   // pieces that are contiguous on both sides, of all ranks together
  Bytes piece_bytes = 0;      // of one of them; neighbouring pages may make longer ones
  std::uint32_t senders = 1;  // ranks that send; one for an MLA latent, which is the same on every rank
  std::uint32_t receivers = 1;
  std::uint32_t layer_groups = 1;
  bool staged = false;  // through host memory on both sides, not from GPU to GPU (GPUDirect RDMA)
};

// Returns whether the ranks of an engine hold equal pages: an MLA latent.
constexpr bool is_latent(const KvShape& shape) { return shape.planes == 1; }

// Returns the work of moving `pages` pages, and the draft model's KV if both sides have it, in `runs` runs of pages
// that are neighbours on both sides. A latent crosses the network once, to one rank of the decode engine, which copies
// it to the others: CostModel::broadcast_ns() has that time. Any other page goes to every rank of the decode engine,
// which has its own heads. Requires: both sides have the same layers, planes, head bytes and page tokens.
// `layer_groups`: at most the layers.
HandOverWork hand_over_work(const HandOverSide& from, const HandOverSide& to, Pages pages, std::uint64_t runs,
                            std::uint32_t layer_groups, bool staged);

// Adds slots of the pool `at` beside pool 0. Windows go the way of the pages. A state goes to every rank of the decode
// engine, which has its own part of it. If the engines have different numbers of ranks, the windows of each token are
// apart.
void add_beside(HandOverWork& work, const HandOverSide& from, const HandOverSide& to, std::size_t at, bool states,
                Pages slots);

// Which windows of a prompt the decode engine gets: those from this page on. They cover the window of the prompt's last
// full page too, so that the decode engine can cache it.
constexpr Pages first_window_page(Tokens window, Tokens prompt, Tokens page) {
  const Pages full = prompt / page, kept = (window + page - 1) / page;
  return full > kept ? full - kept : 0;
}
// The number of slots that a hand-over fills in a pool beside pool 0. `window`: 0 for a pool of states.
constexpr Pages handed_slots(Tokens window, Tokens prompt, Tokens page) {
  return window == 0 ? 1 : (prompt + page - 1) / page - first_window_page(window, prompt, page);
}

}  // namespace kvtwin
