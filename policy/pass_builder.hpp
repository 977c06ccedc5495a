// The scheduler's PassBuilder: fills one Pass by the calls of a style. It lives for one step.
#pragma once

#include "policy/scheduler.hpp"

namespace kvtwin {

class Scheduler::Builder final : public PassBuilder {
 public:
  Builder(Scheduler& scheduler, Pass& pass) : s_(scheduler), pass_(pass) {}

  void begin(std::uint64_t decode_steps) override;
  Tokens continue_prefill(Tokens budget) override;
  bool chunk_fits(Tokens budget) override;
  Tokens admit(Tokens budget) override;
  std::uint64_t make_decode_room(std::uint64_t max_steps, Tokens budget) override;
  bool has_decode_room(Tokens budget) override;
  Tokens decode(std::uint64_t steps) override;
  void lengthen(std::uint64_t max_steps) override;
  bool retract() override;
  bool release_loaded_prefix() override;

  bool has_prefill() const override { return !pass_.prefill.empty(); }
  bool has_decode() const override { return !pass_.decode.empty(); }
  bool retracted() const override { return retracted_; }
  std::size_t running() const override { return s_.running_.size(); }
  Tokens decode_tokens_per_step() const override { return s_.running_.size() * tokens_per_step(); }

 private:
  // Tokens that a decode step computes for one request.
  Tokens tokens_per_step() const { return Tokens{s_.config_.draft_tokens} + 1; }
  Pages decode_pages(std::span<Request* const> requests, std::uint64_t steps, bool beside = false) const;
  void choose_decoding(Tokens budget);
  void order_window();
  Tokens extend(Request& request, Tokens budget);
  void set_steps(std::uint64_t steps);

  Scheduler& s_;
  Pass& pass_;
  Pages reserved_ = 0;  // pages that prefill leaves free
  bool retracted_ = false;
};

}  // namespace kvtwin
