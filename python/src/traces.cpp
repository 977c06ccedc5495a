// kvtwin._core.TraceReader: the requests of a trace as columns. python/kvtwin/traces.py is its public face.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "python/src/parts.hpp"
#include "traces/trace.hpp"

namespace nb = nanobind;

namespace kvtwin::python {
namespace {

// Returns a numpy array that owns the values.
template <class Value>
nb::object array_of(std::vector<Value> values) {
  auto owned = std::make_unique<std::vector<Value>>(std::move(values));
  Value* const data = owned->data();
  const std::size_t size = owned->size();
  const nb::capsule owner(owned.release(),
                          [](void* memory) noexcept { delete static_cast<std::vector<Value>*>(memory); });
  return nb::ndarray<nb::numpy, Value, nb::ndim<1>>(data, {size}, owner).cast();
}

constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
double seconds(TimeNs time) { return time < 0 ? kUnknown : static_cast<double>(time) / 1e9; }

struct Columns {
  std::vector<double> arrival_s, think_s;
  std::vector<std::int64_t> prompt_tokens, output_tokens, turn;
  std::vector<std::uint64_t> session, tenant, type, blocks, first_block;
  std::vector<std::int32_t> priority;

  void add(const TraceRequest& request) {
    arrival_s.push_back(seconds(request.arrival));
    prompt_tokens.push_back(static_cast<std::int64_t>(request.input));
    output_tokens.push_back(static_cast<std::int64_t>(request.output));
    session.push_back(request.session);
    turn.push_back(static_cast<std::int64_t>(request.turn));
    tenant.push_back(request.tenant);
    priority.push_back(request.priority);
    type.push_back(request.type);
    think_s.push_back(seconds(request.think));
    first_block.push_back(blocks.size());
    blocks.insert(blocks.end(), request.blocks.begin(), request.blocks.end());
  }
  nb::dict take() {
    nb::dict result;
    result["arrival_s"] = array_of(std::move(arrival_s));
    result["prompt_tokens"] = array_of(std::move(prompt_tokens));
    result["output_tokens"] = array_of(std::move(output_tokens));
    result["session"] = array_of(std::move(session));
    result["turn"] = array_of(std::move(turn));
    result["tenant"] = array_of(std::move(tenant));
    result["priority"] = array_of(std::move(priority));
    result["type"] = array_of(std::move(type));
    result["think_s"] = array_of(std::move(think_s));
    result["first_block"] = array_of(std::move(first_block));
    result["blocks"] = array_of(std::move(blocks));
    return result;
  }
};

// Thread: one at a time.
class Reader {
 public:
  Reader(const std::string& path, const TraceOptions& options) : reader_(c_text(path, "trace"), options) {}

  // Returns the columns of the next `count` requests, of fewer at the end. Hints are left out. `blocks` has the block
  // ids of all requests in a row; those of request i begin at first_block[i].
  nb::dict read(std::size_t count) {
    Columns columns;
    {
      const nb::gil_scoped_release unlocked;
      while (columns.arrival_s.size() < count && reader_.next(request_)) {
        if (!request_.is_hint) columns.add(request_);
      }
    }
    return columns.take();
  }
  std::string_view format() const { return reader_.format(); }
  Tokens block_tokens() const { return reader_.block_tokens(); }
  std::vector<std::string> notes() const { return reader_.notes(); }

 private:
  TraceReader reader_;
  TraceRequest request_;
};

}  // namespace

void add_traces(nb::module_& module) {
  nb::register_exception_translator([](const std::exception_ptr& error, void*) {
    try {
      std::rethrow_exception(error);
    } catch (const TraceError& bad) {
      PyErr_SetString(nb::module_::import_("kvtwin.errors").attr("InputError").ptr(), bad.what());
    }
  });
  nb::class_<Reader>(module, "TraceReader")
      .def(
          "__init__",
          [](Reader* reader, const std::string& path, const std::string& format, Tokens block_tokens,
             Tokens shared_tokens, double session_gap_s, std::uint64_t seed, const std::string& salt) {
            TraceOptions options;
            options.format = format;
            options.block_tokens = block_tokens;
            options.shared_tokens = shared_tokens;
            options.session_gap_seconds = session_gap_s;
            options.seed = seed;
            options.salt = salt;
            new (reader) Reader(path, options);
          },
          nb::arg("path"), nb::kw_only(), nb::arg("format"), nb::arg("block_tokens"), nb::arg("shared_tokens"),
          nb::arg("session_gap_s"), nb::arg("seed"), nb::arg("salt"))
      .def("read", &Reader::read)
      .def_prop_ro("format", &Reader::format)
      .def_prop_ro("block_tokens", &Reader::block_tokens)
      .def_prop_ro("notes", &Reader::notes);
  module.def("trace_formats", [] {
    nb::list names;
    for (const std::string_view name : trace_format_names()) names.append(nb::str(name.data(), name.size()));
    return names;
  });
}

}  // namespace kvtwin::python
