// Configurations: what absent keys mean, old and new names, contradictions.
#include "model/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "model/family.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig parse(const std::string& text) {
  return parse_model_config(parse_json(text, "config.json"), "config.json");
}

std::string config_error(const std::string& text) {
  return error_of([&] { parse(text); });
}

std::vector<int32_t> windows(const TextConfig& text) {
  std::vector<int32_t> out;
  for (const TextLayer& layer : text.layers) out.push_back(layer.window);
  return out;
}

// A small model with `more` keys in it.
std::string with(const std::string& more, const std::string& type = "llama") {
  return R"({"model_type":")" + type +
         R"(","vocab_size":100,"hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4)" +
         (more.empty() ? "" : ",") + more + "}";
}

TEST(Config, AbsentKeysHaveTheDefaultsOfTransformers) {
  const TextConfig llama = parse(R"({"model_type":"llama"})").text;
  EXPECT_EQ(llama.vocab_size, 32000);
  EXPECT_EQ(llama.layer(0).ffn_size, 11008);
  EXPECT_EQ(llama.layer(0).n_kv_heads, 32);
  EXPECT_EQ(llama.layer(0).head_dim, 128);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_FLOAT_EQ(llama.norm_eps, 1e-6f);
  EXPECT_FALSE(llama.qkv_bias || llama.o_bias || llama.mlp_bias || llama.qk_norm);
  EXPECT_THAT(windows(llama), testing::Each(0));
  const TextConfig mistral = parse(R"({"model_type":"mistral"})").text;
  EXPECT_EQ(mistral.layer(0).n_kv_heads, 8);
  EXPECT_THAT(windows(mistral), testing::Each(4096));
  const TextConfig qwen2 = parse(R"({"model_type":"qwen2"})").text;
  EXPECT_TRUE(qwen2.qkv_bias && !qwen2.o_bias);
  EXPECT_THAT(windows(qwen2), testing::Each(0));
  const TextConfig qwen3 =
      parse(R"({"model_type":"qwen3","hidden_size":1024,"num_attention_heads":16,"num_key_value_heads":8})").text;
  EXPECT_EQ(qwen3.layer(0).head_dim, 128);  // not hidden / heads
  EXPECT_TRUE(qwen3.qk_norm && !qwen3.qkv_bias);
}

TEST(Config, SectionsOfMultimodalRope) {
  const std::string heads = R"("num_key_value_heads":2,"head_dim":128)";
  const RopeConfig absent = parse(with(heads, "qwen3_vl_text")).text.ropes[0];
  EXPECT_THAT(absent.sections, ElementsAre(24, 20, 20));
  EXPECT_TRUE(absent.interleaved);
  EXPECT_EQ(absent.theta, 500000.0);
  // The type hides the sections, by either name (mlx-lm #1768).
  for (const char* type : {R"("rope_type":"default")", R"("type":"mrope")", R"("rope_type":"mrope")"}) {
    const std::string rope = std::string(R"(,"rope_scaling":{)") + type + R"(,"mrope_section":[10,30,24]})";
    const RopeConfig read = parse(with(heads + rope, "qwen2_5_vl_text")).text.ropes[0];
    EXPECT_THAT(read.sections, ElementsAre(10, 30, 24)) << type;
    EXPECT_FALSE(read.interleaved);
  }
  for (const char* sections : {"[24,20]", "[24,20,-1]", "\"24\"", "[24,20,20,0]", "[1e9,20,20]"}) {
    const std::string rope = std::string(R"(,"rope_scaling":{"mrope_section":)") + sections + "}";
    EXPECT_THAT(config_error(with(heads + rope, "qwen3_vl_text")), HasSubstr("mrope_section")) << sections;
  }
  EXPECT_THAT(config_error(with(heads + R"(,"rope_scaling":{"mrope_section":[24,20,19]})", "qwen3_vl_text")),
              HasSubstr("numbers that add up to half of head_dim (128)"));
}

