// The conformance suite for storage back ends (impl/storage/backend.hpp). The tests are in
// tests/conformance/impl/backend_test.cpp. To run them for a back end, add a file to that folder with a line such as
//
//   KVTWIN_CONFORMS(Redis, {.name = "one_server", .medium = [] { return std::make_unique<...>(); }, .bounded = false});
//
// The properties of the back end select the tests. The medium is not opened before a test runs.
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

// The place where a back end stores pages: a folder, a server. Every test has a new and empty medium. The medium
// outlives the back ends that are opened on it.
class StorageMedium {
 public:
  virtual ~StorageMedium() = default;
  // Throws if the medium cannot be used. If the back end persists, a test opens the medium several times; each time,
  // the previous back end is destroyed first.
  virtual std::unique_ptr<StorageBackend> open(const PageForm& form, Pages capacity) = 0;

  // Back ends with `vouches` override stored() and overwrite(). stored() returns the bytes of a page on the medium:
  // header, then payload; empty if the page is absent.
  virtual std::vector<std::byte> stored(const PageKey&, const PageKey&) {
    throw std::logic_error("a medium whose back end vouches shows its pages");
  }
  // Replaces the bytes of a page on the medium; the back end does not notice. If pages have a fixed place, shorter
  // bytes are padded with zeros, and longer bytes are cut.
  virtual void overwrite(const PageKey&, const PageKey&, const std::vector<std::byte>&) {
    throw std::logic_error("a medium whose back end vouches lets its pages be changed");
  }
};

// A back end, and its guarantees in addition to the interface.
struct BackendKind {
  std::string name;
  std::function<std::unique_ptr<StorageMedium>()> medium;
  bool bounded = true;     // stores exactly `capacity` pages, and returns `full` for the next page
  bool vouches = true;     // stores page headers, so that damaged pages never reach memory; counts "corrupt_pages"
  bool persists = false;   // stored pages are present when the medium is opened again
  bool exclusive = false;  // a second back end cannot open the medium while the first one exists
  bool spaces = true;      // stores pages of any space; false: only of StoreRig's kSpace
  bool objects = true;     // false: run only with pages that are one object

  // Filled in by variants_of(): how the tests store pages of StoreRig's kSmallForm.
  enum class Parts : std::uint8_t { page, planes, layers } parts = Parts::page;
  bool in_place = false;  // the memory of the pages has pieces
  PageForm form(const PageForm& page) const {
    return parts == Parts::layers ? PageForm{page.shape, Layout::layer_first} : page;
  }
  std::uint32_t objects_of(const PageForm& page) const {
    const KvShape& shape = page.shape;
    return parts == Parts::page ? 1 : parts == Parts::planes ? shape.planes : shape.planes * shape.layers;
  }

  friend void PrintTo(const BackendKind& kind, std::ostream* out) { *out << kind.name; }
};

class BackendTest : public testing::TestWithParam<BackendKind> {
 protected:
  // Opens the back end for `capacity` pages.
  static std::unique_ptr<StorageBackend> open(StorageMedium& medium, Pages capacity, const PageForm& page) {
    const std::uint32_t objects = GetParam().objects_of(page);
    return medium.open(object_form(GetParam().form(page), objects), capacity * objects);
  }
  std::unique_ptr<StorageMedium> medium_ = GetParam().medium();
};
class BoundedBackendTest : public BackendTest {};
class VouchingBackendTest : public BackendTest {};
class PersistentBackendTest : public BackendTest {};
class ExclusiveBackendTest : public BackendTest {};
class SpacesBackendTest : public BackendTest {};

// Returns each kind with whole pages and with pages in objects, which are copied or moved in place.
inline std::vector<BackendKind> variants_of(const std::vector<BackendKind>& kinds) {
  using Parts = BackendKind::Parts;
  struct Variant {
    const char* suffix;
    Parts parts;
    bool in_place;
  };
  std::vector<BackendKind> result;
  for (const BackendKind& kind : kinds) {
    for (const Variant& variant :
         {Variant{"", Parts::page, false}, Variant{"_in_place", Parts::page, true},
          Variant{"_layer_first", Parts::layers, false}, Variant{"_split_in_place", Parts::planes, true}}) {
      if (variant.parts != Parts::page && !kind.objects) continue;
      BackendKind& one = result.emplace_back(kind);
      one.name += variant.suffix;
      one.parts = variant.parts;
      one.in_place = variant.in_place;
    }
  }
  return result;
}

inline std::vector<BackendKind> kinds_with(bool BackendKind::*property, const std::vector<BackendKind>& kinds) {
  std::vector<BackendKind> result;
  for (const BackendKind& kind : variants_of(kinds)) {
    if (kind.*property) result.push_back(kind);
  }
  return result;
}

}  // namespace kvtwin::test

// If no kind has the property, the suite has no tests.
#define KVTWIN_CONFORMS_WHERE(prefix, suite, property, ...)                                                 \
  INSTANTIATE_TEST_SUITE_P(                                                                                 \
      prefix, suite,                                                                                        \
      testing::ValuesIn(::kvtwin::test::kinds_with(&::kvtwin::test::BackendKind::property,                  \
                                                   std::vector<::kvtwin::test::BackendKind>{__VA_ARGS__})), \
      [](const auto& test) { return test.param.name; })

#define KVTWIN_CONFORMS(prefix, ...)                                                                           \
  INSTANTIATE_TEST_SUITE_P(prefix, BackendTest, testing::ValuesIn(::kvtwin::test::variants_of({__VA_ARGS__})), \
                           [](const auto& test) { return test.param.name; });                                  \
  KVTWIN_CONFORMS_WHERE(prefix, BoundedBackendTest, bounded, __VA_ARGS__);                                     \
  KVTWIN_CONFORMS_WHERE(prefix, VouchingBackendTest, vouches, __VA_ARGS__);                                    \
  KVTWIN_CONFORMS_WHERE(prefix, PersistentBackendTest, persists, __VA_ARGS__);                                 \
  KVTWIN_CONFORMS_WHERE(prefix, ExclusiveBackendTest, exclusive, __VA_ARGS__);                                 \
  KVTWIN_CONFORMS_WHERE(prefix, SpacesBackendTest, spaces, __VA_ARGS__)
