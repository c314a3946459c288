#include "analysis/html.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/format.h"

namespace vlcache {
namespace {

// Colours that remain distinct for all kinds of colour blindness (Okabe and Ito), slightly darker for white pages;
// after these, the same ones are dashed.
constexpr std::array<std::string_view, 7> kColors{"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                                  "#b8860b", "#56b4e9", "#888888"};

constexpr std::string_view kColorStyle = R"(
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #59636e; --line: #d1d9e0; --page: #ffffff; --panel: #f6f8fa; --mark: #fff3c4; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --page: #0d1117; --panel: #151b23; --mark: #3a3213; } }
)";
constexpr std::string_view kChartStyle = R"(
svg { width: 100%; height: auto; max-width: 52rem; display: block; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .grid { stroke: var(--line); } svg .soft { fill: var(--soft); }
)";
constexpr std::string_view kStyle = R"(
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 78rem; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
p, li { max-width: 45rem; } .soft { color: var(--soft); }
.verdict { max-width: none; padding: 0.6rem 1rem; border: 1px solid var(--line); border-left: 5px solid #0072b2; border-radius: 6px; background: var(--panel); font-size: 1.1rem; }
tr.best td { background: var(--mark); font-weight: 600; } tr.best td:first-child::before { content: "\2713  "; }
.toggle:not(:checked) ~ * .veil { display: none; }
.wide { width: fit-content; max-width: 100%; overflow-x: auto; border: 1px solid var(--line); border-radius: 6px; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.3rem 0.6rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { background: var(--panel); white-space: normal; vertical-align: bottom; } th:first-child, td:first-child, .text { text-align: left; }
@media (max-width: 600px) { table.narrow { font-size: 0.8rem; } table.narrow :is(th, td) { padding: 0.3rem; } table.narrow td:is(:first-child, :last-child) { white-space: normal; } }
td.text { white-space: normal; min-width: 10rem; overflow-wrap: anywhere; }
details { margin: 0.5rem 0; } summary { cursor: pointer; } summary.section { font-size: 1.2rem; font-weight: 600; margin-top: 2rem; } .wrong { color: #c0392b; } .right { color: #1e8449; }
@media (prefers-color-scheme: dark) { .wrong { color: #ff7b72; } .right { color: #56d364; } }
img { max-width: 100%; height: auto; }
progress { display: block; width: 100%; max-width: 30rem; height: 0.8rem; accent-color: #0072b2; }
)";

constexpr int kRows = 5;  // of a plot, between its lines

// Pixels of a plot in a drawing of 760 by 420.
struct Plot {
  double left = 56, top = 16, right = 560, bottom = 364;
  double x_low, x_high, y_low, y_high;

  bool log_x = true;

  double x(double value) const {
    const auto place = [&](double v) { return log_x ? std::log(v) : v; };
    return left + (right - left) * (place(value) - place(x_low)) / (place(x_high) - place(x_low));
  }
  double y(double value) const {
    return bottom - (bottom - top) * (std::clamp(value, y_low, y_high) - y_low) / (y_high - y_low);
  }
};

std::string shown(double value, bool percent) {
  return format(percent ? "%g %%" : "%g", percent ? 100 * value : value);
}

// The smallest number from `high` up whose fifths have few digits.
double round_top(double high) {
  if (high <= 0) return 1;
  const double fifth = high / kRows, unit = std::pow(10.0, std::floor(std::log10(fifth)));
  for (const double digits : {1.0, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0}) {
    if (digits * unit >= fifth) return digits * unit * kRows;
  }
  return 10 * unit * kRows;
}

void draw_axes(const Plot& plot, const ChartAxes& axes, std::string& svg) {
  constexpr size_t kMostTicks = 16;
  for (int i = 0; i <= kRows; ++i) {
    const double value = plot.y_low + (plot.y_high - plot.y_low) * i / kRows, y = plot.y(value);
    svg +=
        format("<line class=\"grid\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>", plot.left, y, plot.right, y);
    svg += format(
        "<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%s</text>", plot.left - 6, y + 4,
        (shown(value, axes.percent_y) + (axes.y_whole > 0 ? format(" · %.3g %%", 100 * value / axes.y_whole) : ""))
            .c_str());
  }
  // No more labels than fit.
  const size_t every = axes.x_ticks.size() / kMostTicks + 1;
  for (size_t i = 0; i < axes.x_ticks.size(); i += every) {
    const double tick = axes.x_ticks[i];
    svg += format("<text class=\"soft\" x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%s</text>", plot.x(tick),
                  plot.bottom + 18, shown(tick, axes.percent_x).c_str());
  }
  svg += format("<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">", (plot.left + plot.right) / 2, plot.bottom + 40) +
         escape_html(axes.x_label) + "</text>";
  svg += format("<text x=\"14\" y=\"%.1f\" text-anchor=\"middle\" transform=\"rotate(-90 14 %.1f)\">",
                (plot.top + plot.bottom) / 2, (plot.top + plot.bottom) / 2) +
         escape_html(axes.y_label) + "</text>";
  if (axes.reference >= 0) {
    const double y = plot.y(axes.reference);
    svg += format(
        "<line class=\"grid\" stroke-dasharray=\"5 4\" stroke-width=\"2\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" "
        "y2=\"%.1f\"/>",
        plot.left, y, plot.right, y);
  }
}

void draw_line(const Plot& plot, const ChartLine& line, size_t number, std::string& svg) {
  const std::string color(kColors[number % kColors.size()]);
  const char* dash = number < kColors.size() ? "" : " stroke-dasharray=\"6 3\"";
  std::string path;
  for (const ChartPoint& p : line.points) {
    path += format("%s%.1f %.1f", path.empty() ? "M" : "L", plot.x(p.x), plot.y(p.y));
    if (p.low < p.high) {
      svg += format("<line stroke=\"%s\" stroke-opacity=\"0.45\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>",
                    color.c_str(), plot.x(p.x), plot.y(p.low), plot.x(p.x), plot.y(p.high));
    }
    svg += format("<circle fill=\"%s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"><title>%s: %.3g at %.3g</title></circle>",
                  color.c_str(), plot.x(p.x), plot.y(p.y), escape_html(line.name).c_str(), p.y, p.x);
  }
  svg += format("<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s d=\"", color.c_str(), dash) + path + "\"/>";
  const double y = plot.top + 8 + 20 * static_cast<double>(number);
  svg += format(
             "<line stroke=\"%s\" stroke-width=\"3\"%s x1=\"576\" y1=\"%.1f\" x2=\"600\" y2=\"%.1f\"/><text x=\"606\" "
             "y=\"%.1f\">",
             color.c_str(), dash, y, y, y + 4) +
         escape_html(line.name) + "</text>";
}

}  // namespace

std::string html_page(std::string_view title, std::string_view body) {
  return "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
         "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"><title>" +
         escape_html(title) + "</title><style>" + std::string(kColorStyle) + std::string(kStyle) +
         std::string(kChartStyle) + "</style></head>\n<body><h1>" + escape_html(title) + "</h1>\n" + std::string(body) +
         "</body></html>\n";
}

std::string verdict_box(std::string_view text) {
  std::string html = escape_html(text);
  while (html.ends_with('\n')) html.pop_back();
  for (size_t at = 0; (at = html.find('\n', at)) != html.npos; at += 5) html.replace(at, 1, "<br>\n");
  bool opens = true;
  for (size_t at = 0; (at = html.find('`', at)) != html.npos; opens = !opens) {
    html.replace(at, 1, opens ? "<code>" : "</code>");
  }
  return "<p class=\"verdict\"><strong>" + html + "</strong></p>\n";
}

std::string cell(std::string_view text) { return "<td>" + escape_html(text) + "</td>"; }

std::string fold(std::string_view summary, std::string_view body) {
  return "<details><summary class=\"section\">" + escape_html(summary) + "</summary>" + std::string(body) +
         "</details>\n";
}

std::string line_chart(const std::vector<ChartLine>& lines, const ChartAxes& axes) {
  Plot plot;
  if (axes.y_whole > 0) plot.left = 110;
  plot.x_low = *std::ranges::min_element(axes.x_ticks);
  plot.x_high = *std::ranges::max_element(axes.x_ticks);
  plot.log_x = axes.log_x;
  if (plot.x_low == plot.x_high) axes.log_x ? plot.x_low /= 2 : plot.x_high += 1;
  plot.y_low = axes.y_low;
  plot.y_high = axes.y_low == 0 && !axes.percent_y ? round_top(axes.y_high) : axes.y_high;
  const double height = std::max(420.0, plot.top + 20.0 * static_cast<double>(lines.size()) + 20);
  constexpr double kLegend = 606, kLetter = 7;  // where names begin, the width of a letter
  size_t longest = 0;
  for (const ChartLine& line : lines) longest = std::max(longest, line.name.size());
  const double width = std::max(780.0, kLegend + kLetter * static_cast<double>(longest));
  std::string svg =
      format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" role=\"img\">", width, height);
  draw_axes(plot, axes, svg);
  for (size_t i = 0; i < lines.size(); ++i) draw_line(plot, lines[i], i, svg);
  return svg + "</svg>";
}

std::string svg_file(std::string_view chart) {
  const size_t after_tag = chart.find('>') + 1;
  return std::string(chart.substr(0, after_tag)) + "<style>" + std::string(kColorStyle) + std::string(kChartStyle) +
         "svg { background: var(--page); }</style>" + std::string(chart.substr(after_tag)) + "\n";
}

}  // namespace vlcache
