// A plot of hit rates over arena sizes.
#pragma once

#include <string>
#include <vector>

namespace pleiad::cli {

struct PlotLine {
  std::string name;
  std::vector<double> y;  // in [0, 1], one for each x
};

// An SVG document: x is a logarithmic axis of bytes (ascending, above 0), y goes from 0 to 100 %.
std::string PlotHitRates(const std::string& title, const std::vector<double>& bytes,
                         const std::vector<PlotLine>& lines);

}  // namespace pleiad::cli
