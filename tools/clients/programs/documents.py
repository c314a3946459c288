"""Programs that turn pages into documents, on models that answer in special tokens: run.py has checkpoints that give one such answer (tests/answering_model.py)."""
from .common import MODEL, PAGE, URL, check


class Docling:
    """Its preset for granite-docling, which sends no field about special tokens."""
    CASES = ("page",)

    def page(self):
        from docling.datamodel.base_models import InputFormat
        from docling.datamodel.pipeline_options import VlmConvertOptions, VlmPipelineOptions
        from docling.datamodel.vlm_engine_options import ApiVlmEngineOptions, VlmEngineType
        from docling.document_converter import DocumentConverter, ImageFormatOption
        from docling.pipeline.vlm_pipeline import VlmPipeline
        engine = ApiVlmEngineOptions(engine_type=VlmEngineType.API, url=URL + "/v1/chat/completions", params={"model": MODEL, "max_tokens": 200})
        options = VlmPipelineOptions(enable_remote_services=True, vlm_options=VlmConvertOptions.from_preset("granite_docling", engine_options=engine))
        converter = DocumentConverter(format_options={InputFormat.IMAGE: ImageFormatOption(pipeline_cls=VlmPipeline, pipeline_options=options)})
        document = converter.convert(PAGE).document
        text = document.export_to_markdown()
        whole = "## Invoice KT4821" in text and "| Lamp" in text and "| 12" in text and "Thank you." in text
        return check(whole and len(document.tables) == 1 and document.texts[0].prov, text)


class MinerU:
    """mineru-vl-utils' client of a server: the layout of a page, then the text of each block."""
    CASES = ("page",)

    def page(self):
        from mineru_vl_utils import MinerUClient
        from PIL import Image
        client = MinerUClient(backend="http-client", server_url=URL, model_name=MODEL)
        blocks = client.two_step_extract(Image.open(PAGE).convert("RGB"))
        found = [(block.type, [round(x, 3) for x in block.bbox], block.angle) for block in blocks]
        return check(found == [("text", [0.1, 0.2, 0.3, 0.4], 0)], blocks)
