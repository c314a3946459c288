// Digests alone are stored, no keys.
#include "server/operations/api_keys.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/json.h"

namespace vlcache {
namespace {

constexpr size_t kMinKey = 16, kMaxKey = 512, kMaxName = 64;
constexpr int64_t kMaxFileBytes = 16 << 20;

Sha256Digest digest_of(std::string_view purpose, std::string_view text) {
  Sha256 hash;
  hash.add(std::as_bytes(std::span(purpose)));
  hash.add(static_cast<int64_t>(text.size()));
  hash.add(std::as_bytes(std::span(text)));
  return hash.finish();
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  for (size_t at = 0; (at = line.find_first_not_of(" \t\r", at)) != line.npos;) {
    const size_t end = std::min(line.find_first_of(" \t\r", at), line.size());
    words.push_back(line.substr(at, end - at));
    at = end;
  }
  return words;
}

bool is_printable(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

bool is_name(std::string_view text) {
  const auto plain = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '@';
  };
  return text.size() <= kMaxName && text != "admin" && std::ranges::all_of(text, plain);
}

}  // namespace

ApiKeys ApiKeys::parse(std::string_view text, std::string_view where) {
  ApiKeys keys;
  size_t number = 0;
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorCode::kInput, std::string(where) + ": line " + std::to_string(number) + ": expected " + what);
  };
  while (!text.empty()) {
    ++number;
    const size_t end = std::min(text.find('\n'), text.size());
    const std::vector<std::string_view> words = words_of(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (words.empty() || words[0].starts_with('#')) continue;
    if (words[0].size() < kMinKey || words[0].size() > kMaxKey || !is_printable(words[0])) {
      fail("a key of 16 to 512 printable characters (openssl rand -hex 24 makes one)");
    }
    if (words.size() > 1 && !is_name(words[1])) {
      fail("a name of letters, digits and -_.@ after the key, as in KEY NAME or KEY NAME admin");
    }
    if (words.size() > 3 || (words.size() == 3 && words[2] != "admin")) fail("nothing or 'admin' after the name");
    Key key{.digest = digest_of("key", words[0]), .caller = {}};
    if (std::ranges::find(keys.keys_, key.digest, &Key::digest) != keys.keys_.end()) fail("another key: it is there");
    key.caller.name = words.size() > 1 ? std::string(words[1]) : "key-" + hex(key.digest).substr(0, 12);
    key.caller.admin = words.size() == 3;
    key.caller.salt = digest_of("tenant", key.caller.name);
    keys.keys_.push_back(std::move(key));
  }
  if (keys.keys_.empty()) {
    throw Error(ErrorCode::kInput, std::string(where) + ": expected at least one line KEY [NAME] [admin]");
  }
  const std::string& first = keys.keys_[0].caller.name;
  const bool one_tenant = std::ranges::all_of(keys.keys_, [&](const Key& key) { return key.caller.name == first; });
  for (Key& key : keys.keys_) key.caller.sees_totals = key.caller.admin || one_tenant;
  return keys;
}

ApiKeys ApiKeys::load(const std::filesystem::path& file) {
  return parse(read_text_file(file, kMaxFileBytes), file.string());
}

std::optional<Caller> ApiKeys::find(std::string_view key) const {
  const Sha256Digest digest = digest_of("key", key);
  const Key* found = nullptr;
  for (const Key& known : keys_) {
    if (CRYPTO_memcmp(known.digest.data(), digest.data(), digest.size()) == 0) found = &known;
  }
  return found == nullptr ? std::nullopt : std::optional(found->caller);
}

}  // namespace vlcache
