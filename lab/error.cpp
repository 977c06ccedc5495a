#include "lab/error.hpp"

#include <filesystem>
#include <new>
#include <system_error>

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
  } catch (const std::filesystem::filesystem_error& failed) {
    const std::string path = failed.path1().string() + ": ";
    const bool is_no_path = failed.code() == std::errc::too_many_symbolic_link_levels ||
                            failed.code() == std::errc::filename_too_long ||
                            failed.code() == std::errc::not_a_directory;
    if (is_no_path) return {2, path + failed.code().message() + "; give a path that can be followed"};
    return {1, path + failed.code().message()};
  } catch (const std::exception& failed) {
    return {1, failed.what()};
  }
}

}  // namespace kvtwin
