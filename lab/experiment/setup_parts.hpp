// The steps of make_setup(), by what they set up: setup_roles.cpp, setup_hardware.cpp, setup_costs.cpp,
// setup_tiers.cpp, setup_offload.cpp and setup_storage.cpp. Private to lab/experiment/*.cpp. Errors of each: InputError
// that names the key, ModelError.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#include "models/operator_table.hpp"

namespace kvtwin {

// Returns the result of `read`. Turns its ModelErrors into InputErrors with the key.
template <typename Read>
auto with_key(const Experiment& e, std::string_view key, const Read& read) {
  try {
    return read();
  } catch (const ModelError& error) {
    throw InputError(e.where(key) + ": " + error.what());
  }
}

inline TimeNs nanoseconds(const Experiment& e, std::string_view key) {
  return static_cast<TimeNs>(e.number(key) * 1e9 + 0.5);
}

// ---- setup_roles.cpp

// Sets the number of engines that all other parts use. Groups of attention count as engines.
void count_engines(const Experiment& e, Setup& setup);
void configure_deaths(const Experiment& e, Setup& setup);
// The decode engines, and what both roles know of each other.
void configure_roles(const Experiment& e, const HardwareSpec* hardware, Setup& setup);

// ---- setup_hardware.cpp

// Moves figures within their intervals: hardware.draw, hardware.end.
void draw_hardware(const Experiment& e, Setup& setup);
// Applies hardware.set, with a note for each figure.
void override_hardware(const Experiment& e, Setup& setup);
void configure_world(const Experiment& e, Setup& setup);

// ---- setup_costs.cpp

// Sets the costs of computing and reading that policies use. The cost of a token grows linearly with its depth. Two
// points of the cost model give the line, at lengths where the overhead of a pass does not matter.
void price(Setup& setup);
// Returns null if the experiment has no table. `read`: takes the table of a file.
const OperatorTable* operators_of(const Experiment& e, Setup& setup, OperatorTable& read);
// Says which share of two typical passes is measured.
std::string operators_note(const OperatorTable& table, const RooflineCost& cost);
void configure_serving(const Experiment& e, Setup& setup);
// Limits the host link to the engine's share. Requires: called before the cost model is made.
void configure_host_link(const Experiment& e, Setup& setup);

// ---- setup_tiers.cpp

// Returns the pages of a tier, for the whole engine; 0 if the experiment does not set the tier.
Pages tier_pages(const Experiment& e, const std::string& tier, Tokens page_tokens, double bytes_per_token);
// Gives the engine its pools for windows and states, or says why every cached prefix counts as usable.
void keep_pools(const Experiment& e, Setup& setup);
// Returns the tokens of a page: those of cache.page_tokens, or what vLLM's groups of blocks make of them.
std::uint32_t page_of(const Experiment& e, std::uint32_t ranks, Setup& setup);
void size_tiers(const Experiment& e, Setup& setup);
// The KV of a slot, in pieces of one layer each.
KvShape shape_of_slot(const PoolSize& pool, std::uint32_t layers, std::uint32_t page_tokens);

// ---- setup_offload.cpp

// Returns whether L1 has the size of vLLM's pool of equal blocks. A draft model's layers are not in its groups here.
bool has_blocks(const Experiment& e, const Setup& setup);
// Returns whether a model with windows or states is decided for by vLLM's groups of blocks.
bool decides_by_blocks(const Experiment& e, const Setup& setup);
// Returns whether vLLM's offloading decides for a model with one kind of KV.
bool offloads_pages(const Experiment& e, Setup& setup);
// Makes each page of L1 a block of one group.
void fill_pages_as_blocks(Setup& setup);
// Sizes vLLM's host tier. `ratio`: of tiers.host.ratio; 0 = the tier has another size.
void fill_host_chunks(const Experiment& e, double ratio, Setup& setup);

// ---- setup_storage.cpp

// Sets the storage tiers and their spaces.
void configure_storage(const Experiment& e, Setup& setup);
void configure_store(const Experiment& e, Setup& setup);
// Refuses a host that keeps no pages (cache.host_mode) where that is not built. Without a host, the key has no effect.
void check_host_mode(const Experiment& e, Setup& setup);

// ---- setup.cpp

ModelGeometry model_of(const Experiment& e, KvDtype dtype);
// make_setup(), or of engines that only decode.
Setup make_setup_of(const Experiment& e, const HardwareSpec* hardware, bool decodes);

}  // namespace kvtwin
