// CSV files that hold arrivals and lengths, and nothing of what prompts share. Columns go by their names in the first
// line. The blocks are made: the first options.shared_tokens of every prompt are everybody's, the rest is its own.
// Internal to traces/.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "traces/format.hpp"

namespace kvtwin {

// How the columns are called, and what a time is.
struct LengthColumns {
  const char *time, *input, *output;
  const char* session;  // null: there is none; else it may be absent
  const char* type;     // likewise
  bool dates;           // else seconds
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
  Tokens largest_;
  std::vector<std::string_view> fields_;
  std::size_t width_ = 0, time_at_ = 0, input_at_ = 0, output_at_ = 0, session_at_ = kAbsent, type_at_ = kAbsent;
  std::uint64_t passed_over_ = 0, next_private_ = kPrivateBlocks;
};

}  // namespace kvtwin
