// `vlcache inspect`: shows what a model attends to in a prompt and what a policy keeps of it.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "analysis/inspection.h"
#include "analysis/inspection_report.h"
#include "analysis/verdicts.h"
#include "api/request_builder.h"
#include "base/error.h"
#include "base/format.h"
#include "cli/flags/command.h"
#include "cli/flags/generate_flags.h"
#include "cli/flags/request.h"
#include "cli/terminal/answer_printer.h"
#include "cli/terminal/progress.h"
#include "io/image/encode.h"

namespace vlcache {
namespace {

struct InspectFlags {
  ModelFlags model;
  std::string prompt;
  std::vector<std::string> images;
  FieldFlags request;
  bool raw = false;
  int max_tokens = 32;
  std::string output, json;
};

// report.html is accompanied by report-image1.png, report-image1-layer03.png, ..
void write_heat_maps(const std::filesystem::path& page, const Inspection& inspection,
                     const std::vector<Image>& images) {
  constexpr int64_t kSide = 1024;
  for (size_t i = 0; i < std::min(images.size(), inspection.images.size()); ++i) {
    const Image small = shrink(images[i], kSide);
    const double scale = static_cast<double>(small.width) / static_cast<double>(images[i].width);
    for (int32_t layer = -1; layer < static_cast<int32_t>(inspection.layers.size()); ++layer) {
      const InspectedImage& image = inspection.images[i];
      const std::vector<std::byte> png =
          encode_png(heat_map(small, scale, image, kept_shares(inspection, image, layer)));
      const std::string name =
          layer < 0 ? format("-image%zu.png", i + 1) : format("-image%zu-layer%02d.png", i + 1, layer);
      std::filesystem::path path = page;
      path.replace_filename(page.stem().string() + name);
      write_file(path, {reinterpret_cast<const char*>(png.data()), png.size()});
    }
  }
}

void run(const InspectFlags& flags) {
  if (flags.output.empty() && flags.json.empty()) {
    throw Error(ErrorCode::kInput, "inspect: expected -o PAGE.html, --json FILE or both, found neither");
  }
  for (const std::string& file : {flags.output, flags.json}) {
    if (!file.empty()) make_folder_of(file);  // before anything is computed
  }
  const Checkpoint checkpoint = checkpoint_of(flags.model);
  PolicyPtr policy = chosen_policy(flags.model, checkpoint);
  const std::unique_ptr<Engine> engine = load_engine(flags.model, checkpoint, {&policy, 1});
  std::vector<Image> images;
  for (const std::string& path : flags.images) {
    for (const EncodedImage& image : read_images(*engine, path, /*pdf_text=*/false)) {
      images.push_back(decode_image(*image.bytes, image.where, image.limits));
    }
  }
  Prompt prompt = prepare(*engine, {.prompt = flags.prompt,
                                    .images = flags.images,
                                    .raw = flags.raw,
                                    .image_options = image_options(flags.request.fields())});
  Progress progress;
  progress.update("inspecting", 0, 0);
  const Inspection inspection = inspect(*engine, std::move(prompt), std::move(policy), flags.max_tokens);
  progress.update("writing the report", 0, 0);
  if (!flags.json.empty())
    write_file(flags.json,
               to_json(inspection).dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  if (!flags.output.empty()) {
    write_file(flags.output, inspection_page(inspection, flags.prompt, images));
    write_heat_maps(flags.output, inspection, images);
    progress.pause();
    std::fprintf(stderr, "%s, and heat maps beside it\n", flags.output.c_str());
  }
  progress.pause();
  AnswerPrinter printer({.plain = true});
  printer.add(inspection.answer);
  printer.finish();
  std::fprintf(stderr, "%s\n", inspect_verdict(inspection).c_str());
}

}  // namespace

void add_inspect_command(const Command& app) {
  auto flags = std::make_shared<InspectFlags>();
  flags->model.kv = "draft";  // auto acts after more tokens than are observed here
  const Command command =
      app.add_command("inspect", "Show which tokens of a prompt a policy keeps: a page, heat maps, JSON");
  add_model_flags(command, flags->model);
  command.add("PROMPT", flags->prompt, "Question to the model").required();
  command
      .add("-i,--image", flags->images,
           "Image, or PDF or TIFF with optional pages: report.pdf#3-7 (one per use; default: none)")
      .value_name("FILE")
      .one_per_use();
  command.add("--raw", flags->raw, "Use the prompt as given, without the chat template");
  for (const char* name : {"image_dedup", "image_dedup_weights"}) {
    flags->request.add(command, request_field(name), Front::kEval);
  }
  command.add("-n,--max-tokens", flags->max_tokens, "Maximum number of answer tokens to observe")
      .range(1, 4096)
      .show_default();
  command
      .add("-o,--output", flags->output,
           "HTML file of the page; heat maps are PNG files beside it (default: not written)")
      .value_name("FILE");
  command.add("--json", flags->json, "JSON file with the same data (default: not written)").value_name("FILE");
  command.footer(
      "Example: vlcache inspect -m models/tinydoc -i models/tinydoc/demo/invoice.png \"What is the TOTAL?\" -o "
      "out/kept.html");
  command.run([flags] { run(*flags); });
}

}  // namespace vlcache
