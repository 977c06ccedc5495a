#include "policy/eviction/tide/returns.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "policy/base/wide.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kBins = 72;

// ---- ages
// Bin k begins at (2^(k/3) - 1) / 4 s: linear below a quarter second, thirds of an octave above. The last bin ends
// after seven weeks.

constexpr std::array<std::uint64_t, 3> kThirds{1U << 20, 1'321'122, 1'664'510};  // 2^(i/3), in 1/2^20

constexpr std::uint64_t start_ms(std::size_t bin) { return ((kThirds[bin % 3] << (bin / 3)) * 250 >> 20) - 250; }

std::size_t bin_of(TimeNs age) {
  constexpr TimeNs kMs = 1'000'000;
  const std::uint64_t ms = age <= 0 ? 0 : std::min<std::uint64_t>(static_cast<std::uint64_t>(age / kMs), 1ULL << 40);
  const std::uint64_t ratio = ((ms + 250) << 20) / 250;
  const auto octave = static_cast<std::size_t>(std::bit_width(ratio)) - 21;
  const std::uint64_t part = ratio >> octave;
  return std::min(kBins - 1, 3 * octave + (part >= kThirds[2] ? 2U : part >= kThirds[1] ? 1U : 0U));
}

// Prior of the gaps, with the weight of ten returns: log-normal around two minutes, with a factor of e^1.2, as in the
// chat traces of two vendors. In 1/2^16.
constexpr std::array<std::uint16_t, kBins> kPriorGaps{
    0,    0,    0,    0,    0,    1,    1,    4,    8,    17,   33,   63,   111,  189,  307,  480,  719,  1036,
    1435, 1914, 2459, 3041, 3623, 4158, 4599, 4901, 5030, 4980, 4749, 4365, 3866, 3300, 2714, 2152, 1644, 1211,
    859,  587,  387,  246,  151,  89,   50,   28,   15,   7,    4,    2,    1,    0,    0,    0,    0,    0,
    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0};
constexpr std::uint64_t kPriorReturns = 10 * 256;
// The weight of all classes together in the table of each class.
constexpr std::uint64_t kSharedReturns = 25 * 256;
constexpr std::uint64_t kMaxReturns = 16384 * 256;  // of a class; beyond it, all counts are halved

// ---- the logistic function

constexpr std::uint64_t kSigmoidSteps = 12 * 16;
constexpr std::array<std::uint32_t, kSigmoidSteps + 2> kSigmoid = [] {  // of k / 16, in 1/2^16
  std::array<std::uint32_t, kSigmoidSteps + 2> table{};
  std::uint64_t power = std::uint64_t{1} << 32;  // e^(-k/16), in 1/2^32
  for (std::uint32_t& entry : table) {
    entry = static_cast<std::uint32_t>((std::uint64_t{1} << 48) / ((std::uint64_t{1} << 32) + power));
    power = power * 4'034'748'382ULL >> 32;
  }
  return table;
}();

// Takes z in 1/2^16, returns 1/2^16.
std::uint32_t sigmoid(std::int64_t z) {
  const auto size = static_cast<std::uint64_t>(z < 0 ? -z : z);
  const std::uint64_t step = std::min(size >> 12, kSigmoidSteps), part = step == kSigmoidSteps ? 0 : size & 0xfff;
  const auto value = static_cast<std::uint32_t>((kSigmoid[step] * (4096 - part) + kSigmoid[step + 1] * part) >> 12);
  return z < 0 ? 65536 - value : value;
}

// Prior of the turn: a user who has come back comes back. In 1/2^16.
constexpr std::array<std::int64_t, 9> kTurnPrior{0, 32768, 59000, 80000, 92000, 98000, 104000, 110000, 116000};

constexpr std::uint32_t kFirstHintFeature = 185;  // feature numbers of the hints begin here
constexpr std::int64_t kHintPrior = 2 * 65536;

std::uint32_t log2_of(std::uint64_t value) {
  return value == 0 ? 0 : static_cast<std::uint32_t>(std::bit_width(value)) - 1;
}

}  // namespace

Returns::Returns() : densities_(kGapClasses * (kChances + 1)) {
  weights_[kFirstHintFeature + static_cast<std::uint32_t>(SessionHint::ends)] = -kHintPrior;
  weights_[kFirstHintFeature + static_cast<std::uint32_t>(SessionHint::awaits_tool)] = kHintPrior;
  compute_tables();
}

// ---- records

RecordId Returns::begin(const Facts& facts) {
  now_ = facts.time;
  Record record;
  if (known(facts.previous)) {
    Record& previous = at(facts.previous);
    record.gap = facts.time - previous.time;
    record.growth =
        static_cast<std::int64_t>(facts.prompt_tokens) - static_cast<std::int64_t>(previous.prompt + previous.output);
    record.turn = previous.turn + 1;
    record.whole = facts.known + 1 >= previous.pages;
    const Pages share = 256 * std::min(facts.known, previous.pages) / std::max<Pages>(1, previous.pages);
    note_return(previous, record.gap, static_cast<std::uint32_t>(share));
  }
  record.known = facts.known_tokens;
  extend(at(append(record)), facts);
  to_learn_ = static_cast<std::uint32_t>(std::min<Pages>(kMaxRecordsPerVisit, 2 + facts.pages));
  return last_;
}

