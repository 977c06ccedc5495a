// Learns from the visits whether a conversation will continue, and when. Integer arithmetic only.
// docs/internals/tide.md explains the model.
//
// Each request's visit is a record. The end of its path is a tail. A later request that continues from there is the
// tail's return. The value of a return is the share of the tail's path that the return uses again.
//
//   whether   a tail returns with probability p: a logistic regression over facts of the visit (turn, lengths,
//             growth, gap before it, hint), fitted to all recent records. A record without a return counts with its
//             expectation. The weight of a hint is learned like the others, so wrong hints lose their weight.
//   when      the gap of a return has the distribution F: a histogram in thirds of an octave for each of a few
//             classes.
//   density   the Gittins index of holding the tail any longer (Aalto, Ayesta, Righter 2009). The hazard rate
//             would give up a tail during a usual pause. The index does not.
//
// Memory: about 90 bytes for each of kRecords visits. Cost: a visit processes two records more than its pages, at most
// kMaxRecordsPerVisit records. The tables are computed again when the number of visits has grown by a sixteenth, at
// least every 4,096 visits, row by row on demand.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

using RecordId = std::uint64_t;  // from 1, in the order of the visits
constexpr RecordId kNoRecord = 0;

struct Outlook {
  std::uint8_t chance = 0;     // of a return, in 1/kChances
  std::uint8_t gap_class = 0;  // the class of its gap
};

enum class SessionHint : std::uint8_t { none, ends, awaits_tool };

class Returns {
 public:
  static constexpr std::uint32_t kChances = 63;

  struct Facts {
    TimeNs time = 0;
    Tokens prompt_tokens = 0, output_tokens = 0;
    Pages pages = 0;  // full pages of the path
    Pages known = 0;  // the first pages of the path, which earlier visits had
    Tokens known_tokens = 0;
    RecordId previous = kNoRecord;  // the record from whose path this one continues
  };

  Returns();
  // Adds the record of a request's first visit, which is the return of facts.previous.
  RecordId begin(const Facts& facts);
  // Adds a record of the same request with its time and lengths of now. From now on, the fit uses the
  // new record, and latest() leads from the old record to it. If the old record is forgotten, this is begin().
  RecordId continue_record(RecordId id, const Facts& facts);
  RecordId latest(RecordId id) const;  // of the same request
  // Learns from the last first visit. Call it between visits: only this call and note_hint() change the outlook of an
  // existing record.
  void learn();
  void note_hint(RecordId id, SessionHint hint);
  Outlook outlook(RecordId id) const;
  // The unit is about 2^-54 per millisecond, the same for all tails.
  std::uint64_t density(Outlook outlook, TimeNs age) const;
  // Pages of the record's path; 0 if it is forgotten.
  Pages pages_of(RecordId id) const { return known(id) ? at(id).pages : 0; }
  bool knows(RecordId id) const { return known(id); }
  TimeNs time_of(RecordId id) const { return at(id).time; }  // requires knows(id)

 private:
  static constexpr std::size_t kRecords = 32768, kFeatures = 192, kMaxFeatures = 8, kGapClasses = 9, kBins = 72;
  static constexpr std::uint32_t kMaxRecordsPerVisit = 32;

  struct Record {
    TimeNs time = 0;
    Pages pages = 0;
    Tokens prompt = 0, output = 0;
    TimeNs gap = -1;          // since the predecessor's time; < 0: no predecessor
    std::int64_t growth = 0;  // tokens beyond the predecessor's prompt and answer
    Tokens known = 0;
    std::uint32_t turn = 0;
    bool whole = false;  // the visit used all of the predecessor's path
    bool returned = false;
    std::uint16_t share = 0;  // the share of the path that the return used, in 1/256
    std::uint8_t gap_class = 0, features = 0;
    SessionHint hint = SessionHint::none;
    std::array<std::uint8_t, kMaxFeatures> feature{};
    RecordId successor = kNoRecord;
  };

  using Row = std::array<std::uint64_t, kBins>;
  bool known(RecordId id) const { return id != kNoRecord && id <= last_ && last_ - id < kRecords; }
  Record& at(RecordId id) { return records_[id % kRecords]; }
  const Record& at(RecordId id) const { return records_[id % kRecords]; }
  RecordId append(const Record& record);
  void extend(Record& record, const Facts& facts);
  void set_features(Record& record) const;
  void note_return(Record& record, TimeNs gap, std::uint32_t share);
  std::uint32_t chance(const Record& record) const;  // of a return, in 1/2^16
  void learn_from(std::uint32_t records);
  void fit();
  void compute_tables();
  void compute_class(std::size_t gap_class, const Row& base);
  Row density_row(std::size_t gap_class, std::uint32_t chance) const;

  std::vector<Record> records_{1};  // by id; modulo kRecords once there are kRecords records
  RecordId last_ = 0, cursor_ = 1;
  TimeNs now_ = 0;
  std::uint64_t visits_ = 0, visits_to_tables_ = 16;
  std::uint32_t to_learn_ = 0;
  bool hinted_ = false;  // there was a hint, so the absence of a hint is a fact too
  // The regression. Weights in 1/2^16; sums over one round of the records, in 1/2^16.
  std::int64_t bias_ = -0xB333, bias_slope_ = 0, bias_weight_ = 0;
  std::array<std::int64_t, kFeatures> weights_{}, slope_{}, weight_{};
  std::array<Row, kGapClasses> gaps_{};  // returns by gap; each counts 256 times its share
  std::array<std::array<std::uint32_t, kBins + 1>, kGapClasses> before_{};  // F at the start of each bin, in 1/2^30
  // The answers of density(), by class and chance. A row is computed when it is first needed, from the current tables.
  struct Density {
    std::uint64_t tables = 0;  // the value of tables_ at that time
    Row by_age{};
  };
  mutable std::vector<Density> densities_;
  std::uint64_t tables_ = 0;  // how often the tables have been computed
};

}  // namespace kvtwin