TEST(Config, LayersWithAStateAreRefused) {
  for (const char* type : {"linear_attention", "conv"}) {
    const std::string types =
        std::string(R"("num_key_value_heads":4,"layer_types":["full_attention",")") + type + R"(","a","b"])";
    EXPECT_THAT(config_error(with(types, "qwen3")), HasSubstr(std::string("layer 1 is ") + type));
  }
}

TEST(Config, NullIsNotTheSameAsAbsent) {
  EXPECT_THAT(windows(parse(with(R"("sliding_window":null,"num_key_value_heads":2)", "mistral")).text),
              ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(parse(with(R"("num_key_value_heads":null)", "mistral")).text.layer(0).n_kv_heads, 4);
  EXPECT_THAT(config_error(with(R"("sliding_window":0,"num_key_value_heads":2)", "mistral")),
              HasSubstr("sliding_window: expected a size from 1"));
}

TEST(Config, WindowsPerLayer) {
  const std::string use = R"("use_sliding_window":true,"sliding_window":12,"num_key_value_heads":4)";
  const std::string kv = R"("num_key_value_heads":4)";
  EXPECT_THAT(windows(parse(with(use + R"(,"max_window_layers":2)", "qwen2")).text), ElementsAre(0, 0, 12, 12));
  EXPECT_THAT(
      windows(
          parse(
              with(
                  use + R"(,"layer_types":["sliding_attention","full_attention","full_attention","sliding_attention"])",
                  "qwen3"))
              .text),
      ElementsAre(12, 0, 0, 12));
  EXPECT_THAT(windows(parse(with(kv + R"(,"sliding_window":12,"max_window_layers":0)", "qwen2")).text),
              ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(config_error(with(use + R"(,"layer_types":["full_attention"])", "qwen2")),
              HasSubstr("one type for each of the 4 layers"));
  EXPECT_THAT(
      config_error(with(
          kv + R"(,"layer_types":["sliding_attention","full_attention","full_attention","full_attention"])", "qwen2")),
      HasSubstr("only full_attention"));
}

TEST(Config, RopeByOldAndNewNames) {
  const RopeConfig old_names =
      parse(with(R"("rope_theta":5e5,"rope_scaling":{"type":"linear","factor":4})")).text.ropes[0];
  const RopeConfig new_names =
      parse(with(R"("rope_parameters":{"rope_type":"linear","rope_theta":5e5,"factor":4.0})")).text.ropes[0];
  for (const RopeConfig& rope : {old_names, new_names}) {
    EXPECT_EQ(rope.type, RopeType::kLinear);
    EXPECT_EQ(rope.theta, 5e5);
    EXPECT_EQ(rope.factor, 4.0);
  }
  EXPECT_EQ(parse(with(R"("rope_scaling":null)")).text.ropes[0].theta, 10000.0);
  const RopeConfig llama3 =
      parse(with(R"("max_position_embeddings":131072,"rope_scaling":{"rope_type":"llama3","factor":8})")).text.ropes[0];
  EXPECT_EQ(llama3.original_positions, 131072);
  EXPECT_THAT(config_error(with(R"("rope_scaling":{"type":"linear"})")),
              HasSubstr("factor: expected a number above 0, found nothing"));
  EXPECT_THAT(config_error(with(R"("rope_scaling":{"rope_type":"longrope","factor":4})")),
              HasSubstr("\"longrope\" is not supported"));
  EXPECT_THAT(config_error(with(R"("rope_scaling":{"rope_type":"default","mrope_section":[1,2]})")),
              HasSubstr("mrope_section"));
  EXPECT_THAT(config_error(with(R"("rope_parameters":{"full_attention":{}})")), HasSubstr("differ by layer"));
  EXPECT_THAT(config_error(with(R"("partial_rotary_factor":0.5)")), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(config_error(with(R"("rope_theta":"1e6")")), HasSubstr("rope_theta: expected a number, found \"1e6\""));
}

TEST(Config, DtypeByOldAndNewName) {
  EXPECT_EQ(parse(with(R"("dtype":"bfloat16")")).dtype, DType::kBF16);
  EXPECT_TRUE(parse(with(R"("dtype":"bfloat16")")).states_dtype);
  EXPECT_TRUE(parse(R"({"model_type":"llava","image_token_index":5,"text_config":{"dtype":"float16"}})").states_dtype);
  EXPECT_FALSE(parse(with("")).states_dtype);
  EXPECT_EQ(parse(with(R"("torch_dtype":"float16")")).dtype, DType::kF16);
  for (const char* same : {"torch.bfloat16", "BFloat16", "bf16", "BF16"}) {
    EXPECT_EQ(parse(with("\"torch_dtype\":\"" + std::string(same) + "\"")).dtype, DType::kBF16) << same;
  }
  EXPECT_EQ(parse(with(R"("dtype":"torch.half")")).dtype, DType::kF16);
  EXPECT_EQ(parse(with(R"("dtype":"torch.float32")")).dtype, DType::kF32);
  EXPECT_THAT(config_error(with(R"("dtype":"torch.")")), HasSubstr("float32, bfloat16 or float16"));
  EXPECT_THAT(config_error(with(R"("dtype":"int8")")), HasSubstr("float32, bfloat16 or float16"));
}

TEST(Config, ContradictionsAreNamed) {
  EXPECT_THAT(config_error(R"({"model_type":"gpt9"})"),
              HasSubstr("\"gpt9\" is not supported; supported: llama, mistral, qwen2, qwen3, "));
  EXPECT_THAT(config_error("{}"), HasSubstr("model_type: expected a string, found nothing"));
  EXPECT_THAT(config_error("[]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(config_error(with(R"("num_key_value_heads":3)")), HasSubstr("a divisor of num_attention_heads (4)"));
  EXPECT_THAT(config_error(R"({"model_type":"llama","hidden_size":65,"num_attention_heads":4})"),
              HasSubstr("a divisor of hidden_size (65)"));
  EXPECT_THAT(config_error(with(R"("head_dim":33)")), HasSubstr("even head_dim"));
  EXPECT_THAT(config_error(with(R"("head_dim":1026)")), HasSubstr("at most 1024 (it is 1026)"));
  EXPECT_EQ(parse(with(R"("head_dim":1024)")).text.layer(0).head_dim, 1024);
  EXPECT_THAT(config_error(with(R"("rms_norm_eps":-1e-6)")), HasSubstr("rms_norm_eps: expected a number from 0 to 1"));
  EXPECT_EQ(parse(with(R"("rms_norm_eps":0)")).text.norm_eps, 0.0f);
  EXPECT_THAT(config_error(with(R"("intermediate_size":"4096")")),
              HasSubstr("intermediate_size: expected an integer, found \"4096\""));
  EXPECT_THAT(config_error(with(R"("intermediate_size":0)")), HasSubstr("a size from 1"));
  EXPECT_THAT(config_error(with(R"("intermediate_size":1e15)")), HasSubstr("a size from 1"));
  EXPECT_THAT(config_error(R"({"model_type":"llama","num_hidden_layers":100000})"), HasSubstr("at most 4096 layers"));
  EXPECT_THAT(config_error(with(R"("hidden_act":"swish9")")), HasSubstr("swish9"));
  EXPECT_THAT(config_error(with(R"("eos_token_id":"</s>")")), HasSubstr("eos_token_id: expected a token id"));
}

TEST(Config, Gpt2HasKeysOfItsOwn) {
  const TextConfig small = parse(R"({"model_type":"gpt2"})").text;
  EXPECT_EQ(small.vocab_size, 50257);
  EXPECT_EQ(small.max_positions, 1024);
  EXPECT_EQ(small.layer(11).head_dim, 64);
  EXPECT_EQ(small.layer(11).n_kv_heads, 12);
  EXPECT_EQ(small.layer(11).ffn_size, 3072);
  EXPECT_EQ(small.activation, Activation::kGeluTanh);
  EXPECT_TRUE(small.learned_positions && small.layer_norm && small.tied_embeddings && !small.gated_mlp);
  EXPECT_EQ(small.ropes[0].type, RopeType::kNone);
  // 124M: 12 layers of 12 h^2, without biases and tables.
  EXPECT_EQ(small.layers_weights(1), 12.0 * 12 * 768 * 768);
  const auto gpt2 = [](const std::string& more) { return config_error(R"({"model_type":"gpt2",)" + more + "}"); };
  EXPECT_EQ(gpt2(R"("n_inner":null)"), "no error");
  EXPECT_THAT(gpt2(R"("n_head":7)"), HasSubstr("n_head: expected a divisor of n_embd (768)"));
  EXPECT_THAT(gpt2(R"("n_positions":0)"), HasSubstr("n_positions"));
  EXPECT_THAT(gpt2(R"("scale_attn_weights":false)"), HasSubstr("scale_attn_weights: expected true"));
  EXPECT_THAT(gpt2(R"("scale_attn_by_inverse_layer_idx":true)"), HasSubstr("inverse_layer_idx: expected false"));
  EXPECT_THAT(gpt2(R"("add_cross_attention":true)"), HasSubstr("add_cross_attention"));
}

// Factors, and layers that differ in window and rotation.
TEST(Config, GraniteSwaHasSinksAndFactors) {
  const auto granite = [](const std::string& more) {
    return R"({"model_type":"granite_swa","num_hidden_layers":5)" + more + "}";
  };
  const TextConfig plain = parse(granite("")).text;
  EXPECT_TRUE(plain.attention_sinks && plain.tied_embeddings);
  EXPECT_EQ(plain.attention_scale, 1.0f);
  EXPECT_EQ(plain.residual_scale, 1.0f);
  for (const int64_t i : {0, 1, 2, 3, 4}) EXPECT_EQ(plain.layer(i).window, i % 4 == 0 ? 0 : 128) << i;
  const TextConfig all = parse(granite(R"(,"attention_multiplier":0.125,"embedding_multiplier":12,"logits_scaling":8,
      "residual_multiplier":0.5,"rms_norm_eps":1e-5,"sliding_window":64,"layer_rope_theta":[0,1e4,0,1e4,5e5],
      "layer_types":["sliding_attention","full_attention","full_attention","full_attention","full_attention"])"))
                             .text;
  EXPECT_EQ(all.attention_scale, 0.125f);
  EXPECT_EQ(all.embedding_scale, 12.0f);
  EXPECT_EQ(all.logit_scale, 0.125f);
  EXPECT_FLOAT_EQ(all.norm_eps, 4e-5f);
  EXPECT_EQ(all.layer(0).window, 64);
  ASSERT_EQ(all.ropes.size(), 3u);
  EXPECT_EQ(all.ropes[0].type, RopeType::kNone);
  EXPECT_EQ(all.ropes[2].theta, 5e5);
  EXPECT_EQ(all.layer(3).rope, 1);
  EXPECT_THAT(config_error(granite(R"(,"layer_rope_theta":[1])")), HasSubstr("one number for each of the 5 layers"));
  EXPECT_THAT(config_error(granite(R"(,"layer_rope_theta":[1,1,1,-1,1])")), HasSubstr("numbers from 0"));
  EXPECT_THAT(config_error(granite(R"(,"residual_multiplier":0)")), HasSubstr("residual_multiplier"));
  EXPECT_THAT(config_error(granite(R"(,"sliding_window":0)")), HasSubstr("sliding_window"));
}

// The keys of the published files that tell their arithmetic.
TEST(Config, BaichuanModelsAreToldApartBySizes) {
  const auto baichuan = [](const std::string& more) {
    return R"({"model_type":"baichuan","rms_norm_eps":1e-06,"tie_word_embeddings":false,"model_max_length":4096,
      "auto_map":{"AutoConfig":"configuration_baichuan.BaichuanConfig"},)" +
           more + "}";
  };
  const std::string small = R"("hidden_size":4096,"intermediate_size":11008,"max_position_embeddings":4096,
      "num_attention_heads":32,"num_hidden_layers":32,)";
  const std::string large = R"("hidden_size":5120,"intermediate_size":13696,"num_attention_heads":40,
      "num_hidden_layers":40,)";
  EXPECT_TRUE(parse(baichuan(small + R"("architectures":["BaichuanForCausalLM"],"vocab_size":125696)")).text.unit_head);
  EXPECT_FALSE(parse(baichuan(small + R"("architectures":["BaiChuanForCausalLM"],"vocab_size":64000)")).text.unit_head);
  EXPECT_FALSE(parse(baichuan(small + R"("architectures":["BaiChuanForCausalLM"],"vocab_size":64001)")).text.unit_head);
  for (const char* vocab : {R"("vocab_size":125696)", R"("vocab_size":64000)"})
    EXPECT_THAT(config_error(baichuan(large + vocab)), HasSubstr("Baichuan 13B"));
  EXPECT_THAT(config_error(baichuan(R"("hidden_size":4096)")), HasSubstr("ALiBi"));
}

TEST(Config, GenerationDefaults) {
  const Json config = parse_json(with(R"("eos_token_id":7,"bos_token_id":1)"), "config.json");
  const auto read = [&](const char* text) {
    const Json generation = parse_json(text, "generation_config.json");
    return parse_model_config(config, "config.json", &generation).generation;
  };
  EXPECT_THAT(parse_model_config(config, "config.json").generation.eos_token_ids, ElementsAre(7));
  const GenerationDefaults g = read(R"({"eos_token_id":[2,9],"do_sample":true,"temperature":0.6,"top_k":20})");
  EXPECT_THAT(g.eos_token_ids, ElementsAre(2, 9));
  EXPECT_EQ(g.bos_token_id, 1);
  EXPECT_TRUE(g.do_sample);
  EXPECT_EQ(g.temperature, 0.6);
  EXPECT_EQ(g.top_k, 20);
  EXPECT_FALSE(g.top_p);
  EXPECT_THROW(read(R"({"top_p":3})"), Error);
  const Json invalid = parse_json(R"({"eos_token_id":"x"})", "generation_config.json");
  EXPECT_EQ(error_of([&] { parse_model_config(config, "models/m/config.json", &invalid); }),
            "models/m/generation_config.json: eos_token_id: expected a token id or a list of them, found \"x\"");
}

TEST(Config, RulesOfGenerationConfig) {
  const Json config = parse_json(with(""), "config.json");  // a vocabulary of 100
  const auto read = [&](const char* text) {
    const Json generation = parse_json(text, "generation_config.json");
    return parse_model_config(config, "config.json", &generation).generation;
  };
  const GenerationDefaults g = read(R"({"stop_strings":["</a>","b"],"suppress_tokens":[3,100,-1,4],
    "begin_suppress_tokens":5,"bad_words_ids":[[1],[2,3],[4,100],[]],"no_repeat_ngram_size":3,"num_beams":1,
    "typical_p":0.5,"min_length":0,"penalty_alpha":null,"guidance_scale":1.0,"sequence_bias":{},"max_length":20})");
  EXPECT_THAT(g.stop_strings, ElementsAre("</a>", "b"));
  EXPECT_THAT(g.suppress_tokens, ElementsAre(3, 4));
  EXPECT_THAT(g.begin_suppress_tokens, ElementsAre(5));
  EXPECT_THAT(g.bad_words_ids, ElementsAre(ElementsAre(1), ElementsAre(2, 3)));
  EXPECT_EQ(g.no_repeat_ngram_size, 3);
  EXPECT_THAT(g.not_applied, ElementsAre());
  EXPECT_THAT(read(R"({"stop_strings":"x"})").stop_strings, ElementsAre("x"));
  EXPECT_FALSE(read("{}").no_repeat_ngram_size);
}

// They are named, and the checkpoint loads.
TEST(Config, KeysOfGenerationConfigThatAreNotApplied) {
  const Json config = parse_json(with(""), "config.json");
  const auto named = [&](const char* text) {
    const Json generation = parse_json(text, "generation_config.json");
    return parse_model_config(config, "config.json", &generation).generation.not_applied;
  };
  EXPECT_THAT(
      named(R"({"num_beams":4,"penalty_alpha":0.6,"forced_decoder_ids":[[1,2]],"guidance_scale":1.5,
    "sequence_bias":[[[1],2.0]],"do_sample":true,"typical_p":0.9})"),
      ElementsAre("num_beams", "penalty_alpha", "typical_p", "forced_decoder_ids", "sequence_bias", "guidance_scale"));
  EXPECT_THAT(
      named(R"({"stop_strings":[1],"suppress_tokens":"x","begin_suppress_tokens":[1.5],"bad_words_ids":[1],
    "no_repeat_ngram_size":-1})"),
      ElementsAre("stop_strings (not a list of texts)", "suppress_tokens (not a list of token ids)",
                  "begin_suppress_tokens (not a list of token ids)", "bad_words_ids (not a list of lists of token ids)",
                  "no_repeat_ngram_size (not an integer >= 0)"));
  for (const char* text : {R"({"stop_strings":{},"bad_words_ids":{}})", R"({"num_beams":"x","constraints":[null]})",
                           R"({"suppress_tokens":[18446744073709551615],"no_repeat_ngram_size":1e300})"}) {
    EXPECT_NO_THROW(named(text)) << text;
  }
}

TEST(Config, ErrorsOfActivationsNameTheKey) {
  EXPECT_THAT(config_error(with(R"("hidden_act":"mish")")),
              HasSubstr("config.json: hidden_act: activation \"mish\" is not"));
}

TEST(Config, ErrorsAreOneLineWhateverTheyQuote) {
  const std::string two = R"("a\nb\u001b")";
  for (const std::string& text : {R"({"model_type":)" + two + "}", with(R"("hidden_act":)" + two),
                                  with(R"("rope_scaling":{"rope_type":)" + two + "}"),
                                  R"({"model_type":"llava","vision_config":{"model_type":)" + two + "}}",
                                  R"({"model_type":"llava","text_config":{"model_type":)" + two + "}}"}) {
    EXPECT_THAT(config_error(text), HasSubstr(two));
  }
}

// Files leave out values equal to transformers' defaults, and None counts as left out: sampling alone means top_k 50.
TEST(Config, SamplingAloneMeansTheFiftyLikeliest) {
  const Json config = parse_json(with(""), "config.json");
  const auto read = [&](const char* text) {
    const Json generation = parse_json(text, "generation_config.json");
    return parse_model_config(config, "config.json", &generation).generation;
  };
  for (const char* text : {R"({"do_sample":true})", R"({"do_sample":true,"top_k":null})"}) {
    EXPECT_EQ(read(text).top_k, 50);
    EXPECT_FALSE(read(text).temperature || read(text).top_p || read(text).min_p);  // 1, 1 and 0
  }
  EXPECT_EQ(read(R"({"do_sample":true,"top_k":0})").top_k, 0);  // off
  EXPECT_FALSE(read("{}").top_k);
}

// No step can choose them; the others still end a generation.
TEST(Config, IdsOutsideTheVocabularyAreIgnored) {
  const auto ids = [](const char* eos) {
    return parse(with(std::string(R"("bos_token_id":-1,"eos_token_id":)") + eos)).generation.eos_token_ids;
  };
  EXPECT_THAT(ids("100"), ElementsAre());
  EXPECT_THAT(ids("[-1,99,100,18446744073709551615]"), ElementsAre(99));
  EXPECT_FALSE(parse(with(R"("bos_token_id":-1)")).generation.bos_token_id);
}

// The few keys that the published LLaVA-1.5 checkpoint has.
TEST(Config, LlavaFromFewKeys) {
  const ModelConfig c =
      parse(R"({"model_type":"llava","image_token_index":32000,"projector_hidden_act":"gelu","torch_dtype":"float16",
      "text_config":{"model_type":"llama","max_position_embeddings":4096,"rms_norm_eps":1e-5,"vocab_size":32064},
      "vision_config":{"hidden_size":1024,"image_size":336,"intermediate_size":4096,"model_type":"clip_vision_model",
                       "num_attention_heads":16,"num_hidden_layers":24,"patch_size":14,"projection_dim":768},
      "vision_feature_layer":-2,"vision_feature_select_strategy":"default","tie_word_embeddings":false})");
  EXPECT_EQ(c.text.hidden_size, 4096);
  EXPECT_EQ(c.vision->side(), 24);
  EXPECT_THAT(c.vision->feature_layers, ElementsAre(23));
  EXPECT_EQ(c.vision->n_used_layers(), 23);
  EXPECT_TRUE(c.vision->drop_class_token);
  EXPECT_EQ(c.image_token_id, 32000);
  EXPECT_EQ(parse(R"({"model_type":"llava","image_token_index":5})").vision->image_size, 336);
}

