// What every storage back end is held to (impl/storage/backend.hpp), whatever its medium: the tests are in
// tests/conformance/impl/backend_test.cpp. A back end joins in with a file of its own beside that one,
//
//   KVTWIN_CONFORMS(Redis, {.name = "one_server", .medium = [] { return std::make_unique<...>(); }, .bounded = false});
//
// and runs the tests that its properties call for. Nothing is opened before a test runs.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "impl/storage/backend.hpp"

namespace kvtwin::test {

// Where a back end's pages are, one for each test, empty at first; outlives what is opened on it.
class StorageMedium {
 public:
  virtual ~StorageMedium() = default;
  // Throws if it can't be used. A medium that persists is opened again and again, after the last one has gone.
  virtual std::unique_ptr<StorageBackend> open(const PageForm& form, Pages capacity) = 0;

  // For back ends that vouch, which override both. A page as it lies there (header, then payload; empty: it isn't
  // there) ...
  virtual std::vector<std::byte> stored(const PageKey&, const PageKey&) {
    throw std::logic_error("a medium whose back end vouches shows its pages");
  }
  // ... and something else in its place, behind the back end's back. Where pages have a fixed place: shorter bytes
  // are followed by zeros, longer ones are cut.
  virtual void overwrite(const PageKey&, const PageKey&, const std::vector<std::byte>&) {
    throw std::logic_error("a medium whose back end vouches lets its pages be changed");
  }
};

// A back end, and what it promises beyond the interface.
struct BackendKind {
  std::string name;
  std::function<std::unique_ptr<StorageMedium>()> medium;
  bool bounded = true;     // holds exactly `capacity` pages and answers `full` to the next one
  bool vouches = true;     // stores headers, so that no damage reaches memory; counts "corrupt_pages"
  bool persists = false;   // what was stored is there for who opens the medium next
  bool exclusive = false;  // a second one on the same medium is refused while the first one lives
  bool spaces = true;      // holds pages of any space, not of StoreRig's kSpace only

  friend void PrintTo(const BackendKind& kind, std::ostream* out) { *out << kind.name; }
};

class BackendTest : public testing::TestWithParam<BackendKind> {
 protected:
  std::unique_ptr<StorageMedium> medium_ = GetParam().medium();
};
class BoundedBackendTest : public BackendTest {};
class VouchingBackendTest : public BackendTest {};
class PersistentBackendTest : public BackendTest {};
class ExclusiveBackendTest : public BackendTest {};
class SpacesBackendTest : public BackendTest {};

inline std::vector<BackendKind> kinds_with(bool BackendKind::*property, const std::vector<BackendKind>& kinds) {
  std::vector<BackendKind> result;
  for (const BackendKind& kind : kinds) {
    if (kind.*property) result.push_back(kind);
  }
  return result;
}

}  // namespace kvtwin::test

// A property that none of the kinds has makes no test.
#define KVTWIN_CONFORMS_WHERE(prefix, suite, property, ...)                                                 \
  INSTANTIATE_TEST_SUITE_P(                                                                                 \
      prefix, suite,                                                                                        \
      testing::ValuesIn(::kvtwin::test::kinds_with(&::kvtwin::test::BackendKind::property,                  \
                                                   std::vector<::kvtwin::test::BackendKind>{__VA_ARGS__})), \
      [](const auto& test) { return test.param.name; })

#define KVTWIN_CONFORMS(prefix, ...)                                                                 \
  INSTANTIATE_TEST_SUITE_P(prefix, BackendTest,                                                      \
                           testing::ValuesIn(std::vector<::kvtwin::test::BackendKind>{__VA_ARGS__}), \
                           [](const auto& test) { return test.param.name; });                        \
  KVTWIN_CONFORMS_WHERE(prefix, BoundedBackendTest, bounded, __VA_ARGS__);                           \
  KVTWIN_CONFORMS_WHERE(prefix, VouchingBackendTest, vouches, __VA_ARGS__);                          \
  KVTWIN_CONFORMS_WHERE(prefix, PersistentBackendTest, persists, __VA_ARGS__);                       \
  KVTWIN_CONFORMS_WHERE(prefix, ExclusiveBackendTest, exclusive, __VA_ARGS__);                       \
  KVTWIN_CONFORMS_WHERE(prefix, SpacesBackendTest, spaces, __VA_ARGS__)
