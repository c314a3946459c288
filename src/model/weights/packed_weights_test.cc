// A model from its packed file is the model that was quantised, to the bit; and the file is of no other model.
#include "model/weights/packed_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/at.h"
#include "model/model.h"
#include "ops/factory.h"
#include "ops/quantiser.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr WeightForms kSmallForms = {.text = WeightChoice::kInt4Plus, .vision = WeightChoice::kInt8};

class PackedWeightsTest : public testing::TestWithParam<const char*> {
 protected:
  PackedWeightsTest()
      : backend_(make_backend(GetParam(), DType::kF32)),
        dir_(fs::temp_directory_path() / ("vlcache-packed-weights-" + std::to_string(::getpid()))) {
    fs::create_directories(dir_);
  }
  ~PackedWeightsTest() override { fs::remove_all(dir_); }

  std::unique_ptr<Model> load(const fs::path& folder, const WeightForms& forms = kSmallForms) {
    PackedCacheOptions packed{.folder = dir_ / "packed", .off_reason = ""};
    packed.say = [this](const std::string& line) { lines_.push_back(line); };
    lines_.clear();
    return Model::load(Checkpoint(folder), *backend_, {.forms = forms, .packed = packed});
  }
  fs::path copy_of(const char* name) {
    fs::copy(fixture_model(name), dir_ / "model");
    return dir_ / "model";
  }
  fs::path the_file() const { return list_packed_files(dir_ / "packed").at(0).path; }
  // Writes the packed file again, in the same place and with its key, as `change` has it.
  template <typename Change>
  void rewrite(const Change& change) {
    const fs::path path = the_file();
    const PackedFile file(path);
    PackedFileWriter writer(path.parent_path());
    const std::vector<Buffer> arrays = file.read();
    for (size_t i = 0; i < arrays.size(); ++i) {
      PackedRecord record = file.index().records[i];
      std::vector<std::byte> array(arrays[i].data(), arrays[i].data() + arrays[i].bytes());
      if (change(record, array)) writer.add(record.name, record.about, array);
    }
    writer.commit(path, file.index().key, file.index().about);
    ASSERT_EQ(writer.problem(), "");
  }

  std::unique_ptr<Backend> backend_;
  fs::path dir_;
  std::vector<std::string> lines_;
};

std::string text_of(const Buffer& b) { return {reinterpret_cast<const char*>(b.data()), at(b.bytes())}; }

// Everything of the weights that stays in memory, in an order of its own.
std::vector<std::string> contents(const Weights& w) {
  std::vector<std::string> all;
  const auto matrix = [&](const Weight& m) {
    all.push_back(std::to_string(m.n_out) + " " + std::to_string(m.n_in));
    for (const WeightSegment& s : m.segments) {
      all.push_back((s.form ? s.form->describe() : "dense") + " " + std::to_string(s.n_out) + " " + text_of(s.memory));
      for (const int32_t k : s.input_order) all.back() += " " + std::to_string(k);
    }
    if (!m.packed() && !m.rows.empty()) {
      all.emplace_back(reinterpret_cast<const char*>(m.rows.data), at(m.rows.bytes()));
    }
  };
  matrix(w.text.embed), matrix(w.text.positions), matrix(w.text.lm_head);
  for (const TextLayerWeights& l : w.text.layers) {
    matrix(l.qkv), matrix(l.o), matrix(l.gate_up), matrix(l.down), matrix(l.router);
    for (const Weight& e : l.experts_gate_up) matrix(e);
    for (const Weight& e : l.experts_down) matrix(e);
  }
  if (w.vision) {
    matrix(w.vision->patch);
    for (const VisionLayerWeights& l : w.vision->layers) matrix(l.qkv), matrix(l.out), matrix(l.fc1), matrix(l.fc2);
  }
  std::vector<const ProjectorWeights*> projectors = {&w.projector};
  for (const ProjectorWeights& tap : w.taps) projectors.push_back(&tap);
  for (const ProjectorWeights* p : projectors)
    matrix(p->linear1), matrix(p->linear2), matrix(p->gate_up), matrix(p->down);
  for (const Buffer& vector : w.vectors) all.push_back(text_of(vector));
  return all;
}

