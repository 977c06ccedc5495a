// A source of inputs that learns from the run: a client that sends its next request once it has the answer to its last
// one. The source is told of answers by the engine's events (policy/seam/event.hpp), while the world holds the input
// that is to come next; an answer may bring an earlier one.
#pragma once

#include "policy/seam/substrate.hpp"

namespace kvtwin {

class LiveSource : public InputSource {
 public:
  // To be asked by a world after every input that it has handed to an engine. `has`: it holds an input, in `held`, from
  // next() or from here. True if `held` is another one now, earlier than the one held
  // before, which is taken back and comes again. next() may say false and this true later.
  virtual bool overtake(Input& held, bool has) = 0;
};

}  // namespace kvtwin
