// Price lists, bills of parts by hand, and the price in a run's report.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "lab/error.hpp"
#include "lab/experiment/bill.hpp"
#include "lab/experiment/setup.hpp"
#include "lab/prices/price_list.hpp"
#include "models/presets.hpp"
#include "tests/price_list.hpp"
#include "tests/simulation.hpp"

namespace kvtwin::test {
namespace {

using Settings = std::vector<std::string>;

kvtwin::Setup setup_of(const Settings& settings) {
  Experiment experiment = Experiment::from_text("[model]\nname = \"tiny\"\n", "x.toml");
  for (const std::string& setting : settings) experiment.set(setting);
  return make_setup(experiment);
}

Bill bill(const Settings& settings) {
  return bill_of(setup_of(settings), PriceList::from_text(price_list_text(), "test.toml")).value();
}

std::map<std::string, std::pair<double, double>> parts(const Bill& bill) {
  std::map<std::string, std::pair<double, double>> found;
  for (const BillPart& part : bill.parts) found[part.name] = {part.count, part.per_month};
  return found;
}

void expect_refused(const std::string& list, const Settings& words) {
  try {
    PriceList::from_text(list, "p.toml");
  } catch (const InputError& error) {
    const std::string sentence = error.what();
    for (const std::string& word : words) EXPECT_NE(sentence.find(word), std::string::npos) << sentence;
    return;
  }
  ADD_FAILURE() << "not refused: " << list;
}

TEST(PriceList, TheBuiltInListHasEveryGpuAndASourceForEach) {
  const PriceList list = PriceList::built_in();
  for (const std::string& name : hardware_preset_names()) {
    if (name == "cpu-host") continue;
    EXPECT_NE(list.find("gpu." + name + ".hour"), nullptr) << name;
    EXPECT_NE(list.find("gpu." + name + ".watts"), nullptr) << name;
  }
  for (const PriceFigure& figure : list.figures()) {
    EXPECT_EQ(figure.date.size(), 10U) << figure.name;
    EXPECT_GT(figure.value, 0) << figure.name;
  }
  EXPECT_TRUE(list.get("life.years").is_assumed());
  EXPECT_FALSE(list.get("power.kwh").is_assumed());
  EXPECT_EQ(list.get("gpu.h100-sxm.hour").unit, "USD/h");
}

TEST(PriceList, BadListsAreRefused) {
  const std::string head = "currency = \"USD\"\n";
  expect_refused("x = ", {"p.toml:1", "not TOML"});
  expect_refused(head + "a" + std::string(70, '.') + "b = 1\n", {"p.toml:2", "more than 64 dots in a line"});
  expect_refused("", {"p.toml", "has no currency", "currency = \"USD\""});
  expect_refused(head + "[dram]\ngib = 3\n", {"p.toml:3", "dram.gib", "a table of value, source and date"});
  expect_refused(head + "[dram]\ngib = {value = 3}\n", {"dram.gib", "needs a source and a date"});
  expect_refused(head + "[dram]\ngib = {value = 3, source = \"x\", date = \"y\", per = \"TiB\"}\n",
                 {"p.toml:3", "dram.gib", "per"});
  expect_refused(head + "[dram]\ngib = {value = -3, source = \"x\", date = \"y\"}\n",
                 {"number of at least 0", "USD/GiB"});
  expect_refused(head + "[dram]\ngib = {value = \"3\", source = \"x\", date = \"y\"}\n", {"number of at least 0"});
  expect_refused(head + "[life]\nyears = {value = 0, source = \"x\", date = \"y\"}\n", {"number above 0", "years"});
  expect_refused(head + "[drm]\ngib = {value = 3, source = \"x\", date = \"y\"}\n", {"drm.gib", "dram.gib"});
  expect_refused(head + "[gpu]\nhour = {value = 3, source = \"x\", date = \"y\"}\n", {"gpu.hour"});
  expect_refused(head + "dram = 3\n", {"p.toml:2", "dram"});
  expect_refused(head + "[nic.ndr400]\nprice = {value = 3, source = \"x\", date = \"y\"}\n",
                 {"p.toml:2", "nic.ndr400", "[nic.400]"});
  expect_refused(head + "[dram]\ngib = {value = nan, source = \"x\", date = \"y\"}\n", {"number of at least 0"});
  expect_refused(head + "[dram]\ngib = {value = inf, source = \"x\", date = \"y\"}\n", {"number of at least 0"});
  expect_refused(head + head, {"p.toml:2", "currency"});
}

TEST(PriceList, AFileLiesOverTheBuiltInList) {
  const Folder folder;
  const auto list = [&](const std::string& currency, const std::string& figure) {
    write_text(folder.path() / "mine.toml", "currency = \"" + currency + "\"\n[gpu.h100-sxm]\n" + figure +
                                                ", source = \"an offer\", date = 2026-11-25}\n");
    return PriceList::from_file(folder / "mine.toml");
  };
  const PriceList mine = list("USD", "hour = {value = 3.5");
  EXPECT_EQ(mine.get("gpu.h100-sxm.hour").value, 3.5);
  EXPECT_EQ(mine.get("gpu.h100-sxm.hour").date, "2026-11-25") << "a date without quotes";
  EXPECT_EQ(mine.get("gpu.h200-sxm.hour").value, PriceList::built_in().get("gpu.h200-sxm.hour").value);
  EXPECT_EQ(mine.figures().size(), PriceList::built_in().figures().size());
  EXPECT_EQ(list("EUR", "hour = {value = 3.5").figures().size(), 1U) << "another currency";
  EXPECT_EQ(list("USD", "price = {value = 30000").find("gpu.h100-sxm.hour"), nullptr) << "bought, not rented";
}

TEST(PriceList, AFormerNameOfAGpuIsThatGpu) {
  const std::string end = " = {value = 3.5, source = \"a test\", date = \"2026-11-27\"}\n";
  const std::string former = "currency = \"USD\"\n[gpu.h100-pcie5]\nhour" + end + "watts" + end;
  EXPECT_DOUBLE_EQ(PriceList::from_text(former, "p.toml").get("gpu.h100-sxm.hour").value, 3.5);
  expect_refused(former + "[gpu.h100-sxm]\nhour" + end, {"p.toml:2", "gpu.h100-pcie5", "alias of gpu.h100-sxm"});
  EXPECT_DOUBLE_EQ(bill_of(setup_of({"hardware.name=h100-pcie5"}), PriceList::from_text(price_list_text(), "test.toml"))
                       .value()
                       .per_month,
                   730);
  const kvtwin::Setup setup = setup_of({"hardware.name=h100-pcie5"});
  EXPECT_EQ(setup.hardware.name, "h100-sxm");
  EXPECT_EQ(setup.notes.front(), "hardware.name (--set): h100-pcie5 is an alias; the preset is named h100-sxm");
}

TEST(Bill, PartsAreCountedByHand) {
  const Bill plain = bill({"parallel.tp=2", "cluster.engines=3"});
  EXPECT_EQ(plain.parts.size(), 1U);
  EXPECT_DOUBLE_EQ(plain.per_month, 6 * 730);  // 6 GPUs of 1 an hour
  EXPECT_DOUBLE_EQ(plain.watts, 6 * 1000 * 1.5);
  EXPECT_EQ(plain.currency, "EUR");

  // A GiB for 4,800 over 48 months: 100 a month. The tier is cut to whole pages.
  const Bill host = bill({"cluster.engines=2", "tiers.host.gib=3"});
  const auto [gib, month] = parts(host).at("GiB of DRAM");
  EXPECT_NEAR(gib, 6, 0.01);
  EXPECT_DOUBLE_EQ(month, 100 * gib);

  // 4 drives of 1 TB hold 4 TB; the fifth is needed for more.
  const Settings disk{"tiers.host.gib=3", "hardware.set.drive_count=4", "cluster.engines=2"};
  const Bill four = bill(disk + Settings{"tiers.disk.gib=3700"});
  EXPECT_EQ(four.drives, 8U);
  EXPECT_DOUBLE_EQ(parts(four).at("NVMe drive").second, 8 * 100);
  EXPECT_EQ(bill(disk + Settings{"tiers.disk.gib=4000"}).drives, 10U);
  EXPECT_DOUBLE_EQ(four.drive_endurance, 1e12 * 5 * 365);

  // 4 NICs of 46.6 GB/s an engine (373 Gb/s, so 400), and 190 / 46.6 = 4.1, so 5, at the pool.
  const Bill pool = bill({"tiers.host.gib=3", "tiers.remote.gib=10", "cluster.engines=2"});
  EXPECT_DOUBLE_EQ(parts(pool).at("NIC of 400 Gb/s").first, 2 * 4 + 5);
  EXPECT_NEAR(parts(pool).at("GiB of remote pool").second, 10 * 10, 0.1);
  const Bill peers =
      bill({"tiers.host.gib=3", "tiers.remote.gib=10", "cluster.engines=2", "hardware.set.pool_peers=true"});
  EXPECT_DOUBLE_EQ(parts(peers).at("NIC of 400 Gb/s").first, 2 * 4) << "the pool is in the engines' hosts";
  const Bill one =
      bill({"tiers.host.gib=3", "tiers.remote.gib=10", "hardware.set.nic_count=1", "hardware.set.remote_gbps=25"});
  EXPECT_DOUBLE_EQ(parts(one).at("NIC of 400 Gb/s").first, 2) << "one at the engine, one at the pool";

  const Bill shared = bill({"tiers.host.gib=3", "tiers.shared_fs.gib=100", "hardware.set.shared_fs_read_bandwidth=5",
                            "hardware.set.shared_fs_write_bandwidth=5", "hardware.set.shared_fs_latency=500",
                            "hardware.set.shared_fs_file=10"});
  EXPECT_NEAR(parts(shared).at("GiB of shared file system").second, 50, 0.1);
}

// Prefill engines of one GPU and 3 GiB, decode engines of two GPUs; each engine has 4 NICs for the hand-overs.
TEST(Bill, EachRoleHasPartsOfItsOwn) {
  const Bill roles = bill({"tiers.host.gib=3", "cluster.prefill=2", "cluster.decode=3",
                           "cluster.decode_set=parallel.tp=2,tiers.host.gib=1"});
  EXPECT_DOUBLE_EQ(parts(roles).at("GPU h100-sxm").first, 2 + 3 * 2);
  EXPECT_NEAR(parts(roles).at("GiB of DRAM").first, 2 * 3 + 3 * 1, 0.05);
  EXPECT_DOUBLE_EQ(parts(roles).at("NIC of 400 Gb/s").first, 5 * 4);
  EXPECT_EQ(roles.parts.size(), 3U);
}

TEST(Bill, MoreEnginesCostTheSameEach) {
  const Settings all{"tiers.host.gib=3", "tiers.disk.gib=1000", "tiers.remote.gib=10"};
  const double one = bill(all + Settings{"cluster.engines=1"}).per_month;
  const double two = bill(all + Settings{"cluster.engines=2"}).per_month;
  EXPECT_NEAR(bill(all + Settings{"cluster.engines=7"}).per_month, one + 6 * (two - one), 1e-6);
}

TEST(Bill, AbsentPricesAreNamed) {
  const kvtwin::Setup setup = setup_of({"hardware.name=h200-sxm"});
  EXPECT_FALSE(bill_of(setup, PriceList::from_text(price_list_text(), "p.toml")).has_value());
  const Folder folder;
  const std::string list = price_list(folder, "p.toml");
  EXPECT_THROW(setup_of({"hardware.name=h200-sxm", "prices.file=" + list}), InputError);
  const PriceList little = PriceList::from_text(
      "currency = \"USD\"\n[gpu.h100-sxm]\nhour = {value = 1, source = \"x\", date = \"y\"}\n"
      "watts = {value = 1, source = \"x\", date = \"y\"}\n[power]\npue = {value = 1, source = \"x\", date = \"y\"}\n",
      "little.toml");
  EXPECT_TRUE(bill_of(setup_of({}), little).has_value());
  try {
    bill_of(setup_of({"tiers.host.gib=3"}), little);
    ADD_FAILURE() << "no price of DRAM";
  } catch (const InputError& error) {
    EXPECT_STREQ(error.what(), "the price list little.toml has no dram.watts; add watts to [dram]");
  }
  EXPECT_THROW(little.nic_for(100), InputError);
}

TEST(DriveWear, ByHand) {
  Bill two;
  two.drives = 2;
  two.drive_bytes = 1e12;
  two.drive_endurance = 1e12 * 365;  // a write a day for a year
  const DriveWear wear = drive_wear(two, 4'000'000'000'000, 86'400);
  EXPECT_DOUBLE_EQ(wear.bytes_per_day, 4e12);
  EXPECT_DOUBLE_EQ(wear.writes_per_day, 2);
  EXPECT_DOUBLE_EQ(wear.years.value(), 0.5);
  EXPECT_FALSE(drive_wear(two, 0, 1).years.has_value());
  two.life_years = 4;
  two.drive_month = 10;
  EXPECT_DOUBLE_EQ(drive_wear(two, 4'000'000'000'000, 86'400).replacements_month, 10 * (4 / 0.5 - 1));
  EXPECT_DOUBLE_EQ(drive_wear(two, 100'000'000'000, 86'400).replacements_month, 0) << "they outlive their payment";
}

}  // namespace
}  // namespace kvtwin::test