void expect_same(const Model& a, const Model& b) {
  EXPECT_EQ(a.fingerprint(), b.fingerprint());
  const Weights &x = a.weights(), &y = b.weights();
  EXPECT_EQ(x.hash, y.hash);
  EXPECT_EQ(x.n_parameters, y.n_parameters);
  EXPECT_EQ(x.bytes, y.bytes);
  EXPECT_EQ(x.text.tied, y.text.tied);
  ASSERT_EQ(x.matrices.size(), y.matrices.size());
  for (size_t i = 0; i < x.matrices.size(); ++i) {
    const LoadedMatrix &m = x.matrices[i], &n = y.matrices[i];
    EXPECT_EQ(std::tie(m.name, m.form, m.quantised, m.quantiser, m.n_parameters, m.bytes),
              std::tie(n.name, n.form, n.quantised, n.quantiser, n.n_parameters, n.bytes));
  }
  EXPECT_TRUE(contents(x) == contents(y));
}

TEST_P(PackedWeightsTest, EveryModelIsTheSameFromItsFile) {
  for (const auto& entry : fs::directory_iterator(fixture_model(""))) {
    SCOPED_TRACE(entry.path().filename());
    const auto built = load(entry.path());
    ASSERT_EQ(built->packed_file(), PackedUse::kBuilt);
    EXPECT_THAT(lines_, ElementsAre(HasSubstr("packed weights: written to ")));
    const auto found = load(entry.path());
    ASSERT_EQ(found->packed_file(), PackedUse::kHit);
    EXPECT_THAT(lines_, ElementsAre(HasSubstr("packed weights: read from ")));
    expect_same(*built, *found);
    const auto without = Model::load(Checkpoint(entry.path()), *backend_, {.forms = kSmallForms});
    EXPECT_EQ(without->packed_file(), PackedUse::kOff);
    expect_same(*built, *without);
  }
}

TEST_P(PackedWeightsTest, EachFormHasItsOwnFile) {
  const fs::path model = fixture_model("llava-clip");
  EXPECT_EQ(load(model, {})->packed_file(), PackedUse::kOff);  // dense: nothing was quantised
  EXPECT_THAT(lines_, IsEmpty());
  EXPECT_FALSE(fs::exists(dir_ / "packed"));
  std::vector<WeightForms> all;
  for (const WeightChoice text : {WeightChoice::kDense, WeightChoice::kInt8, WeightChoice::kInt4}) {
    all.push_back({.text = text, .vision = WeightChoice::kInt8});
  }
  for (const WeightForms& forms : all) EXPECT_EQ(load(model, forms)->packed_file(), PackedUse::kBuilt);
  for (const WeightForms& forms : all) {
    const auto found = load(model, forms);
    EXPECT_EQ(found->packed_file(), PackedUse::kHit);
    expect_same(*found, *Model::load(Checkpoint(model), *backend_, {.forms = forms}));
  }
  backend_ = make_backend(GetParam(), DType::kBF16);
  const auto of_bf16 = load(model);
  EXPECT_EQ(of_bf16->packed_file(), PackedUse::kBuilt);
  // Weights are the same for both sorts of activations; records of answers are not.
  const auto first_backend =
      std::exchange(backend_, make_backend(GetParam(), DType::kBF16, {.activation_bits = ActivationBits::k8}));
  const auto of_bytes = load(model);
  EXPECT_EQ(of_bytes->packed_file(), PackedUse::kHit);
  EXPECT_TRUE(contents(of_bytes->weights()) == contents(of_bf16->weights()));
  EXPECT_NE(of_bytes->fingerprint(), of_bf16->fingerprint());
  const ModelConfig config = Model::read_config(Checkpoint(model));
  PackedCacheOptions packed{.folder = dir_ / "random", .off_reason = ""};
  const auto random = Model::random(config, *backend_, 1, {.forms = kSmallForms, .packed = packed});
  EXPECT_EQ(random->packed_file(), PackedUse::kOff);
  EXPECT_FALSE(fs::exists(dir_ / "random"));
}

// Codes of the checkpoint lie in the file beside the quantiser's codes, whose version is not theirs.
TEST_P(PackedWeightsTest, CodesOfTheCheckpointStayOfNoQuantiser) {
  const fs::path model = fs::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/quantised/vlm-ct";
  const WeightForms forms = {.text = WeightChoice::kAuto, .vision = WeightChoice::kInt8};
  const auto built = load(model, forms);
  EXPECT_EQ(built->packed_file(), PackedUse::kBuilt);
  const auto found = load(model, forms);
  EXPECT_EQ(found->packed_file(), PackedUse::kHit);
  expect_same(*built, *found);
  int n_kept = 0, n_made = 0;
  for (const LoadedMatrix& m : found->weights().matrices) {
    n_kept += static_cast<int>(m.quantised && m.quantiser == 0);
    n_made += static_cast<int>(m.quantiser == kQuantiserVersion);
    EXPECT_EQ(m.quantiser == 0, m.name.find("visual.blocks") == std::string::npos) << m.name;
  }
  EXPECT_GT(n_kept, 0);
  EXPECT_GT(n_made, 0);
  const auto made = load(model, {.text = WeightChoice::kInt8});
  for (const LoadedMatrix& m : made->weights().matrices) {
    EXPECT_EQ(m.quantiser == kQuantiserVersion, m.name.find("visual.") == std::string::npos) << m.name;
  }
}

