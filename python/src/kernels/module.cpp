// The module kvtwin_kernels._kernels: numbers and addresses in, nothing checked twice.
// python/kvtwin_kernels/__init__.py checks the arguments and has the documentation.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/page_checksum.hpp"
#include "python/src/kernels/calls.hpp"

namespace nb = nanobind;

namespace kvtwin::python {
namespace {

template <typename Pointer>
Pointer at(std::uintptr_t address) {
  return reinterpret_cast<Pointer>(address);
}

IndexType index_type(std::uint32_t bytes) { return bytes == 4 ? IndexType::int32 : IndexType::int64; }

std::string type_name(nb::dlpack::dtype type) {
  constexpr std::array names{"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
  const std::string kind = type.code < names.size() ? names[type.code] : "dlpack" + std::to_string(type.code) + "_";
  return kind + std::to_string(type.bits) + (type.lanes == 1 ? "" : "x" + std::to_string(type.lanes));
}

// The memory of an object with DLPack or the buffer protocol, which stays while this object exists.
class Memory {
 public:
  explicit Memory(nb::handle object) {
    nb::ndarray<> writable;
    if (nb::try_cast(object, writable, false)) {
      writable_ = true;
      array_ = nb::ndarray<nb::ro>(writable);
    } else if (!nb::try_cast(object, array_, false)) {
      throw nb::type_error("no memory by DLPack or the buffer protocol");
    }
  }
  std::uintptr_t address() const { return reinterpret_cast<std::uintptr_t>(array_.data()); }
  nb::tuple shape() const {
    nb::list sizes;
    for (std::size_t i = 0; i < array_.ndim(); ++i) sizes.append(array_.shape(i));
    return nb::tuple(sizes);
  }
  bool contiguous() const {
    if (array_.size() == 0) return true;
    std::int64_t step = 1;
    for (std::size_t i = array_.ndim(); i-- > 0;) {
      if (array_.shape(i) > 1 && array_.stride(i) != step) return false;
      step *= static_cast<std::int64_t>(array_.shape(i));
    }
    return true;
  }
  std::string dtype() const { return type_name(array_.dtype()); }
  std::uint64_t item_bytes() const { return (std::uint64_t{array_.dtype().bits} * array_.dtype().lanes + 7) / 8; }
  bool writable() const { return writable_; }
  // "cpu", "gpu", or the number of another kind of device in DLPack.
  nb::object device() const {
    switch (array_.device_type()) {
      case nb::device::cpu::value:
      case nb::device::cuda_host::value: return nb::str("cpu");
      case nb::device::cuda::value:
      case nb::device::cuda_managed::value: return nb::str("gpu");
      default: return nb::int_(array_.device_type());
    }
  }
  int device_number() const { return array_.device_id(); }

 private:
  nb::ndarray<nb::ro> array_;
  bool writable_ = false;
};

struct Shape {
  KvShape shape;
  Shape(std::uint32_t layers, std::uint32_t planes, std::uint32_t heads, std::uint32_t head_bytes,
        std::uint32_t page_tokens)
      : shape{layers, planes, heads, head_bytes, page_tokens} {}
};

RowTransfer rows_of(const Shape& shape, std::uintptr_t device, std::uintptr_t blocks, std::uint32_t block_alignment,
                    std::uint64_t device_pages, std::uintptr_t host, std::uint64_t host_pages, std::uint32_t layout,
                    bool to_device, std::uintptr_t source, std::uintptr_t target, std::uint32_t index_bytes,
                    std::uint64_t count, std::uint32_t layer_begin, std::uint32_t layer_end) {
  return {.shape = shape.shape,
          .device = at<std::byte*>(device),
          .device_blocks = at<std::byte* const*>(blocks),
          .block_alignment = block_alignment,
          .device_pages = device_pages,
          .host = at<std::byte*>(host),
          .host_pages = host_pages,
          .host_layout = static_cast<Layout>(layout),
          .to_device = to_device,
          .source_pages = at<const void*>(source),
          .target_pages = at<const void*>(target),
          .index_type = index_type(index_bytes),
          .count = count,
          .layer_begin = layer_begin,
          .layer_end = layer_end};
}

Pages pages_of(const Shape& shape, std::uintptr_t pool, std::uintptr_t blocks, std::uint32_t block_alignment,
               std::uint64_t pool_pages, std::uint32_t layout, std::uintptr_t pages, std::uintptr_t keys,
               std::uint32_t index_bytes, std::uint64_t count, std::uint32_t layer_begin, std::uint32_t layer_end) {
  return {.shape = shape.shape,
          .pool = at<std::byte*>(pool),
          .blocks = at<std::byte* const*>(blocks),
          .block_alignment = block_alignment,
          .pool_pages = pool_pages,
          .layout = static_cast<Layout>(layout),
          .pages = at<const void*>(pages),
          .keys = at<const std::uint64_t*>(keys),
          .index_type = index_type(index_bytes),
          .count = count,
          .layer_begin = layer_begin,
          .layer_end = layer_end};
}

[[noreturn]] void raise(const char* name, const char* sentence) {
  const nb::object type = nb::module_::import_("kvtwin.errors").attr(name);
  PyErr_SetString(type.ptr(), sentence);
  throw nb::python_error();
}

// Runs a call without the GIL. Its exceptions become those of kvtwin.errors.
template <typename Call>
auto unlocked(const Call& call) {
  try {
    const nb::gil_scoped_release released;
    return call();
  } catch (const std::invalid_argument& error) {
    raise("InputError", error.what());
  } catch (const std::runtime_error& error) {
    raise("WorkError", error.what());
  }
}

nb::object bad_index_of(std::uintptr_t pages, std::uint32_t index_bytes, std::uint64_t count, std::uint64_t pool_pages,
                        bool distinct) {
  const auto bad =
      unlocked([&] { return bad_index(at<const void*>(pages), index_type(index_bytes), count, pool_pages, distinct); });
  if (!bad) return nb::none();
  return nb::make_tuple(bad->at, bad->value, bad->twice);
}

const char* kind_name(std::uintptr_t address) {
  switch (unlocked([&] { return kind_of(at<const void*>(address)); })) {
    case Kind::pageable: return "pageable";
    case Kind::pinned: return "pinned";
    case Kind::gpu: return "gpu";
  }
  return "";
}

void write_page_checksums(const Pages& pages, std::uintptr_t sums) {
  unlocked([&] {
    for (std::uint64_t i = 0; i < pages.count; ++i) {
      const std::int64_t page = index_at(pages.pages, pages.index_type, i);
      at<std::uint64_t*>(sums)[i] =
          page < 0 ? 0
                   : page_checksum(pages.layout, pages.shape, pages.pool, pages.pool_pages,
                                   static_cast<std::uint64_t>(page), pages.layer_begin, pages.layer_end);
    }
  });
}

nb::object check(const Pages& pages, const Launch& launch) {
  const Faults found = unlocked([&] { return check_pattern(pages, launch); });
  return nb::make_tuple(found.wrong, found.index, found.plane, found.layer, found.offset);
}

}  // namespace
}  // namespace kvtwin::python

NB_MODULE(_kernels, module) {
  using namespace kvtwin::python;
  module.attr("built_with_cuda") = built_with_cuda();
  nb::class_<Memory>(module, "Memory")
      .def(nb::init<nb::handle>())
      .def_prop_ro("address", &Memory::address)
      .def_prop_ro("shape", &Memory::shape)
      .def_prop_ro("contiguous", &Memory::contiguous)
      .def_prop_ro("dtype", &Memory::dtype)
      .def_prop_ro("item_bytes", &Memory::item_bytes)
      .def_prop_ro("writable", &Memory::writable)
      .def_prop_ro("device", &Memory::device)
      .def_prop_ro("device_number", &Memory::device_number);
  nb::class_<Shape>(module, "Shape")
      .def(nb::init<std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t, std::uint32_t>(), nb::kw_only(),
           nb::arg("layers"), nb::arg("planes"), nb::arg("heads"), nb::arg("head_bytes"), nb::arg("page_tokens"));
  nb::class_<kvtwin::RowTransfer>(module, "Rows")
      .def(
          "__init__",
          [](kvtwin::RowTransfer* self, const Shape& shape, std::uintptr_t device, std::uintptr_t blocks,
             std::uint32_t block_alignment, std::uint64_t device_pages, std::uintptr_t host, std::uint64_t host_pages,
             std::uint32_t layout, bool to_device, std::uintptr_t source, std::uintptr_t target,
             std::uint32_t index_bytes, std::uint64_t count, std::uint32_t layer_begin, std::uint32_t layer_end) {
            new (self) kvtwin::RowTransfer(rows_of(shape, device, blocks, block_alignment, device_pages, host,
                                                   host_pages, layout, to_device, source, target, index_bytes, count,
                                                   layer_begin, layer_end));
          },
          nb::kw_only(), nb::arg("shape"), nb::arg("device"), nb::arg("blocks"), nb::arg("block_alignment"),
          nb::arg("device_pages"), nb::arg("host"), nb::arg("host_pages"), nb::arg("layout"), nb::arg("to_device"),
          nb::arg("source"), nb::arg("target"), nb::arg("index_bytes"), nb::arg("count"), nb::arg("layer_begin"),
          nb::arg("layer_end"));
  nb::class_<Pages>(module, "Pages")
      .def(
          "__init__",
          [](Pages* self, const Shape& shape, std::uintptr_t pool, std::uintptr_t blocks, std::uint32_t block_alignment,
             std::uint64_t pool_pages, std::uint32_t layout, std::uintptr_t pages, std::uintptr_t keys,
             std::uint32_t index_bytes, std::uint64_t count, std::uint32_t layer_begin, std::uint32_t layer_end) {
            new (self) Pages(pages_of(shape, pool, blocks, block_alignment, pool_pages, layout, pages, keys,
                                      index_bytes, count, layer_begin, layer_end));
          },
          nb::kw_only(), nb::arg("shape"), nb::arg("pool"), nb::arg("blocks"), nb::arg("block_alignment"),
          nb::arg("pool_pages"), nb::arg("layout"), nb::arg("pages"), nb::arg("keys"), nb::arg("index_bytes"),
          nb::arg("count"), nb::arg("layer_begin"), nb::arg("layer_end"));
  nb::class_<Launch>(module, "Launch")
      .def("__init__", [](Launch* self, int gpu, std::uintptr_t stream, std::uint32_t ctas) {
        new (self) Launch{gpu, stream, ctas};
      });
  nb::class_<PointerTable>(module, "PointerTable")
      .def("__init__", [](PointerTable* self, const std::vector<std::uintptr_t>& pointers,
                          int gpu) { unlocked([&] { new (self) PointerTable(pointers, gpu); }); })
      .def_prop_ro("address", &PointerTable::address);
  nb::enum_<Path>(module, "Path")
      .value("registers", Path::registers)
      .value("ring", Path::ring)
      .value("warp_per_row", Path::warp_per_row)
      .value("copies", Path::copies)
      .value("boxes", Path::boxes)
      .value("relayout", Path::relayout);
  module.def("bad_index", bad_index_of);
  module.def("kind_of", kind_name);
  module.def("transfer", [](const kvtwin::RowTransfer& rows, Path path, const Launch& launch) {
    unlocked([&] { transfer(rows, path, launch); });
  });
  module.def("gather_checksum", [](const kvtwin::RowTransfer& rows, std::uintptr_t checksums, const Launch& launch) {
    unlocked([&] { gather_checksum(rows, at<std::uint64_t*>(checksums), launch); });
  });
  module.def("page_checksums", write_page_checksums);
  module.def("fill_pattern",
             [](const Pages& pages, const Launch& launch) { unlocked([&] { fill_pattern(pages, launch); }); });
  module.def("check_pattern", check);
}
