// How an engine composes its forward passes (scheduler.style): which requests share a pass, in which order the parts of
// a step take the tokens and the pages, and which request loses its pages if L1 is full. Each engine has one
// EngineStyle.
//
// The scheduler has the mechanisms: queue, admission, chunks, decode bursts, retraction. A style calls these mechanisms
// through a PassBuilder. A style has no state and sees no request, so all ranks compose the same pass.
//
// A policy is one file, policy/style/NAME.cpp, that defines std::unique_ptr<EngineStyle> make_NAME_style(const
// EngineConfig&, const Parameters&); the build finds the file by its name.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "policy/base/parameters.hpp"
#include "policy/base/types.hpp"

namespace kvtwin {

struct EngineConfig;

// The pages of L1 that a waiting request needs; pages that it reuses are included.
struct AdmissionPages {
  Pages first_chunk = 0;  // its cached prefix and its first chunk
  Pages prompt = 0;       // its whole prompt; after a retraction, the answer so far too
  Pages sequence = 0;     // its prompt and its answer, as far as admission counts the answer
  Pages reserve = 0;      // of the running requests' outstanding output (scheduler.reserve_*)
};

// The request that gives its pages back if L1 is full. The last running request never does.
enum class Victim : std::uint8_t {
  youngest,       // the request that arrived last
  last_admitted,  // the request that was admitted last
};

// The next forward pass, part by part. Budgets are tokens of one pass. Prefill counts each new token. Decode counts one
// token per request, and with a draft model the proposed tokens too.
class PassBuilder {
 public:
  virtual ~PassBuilder() = default;

  // Starts the pass. Prefill leaves room for `decode_steps` decode steps of all running requests.
  virtual void begin(std::uint64_t decode_steps) = 0;

  // Adds the next chunk of the request whose prompt is partly computed, as far as budget and room allow. Returns its
  // tokens.
  virtual Tokens continue_prefill(Tokens budget) = 0;
  // Returns whether L1 has room for the whole of that chunk; true if there is no such request.
  virtual bool chunk_fits(Tokens budget) = 0;
  // Admits waiting requests in the order of scheduler.order, each with its first chunk. Ends when the budget is used,
  // when a request does not fit, or when a prompt is only partly computed. Returns the tokens of the chunks.
  virtual Tokens admit(Tokens budget) = 0;

  // Makes room for decode steps of the running requests, as many as the budget allows, oldest admission first. Retracts
  // requests as needed. Returns the steps, 1 to `max_steps`, for which there is room; 0 if none can run now.
  virtual std::uint64_t make_decode_room(std::uint64_t max_steps, Tokens budget) = 0;
  // The same without a retraction, for one step. Returns whether there is room.
  virtual bool has_decode_room(Tokens budget) = 0;
  // Adds the requests for which one of the two calls above has just found room. Returns the tokens of one step.
  virtual Tokens decode(std::uint64_t steps) = 0;
  // Turns the decode step of this pass into a burst of at most `max_steps` steps, as far as there is room. Requires:
  // the pass has no prefill.
  virtual void lengthen(std::uint64_t max_steps) = 0;

  // Retracts the style's victim.
  virtual bool retract() = 0;
  // Takes the loaded prefix back from a waiting request, if such pages are all that keeps another request waiting.
  // Returns whether there was one.
  virtual bool release_loaded_prefix() = 0;

  virtual bool has_prefill() const = 0;
  virtual bool has_decode() const = 0;
  virtual bool retracted() const = 0;                 // since begin()
  virtual std::size_t running() const = 0;            // requests that decode
  virtual Tokens decode_tokens_per_step() const = 0;  // of all running requests
};

class EngineStyle {
 public:
  virtual ~EngineStyle() = default;
  // Composes the next pass. Returns false if nothing can run now.
  virtual bool compose(PassBuilder& pass) const = 0;
  // A request is admitted only if L1 can make room for so many pages.
  virtual Pages pages_to_admit(const AdmissionPages& pages) const = 0;
  virtual Victim victim() const = 0;
  // True: a request whose prefix is loaded from L2 waits in the queue until the load has ended; no pass waits for a
  // load. False: the request is admitted at once, and each layer of its pass waits for the load of this layer.
  virtual bool loads_before_admission() const = 0;
  // True: the full pages of a retracted request stay in the cache until they are evicted.
  virtual bool keeps_retracted_pages() const = 0;
};

// Known names.
std::span<const std::string_view> style_names();
// `text`: a name, with parameters or without (policy/choices.hpp). Null for a text with a fault. `config` must outlive
// the style.
std::unique_ptr<EngineStyle> make_style(std::string_view text, const EngineConfig& config);

}  // namespace kvtwin
