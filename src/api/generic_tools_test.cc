// What a model without a place for tools in its template is told.
#include "api/generic_tools.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/json.h"

namespace vlcache {
namespace {

const nlohmann::ordered_json kTools = parse_ordered_json(R"([
    {"type": "function", "function": {"name": "look", "description": "Looks. At length.", "parameters": {"type": "object",
        "properties": {"at": {"enum": ["sky", "sea"]}, "n": {"type": "integer"}, "x": {}}, "required": ["at"]}}},
    {"type": "function", "function": {"name": "stop", "parameters": {"type": "object", "properties": {}}}}])",
                                                         "");

GenericTools of(int64_t max_bytes) {
  return generic_tools(kTools, max_bytes, [](const std::string& text) { return std::ssize(text); });
}

TEST(GenericTools, TheMostDetailedFormThatFits) {
  const std::string schemas = of(1 << 20).text;
  EXPECT_NE(schemas.find(R"("required":["at"])"), schemas.npos) << schemas;
  const std::string described = of(std::ssize(schemas) - 1).text;
  EXPECT_NE(described.find("look(at: \"sky\" | \"sea\", n?: integer, x?: any) - Looks.\nstop()\n"), described.npos);
  const std::string signatures = of(std::ssize(described) - 1).text;
  EXPECT_NE(signatures.find("x?: any)\nstop()\n"), signatures.npos) << signatures;
  EXPECT_TRUE(of(std::ssize(signatures)).notes.empty());
}

TEST(GenericTools, WhatDoesNotFitIsLeftOutAndNamed) {
  const auto n = std::ssize(of(1).text);
  EXPECT_EQ(n, 0);
  ASSERT_EQ(of(1).notes.size(), 1u);
  EXPECT_NE(of(1).notes[0].find("look, stop"), std::string::npos);
  const int64_t signatures = 240;
  const GenericTools some = of(signatures);
  ASSERT_EQ(some.notes.size(), 1u) << some.text;
  EXPECT_NE(some.notes[0].find("stop: all of them"), std::string::npos) << some.notes[0];
  EXPECT_NE(some.text.find("look("), std::string::npos);
}

TEST(GenericTools, ManyThatDoNotFitAreLeftOutAtOnce) {
  nlohmann::ordered_json tools = nlohmann::ordered_json::array();
  for (int i = 0; i < 4096; ++i) {
    tools.push_back({{"type", "function"}, {"function", {{"name", "f" + std::to_string(i)}}}});
  }
  int n_asked = 0;
  const GenericTools some = generic_tools(tools, 1000, [&](const std::string& text) {
    ++n_asked;
    return std::ssize(text);
  });
  EXPECT_LE(std::ssize(some.text), 1000);
  EXPECT_GT(std::ssize(some.text), 990);
  EXPECT_LT(n_asked, 20);
}

}  // namespace
}  // namespace vlcache