void Returns::learn() {
  ++visits_;
  learn_from(std::exchange(to_learn_, 0));
  if (--visits_to_tables_ == 0) compute_tables();
}

RecordId Returns::continue_record(RecordId id, const Facts& facts) {
  if (!known(id)) return begin(facts);
  const RecordId next = append(Record(at(id)));
  if (known(id)) at(id).successor = next;
  extend(at(next), facts);
  return next;
}

RecordId Returns::latest(RecordId id) const {
  while (known(id) && at(id).successor != kNoRecord) id = at(id).successor;
  return id;
}

void Returns::note_hint(RecordId id, SessionHint hint) {
  hinted_ = true;
  if (!known(id)) return;
  at(id).hint = hint;
  set_features(at(id));
}

RecordId Returns::append(const Record& record) {
  if (++last_ < kRecords) {
    records_.push_back(record);
  } else {
    at(last_) = record;
  }
  return last_;
}

void Returns::extend(Record& record, const Facts& facts) {
  now_ = facts.time;
  record.time = facts.time;
  record.pages = facts.pages;
  record.prompt = facts.prompt_tokens;
  record.output = facts.output_tokens;
  set_features(record);
}

void Returns::note_return(Record& record, TimeNs gap, std::uint32_t share) {
  if (record.returned) return;  // a second return branches off
  record.returned = true;
  record.share = static_cast<std::uint16_t>(share);
  auto& gaps = gaps_[record.gap_class];
  gaps[bin_of(gap)] += share;
}

// Sets the features of the record: the numbers of the weights that count. The ranges of the groups do not overlap.
void Returns::set_features(Record& record) const {
  record.features = 0;
  const auto add = [&record](std::uint32_t place) {
    record.feature[record.features++] = static_cast<std::uint8_t>(place);
  };
  const std::uint32_t early = std::min(2U, record.turn);
  if (record.hint != SessionHint::none || hinted_) add(kFirstHintFeature + static_cast<std::uint32_t>(record.hint));
  add(std::min(8U, record.turn));
  add(10 + 10 * early + std::min(9U, log2_of(record.prompt / 512)));
  add(40 + 12 * early + std::min(11U, log2_of(record.output)));
  if (record.turn == 0) {
    add(135 + static_cast<std::uint32_t>(std::min<Tokens>(9, record.known / 512)));
    add(150 + (record.prompt < 576 ? 0 : std::min(30U, log2_of(record.prompt / 16))));
    record.gap_class = record.hint == SessionHint::awaits_tool ? 0 : record.output < 32 ? 1 : 2;
    return;
  }
  const auto seconds = static_cast<std::uint64_t>(std::max<TimeNs>(0, record.gap / kNsPerSecond));
  add(80 + std::min(11U, log2_of(seconds + 1)));
  const std::int64_t growth = record.growth;
  add(100 + (growth < -512 ? 0 : growth < 0 ? 1 : 2 + std::min(16U, log2_of(static_cast<std::uint64_t>(growth) + 1))));
  add(130 + (record.whole ? 0 : 1));
  const std::uint32_t pause = std::clamp(log2_of(seconds), 4U, 9U);  // class 3: below 32 s ... class 8: 512 s or more
  record.gap_class = static_cast<std::uint8_t>(record.hint == SessionHint::awaits_tool ? 0
                                               : record.output < 32                    ? 1
                                                                                       : pause - 1);
}

// ---- whether

std::uint32_t Returns::chance(const Record& record) const {
  std::int64_t z = bias_ + kTurnPrior[std::min<std::uint32_t>(8, record.turn)];
  for (std::size_t i = 0; i < record.features; ++i) z += weights_[record.feature[i]];
  return sigmoid(z);
}

Outlook Returns::outlook(RecordId id) const {
  const std::uint32_t p = chance(at(id));
  return {static_cast<std::uint8_t>((p * kChances + 32768) >> 16), at(id).gap_class};
}

// Processes the next records in turn. A round over all records is one step of the fit.
void Returns::learn_from(std::uint32_t records) {
  const RecordId first = last_ < kRecords ? 1 : last_ - kRecords + 1;
  for (; records > 0; --records) {
    cursor_ = std::max(cursor_, first);
    if (cursor_ >= last_) {  // the latest record is too young to tell anything
      fit();
      cursor_ = first;
      if (cursor_ >= last_) return;
    }
    const Record& record = at(cursor_++);
    if (record.successor != kNoRecord) continue;
    const std::int64_t p = chance(record);
    std::int64_t label = record.share * 256;
    if (!record.returned) {  // no return so far: the longer ago, the less likely
      constexpr std::int64_t kOne = std::int64_t{1} << 30;
      const std::int64_t before = before_[record.gap_class][bin_of(now_ - record.time)];
      label = ((p * (kOne - before) >> 30) << 16) / (65536 - (p * before >> 30));
    }
    const std::int64_t slope = label - p, weight = p * (65536 - p) >> 16;
    bias_slope_ += slope;
    bias_weight_ += weight;
    for (std::size_t i = 0; i < record.features; ++i) {
      slope_[record.feature[i]] += slope;
      weight_[record.feature[i]] += weight;
    }
  }
}

