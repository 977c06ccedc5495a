#include "lab/experiment/bill.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "lab/experiment/setup.hpp"

namespace kvtwin {
namespace {

constexpr double kBytesPerGib = 1073741824.0;
constexpr double kMonthsPerYear = 12;

class Counter {
 public:
  Counter(const PriceList& prices, Bill& bill) : prices_(prices), bill_(bill) {}

  double value(const std::string& name) {
    const PriceFigure& figure = prices_.get(name);
    bill_.used.push_back(figure);
    return figure.value;
  }

  // Adds `count` bought parts.
  void buy(const std::string& name, double count, const std::string& price, const std::string& watts) {
    const double power = value(watts);
    add(name, count, value(price) / (value("life.years") * kMonthsPerYear) + energy(power), power);
  }
  // Adds `count` rented parts.
  void rent(const std::string& name, double count, double per_month, double watts) {
    add(name, count, per_month, watts);
  }

  const PriceList& prices() const { return prices_; }

 private:
  double energy(double watts) {  // per month
    return watts * value("power.pue") * value("power.kwh") * kHoursPerMonth / 1000;
  }
  void add(const std::string& name, double count, double per_month, double watts) {
    auto part = std::ranges::find(bill_.parts, name, &BillPart::name);
    if (part == bill_.parts.end()) part = bill_.parts.insert(part, {name, 0, 0, 0});
    part->count += count;
    part->per_month += count * per_month;
    part->watts += count * watts;
    bill_.per_month += count * per_month;
    bill_.watts += count * watts;
  }

