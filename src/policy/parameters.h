// Parameters of a policy as a user writes them: "name:key=value,key=value".
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace vlcache {

class Parameters {
 public:
  // Throws Error(kInput) when the text is not of that form or a key stands twice.
  static Parameters parse(std::string_view text);

  const std::string& name() const { return name_; }
  // The value of `key`, or `fallback`; throws Error(kInput) unless it is an integer >= at_least. Marks the key as
  // known.
  int64_t integer(std::string_view key, int64_t fallback, int64_t at_least);
  // Throws Error(kInput) naming the first key that nothing asked for, and those that were.
  void reject_unknown() const;

 private:
  std::string name_;
  std::map<std::string, std::string, std::less<>> values_;
  std::string known_;
};

}  // namespace vlcache
