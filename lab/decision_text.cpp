#include "lab/decision_text.hpp"

#include <cinttypes>
#include <cstdio>

#include "models/json.hpp"

namespace kvtwin {

std::string digest_text(std::uint64_t digest) {
  char text[17];
  std::snprintf(text, sizeof text, "%016" PRIx64, digest);
  return text;
}

std::string seconds_text(TimeNs time) {
  const bool below = time < 0;
  const std::uint64_t ns = below ? 0 - static_cast<std::uint64_t>(time) : static_cast<std::uint64_t>(time);
  char text[40];
  std::snprintf(text, sizeof text, "%s%" PRIu64 ".%09" PRIu64, below ? "-" : "", ns / kNsPerSecond, ns % kNsPerSecond);
  return text;
}

std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3;) text.insert(at -= 3, ",");
  return text;
}

std::string decision_text(const Decision& decision) {
  std::string text(name_of(decision.kind));
  if (decision.request != kNoRequest) text += " request " + std::to_string(decision.request) + ",";
  text += " " + std::to_string(decision.pages) + (decision.pages == 1 ? " page" : " pages");
  text += " from key " + digest_text(decision.key.words[0]) + " on";
  if (decision.reason != Reason::none) text += ", " + std::string(name_of(decision.reason));
  return text;
}

Json decision_json(const Decision& decision) {
  Json json{{"kind", name_of(decision.kind)}, {"reason", name_of(decision.reason)}};
  json["request"] = decision.request == kNoRequest ? Json() : Json(decision.request);
  std::string key;
  for (const std::uint64_t word : decision.key.words) key += digest_text(word);
  json["key"] = key;
  json["pages"] = decision.pages;
  return json;
}

Json mark_json(const DecisionMark& mark) { return {{"count", mark.count}, {"digest", digest_text(mark.digest)}}; }

}  // namespace kvtwin
