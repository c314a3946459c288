// Checkpoint: when its parts are read; and where directories of Hugging Face have them.
#include "io/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/checkpoint/checkpoint_reader.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;

// A format with one key in each part. Counts how often a part is read; the first reading of `fails` is an error.
class CountingReader : public CheckpointReader {
 public:
  CountingReader(std::map<std::string, int>& n_read, std::string fails) : n_read_(n_read), fails_(std::move(fails)) {}
  std::string where() const override { return "counted"; }
  std::filesystem::path companion(std::string_view name) const override { return "counted." + std::string(name); }
  std::string fingerprint() const override { return count("fingerprint"), "print"; }
  NamedJson config() const override { return {.json = {{"part", count("config")}}, .where = "the config"}; }
  std::optional<Json> generation_config() const override { return count("generation_config"), std::nullopt; }
  NamedJson image_settings() const override {
    return {.json = {{"part", count("image_settings")}}, .where = "the settings"};
  }
  NamedJson video_settings() const override {
    return {.json = {{"part", count("video_settings")}}, .where = "the video settings"};
  }
  Safetensors tensors() const override {
    return count("tensors"), Safetensors::open(fixture_model("llama-gqa4") / "model.safetensors");
  }
  TokenizerText tokenizer() const override { return {.json = count("tokenizer"), .where = "the tokenizer"}; }
  TokenizerConfig tokenizer_config() const override { return {.listed = {}, .named_or_extra = {}, .names = {}}; }
  std::map<std::string, std::string> chat_templates() const override { return {{"default", "t"}}; }

 private:
  std::string count(const std::string& part) const {
    if (++n_read_[part] == 1 && part == fails_) throw Error(ErrorCode::kIo, part + ": damaged");
    return part;
  }
  std::map<std::string, int>& n_read_;
  std::string fails_;
};

TEST(CheckpointTest, ReadsEachPartOnce) {
  std::map<std::string, int> n_read;
  const Checkpoint checkpoint(std::make_unique<CountingReader>(n_read, ""));
  EXPECT_EQ(checkpoint.where(), "counted");
  EXPECT_EQ(checkpoint.companion("heads.json"), "counted.heads.json");
  EXPECT_TRUE(n_read.empty());
  const Checkpoint copy = checkpoint;
  std::shared_ptr<const Safetensors> held = checkpoint.tensors();
  for (const Checkpoint* c : {&checkpoint, &copy, &checkpoint}) {
    EXPECT_EQ(c->config().string("part"), "config");
    EXPECT_EQ(c->config().where(), "the config");
    EXPECT_EQ(c->image_settings().string("part"), "image_settings");
    EXPECT_EQ(c->image_settings().where(), "the settings");
    EXPECT_EQ(c->video_settings().string("part"), "video_settings");
    EXPECT_EQ(c->generation_config(), nullptr);
    EXPECT_EQ(c->tensors(), held);
    EXPECT_EQ(c->fingerprint(), "print");
  }
  EXPECT_THAT(n_read, ElementsAre(Pair("config", 1), Pair("fingerprint", 1), Pair("generation_config", 1),
                                  Pair("image_settings", 1), Pair("tensors", 1), Pair("video_settings", 1)));
  held.reset();  // unmapped: a loaded model needs them no more
  EXPECT_NE(checkpoint.tensors(), nullptr);
  EXPECT_EQ(n_read["tensors"], 2);
  EXPECT_EQ(checkpoint.tokenizer().json, "tokenizer");
  EXPECT_THAT(checkpoint.chat_templates(), ElementsAre(Pair("default", "t")));
}

TEST(CheckpointTest, ReadsAPartAgainAfterAnError) {
  std::map<std::string, int> n_read;
  const Checkpoint checkpoint(std::make_unique<CountingReader>(n_read, "config"));
  EXPECT_EQ(error_of([&] { checkpoint.config(); }), "config: damaged");
  EXPECT_EQ(checkpoint.config().string("part"), "config");
  EXPECT_EQ(n_read["config"], 2);
}

class HfSnapshotTest : public testing::Test {
 protected:
  HfSnapshotTest() { std::filesystem::create_directories(dir_ / "additional_chat_templates"); }
  ~HfSnapshotTest() override { std::filesystem::remove_all(dir_); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(dir_ / name) << text; }
  Checkpoint checkpoint() const { return Checkpoint(dir_); }  // with nothing read
  std::map<std::string, std::string> templates() const { return checkpoint().chat_templates(); }

