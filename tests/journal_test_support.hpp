// Helpers of the journal tests: journals in memory, inputs as lists of numbers, random inputs, and altered journals
// with correct checksums.
#pragma once

#include <xxhash.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policy/base/byte_order.hpp"
#include "policy/seam/journal.hpp"
#include "tests/splitmix.hpp"

namespace kvtwin::test {

struct ByteVector final : ByteSink {
  void write(std::span<const std::byte> more) override {
    bytes.insert(bytes.end(), more.begin(), more.end());
    ends.push_back(bytes.size());
  }
  std::vector<std::byte> bytes;
  std::vector<std::size_t> ends;  // end offsets of the header and of every record, including the end record
};

// Returns all fields of an input, in a fixed order.
inline std::vector<std::uint64_t> fields(const Input& input) {
  const auto u64 = [](auto value) { return static_cast<std::uint64_t>(value); };
  std::vector<std::uint64_t> all{u64(input.now), u64(input.what.index())};
  if (const auto* a = std::get_if<Arrival>(&input.what)) {
    all.insert(all.end(), {a->request, a->prompt_tokens, a->output_tokens, u64(a->priority), a->session});
    all.insert(all.end(), {u64(a->part), a->peer, a->attempt, a->system_tokens});
    for (const PageKey& key : a->keys) all.insert(all.end(), key.words.begin(), key.words.end());
  } else if (const auto* n = std::get_if<Notice>(&input.what)) {
    all.insert(all.end(), {u64(n->kind), n->request, n->attempt, n->peer, n->first});
    all.insert(all.end(), n->slots.begin(), n->slots.end());
  } else if (const auto* h = std::get_if<Hint>(&input.what)) {
    all.insert(all.end(), {u64(h->kind), h->subject, u64(h->value)});
  } else if (const auto* c = std::get_if<Completion>(&input.what)) {
    all.insert(all.end(),
               {u64(c->id), u64(c->status), c->bytes, c->steps, u64(c->stalled_ns), c->pages, u64(c->cause)});
    all.insert(all.end(), c->usable.begin(), c->usable.end());
  } else if (const auto* t = std::get_if<TimerFired>(&input.what)) {
    all.push_back(u64(t->id));
  } else if (const auto* r = std::get_if<Reduction>(&input.what)) {
    all.push_back(u64(r->id));
    for (const std::int64_t value : r->values) all.push_back(u64(value));
  }
  return all;
}

// A record that owns its keys, slots and lengths.
struct KeptRecord {
  Input input;
  DecisionMark after;
  std::vector<PageKey> keys;
  std::vector<SlotId> slots;
  std::vector<Pages> lengths;

