#include "model/weights/code_rows.h"

#include <algorithm>

#include "base/error.h"

namespace vlcache {
namespace {

template <typename T>
void copy_rows(const std::vector<T>& from, int64_t n, std::vector<T>& to, int64_t first, int64_t n_all) {
  const int64_t width = std::ssize(to) / n_all;
  std::copy_n(from.begin(), n * width, to.begin() + first * width);
}

}  // namespace

int64_t row_before_pairing(int64_t row, int64_t size) {
  const int64_t head = row / size * size, at = row - head, half = size / 2;
  return head + (at < half ? 2 * at : 2 * (at - half) + 1);
}

CodeRows::CodeRows(std::vector<Part> parts) : parts_(std::move(parts)) {
  CHECK(!parts_.empty());
  for (const Part& part : parts_) {
    CHECK(part.codes->form() == form() && part.codes->n_in() == n_in());
    CHECK(std::ranges::equal(part.codes->input_order(), input_order()));
    n_out_ += part.codes->n_out();
  }
}

void CodeRows::read(int64_t first, int64_t n, QuantRows& out) const {
  CHECK(0 <= first && 0 < n && first + n <= n_out_);
  QuantRows some;
  size_t at = 0;
  int64_t row = first;
  for (; row >= parts_[at].codes->n_out(); ++at) row -= parts_[at].codes->n_out();
  for (int64_t done = 0; done < n;) {
    const auto& [codes, pairs] = parts_[at];
    const int64_t run = pairs > 0 ? 1 : std::min(n - done, codes->n_out() - row);
    if (run == n && pairs == 0) return codes->read(row, n, out);
    if (done == 0) out.resize(form(), n, n_in());
    codes->read(pairs > 0 ? row_before_pairing(row, pairs) : row, run, some);
    copy_rows(some.codes, run, out.codes, done, n);
    copy_rows(some.scales, run, out.scales, done, n);
    copy_rows(some.mins, run, out.mins, done, n);
    copy_rows(some.shared_scales, run, out.shared_scales, done, n);
    copy_rows(some.shared_mins, run, out.shared_mins, done, n);
    done += run, row += run;
    if (row == codes->n_out()) ++at, row = 0;
  }
}

}  // namespace vlcache
