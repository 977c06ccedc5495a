// A storage back end for stores that are reached through a library: Mooncake Store, NIXL. Each page is one value:
// PageHeader, then payload. Pages move through staging memory, which the store knows in advance (for RDMA), in batches
// of at most `bytes_in_flight`. A page that the store already has is not sent again.
//
// The calls of such libraries may take long if a server is gone or stopped. Therefore each call runs on a thread of its
// own (CallThread) with a deadline. A late call can only write into the staging memory, which is not used again, and
// exists, until the call has ended.
//
// Errors:
// - If a call is late, or fails for all its pages, the store counts as gone: `unreachable`. Until its back-off time has
//   passed, and as long as a late call is in progress, pages get this result at once.
// - A page whose own server is gone gives `unreachable`. The other pages continue.
// - A value that is not the right page is removed and counted. A store may refuse the removal for a while (a lease).
// counters() has the number of each case.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "impl/remote/back_off.hpp"
#include "impl/storage/backend.hpp"

namespace kvtwin {

enum class ValueAnswer : std::uint8_t {
  done,     // found, read, stored, or removed
  missing,  // there is no such value
  strange,  // the value has another length
  full,     // no room
  leased,   // a lease forbids it for now, or ended before the value was read
  failed    // no answer, or an error
};

// Bytes behind the memory of a value that a store may overwrite.
constexpr std::size_t kValueSlackBytes = 16;

// Values of one length under names. A call names each value once. Each call writes an answer for each name into
// `answers`, which are `failed` before the call. Calls need not end in bounded time. Thread: one thread calls find, one
// get, and one find, put and remove, at the same time.
class ValueStore {
 public:
  using Names = std::span<const std::string>;
  using Values = std::span<const std::span<std::byte>>;  // in the staging memory
  using Answers = std::span<ValueAnswer>;

  virtual ~ValueStore() = default;
  // An answer may be `done` for a value of another length.
  virtual void find(Names names, Answers answers) = 0;
  virtual void get(Names names, Values values, Answers answers) = 0;
  virtual void put(Names names, Values values, Answers answers) = 0;
  virtual void remove(Names names, Answers answers) = 0;
};

// A store, or a sentence that says why there is none.
struct OpenedStore {
  std::unique_ptr<ValueStore> store;
  std::string error;
};

// What all such stores have in common.
struct StagedTerms {
  TimeNs timeout = kNsPerSecond;            // of opening and of each batch
  TimeNs close_timeout = 5 * kNsPerSecond;  // of closing, which may take longer: Mooncake's client takes a second
  BackOffTimes back_off = {};
  Bytes bytes_in_flight = Bytes{4} << 20;  // of gets, and of sets; at least one page is allowed
  const PageSeal* seal = nullptr;          // keyed check of all pages; null = check without a secret. Outlives the tier
  std::function<TimeNs()> now = {};        // for tests: the clock of back-offs
};

struct StagedConfig : StagedTerms {
  // Opens the store. `staging` outlives the store. Called again after failures, in any thread; need not end in bounded
  // time. Owns all that it uses.
  std::function<OpenedStore(std::span<std::byte> staging)> open = {};
  std::size_t keys_per_look_up = 1024;  // of one call
};

class StagedBackend final : public StorageBackend {
 public:
  StagedBackend(StagedConfig config, const PageForm& form);
  ~StagedBackend() override;

  // Opens the store, if it is not open. Returns an empty text, or a sentence about the failure.
  std::string check();

  LookedUp look_up(const PageKey& space, std::span<const PageKey> keys) override;
  Cause find(const PageKey& space, std::span<const PageKey> keys, std::vector<bool>& there) override;
  void read(PageWork& work) override;
  void write(PageWork& work) override;
  void finish() override;
  std::vector<std::pair<std::string, std::uint64_t>> counters() const override;
  const PageSeal* seal() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvtwin
