// gpu_ttft: measures the time to the first token on the CUDA device, and writes ttft.csv. The KV of the prompt is
// computed, or is on the device, in host memory, or on a disk.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "impl/device/cuda/cufile.hpp"
#include "models/presets.hpp"
#include "tests/gpu/bench/rig.hpp"
#include "tests/gpu/ttft/prompts.hpp"
#include "tests/measured.hpp"

namespace kvtwin::test {
namespace {

constexpr const char* kHelp =
    "gpu_ttft --out DIR [--disk DIR] [--most-tokens N] [--seconds N] [--models NAME[,NAME]] [--blas FILE]\n"
    "         [--cufile FILE] [--tiny]\n"
    "Writes DIR/ttft.csv: for each model, prompts of 1,024, 4,096, 8,192, ... tokens, up to N (32,768). The rows of a\n"
    "model are written when the model is done.\n"
    "--seconds: time for all models together; cases that have not begun by then are left out, disk cases first.\n"
    "--disk: folder for a disk tier. The folder is emptied. Without --disk there is no disk tier.\n"
    "--blas, --cufile: files of these libraries, instead of the default.\n"
    "--tiny: two short prompts of a tiny model, to test the program; with arithmetic if --blas is given.\n"
    "Exit codes: 1 bytes were wrong or CUDA failed, 2 wrong arguments, 124 some cases were left out.\n";

constexpr int kExitCasesLeftOut = 124;  // the exit code of `timeout`

struct Options {
  std::string out, disk, blas, cufile, command = "gpu_ttft";
  Tokens max_tokens = 32768;
  double seconds = std::numeric_limits<double>::infinity();
  std::vector<std::string> models = {"llama-3.1-8b", "deepseek-v3"};
  bool tiny = false;
};

// cuFile; or the reason why pages from the disk go through host memory.
struct Direct {
  std::shared_ptr<CuFile> cufile;
  std::string mode = "none", about;
};

Direct direct_of(const Options& options) {
  Direct direct;
  if (options.disk.empty()) return {nullptr, "none", "there is no disk"};
  try {
    direct.cufile = CuFile::load(options.cufile);
    direct.mode = direct.cufile->mode() == CuFile::Mode::compatible ? "compatibility" : "gpudirect";
    direct.about = direct.cufile->description();
  } catch (const std::runtime_error& error) {
    direct.about = error.what();
  }
  return direct;
}

struct Case {
  const char* source;
  std::string path = "-", mode = "-";
  bool overlap = true;
};

struct Row {
  Case kind;
  Tokens tokens;
  Spread ms;
  Bytes bytes;
};

constexpr std::pair<const char*, TransferPath> kPaths[] = {{"copy_engine", TransferPath::copy_engine},
                                                           {"boxes", TransferPath::boxes},
                                                           {"kernel", TransferPath::kernel},
                                                           {"ring", TransferPath::ring},
                                                           {"staged", TransferPath::staged}};

// The cases of a model. A case starts only before the time limit.
class Cases {
 public:
  Cases(const Options& options, Prompts& prompts, double until) : options_(options), prompts_(prompts), until_(until) {}

  void from_memory(Tokens tokens) {
    measure({"recompute"}, tokens, [&] { return prompts_.computed(tokens); });
    measure({"l1"}, tokens, [&] { return prompts_.on_device(tokens); });
    for (const bool overlap : {true, false}) {
      const auto from_host = [&](const char* name, std::optional<TransferPath> path) {
        measure({"l2", name, "-", overlap}, tokens, [&] { return prompts_.from_host(tokens, path, overlap); });
      };
      from_host("auto", std::nullopt);
      for (const auto& [name, path] : kPaths) from_host(name, path);
    }
  }
  void from_disk(Tokens tokens) {
    for (const bool overlap : {true, false}) {
      for (const bool direct : {false, true}) {
        measure({"disk", "auto", direct ? "direct" : "bounce", overlap}, tokens,
                [&] { return prompts_.from_disk(tokens, direct, overlap); });
      }
    }
  }
  std::vector<Row> take_rows() { return std::move(rows_); }
  std::uint64_t left_out() const { return left_out_; }