  std::filesystem::path dir_ =
      std::filesystem::temp_directory_path() / ("vlcache_snapshot_" + std::to_string(::getpid()));
};

TEST_F(HfSnapshotTest, ErrorsNameTheMissingFile) {
  const std::string dir = dir_.string();
  const Checkpoint none(dir_ / "none");
  const std::string no_directory =
      dir +
      "/none: expected a model directory (config.json, tokenizer.json, model.safetensors, ...), found no such "
      "directory";
  EXPECT_EQ(error_of([&] { none.config(); }), no_directory);
  EXPECT_EQ(error_of([&] { none.generation_config(); }), no_directory);
  EXPECT_EQ(error_of([&] { none.tensors(); }), no_directory);
  EXPECT_TRUE(none.chat_templates().empty());
  EXPECT_EQ(none.fingerprint(), "");

  const Checkpoint c = checkpoint();
  for (const auto& f : std::initializer_list<std::function<void()>>{[&] { c.config(); }, [&] { c.generation_config(); },
                                                                    [&] { c.tensors(); }}) {
    EXPECT_EQ(error_of(f), dir + ": no config.json: not a model directory");
  }
  EXPECT_THAT(error_of([&] { c.tokenizer(); }), HasSubstr(dir + "/tokenizer.json: no such file; a model with only"));
  EXPECT_EQ(error_of([&] { c.image_settings(); }),
            dir +
                ": expected preprocessor_config.json, or processor_config.json with image_processor in it; found "
                "neither");
  write("config.json", "{}");
  EXPECT_THAT(error_of([&] { c.tensors(); }), HasSubstr(dir + ": neither model.safetensors nor model.safetensors.ind"));
  EXPECT_EQ(c.generation_config(), nullptr);
  EXPECT_EQ(c.config().where(), dir + "/config.json");
}

TEST_F(HfSnapshotTest, ASentencePieceFileAloneIsToBeConverted) {
  write("tokenizer.model", "");
  EXPECT_THAT(error_of([&] { checkpoint().tokenizer(); }), HasSubstr("only tokenizer.model (SentencePiece)"));
}

// Of another folder, or of the model's own.
TEST_F(HfSnapshotTest, TheTokenizerMayLieElsewhere) {
  const auto other = dir_ / "other";
  std::filesystem::create_directories(other);
  write("tokenizer.json", "own"), write("chat_template.jinja", "own");
  write("other/tokenizer.json", "{}"), write("other/chat_template.jinja", "other");
  write("other/tokenizer_config.json", R"({"eos_token":"<e>"})");
  const Checkpoint both(dir_, other);
  EXPECT_EQ(both.tokenizer().json, "{}");
  EXPECT_EQ(both.tokenizer_config().names.at("eos_token"), "<e>");
  EXPECT_EQ(both.chat_templates().at("default"), "other");
  EXPECT_EQ(checkpoint().tokenizer().json, "own");
}

// Its configuration names no model_type; its tokenizer, which it names, is not there.
TEST_F(HfSnapshotTest, NanoVlmIsReadAsOtherSnapshotsAre) {
  write("config.json", R"({"vit_hidden_dim":8,"vit_img_size":28,"lm_hidden_dim":8,"lm_tokenizer":"some/name",
      "max_img_size":84,"lm_chat_template":"T","vlm_extra_tokens":{"image_token":"<|image|>","a":"<a>"}})");
  EXPECT_EQ(checkpoint().config().string("model_type"), "nanovlm");
  EXPECT_EQ(checkpoint().config().find("vlm_extra_tokens")->at(0).at("name"), "image_token");
  EXPECT_EQ(checkpoint().image_settings().object("size").integer("longest_edge"), 84);
  EXPECT_FALSE(checkpoint().image_settings().boolean("global_tile", true));
  EXPECT_TRUE(checkpoint().chat_templates().at("default").ends_with("T"));
  EXPECT_THAT(error_of([&] { checkpoint().tokenizer(); }),
              HasSubstr("(hf download some/name) and give its folder with --tokenizer DIR"));
  write("tokenizer.json", "{}");
  EXPECT_EQ(checkpoint().tokenizer().json, "{}");
  const auto named = checkpoint().tokenizer_config().named_or_extra;
  ASSERT_EQ(named.size(), 2u);  // in the order of the file
  EXPECT_EQ(named[0].content + named[1].content, "<|image|><a>");
  write("config.json", R"({"vit_hidden_dim":8,"vit_img_size":28,"lm_hidden_dim":8,"vlm_extra_tokens":["<|image|>"]})");
  EXPECT_THAT(error_of([&] { checkpoint().tokenizer_config(); }), HasSubstr("vlm_extra_tokens: expected an object"));
  write("config.json", R"({"vit_hidden_dim":8,"vit_img_size":28,"lm_hidden_dim":8})");
  EXPECT_EQ(checkpoint().config().find("vlm_extra_tokens"), nullptr);
  EXPECT_FALSE(checkpoint().image_settings().boolean("do_image_splitting", true));
  EXPECT_EQ(checkpoint().tokenizer_config().names.at("image_token"), "<|image|>");
}