TEST(Config, VisionContradictions) {
  const auto llava = [](const std::string& more) {
    return R"({"model_type":"llava","image_token_index":5,)" + more + "}";
  };
  EXPECT_THAT(parse(llava(R"("vision_feature_layer":[-1,0,3])")).vision->feature_layers, ElementsAre(24, 0, 3));
  EXPECT_THAT(config_error(llava(R"("vision_feature_layer":25)")), HasSubstr("each from -25 to 24"));
  EXPECT_THAT(config_error(llava(R"("vision_feature_layer":"last")")), HasSubstr("vision_feature_layer"));
  EXPECT_THAT(config_error(llava(R"("vision_feature_select_strategy":"some")")), HasSubstr("default or full"));
  EXPECT_THAT(config_error(llava(R"("vision_config":{"model_type":"pixtral"})")),
              HasSubstr("\"pixtral\" is not supported here"));
  const auto heads = [&](int hidden, int n) {
    return config_error(llava(R"("vision_config":{"hidden_size":)" + std::to_string(hidden) +
                              R"(,"num_attention_heads":)" + std::to_string(n) + "}"));
  };
  EXPECT_THAT(heads(36, 4), HasSubstr("even size of at most 1024 (hidden_size 36 gives 9)"));
  EXPECT_THAT(heads(2052, 2), HasSubstr("gives 1026"));
  EXPECT_EQ(heads(2048, 2), "no error");
  EXPECT_THAT(config_error(llava(R"("vision_config":{"layer_norm_eps":-1})")), HasSubstr("layer_norm_eps"));
  EXPECT_THAT(config_error(llava(R"("text_config":{"model_type":"gemma"})")),
              HasSubstr("\"gemma\" is not a supported language model"));
  EXPECT_THAT(config_error(R"({"model_type":"llava","image_token_index":40000})"), HasSubstr("outside the vocabulary"));
  EXPECT_THAT(config_error(R"({"model_type":"llava_next","image_token_index":5,"image_grid_pinpoints":[[336,335]]})"),
              HasSubstr("multiples"));
  EXPECT_THAT(
      config_error(R"({"model_type":"llava_next","image_token_index":5,"vision_feature_select_strategy":"full"})"),
      HasSubstr("full"));
  EXPECT_THAT(config_error(R"({"model_type":"idefics3","image_token_id":5,"scale_factor":3})"),
              HasSubstr("does not divide"));
}