 private:
  template <typename Measure>
  void measure(const Case& kind, Tokens tokens, const Measure& once) {
    if (now_seconds() >= until_) {
      ++left_out_;
      return;
    }
    const Bytes bytes = std::string_view(kind.source) == "recompute" ? 0 : prompts_.cached_bytes(tokens);
    const auto milliseconds = [&] { return static_cast<double>(once()) * 1e-6; };
    std::vector<double> times = {milliseconds()};
    // The first measurement is a warm-up, unless it takes more than 500 ms: then the effect of a cold start is small.
    if (times[0] <= 500) {
      times.clear();
      const double begin = now_seconds();
      const Repeats repeats = options_.tiny ? Repeats{1, 1, 0} : Repeats{3, 9, 0.3};
      while (times.size() < repeats.most && (times.size() < repeats.least || now_seconds() - begin < repeats.seconds)) {
        times.push_back(milliseconds());
      }
    }
    rows_.push_back({kind, tokens, spread_of(times), bytes});
  }

  const Options& options_;
  Prompts& prompts_;
  double until_;
  std::vector<Row> rows_;
  std::uint64_t left_out_ = 0;
};

struct Model {
  std::vector<Row> rows;
  std::string disk_mode;
  std::uint64_t wrong = 0;     // pages with wrong bytes
  std::uint64_t direct = 0;    // pages that cuFile read
  std::uint64_t left_out = 0;  // cases that were not measured
};

// `until`: time of now_seconds() after which no case starts.
Model measure_model(const Options& options, const std::string& name, const Direct& direct, double until) {
  PromptConfig config;
  config.model = model_preset(name);
  config.blas = options.blas;
  config.cufile = direct.cufile;
  config.max_tokens = options.max_tokens;
  std::vector<Tokens> lengths;
  for (Tokens tokens = 1024; tokens <= options.max_tokens; tokens *= tokens == 1024 ? 4 : 2) lengths.push_back(tokens);
  if (options.tiny) {
    config.page_tokens = 16;
    config.arithmetic = !options.blas.empty();
    config.max_tokens = 128;
    lengths = {64, 128};
  }
  if (!options.disk.empty()) {
    config.disk = std::filesystem::path(options.disk) / name;
    std::filesystem::remove_all(config.disk);
    std::filesystem::create_directories(options.disk);
  }
  Prompts prompts(config);
  Model model;
  model.disk_mode = prompts.disk_mode();
  Cases cases(options, prompts, until);
  for (const Tokens tokens : lengths) cases.from_memory(tokens);
  if (!model.disk_mode.empty()) {
    for (const Tokens tokens : lengths) cases.from_disk(tokens);
  }
  model.rows = cases.take_rows();
  model.left_out = cases.left_out();
  model.direct = prompts.direct_pages();
  model.wrong = prompts.finish();
  if (!config.disk.empty()) std::filesystem::remove_all(config.disk);
  return model;
}

Table table_of(const Options& options, const std::string& disk_mode, const Direct& direct) {
  std::vector<std::string> about = provenance(current_gpu(), options.command);
  about.push_back(
      "weights are random, and a layer's stand for others where they are larger than the cache; a pass reads every "
      "byte "
      "of its KV, and checks all bytes that a load brought and a sample of the others; wrong_pages: of all of a "
      "model's "
      "passes");
  about.push_back(
      "bounce: to host memory and on; direct: past the host tier, page by page; cufile: how direct ones go "
      "(gpudirect; compatibility: cuFile takes them through host memory; none: kvtwin does)");
  about.push_back("disk: " + (disk_mode.empty() ? "none" : disk_mode));
  about.push_back("cufile: " + direct.mode + ": " + direct.about);
  return Table(options.out + "/ttft.csv", about,
               {"model", "tokens", "source", "path", "overlap", "mode", "cufile", "ttft_ms", "p10", "p90", "samples",
                "bytes", "wrong_pages"});
}

// Writes the rows of one model after another, so that a run that ends early has the rows of complete models. Returns
// the exit code.
int write_table(const Options& options) {
  const double start = now_seconds();
  const Direct direct = direct_of(options);
  std::optional<Table> table;
  std::uint64_t wrong = 0, left_out = 0;
  double models = 0;
  for (const std::string& name : options.models) {
    const double begin = now_seconds();
    const double share = ++models / static_cast<double>(options.models.size());
    const Model model = measure_model(options, name, direct, start + share * options.seconds);
    if (!table) table.emplace(table_of(options, model.disk_mode, direct));
    const std::string cufile = model.direct > 0 ? direct.mode : "none";
    if (direct.cufile && model.direct == 0) {
      std::fprintf(stderr, "gpu_ttft: %s: cuFile took no page of that disk\n", name.c_str());
    }
    for (const Row& row : model.rows) {
      table->row({name, row.tokens, row.kind.source, row.kind.path, row.kind.overlap ? "on" : "off", row.kind.mode,
                  row.kind.mode == "direct" ? cufile : "-", row.ms.median, row.ms.p10, row.ms.p90,
                  std::uint64_t{row.ms.count}, row.bytes, model.wrong});
    }
    wrong += model.wrong;
    left_out += model.left_out;
    std::fprintf(stderr, "gpu_ttft: %s, %.1f s\n", name.c_str(), now_seconds() - begin);
  }
  if (wrong > 0) std::fprintf(stderr, "gpu_ttft: wrong bytes in %llu pages\n", static_cast<unsigned long long>(wrong));
  if (left_out > 0) {
    std::fprintf(stderr, "gpu_ttft: %llu cases left out: the time was over\n",
                 static_cast<unsigned long long>(left_out));
  }
  return wrong > 0 ? 1 : left_out > 0 ? kExitCasesLeftOut : 0;
}

Options options_of(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    options.command += " " + name;
    if (name == "--tiny") {
      options.tiny = true;
      options.models = {"tiny"};
      continue;
    }
    if (i + 1 == argc) throw std::invalid_argument(name + " is no option, or lacks its value");
    const std::string value = argv[++i];
    options.command += " " + value;
    if (name == "--out") {
      options.out = value;
    } else if (name == "--disk") {
      options.disk = value;
    } else if (name == "--blas") {
      options.blas = value;
    } else if (name == "--cufile") {
      options.cufile = value;
    } else if (name == "--most-tokens" && std::atoll(value.c_str()) >= 1024) {
      options.max_tokens = static_cast<Tokens>(std::atoll(value.c_str())) / 64 * 64;
    } else if (name == "--seconds" && std::atof(value.c_str()) > 0) {
      options.seconds = std::atof(value.c_str());
    } else if (name == "--models") {
      options.models.clear();
      for (std::size_t at = 0; at <= value.size(); at = std::min(value.find(',', at), value.size()) + 1) {
        options.models.push_back(value.substr(at, std::min(value.find(',', at), value.size()) - at));
      }
    } else {
      throw std::invalid_argument(name + " " + value + " means nothing here");
    }
  }
  if (options.out.empty()) throw std::invalid_argument("--out says where the table goes");
  return options;
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) {
  using namespace kvtwin::test;
  if (asked_for_help(argc, argv)) return std::fputs(kHelp, stdout) < 0;
  Options options;
  try {
    options = options_of(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_ttft: %s\n%s", e.what(), kHelp);
    return 2;
  }
  try {
    std::filesystem::create_directories(options.out);
    return write_table(options);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "gpu_ttft: %s\n", e.what());
  }
  return 1;
}
