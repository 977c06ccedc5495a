// The load of the machine during a measurement: read from files of the kernel and stored with the measurements.
#include "lab/run/machine.hpp"

#include <gtest/gtest.h>

#include <string>

namespace kvtwin {
namespace {

TEST(Machine, ReadsProcessorTimes) {
  const auto times = processor_times("cpu  100 5 40 800 10 1 4 40 70 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n");
  ASSERT_TRUE(times);
  EXPECT_EQ(times->all, 1000U) << "guests are in user and nice already";
  EXPECT_EQ(times->stolen, 40U);
  for (const char* text : {"", "cpu", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 x 6 7 8"}) {
    EXPECT_FALSE(processor_times(text)) << text;
  }
}

TEST(Machine, ReadsTheLoadAverage) {
  EXPECT_EQ(load_average("8.25 4.00 2.11 3/471 9241\n"), 8.25);
  EXPECT_FALSE(load_average(""));
  EXPECT_FALSE(load_average("load"));
}

TEST(Machine, TellsItsLoad) {
  const LoadWatch watch;
  const auto load = watch.load();
  ASSERT_TRUE(load) << "of any Linux";
  EXPECT_GE(load->before, 0);
  EXPECT_GE(load->after, 0);
  EXPECT_GE(load->steal_share, 0);
  EXPECT_LE(load->steal_share, 1);
  EXPECT_GE(this_machine(false).cores, 1U);
  EXPECT_EQ(this_machine(false).device, "host");
}

TEST(Machine, ASentenceWhereOtherWorkDisturbs) {
  MeasuredMachine machine{"a processor", "Linux 6", 4, "host"};
  EXPECT_EQ(machine.load_sentence(), "") << "not known";
  machine.load = MachineLoad{1.9, 5, 0.009};
  EXPECT_EQ(machine.load_sentence(), "") << "what was measured is in the load after it";
  machine.load = MachineLoad{8.25, 5, 0.03};
  EXPECT_EQ(machine.load_sentence(),
            "Other work slowed what was measured: the load average was 8.2 on 4 cores before it began, and 3.0 % of "
            "the processors' time was stolen by other virtual machines; measure again on an idle machine");
  machine.load = MachineLoad{0, 5, 0.03};
  EXPECT_NE(machine.load_sentence().find("measured: 3.0 % of"), std::string::npos) << machine.load_sentence();
}

}  // namespace
}  // namespace kvtwin
