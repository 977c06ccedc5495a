#include "impl/device/dense_layer.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

constexpr Tokens kBlockTokens = 128;  // tokens per product

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Repeated products of uniform numbers in [-1, 1) * s / sqrt(hidden) vanish if s is below sqrt(3), and grow above it.
// run() limits what grows.
constexpr float kGrowing = 2.0F;

// Fills with uniform numbers in [-1, 1) * scale.
void fill(Matrix& matrix, std::uint64_t seed, float scale) {
  std::uint64_t state = seed;
  for (Eigen::Index i = 0; i < matrix.size(); ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    matrix.data()[i] = scale * (static_cast<float>(state >> 40) / 8388608.0F - 1.0F);
  }
}

}  // namespace

struct DenseLayer::Matrices {
  Matrix weights, in, out;
  // [kBlockTokens x pair_work] [pair_work x kBlockTokens] [kBlockTokens x kBlockTokens]
  Matrix queries, keys, scores;
};

DenseLayer::DenseLayer(std::uint32_t hidden, std::uint32_t width, std::uint32_t pair_work, std::uint64_t seed)
    : matrices_(std::make_unique<Matrices>()) {
  matrices_->weights.resize(hidden, width);
  matrices_->in.resize(static_cast<Eigen::Index>(kBlockTokens), hidden);
  matrices_->out.resize(static_cast<Eigen::Index>(kBlockTokens), width);
  fill(matrices_->weights, seed, kGrowing / std::sqrt(static_cast<float>(hidden)));
  fill(matrices_->in, seed + 1, 1.0F);
  constexpr auto block = static_cast<Eigen::Index>(kBlockTokens);
  matrices_->queries.resize(block, pair_work);
  matrices_->keys.resize(pair_work, block);
  matrices_->scores.setZero(block, block);
  fill(matrices_->queries, seed + 2, 1.0F);
  fill(matrices_->keys, seed + 3, 1.0F / std::sqrt(static_cast<float>(std::max(1U, pair_work))));
}

DenseLayer::~DenseLayer() = default;
DenseLayer::DenseLayer(DenseLayer&&) noexcept = default;

void DenseLayer::run(Tokens tokens, std::uint64_t pairs) {
  Matrices& m = *matrices_;
  const Eigen::Index columns = std::min(m.in.cols(), m.out.cols());
  for (Tokens done = 0; done < tokens; done += kBlockTokens) {
    const auto rows = static_cast<Eigen::Index>(std::min(kBlockTokens, tokens - done));
    m.out.topRows(rows).noalias() = m.in.topRows(rows) * m.weights;
    // The result is the next input, so that the compiler cannot leave out a product.
    m.in.topRows(rows).leftCols(columns) = m.out.topRows(rows).leftCols(columns).cwiseMax(-1.0F).cwiseMin(1.0F);
  }
  if (m.queries.cols() == 0) return;
  for (std::uint64_t done = 0; done < pairs; done += kBlockTokens * kBlockTokens) {
    const auto rows = static_cast<Eigen::Index>(
        (std::min(kBlockTokens * kBlockTokens, pairs - done) + kBlockTokens - 1) / kBlockTokens);
    m.scores.topRows(rows).noalias() += m.queries.topRows(rows) * m.keys;
  }
}

float DenseLayer::largest_input() const { return matrices_->in.cwiseAbs().maxCoeff(); }

Bytes DenseLayer::bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t pair_work) {
  return sizeof(float) *
         (Bytes{hidden} * width + kBlockTokens * (Bytes{hidden} + width + 2 * Bytes{pair_work} + kBlockTokens));
}

}  // namespace kvtwin