// A Newton step for each weight. Only 1/8 of the step is taken, because up to eight weights of a record move at once. A
// ridge with the strength of two records pulls each weight to 0.
void Returns::fit() {
  constexpr std::int64_t kRidge = 2;
  bias_ += bias_slope_ * 65536 / (8 * (bias_weight_ + 65536));
  bias_slope_ = bias_weight_ = 0;
  for (std::size_t i = 0; i < kFeatures; ++i) {
    weights_[i] += (slope_[i] - kRidge * weights_[i]) * 65536 / (8 * (weight_[i] + kRidge * 65536));
    slope_[i] = weight_[i] = 0;
  }
}

// ---- when

std::uint64_t Returns::density(Outlook outlook, TimeNs age) const {
  Density& density = densities_[outlook.gap_class * (kChances + 1) + outlook.chance];
  if (density.tables != tables_) density = {tables_, density_row(outlook.gap_class, outlook.chance)};
  return density.by_age[bin_of(age)];
}

void Returns::compute_tables() {
  ++tables_;
  visits_to_tables_ = std::clamp<std::uint64_t>(visits_ / 16, 16, 4096);
  Row base{};
  std::uint64_t all = kPriorReturns;
  for (auto& gaps : gaps_) {
    std::uint64_t sum = 0;
    for (const std::uint64_t count : gaps) sum += count;
    if (sum > kMaxReturns) {
      for (std::uint64_t& count : gaps) count /= 2;
    }
    for (std::size_t k = 0; k < kBins; ++k) base[k] += gaps[k], all += gaps[k];
  }
  for (std::size_t k = 0; k < kBins; ++k) {  // in 1/2^30
    base[k] = static_cast<std::uint64_t>((UnsignedWide{base[k]} * 65536 + UnsignedWide{kPriorGaps[k]} * kPriorReturns)
                                         << 14) /
              all;
  }
  for (std::size_t gap_class = 0; gap_class < kGapClasses; ++gap_class) compute_class(gap_class, base);
}

void Returns::compute_class(std::size_t gap_class, const Row& base) {
  const auto& gaps = gaps_[gap_class];
  std::uint64_t sum = kSharedReturns, before = 0;
  for (const std::uint64_t count : gaps) sum += count;
  for (std::size_t k = 0; k < kBins; ++k) {
    before_[gap_class][k] = static_cast<std::uint32_t>(std::min<std::uint64_t>(before, 1U << 30));
    before +=
        static_cast<std::uint64_t>(((UnsignedWide{gaps[k]} << 30) + UnsignedWide{kSharedReturns} * base[k]) / sum);
  }
  before_[gap_class][kBins] = 1U << 30;
}

// x: expected time that the tail is held, y: expected returns. The Gittins index at an age is the largest slope to any
// later point: the tangent to the upper hull of the later points.
Returns::Row Returns::density_row(std::size_t gap_class, std::uint32_t chance) const {
  struct Point {
    std::uint64_t x = 0, y = 0;  // x in 1/2^30 ms, y in 1/2^30
  };
  constexpr std::uint64_t kOne = std::uint64_t{1} << 30;
  const std::uint64_t p = std::clamp(kOne * chance / kChances, kOne * 3 / 1000, kOne * 99 / 100);
  std::array<Point, kBins + 1> points{};
  for (std::size_t k = 0; k <= kBins; ++k) {
    points[k].y = p * before_[gap_class][k] >> 30;
    if (k == 0) continue;
    const std::uint64_t width = start_ms(k) - start_ms(k - 1);
    points[k].x = points[k - 1].x + width * ((2 * kOne - points[k].y - points[k - 1].y) / 2);
  }
  const auto steeper = [](const Point& from, const Point& a, const Point& b) {  // is the slope to a larger than to b
    return UnsignedWide{a.y - from.y} * (b.x - from.x) > UnsignedWide{b.y - from.y} * (a.x - from.x);
  };
  std::array<Point, kBins + 1> hull{};  // the leftmost point is the last element
  std::size_t size = 0;
  Row row{};
  for (std::size_t k = kBins; k-- > 0;) {
    const Point& next = points[k + 1];
    while (size >= 2 && !steeper(next, hull[size - 1], hull[size - 2])) --size;
    hull[size++] = next;
    const Point from{points[k].x + (next.x - points[k].x) / 2, points[k].y + (next.y - points[k].y) / 2};
    std::size_t best = size - 1;
    while (best > 0 && !steeper(from, hull[best], hull[best - 1])) --best;
    row[k] = static_cast<std::uint64_t>((UnsignedWide{hull[best].y - from.y} << 54) / (hull[best].x - from.x));
  }
  return row;
}

}  // namespace kvtwin