// The vision parts of the published Qwen3-VL-4B, Qwen2.5-VL-3B (all at the root) and Qwen2-VL-2B.
TEST(Config, QwenVisionOfPublishedFiles) {
  const ModelConfig third =
      parse(R"({"model_type":"qwen3_vl","text_config":{"model_type":"qwen3_vl_text","head_dim":128,
      "hidden_size":2560,"intermediate_size":9728,"num_attention_heads":32,"num_hidden_layers":36,
      "num_key_value_heads":8,"rope_scaling":{"mrope_interleaved":true,"mrope_section":[24,20,20],"rope_type":"default"},
      "rope_theta":5000000,"vocab_size":151936},"tie_word_embeddings":true,"image_token_id":151655,
      "vision_config":{"deepstack_visual_indexes":[5,11,17],"depth":24,"hidden_act":"gelu_pytorch_tanh",
      "hidden_size":1024,"in_channels":3,"intermediate_size":4096,"model_type":"qwen3_vl","num_heads":16,
      "num_position_embeddings":2304,"out_hidden_size":2560,"patch_size":16,"spatial_merge_size":2,
      "temporal_patch_size":2}})");
  EXPECT_EQ(third.vision->n_layers, 24);
  EXPECT_EQ(third.vision->head_dim(), 64);
  EXPECT_EQ(third.vision->side(), 48);
  EXPECT_EQ(third.vision->cell(), 32);
  EXPECT_EQ(third.vision->n_frames, 2);
  EXPECT_THAT(third.vision->tap_layers, ElementsAre(5, 11, 17));
  EXPECT_FALSE(third.vision->windowed(0));
  EXPECT_TRUE(third.text.tied_embeddings);

  const std::string root = R"("hidden_size":2048,"intermediate_size":11008,"num_attention_heads":16,
      "num_hidden_layers":36,"num_key_value_heads":2,"rms_norm_eps":1e-6,"tie_word_embeddings":true,
      "vocab_size":151936,"rope_scaling":{"type":"mrope","mrope_section":[16,24,24]},"image_token_id":151655,
      "video_token_id":151656,"vision_start_token_id":151652,"vision_end_token_id":151653,)";
  const ModelConfig second = parse(R"({"model_type":"qwen2_5_vl",)" + root + R"("vision_config":{"depth":32,
      "hidden_act":"silu","hidden_size":1280,"intermediate_size":3420,"num_heads":16,"in_chans":3,
      "out_hidden_size":2048,"patch_size":14,"spatial_merge_size":2,"spatial_patch_size":14,"window_size":112,
      "fullatt_block_indexes":[7,15,23,31],"tokens_per_second":2,"temporal_patch_size":2}})");
  EXPECT_EQ(second.text.hidden_size, 2048);
  EXPECT_EQ(second.vision->head_dim(), 80);
  EXPECT_TRUE(second.vision->windowed(6));
  EXPECT_FALSE(second.vision->windowed(7));
  EXPECT_EQ(second.vision_end_token_id, 151653);
  EXPECT_EQ(second.tokens_per_second, 2);
  EXPECT_TRUE(second.is_vision_token(151655) && second.is_vision_token(151656) && !second.is_vision_token(151653));

  const ModelConfig first = parse(R"({"model_type":"qwen2_vl",)" + root + R"("vision_config":{"depth":32,
      "embed_dim":1280,"mlp_ratio":4,"num_heads":16,"in_chans":3,"hidden_size":2048,"patch_size":14,
      "spatial_merge_size":2,"spatial_patch_size":14,"temporal_patch_size":2}})");
  EXPECT_EQ(first.vision->hidden_size, 1280);
  EXPECT_EQ(first.vision->ffn_size, 5120);
  EXPECT_EQ(first.vision->n_positions(), 0);
}

