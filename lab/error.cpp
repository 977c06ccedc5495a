#include "lab/error.hpp"

#include <new>

#include "models/error.hpp"
#include "traces/trace.hpp"

namespace kvtwin {

Ending ending_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const InputError& bad) {
    return {2, bad.what()};
  } catch (const TraceError& bad) {
    return {2, bad.what()};
  } catch (const ModelError& bad) {
    return {2, bad.what()};
  } catch (const std::bad_alloc&) {
    return {1, "out of memory"};
  } catch (const std::exception& failed) {
    return {1, failed.what()};
  }
}

}  // namespace kvtwin
