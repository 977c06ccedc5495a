"""Checks that check_rules.py finds planted offences and accepts correct code."""

import tempfile
import unittest
from pathlib import Path

import check_rules

CAUGHT = [
    ("policy/a.cpp", "#include <chrono>"),
    ("policy/a.cpp", "#include <random>"),
    ("policy/a.cpp", "#include <thread>"),
    ("policy/a.cpp", "  #  include <fstream>"),
    ("policy/a.cpp", "#include <unistd.h>"),
    ("policy/a.cpp", "#include <sys/mman.h>"),
    ("policy/a.cpp", "#include <simgrid/s4u.hpp>"),
    ("policy/a.cpp", '#include "sim/world.hpp"'),
    ("policy/eviction/a.cpp", '#include "models/hardware.hpp"'),
    ("policy/a.cpp", "auto h = std::hash<int>{}(1);"),
    ("policy/a.cpp", "double weight = 0;"),
    ("policy/a.cpp", "float weight = 0;"),
    ("policy/a.cpp", "std::function<void()> then;"),
    ("policy/a.cpp", "co_await next();"),
    ("policy/a.cpp", "std::map<Node*, int> order;"),
    ("policy/a.cpp", "std::set<const Node *> order;"),
    ("policy/a.cpp", "auto t = __rdtsc();"),
    ("policy/a.cpp", "thread_local int state = 0;"),
    ("policy/a.cpp", 'std::printf("%d", 1);'),
    ("policy/a.cpp", "auto x = std::pow(2, 3);"),
    ("policy/a.cpp", "std::unordered_map<K, V> table;\nvoid f() { for (const auto& [k, v] : table) use(k); }"),
    ("policy/a.cpp", "std::unordered_set<K> table_;\nauto first() { return table_.begin(); }"),
    ("sim/a.cpp", "std::unordered_map<K, std::vector<V>> table_;\nvoid f() { for (auto& e : this->table_) use(e); }"),
    ("models/a.cpp", '#include "traces/trace.hpp"'),
    ("models/a.cpp", '#include "policy/eviction/lru.hpp"'),
    ("models/a.cpp", "#include <simgrid/s4u.hpp>"),
    ("models/a.cpp", 'auto* home = std::getenv("HOME");'),
    ("traces/a.cpp", '#include "models/hardware.hpp"'),
    ("traces/a.cpp", "#include <random>"),
    ("traces/a.cpp", "auto gap = -std::log(u);"),
    ("traces/a.cpp", "std::exponential_distribution<> gap;"),
    ("sim/a.cpp", '#include "impl/loop.hpp"'),
    ("sim/a.cpp", '#include "traces/trace.hpp"'),
    ("sim/a.cpp", '#include "cli/report.hpp"'),
    ("sim/a.cpp", "#include <cuda_runtime.h>"),
    ("impl/a.cpp", '#include "sim/world.hpp"'),
    ("policy/base/a.hpp", '#include "policy/engine.hpp"'),
    ("policy/transfer/a.hpp", '#include "policy/seam/cost.hpp"'),
    ("policy/index/a.hpp", '#include "policy/cache.hpp"'),
    ("policy/seam/a.hpp", '#include "policy/index/radix_tree.hpp"'),
    ("sim/bounds/a.cpp", '#include "sim/world.hpp"'),
    ("impl/runtime/a.cpp", '#include "impl/device/device.hpp"'),
    ("impl/disk/a.cpp", '#include "impl/device/device.hpp"'),
    ("impl/a.cpp", "#include <simgrid/s4u.hpp>"),
    ("impl/world.cpp", "#include <mpi.h>"),
    ("tests/unit/impl/a_test.cpp", "#include <mpi.h>"),
    ("kernels/a.cu", '#include "policy/transfer/plan.hpp"'),
    ("kernels/a.cu", '#include "models/hardware.hpp"'),
    ("kernels/a.cuh", '#include "policy/transfer/plan.hpp"'),
    ("impl/a.cuh", "#include <simgrid/s4u.hpp>"),
    ("tests/unit/kernels/a_test.cu", "#include <cuda_runtime.h>"),
    ("lab/a.cpp", '#include "cli/say.hpp"'),
    ("lab/a.cpp", "#include <CLI/CLI.hpp>"),
    ("lab/a.cpp", "#include <simgrid/s4u.hpp>"),
    ("lab/run/a.cpp", 'std::printf("%d", 1);'),
    ("lab/run/a.cpp", "std::fwrite(text.data(), 1, text.size(), stdout);"),
    ("lab/run/a.cpp", "std::cerr << sentence;"),
    ("lab/run/a.cpp", "dup2(out, STDOUT_FILENO);"),
    ("lab/run/a.cpp", "std::exit(2);"),
    ("lab/run/a.cpp", 'auto* home = std::getenv("KVTWIN_SEED");'),
    ("lab/run/a.cpp", 'setenv("KVTWIN_PROGRESS", "0", 1);'),
    ("impl/remote/a.cpp", '::setenv("MC_LOG_LEVEL", "ERROR", 0);'),
    ("impl/remote/library_settings.cpp", 'auto* home = std::getenv("HOME");'),
    ("cli/a.cpp", '#include <toml++/toml.hpp>'),
    ("cli/a.cpp", "#include <simgrid/s4u.hpp>"),
    ("cli/a.cpp", "#include <cuda_runtime.h>"),
    ("tests/unit/policy/a_test.cpp", "#include <simgrid/s4u.hpp>"),
    ("policy/page_utils.hpp", ""),
    ("sim/common.cpp", ""),
    ("models/helpers/a.cpp", ""),
    ("impl/manager.hpp", ""),
]
LAWFUL = [
    ("policy/a.cpp", '#include "policy/eviction/lru.hpp"\n#include <cmath>\n#include <vector>\n#include <openssl/evp.h>'),
    ("policy/a.cpp", "// double, std::hash, <chrono>\n/* float\n   getenv( */ const char* s = \"double float getenv(\";"),
    ("policy/a.cpp", "std::unordered_map<K, V> table;\nauto f() { return table.find(k) == table.end(); }\nfor (auto x : vector) {}"),
    ("policy/a.cpp", "std::uint64_t big = 1'000'000'000; doubled(big); exponent(big); root = std::sqrt(4); backlog(1);"),
    ("policy/a.cpp", "std::map<PageKey, Node*> index;"),
    ("models/a.cpp", '#include "policy/seam/cost.hpp"\n#include "models/hardware.hpp"\ndouble x = 1;'),
    ("traces/a.cpp", '#include "policy/seam/substrate.hpp"\n#include "traces/trace.hpp"\n#include <simdjson.h>\nauto x = std::sqrt(2.0);'),
    ("sim/a.cpp", '#include "models/hardware.hpp"\n#include "policy/engine.hpp"\n#include <simgrid/s4u.hpp>'),
    ("impl/a.cpp", '#include "kernels/relayout.hpp"\n#include "policy/engine.hpp"\n#include <liburing.h>\n#include <thread>'),
    ("impl/remote/library_settings.cpp", '::setenv("MC_LOG_LEVEL", "ERROR", 0);'),
    ("impl/runtime/mpi_ranks.cpp", '#include "impl/runtime/mpi_ranks.hpp"\n#include <mpi.h>'),
    ("kernels/a.cu", '#include "policy/transfer/layout.hpp"\n#include <cuda_runtime.h>'),
    ("tests/gpu/a_test.cpp", "#include <cuda_runtime.h>"),
    ("tests/unit/cuda/a_test.cpp", "#include <cuda_runtime_api.h>"),
    ("cli/a.cpp", '#include "sim/world.hpp"\n#include "impl/loop.hpp"\n#include <CLI/CLI.hpp>\nauto* home = std::getenv("KVTWIN_SEED");'),
    ("lab/a.cpp", '#include "sim/world.hpp"\n#include "policy/route/sticky.hpp"\n#include "lab/version.hpp"\n#include <toml++/toml.hpp>'),
    ("lab/a.cpp", 'std::snprintf(text, sizeof text, "%d", 1); std::vsnprintf(text, 9, f, v); _exit(0); told.exit_code(); auto outputs(int);'),
    ("cli/a.cpp", 'std::printf("%d", 1); std::exit(1);'),
    ("tests/unit/sim/a_test.cpp", "#include <simgrid/s4u.hpp>"),
    ("traces/common_prefix.cpp", ""),
]


