// Errors of a table of operator times at measured rows that the table lacks.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "models/operator_table.hpp"

namespace kvtwin {

// Absolute errors of one family and element type, for example "gemm bf16", in % of the measured times.
struct OperatorErrors {
  std::string family;
  std::size_t rows = 0;
  double median_percent = 0, p90_percent = 0, p99_percent = 0;
};

// `rows_file`: a line per measured row, as kvtwin import-ops --leave-out writes: lattice,x/y/z,nanoseconds; for example
// "gemm bf16,64/4096/1024,12300". Rows of a lattice that the table lacks are left out. Returns families in order of
// name. Errors: InputError, ModelError for a file that cannot be read.
std::vector<OperatorErrors> operator_errors(const OperatorTable& table, const std::string& rows_file);

}  // namespace kvtwin