// Orders of inputs lie in the file beside their codes. One that is none makes the file again, one of another size the
// matrix.
TEST_P(PackedWeightsTest, CodesKeepTheirOrderOfInputs) {
  const fs::path model = fs::path(VLCACHE_SOURCE_DIR) / "tests/fixtures/quantised/gptq-order";
  const WeightForms forms = {.text = WeightChoice::kAuto, .vision = WeightChoice::kInt8};
  const auto built = load(model, forms);
  EXPECT_EQ(built->packed_file(), PackedUse::kBuilt);
  const TextLayerWeights& layer = built->weights().text.layers[0];
  ASSERT_EQ(layer.qkv.segments.size(), 3u);  // k alone has an order
  EXPECT_THAT(layer.qkv.segments[0].input_order, IsEmpty());
  EXPECT_EQ(layer.qkv.segments[1].input_order.size(), 64u);
  EXPECT_THAT(layer.qkv.segments[2].input_order, IsEmpty());
  EXPECT_EQ(layer.down.segments.at(0).input_order.size(), 160u);
  const auto expect_found = [&](PackedUse use) {
    const auto found = load(model, forms);
    EXPECT_EQ(found->packed_file(), use);
    expect_same(*built, *found);
  };
  expect_found(PackedUse::kHit);
  int n_orders = 0;
  for (const int32_t wrong : {-1, 64, 160, 7}) {
    rewrite([&](PackedRecord& r, std::vector<std::byte>& array) {
      if (r.about != "order of inputs") return true;
      ++n_orders;
      const int32_t other = wrong == 7 ? 8 : wrong;
      std::memcpy(array.data() + 7 * sizeof wrong, &other, sizeof wrong);
      std::memcpy(array.data() + 9 * sizeof wrong, &other, sizeof wrong);  // twice, whatever it is
      return true;
    });
    expect_found(PackedUse::kBuilt);
    expect_found(PackedUse::kHit);
  }
  EXPECT_EQ(n_orders, 2 * 4);
  rewrite([](PackedRecord& r, std::vector<std::byte>& array) {
    if (r.about != "order of inputs") return true;
    for (int32_t k = 0; k < 32; ++k) std::memcpy(array.data() + at(k) * sizeof k, &k, sizeof k);
    array.resize(32 * sizeof(int32_t));
    return true;
  });
  expect_found(PackedUse::kHit);
  rewrite([](PackedRecord& r, auto&) { return r.about != "order of inputs"; });
  expect_found(PackedUse::kHit);
}

TEST_P(PackedWeightsTest, AFileIsOfItsVersionsAndForms) {
  const auto identity = [&](const WeightForms& forms) {
    return packed_identity({.forms = forms, .source_identity = "source\n"}, *backend_, "model");
  };
  const PackedIdentity of = identity(kSmallForms);
  for (const std::string& part :
       {"\nquantiser " + std::to_string(kQuantiserVersion) + "\n",
        "\nlayout " + std::string(backend_->packed_layout()) + "\n", std::string("source\n")}) {
    EXPECT_THAT(of.key, HasSubstr(part));
  }
  EXPECT_NE(identity({.text = WeightChoice::kInt4Plus}).place, of.place);
  EXPECT_NE(identity({.text = WeightChoice::kInt4, .vision = WeightChoice::kInt8}).place, of.place);
}

