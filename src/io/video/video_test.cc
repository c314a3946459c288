#include "io/video/video.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <fstream>
#include <numeric>

#include "base/error.h"
#include "io/image/encode.h"
#include "io/video/helper_output.h"
#include "io/video/video_argument.h"
#include "io/video/video_file.h"
#include "tests/testing.h"

namespace vlcache {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A clip of tests/fixtures/video (tools/fixtures/videos/make.py).
EncodedVideo clip(const std::string& name) {
  EncodedVideo video = load_video(VLCACHE_SOURCE_DIR "/tests/fixtures/video/" + name);
  video.where = name;
  return video;
}

EncodedVideo clip_of(std::vector<std::byte> bytes) {
  return {.clip = std::make_shared<const std::vector<std::byte>>(std::move(bytes)), .where = "clip"};
}

// A GIF of one pixel whose frames are shown for so many hundredths of a second.
EncodedVideo gif_of(const std::vector<int>& delays) {
  std::string gif("GIF89a\x01\x00\x01\x00\x80\x00\x00\xff\xff\xff\x00\x00\x00", 19);
  for (const int delay : delays) {
    gif += std::string("\x21\xf9\x04\x00", 4);
    gif += static_cast<char>(delay % 256);
    gif += static_cast<char>(delay / 256);
    gif += std::string("\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x02\x44\x01\x00", 17);
  }
  gif += ';';
  const auto bytes = std::as_bytes(std::span(gif));
  return clip_of({bytes.begin(), bytes.end()});
}

// The number that a frame of those clips shows: twelve squares, the lowest bit first.
int64_t shown_number(const Image& frame) {
  int64_t number = 0;
  for (int64_t bit = 0; bit < 12; ++bit) {
    const int64_t x = 16 * (bit % 4) + 8, y = 16 * (bit / 4) + 8;
    if (frame.row(y)[3 * x + 1] > 127) number |= int64_t{1} << bit;
  }
  return number;
}

std::vector<int64_t> shown_numbers(const EncodedVideo& video, const VideoInfo& info,
                                   const std::vector<int64_t>& indices) {
  std::vector<int64_t> numbers, taken;
  read_frames(video, info, indices, [&](int64_t index, Image&& frame) {
    taken.push_back(index);
    numbers.push_back(shown_number(frame));
  });
  EXPECT_EQ(taken, indices);
  return numbers;
}

std::vector<int64_t> all_of(int64_t n) {
  std::vector<int64_t> indices(static_cast<size_t>(n));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST(Video, EveryFormatGivesItsNumberOfFramesAndRate) {
  struct Case {
    const char* name;
    int64_t n_frames;
    double fps, seconds;
    bool has_audio = false, changes = false;
  };
  for (const Case& c :
       {Case{"long_gop.mp4", 150, 30, 5, true}, Case{"open_gop.mkv", 60, 30, 2}, Case{"hevc.mp4", 60, 30, 2},
        Case{"refresh.mkv", 60, 30, 2}, Case{"uneven.webm", 40, 40 / 3.593, 3.593, false, true},
        Case{"alt_ref.webm", 40, 30, 4.0 / 3}, Case{"av1.mp4", 20, 30, 2.0 / 3}, Case{"no_times.avi", 40, 30, 4.0 / 3},
        Case{"broadcast.ts", 30, 30, 1}, Case{"mpeg2.mpg", 20, 25, 0.8}, Case{"one_frame.mp4", 1, 30, 1.0 / 30},
        Case{"streams.mkv", 1, 10, 0.1}, Case{"still.mp4", 41, 41 / 5.983, 5.983, false, true},
        Case{"late.mkv", 60, 29.97, 2}}) {
    const VideoInfo info = probe_video(clip(c.name));
    EXPECT_EQ(info.n_frames, c.n_frames) << c.name;
    EXPECT_NEAR(info.fps, c.fps, 0.01 * c.fps) << c.name;
    EXPECT_NEAR(info.seconds, c.seconds, 0.01 * c.seconds) << c.name;
    EXPECT_EQ(info.width, 64) << c.name;
    EXPECT_EQ(info.height, 48) << c.name;
    EXPECT_EQ(info.has_audio, c.has_audio) << c.name;
    EXPECT_EQ(!info.times.empty(), c.changes) << c.name << ": frames of a constant rate have no times but numbers";
    EXPECT_FALSE(info.chosen);
  }
  EXPECT_EQ(probe_video(clip("long_gop.mp4")).fps, 30) << "exactly: sampling rounds n / fps";
}

// Frames are exact whether few of them are decoded from the keyframes before them, or all.
TEST(Video, FramesAreThoseAskedFor) {
  for (const char* name : {"long_gop.mp4", "open_gop.mkv", "hevc.mp4", "refresh.mkv", "uneven.webm", "alt_ref.webm",
                           "av1.mp4", "no_times.avi", "broadcast.ts", "mpeg2.mpg", "still.mp4"}) {
    const EncodedVideo video = clip(name);
    const VideoInfo info = probe_video(video);
    const std::vector<int64_t> all = all_of(info.n_frames);
    EXPECT_THAT(shown_numbers(video, info, all), ElementsAreArray(all)) << name;
    for (int64_t step : {7, 19}) {
      std::vector<int64_t> few;
      for (int64_t i = step / 2; i < std::ssize(all); i += step) few.push_back(i);
      EXPECT_THAT(shown_numbers(video, info, few), ElementsAreArray(few)) << name;
    }
    EXPECT_THAT(shown_numbers(video, info, {all.back()}), ElementsAre(all.back())) << name;
  }
  const EncodedVideo video = clip("long_gop.mp4");
  const std::vector<int64_t> repeated{3, 3, 3, 70, 149, 149};
  EXPECT_THAT(shown_numbers(video, probe_video(video), repeated), ElementsAreArray(repeated));
}

TEST(Video, ClipsOfChangingRateHaveTheirTimes) {
  const VideoInfo still = probe_video(clip("still.mp4"));
  ASSERT_EQ(still.times.size(), 41U);
  for (size_t i = 1; i < still.times.size(); ++i)
    EXPECT_NEAR(still.times[i], 3.95 + 0.05 * static_cast<double>(i), 1e-9);
  const VideoInfo uneven = probe_video(clip("uneven.webm"));
  ASSERT_EQ(uneven.times.size(), 40U);
  EXPECT_NEAR(uneven.times[20], 0.818, 1e-9);
  EXPECT_NEAR(uneven.times[21], 2.84, 1e-9);
}

TEST(Video, DelaysOfGifsAreTheirTimes) {
  const auto times = [](const std::vector<int>& delays) {
    const VideoInfo info = probe_video(gif_of(delays));
    EXPECT_EQ(info.n_frames, std::ssize(delays));
    std::vector<double> all = info.times;
    if (!all.empty()) all.push_back(info.seconds);
    return all;
  };
  const auto near = [](const std::vector<double>& expected) {
    return testing::Pointwise(testing::DoubleNear(1e-9), expected);
  };
  EXPECT_THAT(times({10, 10, 80, 5, 5, 10}), near({0, 0.1, 0.2, 1, 1.05, 1.1, 1.2}));
  EXPECT_THAT(times({100, 200}), near({0, 1, 3}));
  EXPECT_THAT(times({500, 10}), near({0, 5, 5.1}));
  EXPECT_THAT(times({10, 10, 10, 1000}), near({0, 0.1, 0.2, 0.3, 10.3})) << "the last one is shown long";
  EXPECT_THAT(times({0, 1, 200}), near({0, 0.1, 0.2, 2.2})) << "10 ms and less are 100 ms, as in browsers";
  for (const std::vector<int>& even : {std::vector{700}, {10, 10, 10}, {3, 3, 4, 3, 3, 4, 3, 3, 4}, {0, 0, 0}}) {
    EXPECT_THAT(times(even), testing::IsEmpty()) << "rounded, or constant";
  }
}

TEST(Video, AGifKeepsItsTimesAndClipsAreShownAsPlayersShowThem) {
  const VideoInfo gif = probe_video(clip("timed.gif"));
  EXPECT_EQ(gif.n_frames, 6);
  EXPECT_NEAR(gif.fps, 5, 0.01) << "six frames in 1.2 s";
  EXPECT_THAT(shown_numbers(clip("timed.gif"), gif, {0, 1, 4, 5}), ElementsAre(0, 1, 4, 5));
  const EncodedVideo turned = clip("turned.mp4");
  const VideoInfo info = probe_video(turned);
  EXPECT_EQ(info.width, 48);
  EXPECT_EQ(info.height, 64);
  read_frames(turned, info, all_of(1), [](int64_t, Image&& frame) {  // its only white square was the top left one
    EXPECT_LT(frame.row(8)[3 * 8], 64);
    EXPECT_GT(frame.row(8)[3 * 40], 192);
  });
  const EncodedVideo wide = clip("wide.mp4");  // 64 x 48, of pixels that are wider than high
  const VideoInfo shown = probe_video(wide);
  EXPECT_EQ(shown.width, 91);
  EXPECT_EQ(shown.height, 48);
  read_frames(wide, shown, all_of(1), [](int64_t, Image&& frame) {
    EXPECT_GT(frame.row(8)[3 * 12], 192);
    EXPECT_LT(frame.row(8)[3 * 34], 64);
  });
}

TEST(Video, FramesMayBeImages) {
  EncodedVideo video{.where = "frames"};
  for (uint8_t i = 0; i < 3; ++i) {
    Image image(8, 4);
    image.rgb[0] = i;
    video.frames.push_back(std::make_shared<const std::vector<std::byte>>(encode_png(image)));
  }
  VideoInfo info = probe_video(video);
  EXPECT_EQ(info.n_frames, 3);
  EXPECT_EQ(info.fps, 2);
  EXPECT_EQ(info.seconds, 1.5);
  EXPECT_TRUE(info.chosen);
  std::vector<int> first;
  read_frames(video, info, std::vector<int64_t>{0, 2, 2},
              [&](int64_t, Image&& frame) { first.push_back(frame.rgb[0]); });
  EXPECT_THAT(first, ElementsAre(0, 2, 2));
  video.fps = 10;
  EXPECT_EQ(probe_video(video).seconds, 0.3);
  video.frames[1] = std::make_shared<const std::vector<std::byte>>(encode_png(Image(4, 8)));
  EXPECT_EQ(error_of([&] { read_frames(video, info, all_of(3), [](int64_t, Image&&) {}); }),
            "frames: frame 2: expected 8 x 4 pixels as the first frame has, found 4 x 8");
  EXPECT_EQ(error_of([] { probe_video({.where = "frames"}); }), "frames: the video has no frames");
}

TEST(VideoFile, AFolderIsAVideoInTheOrderOfItsNumbers) {
  EXPECT_TRUE(natural_less("frame2.png", "frame10.png"));
  EXPECT_FALSE(natural_less("frame10.png", "frame2.png"));
  EXPECT_TRUE(natural_less("a1b2", "a1b10"));
  EXPECT_TRUE(natural_less("a", "a1"));
  EXPECT_TRUE(natural_less("f01", "f1"));
  EXPECT_FALSE(natural_less("f1", "f01"));
  EXPECT_TRUE(natural_less("7", "99999999999999999999999"));
  const std::filesystem::path dir = std::filesystem::path(::testing::TempDir()) / ("video-" + std::to_string(getpid()));
  std::filesystem::create_directories(dir / "12.png");  // no file
  EXPECT_THAT(error_of([&] { load_video(dir); }), HasSubstr("expected a folder of frames"));
  for (const int width : {1, 10, 2}) {
    const std::vector<std::byte> png = encode_png(Image(width, 1));
    std::ofstream(dir / ("f" + std::to_string(width) + ".PNG"))
        .write(reinterpret_cast<const char*>(png.data()), std::ssize(png));
  }
  std::ofstream(dir / "times.json") << "{}";
  std::ofstream(dir / ".f0.png") << "hidden";
  const EncodedVideo video = load_video(dir);
  ASSERT_EQ(video.frames.size(), 3U);
  EXPECT_EQ(decode_image(*video.frames[2], "f").width, 10);
  EXPECT_THAT(error_of([&] { load_video(dir / "f1.PNG"); }), HasSubstr("expected a video, found an image (image/png)"));
  EXPECT_THAT(error_of([&] { load_video(dir / "none.mp4"); }), HasSubstr("none.mp4"));
  std::filesystem::remove_all(dir);
}

TEST(VideoArgument, ReadsWhatFollowsThePath) {
  const auto read = [](const std::string& text) {
    const VideoArgument a = parse_video_argument(text);
    return a.path + "|" + std::to_string(a.choice.fps).substr(0, 4) + "|" + std::to_string(a.choice.max_frames);
  };
  EXPECT_EQ(read("clip.mp4"), "clip.mp4|0.00|0");
  EXPECT_EQ(read("clip.mp4,fps=0.5,max_frames=64"), "clip.mp4|0.50|64");
  EXPECT_EQ(read("a,b.mp4,max_frames=4096"), "a,b.mp4|0.00|4096");
  for (const char* bad : {"c,fps=0", "c,fps=-1", "c,fps=nan", "c,fps=1001", "c,fps=2x", "c,fps="}) {
    EXPECT_EQ(error_of([&] { read(bad); }),
              std::string(bad) + ": fps: expected a number of frames a second, above 0 and at most 1000");
  }
  for (const char* bad : {"c,max_frames=0", "c,max_frames=4097", "c,max_frames=1.5", "c,max_frames="}) {
    EXPECT_EQ(error_of([&] { read(bad); }), std::string(bad) + ": max_frames: expected an integer from 1 to 4096");
  }
  EXPECT_EQ(error_of([&] { read("c.mp4,frames=3"); }),
            "c.mp4,frames=3: expected fps=F or max_frames=N after the path, found 'frames=3'");
}

TEST(VideoFile, ClipsAreKnownByTheirFirstBytes) {
  for (const auto& [name, type] : {std::pair{"long_gop.mp4", "video/mp4"},
                                   {"open_gop.mkv", "video/webm"},
                                   {"uneven.webm", "video/webm"},
                                   {"no_times.avi", "video/x-msvideo"},
                                   {"broadcast.ts", "video/mp2t"},
                                   {"mpeg2.mpg", "video/mpeg"},
                                   {"timed.gif", ""}}) {
    EXPECT_EQ(clip_media_type(*clip(name).clip), type) << name;
  }
  EXPECT_EQ(clip_media_type({}), "");
}

std::string refusal(const EncodedVideo& video, const VideoLimits& limits = {}) {
  return error_of([&] {
    const VideoInfo info = probe_video(video, limits);
    read_frames(
        video, info, all_of(std::min<int64_t>(info.n_frames, 4096)), [](int64_t, Image&&) {}, limits);
  });
}

TEST(Video, BadClipsAreErrorsOfOneLine) {
  EXPECT_THAT(refusal(clip_of({})), StartsWith("clip: the file is empty"));
  EXPECT_THAT(refusal(clip_of(std::vector<std::byte>(100'000, std::byte{65}))),
              StartsWith("clip: expected a video clip (MP4, "));
  EXPECT_EQ(refusal(clip("sound.m4a")), "sound.m4a: it has sound, but no video");
  EXPECT_THAT(refusal(clip("fast.avi")), HasSubstr("frames a second; expected at most 1000"));
  EXPECT_THAT(refusal(clip("long_gop.mp4"), {.image = {.max_pixels = 3000}}),
              HasSubstr("its frames have 64 x 48 pixels; the limit is 3000"));
  EXPECT_THAT(refusal(clip("long_gop.mp4"), {.max_frames = 100}), HasSubstr("it has more than 100 frames"));
  EXPECT_THAT(refusal(clip("long_gop.mp4"), {.memory_bytes = 1 << 20}), HasSubstr("long_gop.mp4: "));
  EXPECT_THAT(refusal(clip("long_gop.mp4"), {.time = std::chrono::seconds(0)}), HasSubstr("took longer than 0 s"));
  EXPECT_THAT(error_of([] { probe_video(clip("long_gop.mp4"), {}, [] { return true; }); }), HasSubstr("cancelled"));
  // A playlist names other files; it is no clip.
  const std::string playlist = "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n";
  const auto bytes = std::as_bytes(std::span(playlist));
  EXPECT_THAT(refusal(clip_of({bytes.begin(), bytes.end()})), HasSubstr("found another kind of file"));
}

TEST(Video, AClipThatBreaksOffSaysWhere) {
  for (const auto& [name, percent] : {std::pair{"long_gop.mp4", 80}, {"open_gop.mkv", 60}, {"uneven.webm", 60}}) {
    std::vector<std::byte> bytes = *clip(name).clip;
    bytes.resize(bytes.size() * static_cast<size_t>(percent) / 100);
    EXPECT_THAT(refusal(clip_of(bytes)), HasSubstr("it breaks off at second")) << name;
  }
  std::vector<std::byte> bytes = *clip("long_gop.mp4").clip;  // its frames, not its tables
  for (size_t i = bytes.size() / 2; i < bytes.size() * 6 / 10; ++i) bytes[i] = std::byte{0x5a};
  const EncodedVideo damaged = clip_of(bytes);
  EXPECT_THAT(refusal(damaged), HasSubstr("it is damaged at second"));
  // Frames of another keyframe are decoded without it.
  EXPECT_THAT(shown_numbers(damaged, probe_video(damaged), {149}), ElementsAre(149));
}

// Whatever is cut or changed: an answer or one line.
TEST(Video, HostileClipsEndInAnAnswerOrOneLine) {
  uint32_t random = 1;
  const auto next = [&] { return random = random * 1664525 + 1013904223, random >> 8; };
  for (const char* name : {"long_gop.mp4", "uneven.webm", "no_times.avi", "timed.gif", "broadcast.ts"}) {
    const std::vector<std::byte> whole = *clip(name).clip;
    for (int round = 0; round < 3; ++round) {
      std::vector<std::byte> bytes = whole;
      if (round % 3 == 0) bytes.resize(next() % bytes.size());
      for (int i = 0; i < 8 && !bytes.empty() && round % 3 != 0; ++i) {
        const size_t most = round % 3 == 1 ? std::min<size_t>(bytes.size(), 1024) : bytes.size();
        bytes[next() % most] = static_cast<std::byte>(next());
      }
      const std::string said = refusal(clip_of(bytes), {.time = std::chrono::seconds(20)});
      EXPECT_THAT(said, testing::Not(HasSubstr("\n"))) << name;
      EXPECT_THAT(said, testing::Not(HasSubstr("different versions"))) << name;
    }
  }
}

TEST(HelperOutput, IsReadInAnyPiecesAndTrustedInNone) {
  const VideoLimits limits{.image = {.max_pixels = 100}};
  const std::string head = "vlcache-video 2 frames 9 fps 29.5 seconds 0.3 width 2 height 1 audio 1 times 0\n";
  const std::string good = head + "frame 0\nABCDEF" + "frame 4\nabc\ne\n" + "end\n";
  const std::vector<int64_t> wanted{0, 4};
  const auto read = [&](const std::string& text, size_t piece) {
    std::string taken;
    const TakeFrame take = [&](int64_t index, Image&& frame) {
      taken += std::to_string(index) + std::string(frame.rgb.begin(), frame.rgb.end());
    };
    HelperOutput output(wanted, limits, take);
    const auto bytes = std::as_bytes(std::span(text));
    for (size_t i = 0; i < text.size(); i += piece) output.add(bytes.subspan(i, std::min(piece, text.size() - i)));
    return taken + (output.complete() ? "." : "");
  };
  for (size_t piece : {1U, 5U, 1000U}) EXPECT_EQ(read(good, piece), "0ABCDEF4abc\ne\n.");
  EXPECT_EQ(read(good.substr(0, good.size() - 5), 3), "0ABCDEF");
  const VideoInfo info = parse_helper_info(std::string_view(head).substr(0, head.size() - 1), limits);
  EXPECT_EQ(info.n_frames, 9);
  EXPECT_EQ(info.fps, 29.5);
  EXPECT_TRUE(info.has_audio);
  for (const auto& [from, to] : std::vector<std::array<std::string, 2>>{{"video 2", "video 3"},
                                                                        {"frames 9", "frames 0"},
                                                                        {"frames 9", "frames 9000000000000000000"},
                                                                        {"29.5", "inf"},
                                                                        {"29.5", "-1"},
                                                                        {"29.5", "nan"},
                                                                        {"width 2", "width 200"},
                                                                        {"width 2", "width -2"},
                                                                        {"audio 1", "audio"},
                                                                        {" times 0", ""},
                                                                        {"frame 0", "frame 1"},
                                                                        {"frame 4", "end"},
                                                                        {"frame 4", "frame"},
                                                                        {"end\n", "end\nx"},
                                                                        {"end\n", "frame 5\n"},
                                                                        {"frame 0", std::string(300, 'x')}}) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_THAT(error_of([&] { read(bad, 1000); }), StartsWith("vlcache-video wrote ")) << from << " -> " << to;
  }
}

TEST(HelperOutput, TimesAscendWithinTheClip) {
  const auto read = [](const std::vector<double>& times, size_t piece) {
    std::string text = "vlcache-video 2 frames 3 fps 0.5 seconds 6 width 2 height 1 audio 0 times 1\n";
    text.append(reinterpret_cast<const char*>(times.data()), times.size() * sizeof(double)).append("end\n");
    const VideoLimits limits;
    const TakeFrame take = nullptr;
    HelperOutput output({}, limits, take);
    const auto bytes = std::as_bytes(std::span(text));
    for (size_t i = 0; i < text.size(); i += piece) output.add(bytes.subspan(i, std::min(piece, text.size() - i)));
    EXPECT_TRUE(output.complete());
    return output.info()->times;
  };
  for (const size_t piece : {1U, 7U, 1000U}) {
    EXPECT_THAT(read({0, 2.5, 2.5}, piece), ElementsAre(0, 2.5, 2.5));
  }
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  for (const std::vector<double>& bad : {std::vector<double>{1, 2, 3},
                                         {0, 3, 2},
                                         {0, 2, 7},
                                         {0, nan, 1},
                                         {0, 1, nan},
                                         {nan, nan, nan},
                                         {0, 1, inf},
                                         {-inf, 0, 1},
                                         {0, 1, 2, 3}}) {
    EXPECT_THAT(error_of([&] { read(bad, 1000); }), StartsWith("vlcache-video wrote ")) << testing::PrintToString(bad);
  }
}

}  // namespace
}  // namespace vlcache
