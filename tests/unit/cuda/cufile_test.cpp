// Tests reads from files directly into GPU memory, with the stand-in of cuFile and with the CUDA twin.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <ostream>
#include <set>
#include <string>
#include <thread>

#include "impl/device/cuda/direct_pages.hpp"
#include "impl/disk/segment_store.hpp"
#include "impl/disk/slot_format.hpp"
#include "kernels/page_checksum.hpp"
#include "tests/cuda_twin/cuda_twin.hpp"
#include "tests/cufile_stand_in/cufile_stand_in.hpp"
#include "tests/folder.hpp"
#include "tests/paths.hpp"
#include "tests/stored_pages.hpp"

namespace kvtwin::test {
namespace {

// Returns the state of the stand-in library. CuFileTest resets it before each test.
CuFileStandIn& stand_in() {
  static CuFileStandIn* const found = [] {
    void* library = dlopen(built("libcufile_stand_in.so").c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    return static_cast<CuFileStandIn*>(dlsym(library, "kvtwin_cufile_stand_in"));
  }();
  return *found;
}

class CuFileTest : public testing::Test {
 protected:
  CuFileTest() {
    CuFileStandIn& s = stand_in();
    s.driver_error = s.file_error = s.buffer_error = s.failing_reads = s.read_error = s.empty_reads = 0;
    s.nvidia_fs_major = s.features = 0;
    s.max_bytes = 1L << 40;
    s.files_ever = s.reads = 0;
  }
  ~CuFileTest() override {
    EXPECT_EQ(stand_in().drivers, 0);
    EXPECT_EQ(stand_in().files, 0);
    EXPECT_EQ(stand_in().buffers, 0);
    EXPECT_EQ(stand_in().misuses, 0);
  }
  static std::string refusal(const std::string& library) {
    try {
      CuFile::load(library);
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "";
  }
  Folder folder_;
};

// ---- the library ---------------------------------------------------------------------------------------------

TEST_F(CuFileTest, WhatIsMissingIsNamed) {
  const std::string none = refusal(folder_ / "libcufile.so.0");
  EXPECT_NE(none.find("cuFile can't be loaded (" + folder_ / "libcufile.so.0"), std::string::npos) << none;
  EXPECT_NE(none.find("real.cufile_library"), std::string::npos) << none;
  const std::string other = refusal(built("libcufile_without_read.so"));
  EXPECT_EQ(other, built("libcufile_without_read.so") + " has no cuFileRead: it isn't the cuFile we know");
}

TEST_F(CuFileTest, ADriverThatDoesNotOpenIsRefused) {
  stand_in().driver_error = 5001;
  EXPECT_EQ(refusal(built("libcufile_stand_in.so")),
            "cuFileDriverOpen of " + built("libcufile_stand_in.so") + " failed: error 5001");
}

TEST_F(CuFileTest, SaysInWhichModeItIs) {
  const std::string name = "cuFile 1.15 (" + built("libcufile_stand_in.so") + "), ";
  const auto loaded = [&](const fs::path& module) { return CuFile::load(built("libcufile_stand_in.so"), module); };
  const fs::path there = folder_.path(), not_there = folder_ / "none";
  {
    const auto cufile = loaded(there);
    EXPECT_EQ(cufile->mode(), CuFile::Mode::compatible);
    EXPECT_EQ(cufile->description(),
              name + "in compatibility mode: through host memory inside cuFile, for the kernel has no nvidia-fs");
  }
  stand_in().nvidia_fs_major = 2;
  EXPECT_EQ(loaded(not_there)->mode(), CuFile::Mode::compatible);
  {
    const auto cufile = loaded(there);
    EXPECT_EQ(cufile->mode(), CuFile::Mode::nvidia_fs);
    EXPECT_EQ(cufile->description(), name + "GPUDirect Storage by nvidia-fs 2.26");
  }
  stand_in().features = 1u << 4;
  EXPECT_EQ(loaded(not_there)->mode(), CuFile::Mode::p2p_dma);
}

// ---- pages ---------------------------------------------------------------------------------------------------

struct Shape {
  const char* name;
  PageForm form;
};
void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.name; }

std::vector<Shape> shapes() {
  const KvShape heads{3, 2, 2, 24, 5};     // K and V; 1440 bytes, not a multiple of a block
  const KvShape latent{3, 1, 1, 1152, 4};  // MLA; 13,824 bytes
  return {{"HeadsLayerFirst", {heads, Layout::layer_first}},
          {"HeadsPageFirst", {heads, Layout::page_first}},
          {"HeadsPageFirstDirect", {heads, Layout::page_first_direct}},
          {"HeadsPageHead", {heads, Layout::page_head}},
          {"LatentLayerFirst", {latent, Layout::layer_first}},
          {"LatentPageFirst", {latent, Layout::page_first}},
          {"LatentPageFirstDirect", {latent, Layout::page_first_direct}},
          {"LatentPageHead", {latent, Layout::page_head}}};
}

// Gets pages into the pool. Pages that come through host memory are written to the pool, as a device does.
class PoolWork final : public PageWork {
 public:
  PoolWork(const PageForm& form, std::byte* pool, Pages pool_pages) : PageWork(form), pool_(pool), pages_(pool_pages) {}

  void get(std::uint64_t page, SlotId slot) {
    tasks_.push_back({StorageVerb::get, some_space(), numbered_key(page), tasks_.size(), Tier::device, slot});
    causes_.emplace_back();
  }
  bool next(PageTask& task) override {
    if (begun_ == tasks_.size()) return false;
    task = tasks_[begun_++];
    return true;
  }
  void take_bare(const PageTask&, std::span<std::byte>) override {}
  Cause give_bare(const PageTask& task, std::span<const std::byte> payload) override {
    through_host.insert(task.slot);
    for_rows(task.slot, [&](std::byte* in_pool, std::uint64_t at) {
      std::memcpy(in_pool, payload.data() + at, form().shape.head_bytes);
    });
    return Cause::none;
  }
  void end(const PageTask& task, Cause cause) override { causes_.at(task.ticket) = cause; }
  Cause cause(std::size_t task) const { return causes_.at(task).value(); }

  bool holds(SlotId slot, std::uint64_t page) const {
    std::vector<std::byte> expected(form().bytes());
    fill_page(numbered_key(page), expected);
    bool right = true;
    for_rows(slot, [&](const std::byte* in_pool, std::uint64_t at) {
      right = right && std::memcmp(in_pool, expected.data() + at, form().shape.head_bytes) == 0;
    });
    return right;
  }
  bool is_untouched(SlotId slot) const {
    bool untouched = true;
    for_rows(slot, [&](const std::byte* in_pool, std::uint64_t) {
      for (std::uint32_t i = 0; i < form().shape.head_bytes; ++i) untouched = untouched && in_pool[i] == kPoison;
    });
    return untouched;
  }
  static constexpr std::byte kPoison{0xDB};
  std::set<SlotId> through_host;

 private:
  template <typename Act>
  void for_rows(SlotId slot, const Act& act) const {
    const KvShape& s = form().shape;
    KvIndex i;
    for (i.plane = 0; i.plane < s.planes; ++i.plane) {
      for (i.layer = 0; i.layer < s.layers; ++i.layer) {
        for (i.token = 0; i.token < s.page_tokens; ++i.token) {
          for (i.head = 0; i.head < s.heads; ++i.head) {
            i.page = slot;
            std::byte* const in_pool = pool_ + byte_offset(Layout::layer_first, s, pages_, i);
            i.page = 0;
            act(in_pool, byte_offset(form().layout, s, 1, i));
          }
        }
      }
    }
  }

  std::byte* const pool_;
  const Pages pages_;
  std::vector<PageTask> tasks_;
  std::vector<std::optional<Cause>> causes_;
  std::size_t begun_ = 0;
};

class DirectPagesOnTwin : public CuFileTest, public testing::WithParamInterface<Shape> {
 protected:
  static constexpr Pages kPoolPages = 40, kPages = 24;

  ~DirectPagesOnTwin() override {
    store_.reset();
    direct_.reset();
    pool_ = {};
    EXPECT_EQ(machine_.violations(), std::vector<std::string>{});
    EXPECT_EQ(machine_.live(), twin::Live{}) << "something wasn't given back";
  }
  void open(bool direct = true, std::uint32_t buffers = 6) {
    store_.reset();
    direct_.reset();
    if (pool_.data() == nullptr) {
      pool_ = GpuMemory(kPoolPages * form_.bytes(), "a pool");
      std::memset(pool_.data(), 0xDB, pool_.bytes());  // the GPU memory of the twin is host memory
    }
    SegmentStoreConfig config;
    config.folder = folder_ / "tier";
    config.capacity_pages = 64;
    config.form = form_;
    config.depth = 4;
    config.segment_bytes = 8 * slot_bytes(form_);
    if (direct) {
      CudaDirectConfig way;
      way.shape = form_.shape;
      way.host_layout = form_.layout;
      way.device_pages = kPoolPages;
      way.device = pool_.data();
      way.buffers = buffers;
      direct_ = std::make_unique<CudaDirectPages>(way, CuFile::load(built("libcufile_stand_in.so")));
      config.direct = direct_.get();
    }
    store_ = std::make_unique<SegmentStore>(config);
  }
  void set_all() {
    ListedWork work(form_);
    for (std::uint64_t page = 0; page < kPages; ++page) work.add(StorageVerb::set, numbered_key(page));
    store_->write(work);
    for (std::uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(work.cause(page), Cause::none);
  }
  // Page i goes to slot 7i + 3 of a pool of 40 slots.
  static SlotId slot_of(std::uint64_t page) { return static_cast<SlotId>((7 * page + 3) % kPoolPages); }
  std::unique_ptr<PoolWork> get_all() {
    auto work = std::make_unique<PoolWork>(form_, pool_.data(), kPoolPages);
    for (std::uint64_t page = 0; page < kPages; ++page) work->get(page, slot_of(page));
    store_->read(*work);
    return work;
  }
  // Expects that all pages are in the pool, and that all other bytes are unchanged.
  void expect_all(const PoolWork& work) {
    std::set<SlotId> slots;
    for (std::uint64_t page = 0; page < kPages; ++page) {
      EXPECT_EQ(work.cause(page), Cause::none) << page;
      EXPECT_TRUE(work.holds(slot_of(page), page)) << page;
      slots.insert(slot_of(page));
    }
    for (SlotId slot = 0; slot < kPoolPages; ++slot) {
      if (!slots.contains(slot)) {
        EXPECT_TRUE(work.is_untouched(slot)) << slot;
      }
    }
  }
  std::uint64_t count(const char* name) { return counter(*store_, name); }
  // Returns the file whose first slot has page 0.
  fs::path first_segment() const {
    fs::path first;
    for (const auto& entry : fs::directory_iterator(folder_ / "tier")) {
      const bool segment = entry.path().filename() != std::string(16, '0');
      if (segment && (first.empty() || entry.path() < first)) first = entry.path();
    }
    return first;
  }
  void flip(Bytes at) const {
    std::fstream file(first_segment(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(at));
    file.put(static_cast<char>(byte ^ 1));
    ASSERT_TRUE(file.flush().good());
  }

  const PageForm form_ = GetParam().form;
  twin::CudaTwin machine_;
  GpuMemory pool_;
  std::unique_ptr<CudaDirectPages> direct_;
  std::unique_ptr<SegmentStore> store_;
};
INSTANTIATE_TEST_SUITE_P(Forms, DirectPagesOnTwin, testing::ValuesIn(shapes()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST_P(DirectPagesOnTwin, ComeFromFilesIntoTheirSlots) {
  open();
  EXPECT_NE(store_->description().find("into GPU memory by cuFile"), std::string::npos) << store_->description();
  set_all();
  const auto work = get_all();
  expect_all(*work);
  EXPECT_EQ(count("direct_pages"), kPages);
  EXPECT_EQ(work->through_host.size(), 0U);
  EXPECT_EQ(stand_in().files_ever, 3) << "a file is registered once";
  const twin::Copies up = machine_.copies(twin::Way::to_device);
  EXPECT_LT(up.bytes, kPages * 64) << "slots' numbers, and no page, go up";
  open();
  expect_all(*get_all());
  EXPECT_EQ(count("direct_pages"), kPages) << "found in a later life";
}

// The number of launches does not depend on the number of pages.
TEST_P(DirectPagesOnTwin, PagesThatLandTogetherShareTheirLaunches) {
  open();
  set_all();
  expect_all(*get_all());
  std::vector<DirectPages::Landing> pages;  // the buffers have the pages that were read last
  for (std::uint32_t buffer : {4U, 0U, 5U, 1U, 3U}) {
    pages.push_back({.buffer = buffer, .slot = static_cast<SlotId>(7 * pages.size()), .key = {}});
  }
  const std::uint64_t relayouts = machine_.launches("relayout"), sums = machine_.launches("gather_checksum");
  const std::uint64_t memsets = machine_.calls("cudaMemsetAsync"), copies = machine_.calls("cudaMemcpyAsync");
  ASSERT_TRUE(direct_->land(pages));
  EXPECT_EQ(machine_.launches("relayout") - relayouts, 1U);
  EXPECT_EQ(machine_.launches("gather_checksum") - sums, 1U);
  EXPECT_EQ(machine_.calls("cudaMemsetAsync") - memsets, 1U);
  EXPECT_EQ(machine_.calls("cudaMemcpyAsync") - copies, 2U);
  std::set<std::uint64_t> different;
  for (const DirectPages::Landing& it : pages) {
    EXPECT_EQ(it.sum, page_checksum(Layout::layer_first, form_.shape, pool_.data(), kPoolPages, it.slot, 0, 3));
    different.insert(it.sum);
  }
  EXPECT_EQ(different.size(), pages.size());
}

TEST_P(DirectPagesOnTwin, OneBufferIsEnough) {
  open(true, 1);
  set_all();
  expect_all(*get_all());
  EXPECT_EQ(count("direct_pages"), kPages);
}

TEST_P(DirectPagesOnTwin, OlderPagesComeThroughHostMemory) {
  open(false);
  set_all();
  open();
  expect_all(*get_all());
  EXPECT_EQ(count("direct_unsummed"), kPages);
  EXPECT_EQ(count("direct_pages"), 0U);
  EXPECT_EQ(stand_in().reads, 0) << "known without a look";
}

TEST_P(DirectPagesOnTwin, FilesThatAreRefusedAreReadAsUsual) {
  stand_in().file_error = 5030;
  open();
  set_all();
  expect_all(*get_all());
  EXPECT_EQ(count("direct_refused"), kPages);
  EXPECT_EQ(count("io_errors"), 0U);
}

TEST_P(DirectPagesOnTwin, BuffersThatAreRefusedDoToo) {
  stand_in().buffer_error = 5013;
  open();
  set_all();
  expect_all(*get_all());
  EXPECT_EQ(count("direct_pages"), kPages);
  EXPECT_NE(store_->description().find("refuses to register our buffers (error 5013)"), std::string::npos);
}

TEST_P(DirectPagesOnTwin, ReadsGoOnAfterInterruptionsAndInParts) {
  open();
  set_all();
  stand_in().max_bytes = 4096;
  stand_in().read_error = EINTR;
  stand_in().failing_reads = 20;
  expect_all(*get_all());
  EXPECT_EQ(count("direct_pages"), kPages);
}

TEST_P(DirectPagesOnTwin, WhatFailsComesThroughHostMemory) {
  open();
  set_all();
  std::uint64_t errors = 0;
  for (const int error : {EIO, -5001}) {
    stand_in().read_error = error;
    stand_in().failing_reads = 5;
    expect_all(*get_all());
    EXPECT_EQ(count("direct_errors"), errors += 5);
  }
  stand_in().empty_reads = 3;
  expect_all(*get_all());
  EXPECT_EQ(count("direct_errors"), errors += 3);
  EXPECT_EQ(count("corrupt_pages") + count("io_errors") + count("missing"), 0U);
}

// Makes each CUDA call and each work item fail in turn. All pages still arrive, directly or through host memory.
TEST_P(DirectPagesOnTwin, FailingCallsOfTheGpuCostNoPage) {
  open();
  set_all();
  for (const char* function :
       {"cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventRecord", "cudaEventSynchronize", "cudaMemsetAsync"}) {
    for (const std::uint64_t nth : {1U, 2U, 4U}) {
      const std::uint64_t before = count("direct_errors");
      machine_.fail_call(nth, cudaErrorUnknown, function);
      expect_all(*get_all());
      EXPECT_GT(count("direct_errors"), before) << function << " " << nth;
    }
  }
  EXPECT_EQ(count("corrupt_pages"), 0U);
}

TEST_P(DirectPagesOnTwin, DamageIsSeenByTheGpu) {
  open();
  set_all();
  std::uint64_t wrong = 0;
  const auto expect_wrong = [&](std::uint64_t page) {
    const auto work = get_all();
    for (std::uint64_t i = 0; i < kPages; ++i) {
      ASSERT_EQ(work->cause(i), i == page ? Cause::corrupt : Cause::none) << i;
    }
    EXPECT_EQ(count("corrupt_pages"), ++wrong);
    EXPECT_EQ(work->through_host.size(), 0U);
    set_all();
  };
  // The set writes the page to another place, so that each flip changes another slot of the first segment.
  flip(slot_offset(form_, 0) + kBlockBytes + form_.bytes() / 2);
  expect_wrong(0);
  flip(slot_offset(form_, 1) + 20);
  expect_wrong(1);
  flip(slot_offset(form_, 2) + kBlockBytes);
  expect_wrong(2);
  flip(slot_offset(form_, 3) + kBlockBytes + form_.bytes() - 1);
  expect_wrong(3);
  flip(slot_offset(form_, 4) + 152);  // the checksum
  expect_wrong(4);
}

TEST_P(DirectPagesOnTwin, AFileThatIsCutOffIsAnError) {
  open();
  set_all();
  fs::resize_file(first_segment(), slot_offset(form_, 1) + 4096);
  const auto work = get_all();
  for (std::uint64_t page = 0; page < kPages; ++page) {
    EXPECT_EQ(work->cause(page), page == 0 || page > 7 ? Cause::none : Cause::io_error) << page;
  }
  EXPECT_EQ(count("direct_errors"), 7U);
}

TEST_P(DirectPagesOnTwin, AFileThatIsRemovedMeanwhileIsStillRead) {
  open();
  set_all();
  fs::remove(first_segment());
  expect_all(*get_all());
  EXPECT_EQ(count("direct_pages"), kPages);
}

// Segments are created and removed during reads. Their registrations are removed too.
TEST_P(DirectPagesOnTwin, SegmentsAreRewrittenMeanwhile) {
  open();
  set_all();
  std::atomic<bool> through = false;
  std::thread writer([&] {
    for (std::uint64_t round = 0; round < 12; ++round) {
      ListedWork work(form_);
      for (std::uint64_t page = 0; page < kPages; ++page) work.add(StorageVerb::remove, numbered_key(100 + page));
      store_->write(work);
      ListedWork sets(form_);
      for (std::uint64_t page = 0; page < kPages; ++page) sets.add(StorageVerb::set, numbered_key(100 + page));
      store_->write(sets);
    }
    through = true;
  });
  do {
    expect_all(*get_all());
  } while (!through);
  writer.join();
  EXPECT_GT(count("segments_reclaimed"), 0U);
  EXPECT_EQ(count("corrupt_pages") + count("io_errors"), 0U);
  store_->check_invariants();
}

}  // namespace
}  // namespace kvtwin::test
