// The baselines that evict nothing: full, none, static.
#include "policy/registry.h"

namespace vlcache {
namespace {

class Baseline final : public Policy {
 public:
  Baseline(std::string_view name, bool keeps_kv, int64_t capacity)
      : name_(name), keeps_kv_(keeps_kv), capacity_(capacity) {}
  std::string name() const override { return std::string(name_); }
  bool keeps_kv() const override { return keeps_kv_; }
  int64_t capacity() const override { return capacity_; }
  bool evicts() const override { return false; }

 private:
  std::string_view name_;
  bool keeps_kv_;
  int64_t capacity_;
};

}  // namespace

PolicyPtr make_full(Parameters&) { return std::make_shared<Baseline>("full", true, 0); }
PolicyPtr make_none(Parameters&) { return std::make_shared<Baseline>("none", false, 0); }
PolicyPtr make_static(Parameters& p) {
  return std::make_shared<Baseline>("static", true, p.integer("capacity", -1, 1));
}

}  // namespace vlcache
