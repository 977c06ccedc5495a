// A world for swarm tests that moves real, small bytes and behaves as badly as the seam allows. A page is
// kPageBytes bytes that follow from its key alone, so wrong bytes are seen wherever they are read:
// - A transfer poisons its targets when it is submitted and reads its sources late, in pieces, at random
//   instants until it lands; its completion comes later still.
// - A forward pass checks every token of its context when it starts (once its gates have landed) and again
//   when it ends, and writes its new tokens in pieces in between.
// - A released slot is poisoned at once (the world observes the policy's slot events) and mustn't be used.
// - Durations, delays of completions, timers and reductions are random; each transfer lane is FIFO or not,
//   as drawn; a cancel takes effect at a random time, or too late. All within the contract of the seam.
// - Transfers fail, with garbage in their targets, if the seed says so.
// - Storage operations read and write slots late and in pieces as well, and the medium and the node behind them fail
//   in every way of page_store.hpp, are slow or answer nobody for a while, if the seed says so. What a get counts has
//   been checked; the slots of the rest end with anything. Sets and removes of one page take effect in their order.
// Which of these a run has, and how strongly, is drawn from the seed too. Equal seeds and equal calls give
// equal runs. What is wrong becomes a sentence in violations(); the world goes on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "policy/seam/event.hpp"
#include "sim/world.hpp"

namespace kvtwin {

constexpr std::size_t kPageBytes = 64;

// A storage tier; none without pages.
struct AdversarialStore {
  Pages pages = 0;
  bool evicts = false;  // makes room for itself when full, as a remote pool does; else it refuses, as a disk does
};

struct AdversarialConfig {
  std::uint64_t seed = 0;
  Tokens page_tokens = 1;
  Pages device_pages = 0;
  Pages host_pages = 0;
  std::uint32_t ranks = 1;  // counts in Completion::bytes only
  AdversarialStore disk;
  AdversarialStore shared_fs{0, true};
  AdversarialStore remote{0, true};
  // Spaces of others who use the remote store too: they store pages of the same keys there, with their own bytes.
  std::vector<PageKey> strangers;
  bool faults = true;        // false: no transfer, medium or node fails, whatever the seed
  bool tracks_slots = true;  // false: no policy is observed, so any slot may be used
  // False: stored pages are believed unseen, to show that wrong bytes would be found further on.
  bool verifies_storage = true;
};

class AdversarialWorld : public World, public Observer {
 public:
  // Sentences, the first 100; `violation_count` counts them all.
  virtual const std::vector<std::string>& violations() const = 0;
  virtual std::uint64_t violation_count() const = 0;

  // What has happened how often: a suite fails if something interesting never did. Storage is listed with a store only.
  virtual std::vector<std::pair<std::string_view, std::uint64_t>> coverage() const = 0;
};

std::unique_ptr<AdversarialWorld> make_adversarial_world(const AdversarialConfig& config);

}  // namespace kvtwin
