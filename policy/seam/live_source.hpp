// A source of inputs that depends on the run: for example a client that sends its next request after the answer to the
// last one. The source learns of answers from the engine's events (policy/seam/event.hpp). The world holds the next
// input meanwhile; an answer may lead to an earlier input.
#pragma once

#include "policy/seam/substrate.hpp"

namespace kvtwin {

class LiveSource : public InputSource {
 public:
  // The world calls this after every input that it has passed to an engine. `has`: the world holds an input in `held`,
  // from next() or from this call. Returns true if `held` is now another input, earlier than the one before. The source
  // takes the one before back, and returns it again later. After next() has returned false, this call may still return
  // true.
  virtual bool overtake(Input& held, bool has) = 0;
};

}  // namespace kvtwin
