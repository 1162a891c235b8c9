#include "client/cli/plan_svg.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "client/cli/plan_sizes.h"

namespace pleiad::cli {
namespace {

constexpr double kWidth = 720, kHeight = 420;
constexpr double kLeft = 60, kRight = 700, kTop = 40, kBottom = 370;
constexpr std::array<const char*, 4> kColours = {"#0072b2", "#d55e00", "#009e73", "#666666"};

std::string Escape(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

void Text(std::string* svg, double x, double y, const char* anchor, const std::string& text) {
  absl::StrAppendFormat(svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y, anchor, Escape(text));
}

void Line(std::string* svg, double x1, double y1, double x2, double y2, const char* colour) {
  absl::StrAppendFormat(svg, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n", x1, y1, x2, y2,
                        colour);
}

}  // namespace

std::string PlotHitRates(const std::string& title, const std::vector<double>& bytes,
                         const std::vector<PlotLine>& lines) {
  const double low = bytes.empty() ? 0 : std::log(bytes.front());
  const double span = bytes.empty() ? 0 : std::log(bytes.back()) - low;
  const auto x_of = [&](double value) {
    return span > 0 ? kLeft + (kRight - kLeft) * (std::log(value) - low) / span : (kLeft + kRight) / 2;
  };
  const auto y_of = [](double rate) { return kBottom - (kBottom - kTop) * rate; };

  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
      kWidth, kHeight);
  Text(&svg, kWidth / 2, 22, "middle", title);
  for (int percent = 0; percent <= 100; percent += 20) {
    const double y = y_of(percent / 100.0);
    Line(&svg, kLeft, y, kRight, y, percent == 0 ? "black" : "#dddddd");
    Text(&svg, kLeft - 8, y + 4, "end", absl::StrCat(percent, " %"));
  }
  Line(&svg, kLeft, kTop, kLeft, kBottom, "black");
  // Labels that would run into each other are left out.
  constexpr double kLabelWidth = 62;
  double labelled = -kLabelWidth;
  for (const double value : bytes) {
    const double x = x_of(value);
    Line(&svg, x, kBottom, x, kBottom + 5, "black");
    if (x - labelled < kLabelWidth) continue;
    Text(&svg, x, kBottom + 18, "middle", FormatBytes(static_cast<uint64_t>(value)));
    labelled = x;
  }
  Text(&svg, (kLeft + kRight) / 2, kHeight - 12, "middle", "arena (logarithmic)");
  for (size_t i = 0; i < lines.size(); ++i) {
    const char* colour = kColours[i % kColours.size()];
    std::string points;
    for (size_t j = 0; j < std::min(bytes.size(), lines[i].y.size()); ++j) {
      absl::StrAppendFormat(&points, "%s%.1f,%.1f", j == 0 ? "" : " ", x_of(bytes[j]), y_of(lines[i].y[j]));
    }
    absl::StrAppendFormat(&svg, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n", points,
                          colour);
    const double y = kTop + 16 + 18 * static_cast<double>(i);
    Line(&svg, kLeft + 12, y - 4, kLeft + 36, y - 4, colour);
    Text(&svg, kLeft + 42, y, "start", lines[i].name);
  }
  return svg + "</svg>\n";
}

}  // namespace pleiad::cli
