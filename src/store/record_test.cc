// Tests of headers: every bit, every size, every field of a key.
#include "store/record.h"

#include <gtest/gtest.h>

#include <set>

#include "store/store_testing.h"

namespace vlcache {
namespace {

const std::vector<size_t> kSizes = {100, 0, 7, 4096, 1};

// A record as it is in a file.
Bytes encoded(const RecordSeal& seal, const Stored& stored) {
  Bytes bytes = encode_header(seal, make_header(seal, stored.record));
  for (const Bytes& section : stored.sections) bytes.insert(bytes.end(), section.begin(), section.end());
  return bytes;
}

std::string parsed(const RecordSeal& seal, const Bytes& bytes, const RecordKey& expected) {
  RecordHeader header;
  return reason(parse_header(seal, bytes, std::ssize(bytes), &expected, header));
}

class Records : public testing::TestWithParam<const char*> {  // the salt
 protected:
  RecordSeal seal_{GetParam()};
  Stored stored_ = make_record(make_key(1), kSizes);
  Bytes bytes_ = encoded(seal_, stored_);
};

TEST_P(Records, WrittenRecordIsReadBack) {
  RecordHeader header;
  ASSERT_EQ(reason(parse_header(seal_, bytes_, std::ssize(bytes_), &stored_.record.key, header)), "hit");
  EXPECT_EQ(header.key, stored_.record.key);
  EXPECT_EQ(header.bytes(), header_bytes(bytes_));
  EXPECT_LT(std::abs(now_ms() - header.created_ms), 60'000);
  ASSERT_EQ(header.sections.size(), kSizes.size());
  for (size_t i = 0; i < kSizes.size(); ++i) {
    EXPECT_EQ(header.sections[i].bytes, std::ssize(stored_.sections[i]));
    const auto at = bytes_.begin() + header.section_offset(i);
    EXPECT_TRUE(std::equal(stored_.sections[i].begin(), stored_.sections[i].end(), at)) << i;
  }
  EXPECT_EQ(header.section_offset(kSizes.size()), std::ssize(bytes_));
  EXPECT_EQ(encode_header(seal_, header), Bytes(bytes_.begin(), bytes_.begin() + header.bytes()));
}

TEST_P(Records, LimitsAreRecordsToo) {
  RecordKey key = make_key(2);
  for (const size_t layout_bytes : {size_t{0}, size_t{1}, size_t{7}, size_t{8}, kMaxLayoutBytes}) {
    key.layout.assign(layout_bytes, 'x');
    for (const size_t n_sections : {size_t{0}, size_t{1}, kMaxSections}) {
      const Bytes bytes = encoded(seal_, make_record(key, std::vector<size_t>(n_sections, 3)));
      EXPECT_EQ(parsed(seal_, bytes, key), "hit") << layout_bytes << " " << n_sections;
      EXPECT_LE(header_bytes(bytes), kMaxHeaderBytes);
    }
  }
  EXPECT_EQ(header_bytes(encoded(seal_, make_record(key, std::vector<size_t>(kMaxSections)))), kMaxHeaderBytes);
}

TEST_P(Records, EveryFlippedBitOfTheHeaderIsDetected) {
  const int64_t n = header_bytes(bytes_);
  std::set<std::string> reasons;
  for (int64_t bit = 0; bit < n * 8; ++bit) {
    Bytes flipped = bytes_;
    flipped[static_cast<size_t>(bit / 8)] ^= static_cast<std::byte>(1 << bit % 8);
    reasons.insert(parsed(seal_, flipped, stored_.record.key));
    ASSERT_NE(parsed(seal_, flipped, stored_.record.key), "hit") << "bit " << bit % 8 << " of byte " << bit / 8;
  }
  const std::set<std::string> expected = {"malformed", "other version", "other tenant", "checksum"};
  EXPECT_EQ(reasons, expected);
}

TEST_P(Records, AnyOtherSizeIsAMiss) {
  for (size_t n = 0; n < bytes_.size(); ++n) {
    const Bytes cut(bytes_.begin(), bytes_.begin() + static_cast<int64_t>(n));
    ASSERT_EQ(parsed(seal_, cut, stored_.record.key), "truncated") << n;
  }
  Bytes longer = bytes_;
  longer.push_back(std::byte{0});
  EXPECT_EQ(parsed(seal_, longer, stored_.record.key), "truncated");
}

// Sizes that only a forger writes: right checksums, lengths that overflow or exceed the end.
TEST_P(Records, OverflowingLengthsAreRejected) {
  RecordHeader header = make_header(seal_, stored_.record);
  for (const int64_t bytes : {int64_t{-1}, int64_t{1} << 62, std::numeric_limits<int64_t>::max(), int64_t{101}}) {
    header.sections[0].bytes = bytes;
    header.sections[3].bytes = bytes;
    Bytes forged = encode_header(seal_, header);
    forged.resize(bytes_.size());
    EXPECT_EQ(parsed(seal_, forged, stored_.record.key), "truncated") << bytes;
  }
  header = make_header(seal_, stored_.record);
  header.sections[0].bytes = -1;  // balanced by another section
  header.sections[3].bytes += 101;
  Bytes forged = encode_header(seal_, header);
  forged.resize(bytes_.size());
  EXPECT_EQ(parsed(seal_, forged, stored_.record.key), "truncated");
}

TEST_P(Records, MissOfAnotherKeyNamesTheDifference) {
  const RecordKey& key = stored_.record.key;
  RecordKey other = key;
  other.kind = RecordKind::kPrefix;
  EXPECT_EQ(parsed(seal_, bytes_, other), "other kind");
  for (uint8_t& byte : (other = key).model) {
    byte ^= 1;
    EXPECT_EQ(parsed(seal_, bytes_, other), "other model");
    byte ^= 1;
  }
  for (uint8_t& byte : (other = key).content) {
    byte ^= 1;
    EXPECT_EQ(parsed(seal_, bytes_, other), "other key");
    byte ^= 1;
  }
  for (const char* layout : {"", "bf16 22x4x6", "bf16 22x4x640", "f32  22x4x64"}) {
    other.layout = layout;
    EXPECT_EQ(parsed(seal_, bytes_, other), "other layout");
  }
}

TEST_P(Records, AnotherTenant) {
  EXPECT_EQ(parsed(RecordSeal("somebody else"), bytes_, stored_.record.key), "other tenant");
  const RecordSeal none;
  EXPECT_EQ(parsed(none, bytes_, stored_.record.key), seal_.salted() ? "other tenant" : "hit");
}

TEST_P(Records, InvalidKeyFieldsAreMalformed) {
  const RecordHeader header = make_header(seal_, stored_.record);
  Bytes forged = encode_header(seal_, header);
  const auto n = static_cast<size_t>(header.bytes()) - sizeof(Checksum);
  const auto patched = [&](size_t at, int value) {
    Bytes bytes = bytes_;
    bytes[at] = static_cast<std::byte>(value);
    const Checksum sum = seal_.header(std::span(bytes).first(n));
    std::memcpy(bytes.data() + n, sum.data(), sum.size());
    return bytes;
  };
  EXPECT_EQ(parsed(seal_, patched(16, 1), stored_.record.key), "hit");  // patching in the same byte does no harm
  EXPECT_EQ(parsed(seal_, patched(16, 0), stored_.record.key), "malformed");
  EXPECT_EQ(parsed(seal_, patched(16, 4), stored_.record.key), "malformed");
  EXPECT_EQ(parsed(seal_, patched(96, '\n'), stored_.record.key), "malformed");
  EXPECT_EQ(parsed(seal_, patched(8, 2), stored_.record.key), "other version");
}

INSTANTIATE_TEST_SUITE_P(Salts, Records, testing::Values("", "salt"),
                         [](const auto& info) { return *info.param == 0 ? "None" : "Salt"; });

TEST(RecordSeal, EveryPartOfAKeyChangesItsId) {
  RecordKey key = make_key(1);
  std::set<RecordId> ids;
  for (const char* salt : {"", "a", "b"}) {
    const RecordSeal seal(salt);
    ids.insert(seal.id(key));
    for (uint8_t& byte : key.model) {
      byte ^= 4;
      ids.insert(seal.id(key));
      byte ^= 4;
    }
    for (uint8_t& byte : key.content) {
      byte ^= 4;
      ids.insert(seal.id(key));
      byte ^= 4;
    }
    key.kind = RecordKind::kPrefix;
    ids.insert(seal.id(key));
    key.kind = RecordKind::kImage;
    key.layout += "x";
    ids.insert(seal.id(key));
    key.layout.pop_back();
  }
  EXPECT_EQ(ids.size(), 3u * (1 + 16 + 32 + 1 + 1));
}

// From an independent source: SHA-256 and HMAC-SHA256 of a key's bytes by Python's hashlib and hmac. A change of these
// values makes every stored record unreadable: then kRecordVersion must change, too.
TEST(RecordSeal, IdsMatchTheReferenceValues) {
  EXPECT_EQ(hex(RecordSeal().id(make_key(5))), "c5f58754161005fc3eb079ba54d419e5670433346d0bcc7cb18fffc383130e13");
  EXPECT_EQ(hex(RecordSeal("pepper").id(make_key(5))),
            "bf6668e1c0d86dad3ac734aac2d6f1e3588834ef972065aaeb78b2d2cc8fdc2d");
}

TEST(RecordSeal, FewerBitsOfAnId) {
  const RecordId full = RecordSeal().id(make_key(1)), some = RecordSeal("", 12).id(make_key(1));
  EXPECT_EQ(some[0], full[0]);
  EXPECT_EQ(some[1], full[1] & 0xf0);
  EXPECT_EQ(some[2], 0);
  EXPECT_EQ(RecordSeal("", 0).id(make_key(1)), RecordSeal("", 0).id(make_key(2)));
}

// A section passes for no other section, of no other record, under no other salt; how it is cut into pieces does not
// matter.
TEST(RecordSeal, ChecksumsBindSectionsToTheirRecord) {
  const Bytes bytes = random_bytes(1000, 1);
  const RecordId a = RecordSeal().id(make_key(1)), b = RecordSeal().id(make_key(2));
  std::set<Checksum> sums;
  for (const char* salt : {"", "a", "b"}) {
    const RecordSeal seal(salt);
    for (const RecordId& id : {a, b}) {
      for (const int64_t number : {0, 1, 256}) {
        ChecksumStream whole = seal.section(id, number, 1000), pieces = seal.section(id, number, 1000);
        whole.add(bytes);
        for (size_t at = 0; at < bytes.size(); at += 40) pieces.add(std::span(bytes).subspan(at, 40));
        const Checksum sum = whole.finish();
        EXPECT_EQ(sum, pieces.finish());
        sums.insert(sum);
      }
    }
  }
  EXPECT_EQ(sums.size(), 3u * 2 * 3);
}

}  // namespace
}  // namespace vlcache