TEST_F(HfSnapshotTest, TokenizerNeedsNoModel) {
  write("tokenizer.json", "text");
  write("tokenizer_config.json", R"({"eos_token": "<end>"})");
  EXPECT_EQ(checkpoint().tokenizer().json, "text");
  EXPECT_EQ(checkpoint().tokenizer().where, (dir_ / "tokenizer.json").string());
  EXPECT_THAT(checkpoint().tokenizer_config().names, ElementsAre(Pair("eos_token", "<end>")));
  write("added_tokens.json", "[]");
  EXPECT_EQ(error_of([&] { checkpoint().tokenizer_config(); }),
            (dir_ / "added_tokens.json").string() + ": expected a JSON object");
}

TEST_F(HfSnapshotTest, FindsVideoSettingsWhereTransformersDoes) {
  EXPECT_THAT(error_of([&] { checkpoint().video_settings(); }), HasSubstr("expected preprocessor_config.json"));
  write("preprocessor_config.json", R"({"from": "image"})");
  EXPECT_EQ(checkpoint().video_settings().string("from"), "image");
  write("video_preprocessor_config.json", R"({"from": "own"})");
  EXPECT_EQ(checkpoint().video_settings().string("from"), "own");
  write("processor_config.json", R"({"image_processor": {"from": "image"}})");
  EXPECT_EQ(checkpoint().video_settings().string("from"), "own");
  write("processor_config.json", R"({"video_processor": {"from": "combined"}})");
  EXPECT_EQ(checkpoint().video_settings().string("from"), "combined");
  EXPECT_EQ(checkpoint().image_settings().string("from"), "image");
}

TEST_F(HfSnapshotTest, FindsImageSettingsWhereTransformersDoes) {
  write("preprocessor_config.json", R"({"from": "own"})");
  write("processor_config.json", R"({"patch_size": 14})");
  EXPECT_EQ(checkpoint().image_settings().string("from"), "own");
  write("processor_config.json", R"({"image_processor": {"from": "combined"}})");
  EXPECT_EQ(checkpoint().image_settings().string("from"), "combined");
  EXPECT_EQ(checkpoint().image_settings().where(), (dir_ / "processor_config.json").string() + ": image_processor");
}

// In place of each file that is read, and in the cache of Hugging Face or not.
TEST_F(HfSnapshotTest, PointersOfGitLfsAreNamed) {
  const std::string pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n";
  using Read = std::function<void(const Checkpoint&)>;
  const Read config = [](const Checkpoint&c) { c.config(); }, tensors = [](const Checkpoint&c) { c.tensors(); },
             tokenizer = [](const Checkpoint&c) { c.tokenizer(); },
             tokenizer_config = [](const Checkpoint&c) { c.tokenizer_config(); },
             templates = [](const Checkpoint&c) { c.chat_templates(); },
             image = [](const Checkpoint&c) { c.image_settings(); },
             video = [](const Checkpoint&c) { c.video_settings(); },
             generation = [](const Checkpoint&c) { c.generation_config(); };
  for (const auto& file : {std::pair{"config.json", config},
                           {"quantize_config.json", config},
                           {"model.safetensors", tensors},
                           {"model.safetensors.index.json", tensors},
                           {"tokenizer.json", tokenizer},
                           {"tokenizer.model", tokenizer},
                           {"tokenizer_config.json", tokenizer_config},
                           {"special_tokens_map.json", tokenizer_config},
                           {"added_tokens.json", tokenizer_config},
                           {"chat_template.jinja", templates},
                           {"chat_template.json", templates},
                           {"additional_chat_templates/t.jinja", templates},
                           {"tokenizer_config.json", templates},
                           {"preprocessor_config.json", image},
                           {"processor_config.json", image},
                           {"video_preprocessor_config.json", video},
                           {"generation_config.json", generation}}) {
    const std::string name = file.first;
    const Read& read = file.second;
    write("config.json", "{}");
    write(name, pointer);
    EXPECT_THAT(error_of([&] { read(checkpoint()); }),
                HasSubstr("it is a Git LFS pointer, not the file itself: run git"))
        << name;
    EXPECT_THAT(error_of([&] { read(checkpoint()); }), HasSubstr((dir_ / name).string()));
    std::filesystem::remove(dir_ / name);
  }
}

