// Small price lists for tests.
#pragma once

#include <string>

#include "tests/program.hpp"

namespace kvtwin::test {

// A list of whole numbers: a GPU of h100-sxm and one of cpu-host cost 1 an hour each, and so on, all times `factor`.
inline std::string price_list_text(int factor = 1) {
  const std::string end = ", source = \"a test\", date = \"2026-11-25\"}\n";
  const auto figure = [&](const std::string& key, double value) {
    return key + " = {value = " + std::to_string(value * factor) + end;
  };
  const auto plain = [&](const std::string& key, double value) {
    return key + " = {value = " + std::to_string(value) + end;
  };
  return "currency = \"EUR\"\n[gpu.h100-sxm]\n" + figure("hour", 1) + plain("watts", 1000) + "[gpu.cpu-host]\n" +
         figure("hour", 1) + plain("watts", 100) + "[dram]\n" + figure("gib", 4800) + plain("watts", 0) + "[drive]\n" +
         figure("price", 4800) + plain("tb", 1) + plain("dwpd", 1) + plain("warranty_years", 5) + plain("watts", 10) +
         "[nic.400]\n" + figure("price", 2400) + plain("watts", 20) + "[pool]\n" + figure("gib", 480) +
         plain("watts", 0) + "[shared_fs]\n" + figure("gib_month", 0.5) + "[power]\n" + plain("kwh", 0) +
         plain("pue", 1.5) + "[life]\n" + plain("years", 4);
}

// Returns the path of such a list.
inline std::string price_list(const Folder& folder, const std::string& name, int factor = 1) {
  write_text(folder.path() / name, price_list_text(factor));
  return folder / name;
}

}  // namespace kvtwin::test
