// The planner's choice for usual shapes, by GPU and layout, with the rate that the cost model predicts for it.
#pragma once

#include <string>

namespace kvtwin {

// Returns Markdown tables: one for loads while the GPU computes, one for loads while it is idle, one for backups. A
// cell has the path and its GB/s. Each transfer has 64 pages of 64 tokens, of which no two are neighbours.
std::string path_choices_text();

}  // namespace kvtwin