  const PriceList& prices_;
  Bill& bill_;
};

// Equal engines. With roles, a bill has two such groups.
struct EngineGroup {
  const Setup* setup;
  double engines;
};

std::vector<EngineGroup> engine_groups(const Setup& setup) {
  if (setup.decode == nullptr) return {{&setup, static_cast<double>(setup.machines())}};
  const std::size_t decodes = setup.roles.decode.engines / setup.decode->attention_dp;
  return {{&setup, static_cast<double>(setup.machines())}, {setup.decode.get(), static_cast<double>(decodes)}};
}

std::string gpu_of(const Setup& setup) { return std::filesystem::path(setup.hardware.name).stem().string(); }

void add_gpus(const EngineGroup& group, Counter& counter) {
  const std::string gpu = gpu_of(*group.setup);
  const double count = group.engines * group.setup->engine_gpus();
  if (counter.prices().find("gpu." + gpu + ".hour") == nullptr) {
    return counter.buy("GPU " + gpu, count, "gpu." + gpu + ".price", "gpu." + gpu + ".watts");
  }
  counter.rent("GPU " + gpu, count, counter.value("gpu." + gpu + ".hour") * kHoursPerMonth,
               counter.value("gpu." + gpu + ".watts"));
}

double gib_of(const Setup& setup, Pages pages, std::uint64_t copies) {
  return static_cast<double>(pages) * static_cast<double>(setup.page_bytes()) * static_cast<double>(copies) /
         kBytesPerGib;
}

// Returns the memory of the host tier of one engine.
double host_gib(const Setup& setup) {
  if (setup.host_pools.empty()) return gib_of(setup, setup.engine.host_pages, setup.copies_on_host);
  double rank = 0;
  for (const PoolSize& pool : setup.host_pools) rank += static_cast<double>(pool.bytes());
  return rank * setup.engine_gpus() / kBytesPerGib;
}

void add_drives(const Setup& setup, double gib, Counter& counter, Bill& bill) {
  bill.drive_bytes = counter.value("drive.tb") * 1e12;
  bill.drive_endurance = bill.drive_bytes * counter.value("drive.dwpd") * counter.value("drive.warranty_years") * 365;
  const double holding = std::ceil(gib * kBytesPerGib / bill.drive_bytes - 1e-6);
  const double per_engine = std::max(setup.hardware.drive_count, holding);
  bill.drives = static_cast<std::uint64_t>(per_engine) * setup.all_machines();
  bill.life_years = counter.value("life.years");
  bill.drive_month =
      static_cast<double>(bill.drives) * counter.value("drive.price") / (bill.life_years * kMonthsPerYear);
  counter.buy("NVMe drive", static_cast<double>(bill.drives), "drive.price", "drive.watts");
}

void add_nics(const Setup& setup, bool pool, Counter& counter) {
  for (const EngineGroup& group : engine_groups(setup)) {
    const HardwareSpec& hw = group.setup->hardware;
    const std::string speed = std::to_string(counter.prices().nic_for(hw.nic_bandwidth * 8e-9));
    double count = hw.nic_count * group.engines;
    // Peers lend the memory of their own hosts, whose NICs are counted above.
    if (pool && !setup.world.network.peers && group.setup == &setup)
      count += std::ceil(hw.pool_bandwidth / hw.nic_bandwidth - 1e-6);
    counter.buy("NIC of " + speed + " Gb/s", count, "nic." + speed + ".price", "nic." + speed + ".watts");
  }
}

}  // namespace

std::vector<std::string> Bill::assumed() const {
  std::vector<std::string> names;
  for (const PriceFigure& figure : used) {
    if (figure.is_assumed()) names.push_back(figure.name);
  }
  return names;
}

DriveWear drive_wear(const Bill& bill, std::uint64_t written, double seconds) {
  DriveWear wear;
  if (written == 0 || seconds <= 0) return wear;
  const auto drives = static_cast<double>(bill.drives);
  wear.bytes_per_day = static_cast<double>(written) / seconds * 86'400;
  wear.writes_per_day = wear.bytes_per_day / (drives * bill.drive_bytes);
  wear.years = bill.drive_endurance * drives / (wear.bytes_per_day * 365);
  wear.replacements_month = bill.drive_month * std::max(0.0, bill.life_years / *wear.years - 1);
  return wear;
}

std::optional<Bill> bill_of(const Setup& setup, const PriceList& prices) {
  const std::vector<EngineGroup> groups = engine_groups(setup);
  for (const EngineGroup& group : groups) {
    const std::string key = "gpu." + gpu_of(*group.setup);
    if (prices.find(key + ".hour") == nullptr && prices.find(key + ".price") == nullptr) return std::nullopt;
  }
  Bill bill;
  bill.currency = prices.currency();
  bill.origin = prices.origin();
  Counter counter(prices, bill);
  for (const EngineGroup& group : groups) add_gpus(group, counter);
  double dram = 0;
  for (const auto& [of, engines] : groups) dram += engines * host_gib(*of);
  if (dram != 0) counter.buy("GiB of DRAM", dram, "dram.gib", "dram.watts");
  bool pool = false, network = false;
  for (const StorageTierConfig& tier : setup.engine.storage) {
    const double gib = gib_of(setup, tier.pages, setup.engine.storage_writers);
    if (tier.tier == Tier::disk) add_drives(setup, gib, counter, bill);
    if (tier.tier == Tier::remote) {
      pool = true;
      const auto behind = std::ranges::find(setup.world.storage, Tier::remote, &StorageTier::tier);
      const double drives = gib_of(setup, behind->drive_pages, setup.engine.storage_writers);
      counter.buy("GiB of remote pool", gib - drives, "pool.gib", "pool.watts");
      if (drives != 0) {
        const double holding = std::ceil(drives * kBytesPerGib / (counter.value("drive.tb") * 1e12) - 1e-6);
        counter.buy("NVMe drive of the remote pool", holding, "drive.price", "drive.watts");
      }
    }
    if (tier.tier == Tier::shared_fs) {
      counter.rent("GiB of shared file system", gib, counter.value("shared_fs.gib_month"), 0);
    }
    network = network || spec_of(tier.tier).shared;
  }
  // Hand-overs cross the network too.
  if (setup.decode != nullptr || (network && setup.hardware.has_pool())) add_nics(setup, pool, counter);
  bill.watts *= counter.value("power.pue");
  std::ranges::sort(bill.used, {}, &PriceFigure::name);
  // Not std::ranges::unique: clang 14 can't compile its result, std::ranges::subrange.
  const auto same_name = [](const PriceFigure& a, const PriceFigure& b) { return a.name == b.name; };
  bill.used.erase(std::unique(bill.used.begin(), bill.used.end(), same_name), bill.used.end());
  return bill;
}

}  // namespace kvtwin
