#include "policy/transfer/hand_over.hpp"

#include <array>
#include <numeric>

#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

struct Axis {
  std::uint64_t count = 1, from_stride = 0, to_stride = 0;  // strides in bytes
};

// Pools of more than one page: in a pool of one page, layers would lie together that do not in any other.
constexpr std::uint64_t kPoolPages = 2;

Axis axis_of(const HandOverSide& from, const HandOverSide& to, std::uint64_t count, const KvIndex& step) {
  return {count, byte_offset(from.layout, from.shape, kPoolPages, step),
          byte_offset(to.layout, to.shape, kPoolPages, step)};
}

}  // namespace

HandOverWork hand_over_work(const HandOverSide& from, const HandOverSide& to, Pages pages, std::uint64_t runs,
                            std::uint32_t layer_groups, bool staged) {
  const KvShape& a = from.shape;
  const KvShape& b = to.shape;
  KV_CHECK(a.layers == b.layers && a.planes == b.planes && a.head_bytes == b.head_bytes,
           "both engines serve one model");
  KV_CHECK(a.page_tokens == b.page_tokens, "both engines have pages of one size");
  KV_CHECK(layer_groups >= 1 && (layer_groups == 1 || layer_groups <= a.layers), "a layer group has layers");
  HandOverWork work;
  work.pages = pages;
  work.layer_groups = layer_groups;
  work.staged = staged;
  const bool latent = is_latent(a);
  work.senders = latent ? 1 : from.ranks;
  work.receivers = latent ? 1 : to.ranks;
  work.bytes = pages * b.page_bytes() * work.receivers;
  // The heads that lie together on one rank of either side.
  const std::uint32_t heads = std::gcd(a.heads, b.heads);
  std::uint64_t piece = a.head_bytes;
  std::array<Axis, 3> axes{axis_of(from, to, heads, {.head = 1}), axis_of(from, to, a.page_tokens, {.token = 1}),
                           axis_of(from, to, a.layers, {.layer = 1})};
  for (bool joined = true; joined;) {
    joined = false;
    for (Axis& axis : axes) {
      if (axis.count == 1 || axis.from_stride != piece || axis.to_stride != piece) continue;
      piece *= axis.count;
      axis.count = 1;
      joined = true;
    }
  }
  // A group of layers is written by itself.
  if (layer_groups > 1 && axes[2].count == 1 && a.layers > 1) {
    axes[2].count = layer_groups;
    piece = (piece + layer_groups - 1) / layer_groups;
  }
  std::uint64_t per_page = std::uint64_t{b.planes} * (b.heads / heads);
  for (const Axis& axis : axes) per_page *= axis.count;
  const std::uint64_t page_from = byte_offset(from.layout, a, kPoolPages, {.page = 1});
  const std::uint64_t page_to = byte_offset(to.layout, b, kPoolPages, {.page = 1});
  const bool joins_pages = page_from == piece && page_to == piece;
  work.piece_bytes = piece;
  work.writes = (joins_pages ? runs : pages) * per_page * work.receivers;
  if (from.draft && to.draft) {
    const HandOverSide draft_from{*from.draft, from.ranks, from.layout}, draft_to{*to.draft, to.ranks, to.layout};
    const HandOverWork draft = hand_over_work(draft_from, draft_to, pages, runs, 1, staged);
    work.bytes += draft.bytes;
    work.writes += draft.writes;
  }
  return work;
}

void add_beside(HandOverWork& work, const HandOverSide& from, const HandOverSide& to, std::size_t at, bool states,
                Pages slots) {
  const KvShape& shape = to.beside[at];
  const std::uint64_t receivers = states ? to.ranks : work.receivers;
  const std::uint64_t apart = from.ranks == to.ranks || is_latent(from.shape) ? 1 : shape.page_tokens;
  work.bytes += slots * shape.page_bytes() * receivers;
  work.writes += slots * shape.layers * shape.planes * apart * receivers;
}

}  // namespace kvtwin
