#include "impl/storage/backend.hpp"

#include "policy/base/check.hpp"

namespace kvtwin {

Cause StorageBackend::find(const PageKey& space, std::span<const PageKey> keys, std::vector<bool>& there) {
  there.assign(keys.size(), false);
  Cause unknown = Cause::none;
  for (std::size_t first = 0; first < keys.size(); ++first) {
    const LookedUp found = look_up(space, keys.subspan(first));
    for (const std::size_t end = first + found.pages; first < end; ++first) there[first] = true;
    if (found.cause != Cause::missing && unknown == Cause::none) unknown = found.cause;
  }
  return unknown;
}

void PageWork::take(const PageTask& task, PageHeader& header, std::span<std::byte> payload) {
  take_bare(task, payload);
  header = make_page_header(form_, task.space, task.key, payload, seal_);
}

void PageWork::take(const PageTask& task, PageHeader& header, const Pieces& pieces) {
  header = make_page_header(form_, task.space, task.key, pieces, seal_);
}

Cause PageWork::give(const PageTask& task, std::span<const std::byte, kPageHeaderBytes> header,
                     std::span<const std::byte> payload) {
  if (payload.size() != form_.bytes()) return Cause::corrupt;
  if (!holds_page(form_, task.space, task.key, header, payload, seal_)) return Cause::corrupt;
  return give_bare(task, payload);
}

Cause PageWork::give(const PageTask& task, std::span<const std::byte, kPageHeaderBytes> header, const Pieces& pieces) {
  if (!holds_page(form_, task.space, task.key, header, pieces, seal_)) return Cause::corrupt;
  landed(task);
  return Cause::none;
}

void PageWork::take_bare(const PageTask& task, std::span<std::byte> payload) {
  Pieces list;
  const bool has_pieces = pieces(task, list);
  KV_CHECK(has_pieces && bytes_of(list) == payload.size(), "a page that is copied has pieces of its bytes");
  gather(list, payload);
}

Cause PageWork::give_bare(const PageTask& task, std::span<const std::byte> payload) {
  if (payload.size() != form_.bytes()) return Cause::corrupt;
  Pieces list;
  const bool has_pieces = pieces(task, list);
  KV_CHECK(has_pieces && bytes_of(list) == payload.size(), "a page that is copied has pieces of its bytes");
  scatter(payload, list);
  landed(task);
  return Cause::none;
}

}  // namespace kvtwin