class Rules(unittest.TestCase):
    def check(self, path, text):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, path)
            file.parent.mkdir(parents=True)
            file.write_text(text)
            return check_rules.offences(folder)

    def test_offences_are_caught(self):
        for path, text in CAUGHT:
            with self.subTest(path=path, text=text):
                self.assertEqual(len(self.check(path, text)), 1)

    def test_the_lawful_passes(self):
        for path, text in LAWFUL:
            with self.subTest(path=path, text=text):
                self.assertEqual(self.check(path, text), [])

    def test_two_folders_of_lab_do_not_include_each_other(self):
        with tempfile.TemporaryDirectory() as folder:
            for path, text in (("plan/a.cpp", '#include "lab/run/a.hpp"'), ("run/a.hpp", '#include "lab/plan/b.hpp"'),
                               ("run/b.hpp", '#include "lab/plan/b.hpp"'), ("run/c.hpp", '#include "lab/error.hpp"')):
                file = Path(folder, "lab", path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            found = check_rules.offences(folder)
            self.assertEqual([(path, number, rule) for path, number, rule, _ in found],
                             [("lab/plan/a.cpp", 1, "lab/run/ includes lab/plan/, so not the other way too")])
            Path(folder, "lab/plan/a.cpp").write_text("")
            self.assertEqual(check_rules.offences(folder), [])

    def test_two_headers_define_no_type_of_one_name(self):
        with tempfile.TemporaryDirectory() as folder:
            for path in ("models/a.hpp", "lab/plan/b.hpp"):
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text("namespace kvtwin {\nstruct Unit {\n  struct Inner {};\n};\nstruct Other;\n}\n")
            found = check_rules.offences(folder)
            self.assertEqual([(path, number, rule) for path, number, rule, _ in found],
                             [("lab/plan/b.hpp", 2, "models/a.hpp defines this name too")])

    def test_the_line_is_named(self):
        found = self.check("policy/a.cpp", "// one\n/* two\n*/ int x;\nfloat y;\n")
        self.assertEqual([(path, number) for path, number, _, _ in found], [("policy/a.cpp", 4)])


if __name__ == "__main__":
    unittest.main()