TEST_F(HfSnapshotTest, ADownloadThatBrokeOffSaysSo) {
  const std::filesystem::path repository = dir_ / "models--acme--doc", snapshot = repository / "snapshots" / "1";
  const auto error = [&](const auto& read) { return error_of([&] { read(Checkpoint(snapshot)); }); };
  const auto tensors = [](const Checkpoint& c) { c.tensors(); };
  const auto config = [](const Checkpoint& c) { c.config(); };
  const auto generation = [](const Checkpoint& c) { c.generation_config(); };
  const auto tokenizer = [](const Checkpoint& c) { c.tokenizer(); };
  const auto says = HasSubstr("; its download is incomplete, fetch the rest with: hf download acme/doc");
  EXPECT_THAT(error(config), says) << "nothing is there";
  std::filesystem::create_directories(snapshot);
  std::filesystem::create_directories(repository / "blobs");
  EXPECT_THAT(error(config), says);
  std::filesystem::create_symlink("../../blobs/c", snapshot / "config.json");
  EXPECT_THAT(error(config), testing::AllOf(says, HasSubstr("config.json: a link to a file that does not exist")));
  std::ofstream(repository / "blobs" / "c") << "{}";
  EXPECT_EQ(error(config), "no error");
  EXPECT_THAT(error(tensors), says);
  std::filesystem::create_symlink("../../blobs/g", snapshot / "generation_config.json");
  EXPECT_THAT(error(generation), testing::AllOf(says, HasSubstr("generation_config.json: a link")));
  std::ofstream(snapshot / "model.safetensors.index.json") << R"({"weight_map": {"a": "1.safetensors"}})";
  EXPECT_THAT(error(tensors), testing::AllOf(says, HasSubstr("\"1.safetensors\", which does not exist")));
  std::filesystem::create_symlink("../../blobs/s", snapshot / "1.safetensors");
  EXPECT_THAT(error(tensors), says);
  // Whole, as far as can be told: other weights and other tokenizers.
  std::filesystem::remove(snapshot / "model.safetensors.index.json");
  std::ofstream(snapshot / "pytorch_model.bin") << "x";
  EXPECT_THAT(error(tensors), testing::AllOf(HasSubstr("are not read)"), testing::Not(says)));
  EXPECT_THAT(error(tokenizer), testing::Not(says));
  std::ofstream(repository / "blobs" / "t.incomplete") << "x";
  EXPECT_THAT(error(tokenizer), says);
  EXPECT_THAT(error(tensors), says);
  // A folder of hf download --local-dir.
  std::filesystem::create_directories(dir_ / ".cache" / "huggingface" / "download");
  EXPECT_THAT(error_of([&] { checkpoint().config(); }), testing::Not(HasSubstr("incomplete")));
  write(".cache/huggingface/download/a.incomplete", "x");
  EXPECT_THAT(error_of([&] { checkpoint().config(); }), HasSubstr("hf download ORG/NAME --local-dir " + dir_.string()));
}

TEST_F(HfSnapshotTest, SettingsOfCodesMayStandInAFileOfTheirOwn) {
  write("config.json", R"({"a": 1})");
  const std::string print = checkpoint().fingerprint();
  write("quant_config.json", R"({"w_bit": 4})");
  EXPECT_EQ(checkpoint().config().object("quant_config.json").integer("w_bit"), 4);
  EXPECT_NE(checkpoint().fingerprint(), print);
  write("quant_config.json", "[]");
  EXPECT_EQ(error_of([&] { checkpoint().config(); }),
            (dir_ / "quant_config.json").string() + ": expected a JSON object");
  for (const char* own : {R"({"quantization_config": {}})", R"({"text_config": {"compression_config": {}}})"}) {
    write("config.json", own);
    EXPECT_FALSE(checkpoint().config().has("quant_config.json")) << "config.json counts";
  }
}

