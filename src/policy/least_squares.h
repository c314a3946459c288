// Small least-squares problems, for policies that fit what they keep to what goes.
#pragma once

#define EIGEN_DONT_PARALLELIZE  // loops are shared out by base/threads.h alone
#include <Eigen/Core>

namespace vlcache {

// u [t] >= least that minimises |M u - s|: M [n, t], s [n]. By cyclic coordinate descent from u = 1, until a sweep
// changes little.
Eigen::VectorXf bounded_least_squares(const Eigen::MatrixXf& m, const Eigen::VectorXf& s, float least);

// C [t, d] that minimises |X C - Y|^2 + ridge |X|_F^2 / min(n, t) |C - C0|^2: X [n, t], Y [n, d]. With fewer rows than
// columns what the rows do not say stays as in C0.
Eigen::MatrixXf ridge_least_squares(const Eigen::MatrixXf& x, const Eigen::MatrixXf& y, double ridge,
                                    const Eigen::MatrixXf& c0);

}  // namespace vlcache
