// clang-format off
// A price list: what the parts of a machine cost, how much power they take, and how long they last. Read from a TOML
// file; kvtwin has a built-in list (models/presets/prices/built-in.toml).
//
//   currency = "USD"
//   [gpu.h100-sxm]     # a name of hardware.name or its alias, or the name of a hardware file without its folder and .json
//   hour = {value = 2.5, source = "...", date = "2026-11-25"}   # rent, with a share of a server and the power; or:
//   price = {...}        # of a bought GPU with its share of a server
//   watts = {...}        # with the same share
//   [dram]               # host memory that the cache uses, beside the server's own
//   gib, watts           # price and power of a GiB
//   [drive]
//   price, tb, dwpd, warranty_years, watts    # dwpd: full writes per day over the years of the warranty
//   [nic.400]            # the number is the speed in Gb/s
//   price, watts
//   [pool]               # remote pool, with its share of a server
//   gib, watts
//   [shared_fs]
//   gib_month            # rent of a GiB for a month
//   [power]
//   kwh, pue             # price of a kWh; power of the site / power of the machines
//   [life]
//   years                # over which a bought part is paid
//
// Each figure is a table of value, source and date. A figure whose source begins with "assumed" is assumed.
//
// Errors: InputError for a file that cannot be read or is not TOML, for an unknown name, a figure without a source or a
// date, and a value that is negative or no number.
// clang-format on
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

struct PriceFigure {
  std::string name;  // for example "gpu.h100-sxm.hour"
  double value = 0;
  std::string unit;  // for example "USD/h"
  std::string source, date;
  bool is_assumed() const { return source.starts_with("assumed"); }
};

class PriceList {
 public:
  static PriceList built_in();
  // With the figures of the built-in list that the file lacks, if the currency is the same.
  static PriceList from_file(const std::filesystem::path& path);
  static PriceList from_text(std::string_view text, const std::string& name);

  const std::string& currency() const { return currency_; }
  // The file, or "built-in".
  const std::string& origin() const { return origin_; }
  const std::vector<PriceFigure>& figures() const { return figures_; }
  // Returns null if the list has no such figure.
  const PriceFigure* find(std::string_view name) const;
  // Errors: InputError with the name of the figure and of the list.
  const PriceFigure& get(std::string_view name) const;
  // Returns the slowest NIC of the list that has this speed, in Gb/s. Errors: InputError.
  int nic_for(double gbit_per_second) const;

 private:
  std::string currency_, origin_;
  std::vector<PriceFigure> figures_;  // sorted by name
};

}  // namespace kvtwin