TEST_F(HfSnapshotTest, ConfigurationsAreReadAsPythonWritesThem) {
  write("config.json", "\xef\xbb\xbf{\"a\": NaN, \"b\": [Infinity]}");
  EXPECT_EQ(error_of([&] { checkpoint().config().number("a"); }),
            (dir_ / "config.json").string() + ": a: expected a number, found \"NaN\"");
  write("tokenizer_config.json", R"({"eos_token": "<e>", "model_max_length": Infinity})");
  EXPECT_EQ(checkpoint().tokenizer_config().names.at("eos_token"), "<e>");
  write("chat_template.json", R"({"chat_template": "T", "x": -Infinity})");
  EXPECT_EQ(checkpoint().chat_templates().at("default"), "T");
  std::filesystem::remove(dir_ / "chat_template.json");
  write("chat_template.jinja", "\xef\xbb\xbfT");
  EXPECT_EQ(checkpoint().chat_templates().at("default"), "T");
}

TEST_F(HfSnapshotTest, FingerprintIsOfConfigurationAndWeights) {
  EXPECT_EQ(checkpoint().fingerprint(), "") << "no config.json";
  write("config.json", "{}");
  write("model.safetensors", std::string(100'000, 'a') + "b");
  const std::string print = checkpoint().fingerprint();
  EXPECT_EQ(print.size(), 64u);
  write("tokenizer.json", "text");
  EXPECT_EQ(checkpoint().fingerprint(), print);
  write("model.safetensors", std::string(100'000, 'a') + "c");  // trained on
  EXPECT_NE(checkpoint().fingerprint(), print);
  write("model.safetensors", std::string(100'000, 'a') + "b");
  EXPECT_EQ(checkpoint().fingerprint(), print);
  write("config.json", "{ }");
  EXPECT_NE(checkpoint().fingerprint(), print);
}

TEST(CheckpointTest, KeepsFilesBesideTheModel) {
  const std::filesystem::path dir = std::filesystem::path(VLCACHE_SOURCE_DIR) / "models/tinydoc";
  const Checkpoint checkpoint(dir);
  EXPECT_EQ(checkpoint.where(), dir.string());
  EXPECT_EQ(checkpoint.companion("reuse_plan.json"), dir / "reuse_plan.json");
  // A plan is refused under another fingerprint, so the fingerprint of a model must never change.
  EXPECT_EQ(checkpoint.fingerprint(), load_json(checkpoint.companion("reuse_plan.json")).at("model"));
}

TEST_F(HfSnapshotTest, FindsTemplatesWhereTransformersDoes) {
  EXPECT_TRUE(templates().empty());
  write("tokenizer_config.json", R"({"eos_token": "x"})");
  EXPECT_TRUE(templates().empty());
  write("tokenizer_config.json", R"({"chat_template": "one"})");
  EXPECT_THAT(templates(), ElementsAre(Pair("default", "one")));
  write("tokenizer_config.json",
        R"({"chat_template": [{"name": "default", "template": "a"}, {"name": "tool_use", "template": "b"}]})");
  EXPECT_THAT(templates(), ElementsAre(Pair("default", "a"), Pair("tool_use", "b")));
  write("chat_template.jinja", "file");
  EXPECT_THAT(templates(), ElementsAre(Pair("default", "file")));
  write("additional_chat_templates/rag.jinja", "r");
  EXPECT_THAT(templates(), ElementsAre(Pair("default", "file"), Pair("rag", "r")));
  write("chat_template.json", R"({"chat_template": "json"})");
  EXPECT_THAT(templates(), ElementsAre(Pair("default", "json")));
}

TEST_F(HfSnapshotTest, RejectsInvalidTemplates) {
  for (const char* text :
       {R"({"chat_template": 1})", R"({"chat_template": ["x"]})", R"({"chat_template": [{"name": "x"}]})", "[", "[]"}) {
    write("chat_template.json", text);
    EXPECT_THROW(templates(), Error) << text;
  }
}

}  // namespace
}  // namespace vlcache
