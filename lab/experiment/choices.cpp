#include "lab/experiment/choices.hpp"

#include <algorithm>
#include <vector>

#include "lab/error.hpp"
#include "models/names.hpp"
#include "policy/load_back_admission.hpp"
#include "policy/order.hpp"
#include "policy/prefetch_admission.hpp"
#include "policy/route.hpp"
#include "policy/termination.hpp"
#include "policy/write.hpp"
#include "traces/trace.hpp"

namespace kvtwin {
namespace {

constexpr NamedChoice kChoices[] = {{"workload.format", trace_format_names},
                                    {"cluster.route", route_names},
                                    {"cache.write_policy", write_policy_names},
                                    {"cache.prefetch_policy", termination_names},
                                    {"cache.prefetch_admission", prefetch_admission_names},
                                    {"cache.load_back_admission", load_back_admission_names},
                                    {"scheduler.order", request_order_names}};

bool mentions(std::string_view text, std::string_view name) {
  const auto is_of_name = [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; };
  for (std::size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const std::size_t end = at + name.size();
    if ((at == 0 || !is_of_name(text[at - 1])) && (end == text.size() || !is_of_name(text[end]))) return true;
  }
  return false;
}

}  // namespace

std::span<const NamedChoice> named_choices() { return kChoices; }

std::string checked_name(std::string_view kind, const std::string& name, std::span<const std::string_view> names,
                         const std::string& where) {
  if (std::ranges::find(names, name) != names.end()) return name;
  throw InputError(where + ": " + unknown_name(kind, name, std::vector<std::string>(names.begin(), names.end())));
}

std::string with_other_names(std::string_view help, std::span<const std::string_view> names) {
  std::string others;
  for (const std::string_view name : names) {
    if (!mentions(help, name)) others.append(others.empty() ? "; also " : ", ").append(name);
  }
  return std::string(help) + others;
}

}  // namespace kvtwin
