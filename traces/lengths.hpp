// Reads CSV files with arrival times and lengths. The first line names the columns. The files do not say which prefixes
// the prompts share, so the reader makes block ids: all prompts share their first options.shared_tokens tokens, and
// share nothing else. Internal to traces/.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "traces/format.hpp"

namespace kvtwin {

// The names of the columns, and the form of a time.
struct LengthColumns {
  const char *time, *input, *output;
  const char* session;  // null: the format has no such column; otherwise the column is optional
  const char* type;     // as `session`
  bool dates;           // true: times are dates; false: seconds
};

class LengthsReader final : public FormatReader {
 public:
  LengthsReader(TraceLines& lines, const TraceOptions& options, const LengthColumns& columns);

  bool next(TraceRequest& request) override;
  Tokens block_tokens() const override { return block_tokens_; }
  void add_notes(std::vector<std::string>& notes) const override;

 private:
  static constexpr std::size_t kAbsent = ~std::size_t{0};

  std::size_t column(const char* name, bool needed);
  TimeNs time(std::string_view text) const;
  Tokens tokens(const char* column, std::string_view text) const;
  void make_blocks(TraceRequest& request);

  TraceLines& lines_;
  LengthColumns columns_;
  Tokens block_tokens_;
  std::uint64_t shared_blocks_;
  Tokens max_tokens_;
  std::vector<std::string_view> fields_;
  std::vector<std::pair<std::size_t, std::string>> unread_;  // the columns that are not read
  std::size_t width_ = 0, time_at_ = 0, input_at_ = 0, output_at_ = 0, session_at_ = kAbsent, type_at_ = kAbsent;
  std::uint64_t skipped_rows_ = 0, next_private_ = kPrivateBlocks;
};

}  // namespace kvtwin
