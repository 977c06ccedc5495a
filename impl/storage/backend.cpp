#include "impl/storage/backend.hpp"

namespace kvtwin {

void PageWork::take(const PageTask& task, PageHeader& header, std::span<std::byte> payload) {
  take_bare(task, payload);
  header = make_page_header(form_, task.space, task.key, payload, seal_);
}

Cause PageWork::give(const PageTask& task, std::span<const std::byte, kPageHeaderBytes> header,
                     std::span<const std::byte> payload) {
  if (payload.size() != form_.bytes()) return Cause::corrupt;
  if (!holds_page(form_, task.space, task.key, header, payload, seal_)) return Cause::corrupt;
  return give_bare(task, payload);
}

}  // namespace kvtwin