// A calibration that is known by its digest is not measured again, and its file is of no other.
TEST_P(PackedWeightsTest, EachCalibrationHasItsOwnFile) {
  const fs::path model = fixture_model("qwen3-gqa4");
  int n_measured = 0;
  const auto measure = [&] {
    ++n_measured;
    std::vector<float> unequal(static_cast<size_t>(Model::read_config(Checkpoint(model)).text.hidden_size), 1.0f);
    unequal[3] = 9.0f, unequal[4] = 0.0f;
    InputStatistics inputs;
    inputs.add("model.layers.0.mlp.gate_proj.weight", Tensor(unequal.data(), DType::kF32, {1, std::ssize(unequal)}));
    return inputs;
  };
  const auto calibrated = [&](const std::string& digest, const WeightForms& forms = kSmallForms) {
    PackedCacheOptions packed{.folder = dir_ / "packed", .off_reason = ""};
    return Model::load(Checkpoint(model), *backend_,
                       {.forms = forms, .calibration = {.digest = digest, .measure = measure}, .packed = packed});
  };
  const auto plain = load(model), built = calibrated("a");
  EXPECT_EQ(built->packed_file(), PackedUse::kBuilt);
  EXPECT_EQ(n_measured, 1);
  const auto found = calibrated("a");
  EXPECT_EQ(found->packed_file(), PackedUse::kHit);
  EXPECT_EQ(n_measured, 1);
  expect_same(*built, *found);
  EXPECT_NE(found->fingerprint(), plain->fingerprint());
  EXPECT_FALSE(contents(found->weights()) == contents(plain->weights()));
  const auto other = calibrated("b");
  EXPECT_EQ(other->packed_file(), PackedUse::kBuilt);
  EXPECT_NE(other->fingerprint(), built->fingerprint());
  EXPECT_EQ(calibrated("a")->packed_file(), PackedUse::kHit);
  const auto again = load(model);
  EXPECT_EQ(again->packed_file(), PackedUse::kHit);
  expect_same(*again, *plain);
  const Model::Listing listing =
      Model::list(Checkpoint(model), Model::read_config(Checkpoint(model)), *backend_, kSmallForms, true, "a");
  EXPECT_EQ(listing.fingerprint, built->fingerprint());
}

TEST_P(PackedWeightsTest, AChangedModelIsQuantisedAgain) {
  const fs::path model = copy_of("llama-gqa4");
  const auto first = load(model)->fingerprint();
  EXPECT_EQ(load(model / ".." / "model")->packed_file(), PackedUse::kHit);
  const auto expect_built = [&] {
    const auto built = load(model);
    EXPECT_EQ(built->packed_file(), PackedUse::kBuilt);
    EXPECT_THAT(lines_, ElementsAre(HasSubstr("other contents of the model's files"), HasSubstr("written to")));
    EXPECT_EQ(load(model)->packed_file(), PackedUse::kHit);
    return built->fingerprint();
  };
  const fs::path weights = model / "model.safetensors";
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  EXPECT_EQ(expect_built(), first);
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('\x01');
  file.close();
  fs::last_write_time(weights, fs::last_write_time(weights) + std::chrono::seconds(1));
  EXPECT_NE(expect_built(), first);
  Json config = load_json(model / "config.json");
  config["rms_norm_eps"] = 0.25;
  std::ofstream(model / "config.json") << config;
  EXPECT_NE(expect_built(), first);
}

// What a file with right checksums lacks, or has in another size than the model, is computed.
TEST_P(PackedWeightsTest, WhatDoesNotFitIsComputed) {
  for (const char* name : {"llava-clip", "qwen3-vl-moe-published"}) {
    const auto whole = load(fixture_model(name));
    const auto damage = [&](const char* what, auto change) {
      SCOPED_TRACE(what);
      rewrite(change);
      const auto found = load(fixture_model(name));
      EXPECT_EQ(found->packed_file(), PackedUse::kHit);
      expect_same(*whole, *found);
    };
    int n = 0;
    damage("every third is not there", [&](PackedRecord& r, auto&) { return r.name == "source hash" || ++n % 3 != 0; });
    n = 0;
    damage("others are shorter", [&](PackedRecord& r, std::vector<std::byte>& array) {
      if (r.name != "source hash" && ++n % 3 == 0 && !array.empty()) array.pop_back();
      return true;
    });
    damage("other forms, rows and answers", [&](PackedRecord& r, auto&) {
      const Json replaced[] = {nullptr,
                               7,
                               {{"rows", 1'000'000'007}, {"form", nullptr}},
                               {{"rows", 1}, {"form", {4, 1}}},
                               {{"rows", 1}, {"form", {4, 32, 9, 9, 9}}}};
      if (r.name != "source hash") r.about = replaced[at(++n % 5)];
      return true;
    });
    rewrite([](PackedRecord& r, auto&) { return r.name != "source hash"; });
    EXPECT_EQ(load(fixture_model(name))->packed_file(), PackedUse::kBuilt);
    EXPECT_EQ(load(fixture_model(name))->packed_file(), PackedUse::kHit);
    clear_packed_files(dir_ / "packed");
  }
}

#ifdef VLCACHE_REF_ONLY
INSTANTIATE_TEST_SUITE_P(Backends, PackedWeightsTest, testing::Values("ref"));
#else
INSTANTIATE_TEST_SUITE_P(Backends, PackedWeightsTest, testing::Values("cpu", "ref"));
#endif

}  // namespace
}  // namespace vlcache
