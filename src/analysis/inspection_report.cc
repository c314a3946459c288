// Figures 2, 3, 10 and 11 of the VL-Cache paper for one question, and where in the images the kept tokens are.
#include "analysis/inspection_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "analysis/html.h"
#include "analysis/verdicts.h"
#include "base/contracts/kv.h"
#include "base/format.h"
#include "io/image/encode.h"

namespace vlcache {
namespace {

constexpr int64_t kPageSide = 640;  // pixels of an image in the page
// Opacity over patches that no head keeps: black print on white paper keeps a contrast of 5 to 1 under it.
constexpr double kVeil = 0.5;

// Even a tenth of the heads must be visible.
double brightness(double share) { return std::sqrt(share); }

struct Figure {
  std::string name;
  std::vector<double> values;  // [n_layers]
};

// Layers from left to right.
std::string by_layer(const std::vector<Figure>& figures, const std::string& label, bool percent, double whole = 0) {
  std::vector<ChartLine> lines;
  double top = 0;
  std::vector<double> ticks;
  for (const Figure& figure : figures) {
    ChartLine& line = lines.emplace_back(ChartLine{figure.name, {}});
    for (size_t l = 0; l < figure.values.size(); ++l) {
      line.points.push_back({static_cast<double>(l), figure.values[l]});
      top = std::max(top, figure.values[l]);
    }
    for (size_t l = ticks.size(); l < figure.values.size(); ++l) ticks.push_back(static_cast<double>(l));
  }
  return line_chart(lines, {.x_label = "layer",
                            .y_label = label,
                            .x_ticks = ticks,
                            .y_high = percent ? 1 : std::max(1.0, top),
                            .percent_x = false,
                            .percent_y = percent,
                            .log_x = false,
                            .y_whole = whole});
}

Figure figure(const Inspection& inspection, const std::string& name, double InspectedLayer::*member) {
  Figure f{name, {}};
  for (const InspectedLayer& layer : inspection.layers) f.values.push_back(layer.*member);
  return f;
}

// The kept part of an image as SVG cells, holes of the veil.
std::string cells(const InspectedImage& image, std::span<const double> shares, double scale) {
  std::string svg;
  for (size_t i = 0; i < image.rects.size(); ++i) {
    if (!image.rects[i] || shares[i] <= 0) continue;
    const PixelRect& r = *image.rects[i];
    svg += format("<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" opacity=\"%.2f\"/>",
                  scale * static_cast<double>(r.left), scale * static_cast<double>(r.top),
                  scale * static_cast<double>(r.right - r.left), scale * static_cast<double>(r.bottom - r.top),
                  brightness(shares[i]));
  }
  return svg;
}

std::string image_section(const Inspection& inspection, size_t number, const Image& image) {
  const InspectedImage& inspected = inspection.images[number];
  const Image small = shrink(image, kPageSide);
  const double scale = static_cast<double>(small.width) / static_cast<double>(image.width);
  const std::vector<double> all = kept_shares(inspection, inspected);
  const double mean = all.empty() ? 0 : std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  const std::string id = format("image%zu", number);
  std::string text = format(
      "<section><h2>Image %zu</h2><p>%.1f %% of its %zu tokens are kept, over all layers and heads. "
      "Bright patches are kept.</p>",
      number + 1, 100 * mean, all.size());
  text += "<input type=\"checkbox\" class=\"toggle\" id=\"show-" + id + "\" checked> <label for=\"show-" + id +
          "\">show what is kept</label>";
  // The page's first drawing of the image defines it for all others.
  const auto svg = [&](const std::vector<double>& shares, const std::string& mask, double width, bool define) {
    const std::string size = format("width=\"%lld\" height=\"%lld\"", static_cast<long long>(small.width),
                                    static_cast<long long>(small.height));
    return format("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %lld %lld\" style=\"max-width:%.0frem\">",
                  static_cast<long long>(small.width), static_cast<long long>(small.height), width) +
           "<mask id=\"" + mask + "\"><rect " + size +
           " fill=\"#fff\"/><g fill=\"#000\" shape-rendering=\"crispEdges\">" + cells(inspected, shares, scale) +
           "</g></mask>" +
           (define ? "<image id=\"" + id + "\" " + size + " href=\"data:image/png;base64," + base64(encode_png(small)) +
                         "\"/>"
                   : "<use href=\"#" + id + "\"/>") +
           format("<rect class=\"veil\" opacity=\"%g\" ", kVeil) + size + " mask=\"url(#" + mask + ")\"/></svg>";
  };
  text += "<div>";
  text += svg(all, id + "all", 40, true);
  text +=
      "</div><details><summary>Layer by layer</summary><div "
      "style=\"display:grid;grid-template-columns:repeat(auto-fill,minmax(12rem,1fr));gap:0.5rem\">";
  for (size_t l = 0; l < inspection.layers.size(); ++l) {
    if (inspection.layers[l].kept.empty()) continue;
    const std::string mask = id + format("layer%zu", l);
    text +=
        format("<figure style=\"margin:0\"><figcaption class=\"soft\">layer %zu, %.0f slots (%.0f %%)</figcaption>", l,
               inspection.layers[l].budget, 100 * inspection.layers[l].budget / std::max(1, inspection.n_prompt)) +
        svg(kept_shares(inspection, inspected, static_cast<int32_t>(l)), mask, 20, false) + "</figure>";
  }
  return text + "</div></details></section>";
}

// Figures 2, 3, 10 and 11 of the paper.
std::string plots(const Inspection& inspection) {
  std::string body =
      "<h2>Sparsity</h2><p class=\"soft\">Attention below 1 % of its row's largest, among what a row sees.</p>" +
      by_layer({figure(inspection, "prefill (after the image)", &InspectedLayer::sparsity),
                figure(inspection, "answer", &InspectedLayer::decode_sparsity)},
               "sparsity", true);
  body += "<h2>Budgets</h2>" + by_layer({figure(inspection, inspection.policy, &InspectedLayer::budget)},
                                        "slots per kv head · share of the prompt", false, inspection.n_prompt);
  std::vector<Figure> hits;
  for (size_t i = 0; i < inspection.rated.size(); ++i) {
    Figure& f = hits.emplace_back(Figure{inspection.rated[i], {}});
    for (const InspectedLayer& layer : inspection.layers)
      f.values.push_back(i < layer.hit_rates.size() ? layer.hit_rates[i] : 0);
  }
  body +=
      "<h2>Cache hit rate</h2><p class=\"soft\">Of the slots that the answer's first token attends to most, the share "
      "that each scorer ranks as high.</p>" +
      by_layer(hits, "hit rate", true);
  body +=
      "<h2>Modalities</h2><p class=\"soft\">Of the answer's attention above that threshold, what falls to image tokens "
      "(contribution); and their share among the slots with the most attention (coverage).</p>" +
      by_layer({figure(inspection, "contribution of image tokens", &InspectedLayer::vision_contribution),
                figure(inspection, "coverage by image tokens", &InspectedLayer::vision_coverage)},
               "share", true);
  return body;
}

}  // namespace

nlohmann::ordered_json to_json(const Inspection& inspection) {
  using OrderedJson = nlohmann::ordered_json;
  OrderedJson spans = OrderedJson::array(), layers = OrderedJson::array();
  for (const auto& [begin, end] : inspection.vision_spans) spans.push_back({begin, end});
  for (const InspectedLayer& layer : inspection.layers) {
    OrderedJson heads = OrderedJson::array(), hits = OrderedJson::object();
    for (const std::vector<int32_t>& kept : layer.kept) heads.push_back({{"kept", kept}});
    for (size_t i = 0; i < layer.hit_rates.size(); ++i) hits[inspection.rated[i]] = layer.hit_rates[i];
    layers.push_back({{"sparsity", layer.sparsity},
                      {"budget", layer.budget},
                      {"heads", std::move(heads)},
                      {"decode_sparsity", layer.decode_sparsity},
                      {"hit_rate", std::move(hits)},
                      {"vision_contribution", layer.vision_contribution},
                      {"vision_coverage", layer.vision_coverage}});
  }
  return {{"policy", inspection.policy},
          {"n_prompt", inspection.n_prompt},
          {"tau", inspection.tau},
          {"vision_spans", std::move(spans)},
          {"answer", inspection.answer},
          {"full_answer", inspection.full_answer},
          {"verdict", inspect_verdict(inspection)},
          {"kv_bytes", inspection.kv_bytes},
          {"full_kv_bytes", inspection.full_kv_bytes},
          {"layers", std::move(layers)}};
}

std::vector<double> kept_shares(const Inspection& inspection, const InspectedImage& image, int32_t layer) {
  std::vector<double> shares(static_cast<size_t>(image.end - image.begin));
  double n_heads = 0;
  for (size_t l = 0; l < inspection.layers.size(); ++l) {
    if (layer >= 0 && static_cast<size_t>(layer) != l) continue;
    for (const std::vector<int32_t>& kept : inspection.layers[l].kept) {
      ++n_heads;
      const auto first = std::ranges::lower_bound(kept, image.begin), last = std::ranges::lower_bound(kept, image.end);
      for (auto it = first; it < last; ++it) shares[static_cast<size_t>(*it - image.begin)] += 1;
    }
  }
  for (double& share : shares) share /= std::max(1.0, n_heads);
  return shares;
}

Image heat_map(const Image& image, double scale, const InspectedImage& inspected, std::span<const double> shares) {
  std::vector<double> share_of(static_cast<size_t>(image.width * image.height), 0.0);
  for (size_t i = 0; i < inspected.rects.size(); ++i) {
    if (!inspected.rects[i]) continue;
    const PixelRect& r = *inspected.rects[i];
    const auto pixel = [&](float x, int64_t end) {
      return std::clamp<int64_t>(std::llround(scale * static_cast<double>(x)), 0, end);
    };
    for (int64_t y = pixel(r.top, image.height); y < pixel(r.bottom, image.height); ++y) {
      for (int64_t x = pixel(r.left, image.width); x < pixel(r.right, image.width); ++x) {
        double& share = share_of[static_cast<size_t>(y * image.width + x)];
        share = std::max(share, shares[i]);
      }
    }
  }
  Image out = image;
  for (size_t i = 0; i < share_of.size(); ++i) {
    const double light = 1 - kVeil * (1 - brightness(share_of[i]));
    for (size_t c = 0; c < 3; ++c) out.rgb[3 * i + c] = static_cast<uint8_t>(light * out.rgb[3 * i + c]);
  }
  return out;
}

std::string inspection_page(const Inspection& inspection, std::string_view question, std::span<const Image> images) {
  std::string body = verdict_box(inspect_verdict(inspection)) + "<p><b>" + escape_html(question) +
                     "</b></p><p>With everything kept: " + escape_html(inspection.full_answer) + "<br>With " +
                     escape_html(inspection.policy) + ": " + escape_html(inspection.answer) + "</p>";
  body += format(
      "<p class=\"soft\">%d prompt tokens, %d of them after the last image. KV is held in whole pages of %d "
      "slots a head, so short prompts save less memory than tokens.</p>",
      inspection.n_prompt, inspection.tau, kPageSlots);
  for (size_t i = 0; i < std::min(images.size(), inspection.images.size()); ++i)
    body += image_section(inspection, i, images[i]);
  return html_page("What the KV cache keeps", body + fold("Plots by layer (for authors of papers)", plots(inspection)));
}

}  // namespace vlcache
