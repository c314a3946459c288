// Makes small PDFs for tests.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace vlcache {

// A page for each text, which is written on it in Helvetica beside a black bar. media_box: "0 0 612 792".
inline std::string make_pdf(const std::vector<std::string>& texts, const std::string& media_box = "0 0 612 792") {
  std::vector<std::string> objects{"<< /Type /Catalog /Pages 2 0 R >>", "",
                                   "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"};
  std::string kids;
  for (const std::string& text : texts) {
    const size_t page = objects.size() + 1;
    kids += std::to_string(page) + " 0 R ";
    objects.push_back("<< /Type /Page /Parent 2 0 R /MediaBox [" + media_box + "] /Contents " +
                      std::to_string(page + 1) + " 0 R /Resources << /Font << /F1 3 0 R >> >> >>");
    const std::string drawing = "BT /F1 36 Tf 72 500 Td (" + text + ") Tj ET 72 300 200 50 re f";
    objects.push_back("<< /Length " + std::to_string(drawing.size()) + " >>\nstream\n" + drawing + "\nendstream");
  }
  objects[1] = "<< /Type /Pages /Kids [" + kids + "] /Count " + std::to_string(texts.size()) + " >>";
  std::string pdf = "%PDF-1.4\n", table = "0000000000 65535 f \n";
  for (size_t i = 0; i < objects.size(); ++i) {
    const std::string at = std::to_string(pdf.size());
    table += std::string(10 - at.size(), '0') + at + " 00000 n \n";
    pdf += std::to_string(i + 1) + " 0 obj\n" + objects[i] + "\nendobj\n";
  }
  const std::string n = std::to_string(objects.size() + 1), start = std::to_string(pdf.size());
  return pdf + "xref\n0 " + n + "\n" + table + "trailer << /Size " + n + " /Root 1 0 R >>\nstartxref\n" + start +
         "\n%%EOF\n";
}

inline std::span<const std::byte> pdf_bytes(const std::string& pdf) { return std::as_bytes(std::span(pdf)); }

}  // namespace vlcache
