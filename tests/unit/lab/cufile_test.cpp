// The setting real.cufile: when it is refused, and when the program falls back and notes that. The GPUs and cuFile are
// stand-ins controlled by the test.
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/setup.hpp"
#if KVTWIN_TEST_REAL

#include "lab/run/cuda_devices.hpp"
#include "lab/run/real_device.hpp"

namespace kvtwin::test {
namespace {

std::vector<std::string> asked_for;  // the libraries that the program tried to load

class CuFileChoice : public testing::Test {
 protected:
  CuFileChoice() {
    asked_for.clear();
    serve_cuda_devices({[](std::size_t) {
                          return CudaPresence{1, ""};
                        },
                        [](const CudaDeviceConfig&) { return CudaDeviceBytes{}; }, [](int) { return Bytes{1} << 40; },
                        [](const CudaDeviceConfig&) { return std::unique_ptr<Device>(); },
                        [](const std::string& library) -> std::shared_ptr<CuFile> {
                          asked_for.push_back(library);
                          throw std::runtime_error("cuFile can't be loaded (the test's)");
                        }});
  }
  ~CuFileChoice() override { serve_cuda_devices({}); }

  // Returns the notes about the device. If the setting is refused, returns none and sets `refusal_`.
  std::vector<std::string> notes(const std::vector<std::string>& settings) {
    Experiment experiment =
        Experiment::from_text("[tiers.host]\ntokens = 8192\n[tiers.device]\ntokens = 4096\n", "x.toml");
    experiment.set("model.name=tiny");
    for (const std::string& setting : settings) experiment.set(setting);
    refusal_.clear();
    try {
      return choose_device(experiment, make_setup(experiment), nullptr).notes;
    } catch (const InputError& error) {
      refusal_ = error.what();
      return {};
    }
  }
  std::string refusal_;
};

constexpr const char* kDisk = "tiers.disk.gib=1";
constexpr const char* kPastHost = "cache.path=direct";

TEST_F(CuFileChoice, AutoFallsBackAndSaysSo) {
  const std::vector<std::string> said =
      notes({"real.device=cuda", kDisk, kPastHost, "real.cufile_library=/opt/libcufile.so.0"});
  EXPECT_EQ(refusal_, "");
  EXPECT_EQ(said, (std::vector<std::string>{"Disk tier: its pages reach the GPU through host memory: cuFile can't be "
                                            "loaded (the test's)."}));
  EXPECT_EQ(asked_for, std::vector<std::string>{"/opt/libcufile.so.0"});
}

TEST_F(CuFileChoice, NothingIsLoadedThatIsNotUsed) {
  EXPECT_TRUE(notes({"real.device=cuda"}).empty());
  EXPECT_TRUE(notes({"real.device=cuda", kDisk}).empty());
  EXPECT_TRUE(notes({"real.device=cuda", kDisk, kPastHost, "real.cufile=off"}).empty());
  EXPECT_TRUE(notes({"real.device=cuda", kDisk, kPastHost, "tiers.disk.format=hicache_files"}).empty());
  EXPECT_TRUE(notes({"real.device=host", kDisk}).empty());
  EXPECT_EQ(refusal_, "");
  EXPECT_TRUE(asked_for.empty());
}

TEST_F(CuFileChoice, OnIsRefusedWhereItCannotBe) {
  notes({"real.device=cuda", kDisk, kPastHost, "real.cufile=on"});
  EXPECT_NE(refusal_.find("is on, and cuFile can't be loaded (the test's)"), std::string::npos) << refusal_;
  notes({"real.device=cuda", kDisk, "real.cufile=on"});
  EXPECT_NE(refusal_.find("all pages go through host memory; set it to auto, or cache.path to direct"),
            std::string::npos)
      << refusal_;
  notes({"real.device=host", kDisk, kPastHost, "real.cufile=on"});
  EXPECT_NE(refusal_.find("the host device has no GPU memory"), std::string::npos) << refusal_;
  notes({"real.device=cuda", "real.cufile=on"});
  EXPECT_NE(refusal_.find("there is no disk tier in segments"), std::string::npos) << refusal_;
}

}  // namespace
}  // namespace kvtwin::test

#endif