TEST(Config, QwenVisionContradictions) {
  const auto qwen = [](const std::string& vision, const std::string& more = "") {
    return config_error(R"({"model_type":"qwen3_vl","text_config":{"hidden_size":64,"num_attention_heads":4,
                           "num_key_value_heads":4},)" +
                        more + R"("vision_config":{"out_hidden_size":64,)" + vision + "}}");
  };
  EXPECT_EQ(qwen(R"("depth":30)"), "no error");
  EXPECT_THAT(qwen(R"("depth":4,"deepstack_visual_indexes":[1,4])"), HasSubstr("deepstack_visual_indexes"));
  EXPECT_THAT(qwen(R"("deepstack_visual_indexes":[2,1])"), HasSubstr("ascending"));
  EXPECT_THAT(qwen(R"("deepstack_visual_indexes":7)"), HasSubstr("deepstack_visual_indexes"));
  EXPECT_THAT(qwen(R"("num_position_embeddings":50)"), HasSubstr("a square number"));
  EXPECT_THAT(qwen(R"("spatial_merge_size":0)"), HasSubstr("spatial_merge_size"));
  EXPECT_THAT(qwen(R"("hidden_size":36,"num_heads":6)"), HasSubstr("a multiple of 4 channels"));
  EXPECT_THAT(qwen(R"("out_hidden_size":65)"), HasSubstr("the language model's hidden_size (64)"));
  EXPECT_THAT(qwen(R"("model_type":"qwen2_5_vl_vision")"), HasSubstr("qwen3_vl_vision"));
  EXPECT_THAT(qwen(R"("depth":30)", R"("video_token_id":200000,)"), HasSubstr("video_token_id 200000 is outside"));
  EXPECT_THAT(qwen(R"("rope_parameters":{"rope_type":"yarn"})"), HasSubstr("axial"));
}

}  // namespace
}  // namespace vlcache
