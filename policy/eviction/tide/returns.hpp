// Will a conversation go on, and when? Learnt from the visits themselves, in integers.
//
// Each request's visit is a record, the end of its path a tail. A later request that goes on from there is the tail's
// return; how much of the tail's path it takes up again (its share) is what keeping it would have been worth. Mixture
// cure: a tail returns with probability p, and if it does, after a gap drawn from F. p is a logistic regression over
// what is known of the visit (turn, lengths, growth, the gap before it), fitted to all recent records, those whose
// return is still out with what they are expected to; F a histogram in thirds of an octave for each of a few classes.
// Of both, density(): the Gittins index of holding the tail any longer, the most that may be had of it for the time it
// will take (Aalto, Ayesta, Righter 2009), which unlike the bare hazard lets a pause end that is as long as usual.
//
// What others say of a conversation (hints) is one more thing that is known of it: how far it is to be believed is
// learnt like the rest.
//
// Memory: about 90 bytes for each of kRecords visits. A visit costs some work for each page it has, at most kWork
// records' worth; tables are drawn up anew when a sixteenth more is known, or every 4,096 visits, row by row as they
// are asked for.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policy/base/types.hpp"

namespace kvtwin {

using RecordId = std::uint64_t;  // from 1, in order of the visits
constexpr RecordId kNoRecord = 0;

struct Outlook {
  std::uint8_t chance = 0;     // of a return, in 1/kChances
  std::uint8_t gap_class = 0;  // whose gaps are like its
};

enum class Said : std::uint8_t { nothing, ends, awaits_tool };

class Returns {
 public:
  static constexpr std::uint32_t kChances = 63;

  struct Facts {
    TimeNs time = 0;
    Tokens prompt_tokens = 0, output_tokens = 0;
    Pages pages = 0;  // of the path, full ones
    Pages known = 0;  // the first ones of them that earlier visits had
    Tokens known_tokens = 0;
    RecordId previous = kNoRecord;  // whose path it goes on from
  };

  Returns();
  // A request's first visit; the return of its predecessor.
  RecordId begin(const Facts& facts);
  // The same request, further on: time and lengths as they are now. What is learnt is learnt for the new record; the
  // old one leads to it. A forgotten one begins anew.
  RecordId again(RecordId id, const Facts& facts);
  RecordId latest(RecordId id) const;  // of the same request
  // From what the last first visit showed. Apart from this, and from what is said of it, nothing changes what is
  // expected of a record: to be called between visits.
  void learn();
  void say(RecordId id, Said said);
  Outlook outlook(RecordId id) const;
  // In 1/2^54 a millisecond, about: comparable among all.
  std::uint64_t density(Outlook outlook, TimeNs age) const;
  // Pages of the record's path; 0 if it is forgotten.
  Pages pages_of(RecordId id) const { return known(id) ? at(id).pages : 0; }
  bool knows(RecordId id) const { return known(id); }
  TimeNs time_of(RecordId id) const { return at(id).time; }  // of a known one

 private:
  static constexpr std::size_t kRecords = 32768, kFeatures = 192, kMostFeatures = 8, kGapClasses = 9, kBins = 72;
  static constexpr std::uint32_t kWork = 32;

  struct Record {
    TimeNs time = 0;
    Pages pages = 0;
    Tokens prompt = 0, output = 0;
    TimeNs gap = -1;          // since its predecessor; < 0: there is none
    std::int64_t growth = 0;  // tokens beyond its predecessor's prompt and answer
    Tokens known = 0;
    std::uint32_t turn = 0;
    bool whole = false;  // it took up all of its predecessor's path
    bool returned = false;
    std::uint16_t share = 0;  // of the path that its return took up, in 1/256
    std::uint8_t gap_class = 0, features = 0;
    Said said = Said::nothing;
    std::array<std::uint8_t, kMostFeatures> feature{};
    RecordId successor = kNoRecord;
  };

  using Row = std::array<std::uint64_t, kBins>;
  bool known(RecordId id) const { return id != kNoRecord && id <= last_ && last_ - id < kRecords; }
  Record& at(RecordId id) { return records_[id % kRecords]; }
  const Record& at(RecordId id) const { return records_[id % kRecords]; }
  RecordId append(const Record& record);
  void extend(Record& record, const Facts& facts);
  void describe(Record& record) const;
  void note_return(Record& record, TimeNs gap, std::uint32_t share);
  std::uint32_t chance(const Record& record) const;  // in 1/2^16
  void learn_from(std::uint32_t records);
  void fit();
  void draw_tables();
  void draw_class(std::size_t gap_class, const Row& base);
  Row density_row(std::size_t gap_class, std::uint32_t chance) const;

  std::vector<Record> records_{1};  // by id, modulo kRecords once there are as many
  RecordId last_ = 0, cursor_ = 1;
  TimeNs now_ = 0;
  std::uint64_t visits_ = 0, visits_to_tables_ = 16;
  std::uint32_t to_learn_ = 0;
  bool hinted_ = false;  // who is said nothing of may have been passed over
  // The regression: weights in 1/2^16; sums over one round of the records, in 1/2^16.
  std::int64_t bias_ = -0xB333, bias_slope_ = 0, bias_weight_ = 0;
  std::array<std::int64_t, kFeatures> weights_{}, slope_{}, weight_{};
  std::array<Row, kGapClasses> gaps_{};                                     // returns by gap, each 256 times its share
  std::array<std::array<std::uint32_t, kBins + 1>, kGapClasses> before_{};  // F at the bins' starts, in 1/2^30
  // What density() tells, by class and chance: drawn when it is first asked for, by what the tables say then.
  struct Density {
    std::uint64_t tables = 0;  // which ones
    Row by_age{};
  };
  mutable std::vector<Density> densities_;
  std::uint64_t tables_ = 0;  // how often they have been drawn up
};

}  // namespace kvtwin
