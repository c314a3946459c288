"""Videos: clips, folders of frames and lists of frames, in `run`, `logits`, `chat` and `serve`."""
import base64
import json
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib

from program import MODEL as READER, ROOT, VLCACHE, ProgramTest, run
from test_server import FORM, Server, form

CLIPS = ROOT / "tests/fixtures/video"
CLIP = CLIPS / "long_gop.mp4"  # 150 frames of 64 x 48 in 5 s, with sound
WATCHER = ROOT / "tests/fixtures/models/qwen3-vl-deepstack"  # random weights
OLDER = ROOT / "tests/fixtures/models/qwen2.5-vl-nested"
RUN = ("run", "-m", WATCHER, "--temperature", "0", "-n", "2", "--dtype", "f32", "--ignore-eos")


def png(shade, width=64, height=48):
    """A PNG file of one colour."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = (b"\0" + bytes([shade, 2 * shade % 256, 90]) * width) * height
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">2I5B", width, height, 8, 2, 0, 0, 0)) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def uri(data, kind="video/mp4"):
    return f"data:{kind};base64," + base64.b64encode(data).decode()


class Files(ProgramTest):
    def setUp(self):
        super().setUp()
        self.frames = self.folder / "frames"
        self.frames.mkdir()
        for i in (1, 2, 3, 4, 10):  # 10 comes last
            (self.frames / f"frame{i}.png").write_bytes(png(20 * i))

    def units(self, *args, **more):
        return self.json(*RUN, "--json", *args, "What is there?", **more)["cache"]["images"]

    def test_frames_are_chosen_by_rate_and_number(self):
        first = self.units("-v", CLIP)
        self.assertEqual(len(first), 5)  # 5 s at 2 frames a second, two in each unit
        self.assertEqual([(u["frames"], u["grid"][0]) for u in first], [(2, 1)] * 5)
        self.assertEqual(len(self.units("-v", f"{CLIP},fps=4")), 10)
        self.assertEqual(len(self.units("-v", f"{CLIP},fps=30,max_frames=6")), 3)
        older = self.json("run", "-m", OLDER, "-n", "1", "--json", "-v", f"{CLIP},max_frames=8", "hi")["cache"]["images"]
        self.assertEqual(len(older), 4)

    def test_patches_that_hardly_changed_are_left_out(self):
        for i in (1, 2, 3, 4, 10):
            (self.frames / f"frame{i}.png").write_bytes(png(20 * i, width=160, height=96))
        whole, half = self.units("-v", self.frames), self.units("-v", self.frames, "--video-prune", "0.5")
        self.assertEqual(half[0], whole[0])
        for before, after in zip(whole[1:], half[1:], strict=True):
            self.assertEqual(after["dropped_tokens"], -(-before["n_tokens"] // 2))
            self.assertEqual(after["n_tokens"] + after["dropped_tokens"], before["n_tokens"])
            self.assertEqual(after["grid"], before["grid"])
            self.assertNotEqual(after["hash"], before["hash"])
        for share in ("1.5", "-0.1", "nan"):
            self.fails(*RUN, "-v", self.frames, "--video-prune", share, "hi", says="video_prune")

    def test_tokens_of_units_are_bounded(self):
        self.assertGreater(sum(u["n_tokens"] for u in self.units("-v", CLIP, "--min-image-tokens", "12")), 5 * 11)
        lines = "".join(json.dumps({"prompt": "hi", "videos": [str(CLIP)], **more}) + "\n" for more in ({"min_image_tokens": 12}, {"min_image_tokens": 9, "max_image_tokens": 4}))
        bounded, refused = self.lines_of(*RUN, "--requests", "-", stdin=lines)
        self.assertGreater(bounded["cache"]["images"][0]["n_tokens"], 11)
        self.assertIn("min_image_tokens: expected at most max_image_tokens", refused["error"])

    def test_a_folder_shows_all_of_its_frames_in_order(self):
        units = self.units("-v", self.frames)
        self.assertEqual(len(units), 3)
        (self.frames / "frame10.png").rename(self.frames / "frame0.png")
        self.assertNotEqual([u["hash"] for u in units], [u["hash"] for u in self.units("-v", self.frames)])
        self.assertEqual(len(self.units("-v", f"{self.frames},max_frames=4")), 2)

    def test_formats_give_the_same_number_of_frames(self):
        for name, n in (("uneven.webm", 4), ("no_times.avi", 2), ("timed.gif", 2), ("one_frame.mp4", 1), ("streams.mkv", 1)):
            self.assertEqual(len(self.units("-v", CLIPS / name)), n, name)

    def test_sound_is_ignored_and_that_is_said_once(self):
        p = run(*RUN, "-v", CLIP, "-v", CLIP, "hi")
        self.assertEqual(p.returncode, 0, p.stderr)
        self.assertEqual(p.stderr.count("sound of videos is ignored"), 1, p.stderr)

    def test_images_and_videos_keep_their_order(self):
        image, video = ("-i", self.frames / "frame1.png"), ("-v", f"{CLIP},max_frames=4")
        def kinds(*args):
            return [u.get("frames", 1) for u in self.units(*args)]
        self.assertEqual(kinds(*image, *video, *image), [1, 2, 2, 1])
        self.assertEqual(kinds(*video, *image), [2, 2, 1])
        self.assertEqual([u.get("frames", 1) for u in self.json(*RUN, "--json", *image, *video, "A <video:1> B <image:1>")["cache"]["images"]], [2, 2, 1])

    def test_lines_of_requests(self):
        frames = [str(self.frames / f"frame{i}.png") for i in (1, 2, 3, 4, 10)]
        text = {"type": "text", "text": "hi"}
        lines = [{"prompt": "hi", "videos": [f"{CLIP},max_frames=4"]}, {"prompt": "hi", "videos": {"video": str(CLIP), "max_frames": 4}},
                 {"messages": [{"role": "user", "content": [{"type": "video", "video": str(CLIP), "fps": 30, "max_frames": 4}, text]}]},
                 {"messages": [{"role": "user", "content": [{"type": "video", "video": frames}, text]}]}, {"prompt": "hi", "videos": [str(self.frames)]},
                 {"prompt": "hi", "videos": 7}, {"messages": [{"role": "user", "content": [{"type": "video"}]}]}, {"prompt": "hi", "videos": {"video": str(CLIP), "fps": 0}}]
        answers = self.lines_of(*RUN, "--requests", "-", stdin="".join(json.dumps(line) + "\n" for line in lines))
        hashes = [[u["hash"] for u in a["cache"]["images"]] for a in answers[:5]]
        self.assertEqual([len(h) for h in hashes], [2, 2, 2, 3, 3])
        self.assertEqual(hashes[0], hashes[1])
        self.assertEqual(hashes[3], hashes[4])
        for answer, says in zip(answers[5:], ("a path, or a list of paths", "more videos without a path", "a number of frames a second")):
            self.assertIn(says, answer["error"])

    def test_logits_and_raw_prompts_take_videos(self):
        out = self.folder / "out.safetensors"
        self.ok("logits", "-m", WATCHER, "-v", f"{CLIP},max_frames=4", "-o", out, "hi")
        self.assertGreater(out.stat().st_size, 1000)
        units = self.json(*RUN, "--json", "--raw", "-v", f"{CLIP},max_frames=4", "<|vision_start|><|video_pad|><|vision_end|>hi")["cache"]["images"]
        self.assertEqual(len(units), 2)

    def test_bad_videos(self):
        def refused(*args, says, model=WATCHER, **more):
            self.fails("run", "-m", model, "-n", "1", *args, "hi", says=says, **more)
        cut = self.folder / "cut.mp4"
        cut.write_bytes(CLIP.read_bytes()[:6500])
        refused("-v", cut, says=["cut.mp4", "it breaks off at second"])
        refused("-v", CLIPS / "sound.m4a", says=["sound.m4a", "it has sound, but no video"])
        refused("-v", CLIPS / "fast.avi", says="1000000 frames a second")
        refused("-v", f"{CLIP},fps=0", says="expected a number of frames a second")
        refused("-v", f"{CLIP},frames=3", says="expected fps=F or max_frames=N")
        refused("-v", self.frames / "frame1.png", says="expected a video, found an image (image/png); give it with -i")
        refused("-i", CLIP, says="found a video; give it with -v")
        refused("-v", self.folder / "none.mp4", says="none.mp4")
        refused("-v", self.folder, says="expected a folder of frames")
        refused("-v", CLIP, says="takes no video", model=READER)
        (self.frames / "frame2.png").write_bytes(png(1, width=32))
        refused("-v", self.frames, says=["frame 2", "expected 64 x 48 pixels as the first frame has, found 32 x 48"])

    def test_a_missing_helper_is_named(self):
        alone = self.folder / "no/helper/bin"  # it is looked for two folders up
        alone.mkdir(parents=True)
        shutil.copy(VLCACHE, alone / "vlcache")
        p = subprocess.run([alone / "vlcache", "run", "-m", WATCHER, "-v", CLIP, "hi"], capture_output=True, text=True, timeout=120)
        self.assertEqual(p.returncode, 2, p.stderr)
        self.assertIn("vlcache-video", p.stderr)


class Chat(ProgramTest):
    def chat(self, *lines, args=()):
        p = run("chat", "-m", WATCHER, "-n", "2", "--temperature", "0", "--dtype", "f32", *args, stdin="".join(f"{line}\n" for line in lines))
        self.assertEqual(p.returncode, 0, p.stderr)
        return p.stderr

    def test_videos_are_attached_saved_and_loaded(self):
        out = self.folder / "out.json"
        told = self.chat(f"/video {CLIP},max_frames=4", "What?", "/retry", f"/save {out}", "/reset", f"/load {out}", "And?")
        self.assertIn("5.0 s, 150 frames of 64 x 48", told)
        self.assertIn("1 question with the answers, 0 images, 1 video", told)
        (video,) = json.loads(out.read_text())["messages"][0]["videos"]
        self.assertEqual((video["name"], video["max_frames"]), ("long_gop.mp4", 4))
        self.assertEqual(base64.b64decode(video["url"].partition(",")[2]), CLIP.read_bytes())
        self.assertIn("keeps no videos", self.chat(f"/video {CLIP}", args=("--session", "s", "--cache-disk", self.folder / "cache")))


class VideoServer(Server):
    MODEL = WATCHER

    @classmethod
    def setUpClass(cls):
        cls.place = pathlib.Path(tempfile.mkdtemp(prefix="vlcache-e2e-"))
        cls.addClassCleanup(shutil.rmtree, cls.place)
        shutil.copy(CLIP, cls.place / "clip.mp4")
        cls.FLAGS = ("--image-path-prefix", cls.place, "--max-images", "2")
        super().setUpClass()

    def units(self, *parts, **more):
        answer = self.chat({"messages": [{"role": "user", "content": [*parts, {"type": "text", "text": "hi"}]}], "max_tokens": 2, "temperature": 0, "vlcache": {"explain": True}, **more})
        return [u["hash"] for u in answer["vlcache"]["cache"]["images"]]

    def test_all_ways_of_sending_a_clip_are_the_same(self):
        data = CLIP.read_bytes()
        url = {"url": uri(data)}
        first = self.units({"type": "video_url", "video_url": url, "max_frames": 4})
        self.assertEqual(len(first), 2)
        for part in ({"type": "video_url", "video_url": {**url, "max_frames": 4}}, {"type": "video", "video": url["url"], "max_frames": 4},
                     {"type": "video_url", "video_url": {"url": f"file://{self.place}/clip.mp4"}, "max_frames": 4},
                     {"type": "input_video", "input_video": {"data": url["url"].partition(",")[2], "format": "mp4"}, "max_frames": 4}):
            self.assertEqual(self.units(part), first, str(part)[:60])
        upload = {"file_id": self.call("POST", "/v1/files", form(data), FORM)[1]["id"]}
        for part in ({"type": "video_url", "video_url": upload}, {"type": "video", **upload}, {"type": "file", "file": upload}):
            self.assertEqual(self.units({**part, "max_frames": 4}), first, str(part))
        plain = {"type": "video_url", "video_url": url}
        self.assertEqual(self.units(plain, mm_processor_kwargs={"max_frames": 4, "fps": 30}), first)
        self.assertEqual(self.units(plain, media_io_kwargs={"video": {"num_frames": 4}}), first)
        self.assertEqual(len(self.units(plain)), 5)
        self.assertEqual(len(self.units(plain, mm_processor_kwargs={"fps": 4, "do_sample_frames": True})), 10)
        status, said = self.call("POST", "/v1/responses", {"input": [{"role": "user", "content": [{"type": "input_video", "video_url": url["url"], "max_frames": 4}, {"type": "input_text", "text": "hi"}]}], "max_output_tokens": 2})
        self.assertEqual(status, 200, said)

    def test_lists_of_frames_are_shown_whole(self):
        shades = [png(20 * i) for i in range(5)]
        urls = [uri(frame, "image/png") for frame in shades]
        listed = self.units({"type": "video", "video": urls})
        self.assertEqual(len(listed), 3)
        self.assertEqual(self.units({"type": "video_url", "video_url": [{"type": "image_url", "image_url": {"url": u}} for u in urls]}), listed)
        joined = "data:video/jpeg;base64," + ",".join(u.partition(",")[2] for u in urls)
        self.assertEqual(self.units({"type": "video_url", "video_url": {"url": joined}}), listed)
        self.assertEqual(len(self.units({"type": "video", "video": urls, "max_frames": 2})), 1)

    def test_bad_videos(self):
        clip, place = uri(CLIP.read_bytes()), "messages[0].content[0]"
        for part, says, param in (
                ({"type": "video_url"}, "expected {\"url\":", f"{place}.video_url"),
                ({"type": "video_url", "video_url": {"url": "https://x.example/a.mp4"}}, "expected a data URI", f"{place}.video_url"),
                ({"type": "video_url", "video_url": {"url": "file:///etc/passwd"}}, "expected a file in a folder", f"{place}.video_url"),
                ({"type": "video_url", "video_url": {"url": uri(b"x" * 500)}}, "expected a video clip", f"{place}.video_url"),
                ({"type": "video_url", "video_url": {"url": uri(CLIP.read_bytes()[:6500])}}, "it breaks off at second", f"{place}.video_url"),
                ({"type": "video_url", "video_url": {"url": uri(b"hi", "text/plain")}}, "expected a data URI of a video", f"{place}.video_url"),
                ({"type": "video_url", "video_url": {"url": clip}, "fps": 0}, "a number of frames a second", f"{place}.fps"),
                ({"type": "video_url", "video_url": {"url": clip, "max_frames": 1.5}}, "expected an integer from 1 to 4096", f"{place}.video_url.max_frames"),
                ({"type": "video", "video": []}, "a list of frames, found none", f"{place}.video"),
                ({"type": "video", "video": [uri(png(1), "image/png"), uri(png(1, 32), "image/png")]}, "expected 64 x 48 pixels", f"{place}.video")):
            status, answer = self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]})
            self.assertEqual((status, answer["error"]["param"]), (400, param), answer)
            self.assertIn(says, answer["error"]["message"])
        three = [{"type": "video_url", "video_url": {"url": clip}}] * 3
        status, answer = self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": three}]})
        self.assertEqual((status, "at most 2" in answer["error"]["message"]), (400, True), answer)
        self.assertTrue(self.call("GET", "/props")[1]["modalities"]["video"])


class NoVideos(Server):
    MODEL = READER

    def test_a_model_without_a_rule_says_so(self):
        status, answer = self.call("POST", "/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": uri(CLIP.read_bytes())}}]}]})
        self.assertEqual(status, 400)
        self.assertIn("takes no video", answer["error"]["message"])