  Input view() const {
    Input whole = input;
    if (auto* arrival = std::get_if<Arrival>(&whole.what)) arrival->keys = keys;
    if (auto* notice = std::get_if<Notice>(&whole.what)) notice->slots = slots;
    if (auto* completion = std::get_if<Completion>(&whole.what)) completion->usable = lengths;
    return whole;
  }
  friend bool operator==(const KeptRecord& a, const KeptRecord& b) {
    return fields(a.view()) == fields(b.view()) && a.after == b.after;
  }
};

inline KeptRecord kept(const Input& input, const DecisionMark& after) {
  KeptRecord record{input, after, {}, {}, {}};
  if (auto* completion = std::get_if<Completion>(&record.input.what)) {
    record.lengths.assign(completion->usable.begin(), completion->usable.end());
    completion->usable = {};
  }
  if (auto* notice = std::get_if<Notice>(&record.input.what)) {
    record.slots.assign(notice->slots.begin(), notice->slots.end());
    notice->slots = {};
  }
  if (auto* arrival = std::get_if<Arrival>(&record.input.what)) {
    record.keys.assign(arrival->keys.begin(), arrival->keys.end());
    arrival->keys = {};
  }
  return record;
}

struct WholeJournal {
  std::vector<KeptRecord> records;
  JournalStatus status = JournalStatus::record;  // the status after the last record
  JournalPlace place;
};

inline WholeJournal read_all(std::span<const std::byte> bytes) {
  WholeJournal all;
  JournalReader reader(bytes);
  JournalRecord record;
  while ((all.status = reader.next(record)) == JournalStatus::record) {
    all.records.push_back(kept(record.input, record.after));
  }
  all.place = reader.place();
  return all;
}

// finished = false: without the end record, like the journal of a killed run.
inline ByteVector write_all(std::span<const KeptRecord> records, std::string_view text, bool finished = true) {
  ByteVector sink;
  JournalWriter writer(sink, text);
  for (const KeptRecord& record : records) writer.append(record.view(), record.after);
  if (!finished) return sink;
  records.empty() ? writer.finish(0, {}) : writer.finish(records.back().input.now, records.back().after);
  return sink;
}

// Computes all checksums again, up to the first part whose length field exceeds the remaining bytes.
inline void mend_checks(std::span<std::byte> bytes) {
  std::uint64_t check = 0;
  std::size_t at = 0;
  const auto part = [&](std::size_t size) {
    if (bytes.size() - at < 4 || size > bytes.size() - at - 4) return false;
    check = XXH3_64bits_withSeed(bytes.data() + at, size, check);
    store_le32(bytes.data() + at + size, static_cast<std::uint32_t>(check & 0xFFFFFFFFU));
    at += size + 4;
    return true;
  };
  if (!part(48) || !part(load_le32(bytes.data() + 12))) return;
  for (;;) {
    const std::size_t begin = at;
    if (!part(16) || !part(load_le32(bytes.data() + begin))) return;
  }
}

inline Input random_input(Splitmix& random, TimeNs now, std::vector<PageKey>& keys, std::vector<SlotId>& slots,
                          std::vector<Pages>& lengths) {
  // Numbers of every magnitude, from 1 bit to 64 bits.
  const auto number = [&random] { return random.next() >> random.below(64); };
  const auto id = [&] { return OperationId{number() | 1}; };
  Input input{now, Hint{}};
  switch (random.below(6)) {
    case 0: {
      keys.resize(random.below(12));
      for (PageKey& key : keys) {
        for (std::uint64_t& word : key.words) word = number();
      }
      Arrival arrival;
      arrival.request = number() >> 1;
      arrival.prompt_tokens = 1 + (number() >> 2) % kMaxJournalTokens;
      arrival.output_tokens = 1 + (number() >> 2) % kMaxJournalTokens;
      arrival.priority = static_cast<std::int32_t>(static_cast<std::uint32_t>(number() & 0xFFFFFFFFU));
      arrival.session = number();
      arrival.keys = keys;
      arrival.part = static_cast<RequestPart>(random.below(3));
      arrival.peer = static_cast<std::uint32_t>(number() & 0xFFFFFFFFU);
      arrival.attempt = static_cast<std::uint32_t>(random.below(3));
      input.what = arrival;
      break;
    }
    case 5: {
      slots.resize(random.below(12));
      for (SlotId& slot : slots) slot = static_cast<SlotId>(number() & 0xFFFFFFFFU);
      Notice notice;
      notice.kind = static_cast<NoticeKind>(random.below(5));
      notice.request = notice.kind == NoticeKind::peer_lost ? kNoRequest : number() >> 1;
      notice.attempt = static_cast<std::uint32_t>(random.below(3));
      notice.peer = static_cast<std::uint32_t>(number() & 0xFFFFFFFFU);
      notice.first = number();
      notice.slots = slots;
      input.what = notice;
      break;
    }
    case 1:
      input.what = Hint{static_cast<HintKind>(random.below(5)), number(), static_cast<std::int64_t>(number())};
      break;
    case 2:
      lengths.clear();
      for (std::uint64_t i = random.below(4); i > 0; --i) lengths.push_back(number());
      input.what = Completion{
          id(),     static_cast<Status>(random.below(4)), number(), number(), static_cast<TimeNs>(number() >> 1),
          number(), static_cast<Cause>(random.below(6)),  lengths};
      break;
    case 3: input.what = TimerFired{id()}; break;
    case 4: {
      Reduction reduction{id(), ReduceVector(random.below(kMaxReduceWidth + 1))};
      for (std::int64_t& value : reduction.values) value = static_cast<std::int64_t>(number());
      input.what = reduction;
      break;
    }
  }
  return input;
}

inline std::vector<KeptRecord> random_records(Splitmix& random, std::size_t count) {
  std::vector<KeptRecord> records;
  std::vector<PageKey> keys;
  std::vector<SlotId> slots;
  std::vector<Pages> lengths;
  TimeNs now = 0;
  DecisionMark mark;
  for (std::size_t i = 0; i < count; ++i) {
    now += static_cast<TimeNs>(random.below(3) * random.below(1'000'000));
    const Input input = random_input(random, now, keys, slots, lengths);
    if (random.chance(60)) mark = {mark.count + 1 + random.below(3), random.next()};
    records.push_back(kept(input, mark));
  }
  return records;
}

}  // namespace kvtwin::test
