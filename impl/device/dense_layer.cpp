#include "impl/device/dense_layer.hpp"

#include <Eigen/Core>
#include <algorithm>
#include <cmath>

namespace kvtwin {
namespace {

constexpr Tokens kBlock = 128;  // tokens a product

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

// Uniform in [-1, 1), scaled so that a product neither grows nor fades.
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
  Matrix queries, keys, scores;  // [kBlock x pair_work] [pair_work x kBlock] [kBlock x kBlock]
};

DenseLayer::DenseLayer(std::uint32_t hidden, std::uint32_t width, std::uint32_t pair_work, std::uint64_t seed)
    : matrices_(std::make_unique<Matrices>()) {
  matrices_->weights.resize(hidden, width);
  matrices_->in.resize(static_cast<Eigen::Index>(kBlock), hidden);
  matrices_->out.resize(static_cast<Eigen::Index>(kBlock), width);
  fill(matrices_->weights, seed, 1.0F / std::sqrt(static_cast<float>(hidden)));
  fill(matrices_->in, seed + 1, 1.0F);
  constexpr auto block = static_cast<Eigen::Index>(kBlock);
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
  for (Tokens done = 0; done < tokens; done += kBlock) {
    const auto rows = static_cast<Eigen::Index>(std::min(kBlock, tokens - done));
    m.out.topRows(rows).noalias() = m.in.topRows(rows) * m.weights;
    // What comes out goes in again, so that no product can be left out.
    m.in.topRows(rows).leftCols(columns) = m.out.topRows(rows).leftCols(columns).cwiseMax(-1.0F).cwiseMin(1.0F);
  }
  if (m.queries.cols() == 0) return;
  for (std::uint64_t done = 0; done < pairs; done += kBlock * kBlock) {
    const auto rows = static_cast<Eigen::Index>((std::min(kBlock * kBlock, pairs - done) + kBlock - 1) / kBlock);
    m.scores.topRows(rows).noalias() += m.queries.topRows(rows) * m.keys;
  }
}

Bytes DenseLayer::bytes(std::uint32_t hidden, std::uint32_t width, std::uint32_t pair_work) {
  return sizeof(float) * (Bytes{hidden} * width + kBlock * (Bytes{hidden} + width + 2 * Bytes{pair_work} + kBlock));
}

}  // namespace kvtwin
