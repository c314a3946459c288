// Writes self-contained pages: one file without external requests, readable on a phone, in dark and light mode.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/escape_html.h"

namespace vlcache {

// A whole document around `body`, with the common style sheet.
std::string html_page(std::string_view title, std::string_view body);

// The verdict with which a report begins, in a frame: a line break in `text` begins a line, `x` is code.
std::string verdict_box(std::string_view text);

// `body` below a heading that opens it: figures for authors of papers.
std::string fold(std::string_view summary, std::string_view body);

// A cell of a table.
std::string cell(std::string_view text);

// A line chart as inline SVG.
struct ChartPoint {
  double x = 0, y = 0;
  double low = 0, high = 0;  // of an interval around y; both 0: none
};
struct ChartLine {
  std::string name;
  std::vector<ChartPoint> points;  // ascending x
};
struct ChartAxes {
  std::string x_label, y_label;
  std::vector<double> x_ticks;  // also the ends of the axis
  double y_low = 0, y_high = 1;
  bool percent_x = true, percent_y = true;
  bool log_x = true;
  double y_whole = 0;     // > 0: labels of y also say which share of this they are
  double reference = -1;  // >= 0: a dashed horizontal line, such as the full cache's score
};
std::string line_chart(const std::vector<ChartLine>& lines, const ChartAxes& axes);

// The same as a stand-alone file, with its style.
std::string svg_file(std::string_view chart);

}  // namespace vlcache
