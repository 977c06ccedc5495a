// The journal of cache calls: what a host did with its cache (Call), and what the tree answered. `kvtwin replay` makes
// the calls again. Framed records (policy/seam/frames.hpp) with these payloads:
//
//   1 tree   u32 page tokens | u32 flags (1 whole nodes, 2 split refreshes, 4 hits by count) | u64 device pages |
//            u64 host pages | u64 doubling tokens | u32 slru touches | u64 tlru threshold | u64 tlru next prompt |
//            name of the eviction policy (1 to 64 bytes)
//   2 call   u8 verb | u8 tier (0 device, 1 host) | u8 hint | u8 0 | u32 node | u64 pages | u64 request | i64 time |
//            u64 session | i64 value | u64 prompt tokens | u64 output tokens |
//            u32 answer's node | u64 answer's device pages | u64 answer's host pages |
//            u64 victims | u64 their digest | u32 keys | 32 each key
//     of the host's storage (HostStorageCall): verb 18, node: its verb (0 get, 1 put, 2 look-up), pages: asked,
//            request: pages that ended well, session: bytes, time: duration; all else as in an empty call
//   3 end    nothing; the last record of a journal that was closed
//
// A tree record comes before the first call of a tree. A further tree record replaces the tree.
// The text of the header names the host, for example "sglang 0.5.23".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "policy/hosted/hosted_tree.hpp"
#include "policy/seam/cost.hpp"
#include "policy/seam/frames.hpp"

namespace kvtwin {

constexpr std::uint32_t kCallJournalVersion = 1;
// The first bytes of a journal of calls.
extern const JournalMagic kCallJournalMagic;

// A call of the host's storage back end, which the tree does not see.
struct HostStorageCall {
  StorageVerb verb = StorageVerb::get;  // get, set or look_up
  Pages pages = 0, done = 0;            // asked, and of these the pages that ended well
  Bytes bytes = 0;
  TimeNs duration = 0;
};

class CallJournalWriter {
 public:
  // Writes the header. Requires: the sink outlives the writer.
  CallJournalWriter(ByteSink& sink, std::string_view text);
  void tree(const HostedSetup& setup);
  // `after`: of the tree, once it has answered.
  void append(const Call& call, const Answer& answer, const DecisionMark& after);
  void append(const HostStorageCall& call);
  void finish();

 private:
  void put(std::uint8_t verb, const Call& call, const Answer& answer, const DecisionMark& after);

  FrameWriter frames_;
};

struct CallRecord {
  std::optional<HostedSetup> tree;
  std::optional<HostStorageCall> storage;
  Call call;  // without `tree` and `storage`; its keys are valid until the reader's next call
  Answer answer;
  DecisionMark after;
};

class CallJournalReader {
 public:
  // The bytes are borrowed for the reader's life.
  explicit CallJournalReader(std::span<const std::byte> bytes);
  JournalStatus header() { return frames_.header(); }
  std::string_view text() const { return frames_.text(); }
  JournalStatus next(CallRecord& record);
  const JournalPlace& place() const { return frames_.place(); }

 private:
  FrameReader frames_;
  bool has_tree_ = false;
  std::vector<PageKey> keys_;
};

}  // namespace kvtwin
