#include "lab/past_run/call_replay.hpp"

#include <algorithm>
#include <array>
#include <fstream>
#include <optional>
#include <span>
#include <vector>

#include "lab/decision_text.hpp"
#include "lab/error.hpp"
#include "lab/run/journal_file.hpp"
#include "models/json.hpp"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

const char* tier_name(Tier tier) { return tier == Tier::device ? "device" : "host"; }

std::string answer_text(CallVerb verb, const Answer& answer) {
  if (verb == CallVerb::share) return std::to_string(answer.device_pages) + " pages may form one node";
  if (verb == CallVerb::victim && answer.node == NodeId::none) return "nothing may be evicted";
  std::string text = "node " + std::to_string(static_cast<std::uint32_t>(answer.node));
  if (verb == CallVerb::victim) return text + " (" + std::to_string(answer.device_pages) + " pages)";
  return text + ", " + std::to_string(answer.device_pages) + " and " + std::to_string(answer.host_pages) + " pages";
}

// Makes the calls of a journal again, one by one.
class Calls {
 public:
  Calls(const fs::path& path, std::string eviction)
      : name_(path.string()), bytes_(read_journal(path)), reader_(bytes_), eviction_(std::move(eviction)) {
    switch (reader_.header()) {
      case JournalStatus::record: return;
      case JournalStatus::truncated: throw InputError(name_ + ": is truncated within its header");
      case JournalStatus::wrong_version:
        throw InputError(name_ + ": is a journal of calls of another version; this kvtwin reads version " +
                         std::to_string(kCallJournalVersion));
      default: throw InputError(name_ + ": is no journal of calls, or its header is damaged");
    }
  }

  // Reads the next record, and makes its call. Afterwards, `wrong` is what the tree refused, or null.
  JournalStatus next() {
    const JournalStatus status = reader_.next(record);
    if (status != JournalStatus::record) return status;
    wrong = nullptr;
    if (record.tree) {
      HostedSetup setup = *record.tree;
      if (!eviction_.empty()) setup.eviction = eviction_;
      if (const std::string error = HostedTree::error_of(setup); !error.empty()) {
        throw InputError("cache.eviction=" + eviction_ + ": " + error);
      }
      tree_.emplace(setup);
    } else if (!record.storage) {
      before_evicted();
      wrong = tree_->call(record.call, answer);
    }
    return status;
  }
  const HostedTree* tree() const { return tree_ ? &*tree_ : nullptr; }
  const JournalPlace& place() const { return reader_.place(); }
  std::string_view host() const { return reader_.text(); }
  const std::string& name() const { return name_; }

  CallRecord record;
  Answer answer;
  const char* wrong = nullptr;
  NodeFacts evicted;  // of the node that an `evict` names, before the call
  bool demoted = false;

 private:
  void before_evicted() {
    if (record.call.verb != CallVerb::evict || !tree_->tree().has(record.call.node)) return;
    const Node& node = tree_->tree().node(record.call.node);
    evicted = node.facts;
    demoted = record.call.tier == Tier::device && node.host.resident();
  }

  const std::string name_;
  const std::vector<std::byte> bytes_;
  CallJournalReader reader_;
  const std::string eviction_;
  std::optional<HostedTree> tree_;
};

}  // namespace

bool is_call_journal(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;  // opening a pipe would wait for a writer
  std::ifstream file(path, std::ios::binary);
  std::array<char, sizeof(JournalMagic)> begin{};
  if (!file.read(begin.data(), begin.size())) return false;
  return std::ranges::equal(std::as_bytes(std::span(begin)), kCallJournalMagic);
}

CallReplay replay_calls(const fs::path& path, const std::string& eviction) {
  Calls calls(path, eviction);
  CallReplay result;
  result.host = calls.host();
  std::array<NodeId, 2> asked{NodeId::none, NodeId::none};
  for (;;) {
    const JournalStatus status = calls.next();
    if (status != JournalStatus::record) {
      result.end = status;
      break;
    }
    const CallRecord& record = calls.record;
    if (record.tree) {
      result.eviction = calls.tree()->setup().eviction;
      continue;
    }
    if (record.storage) {
      ++result.storage_calls;
      continue;
    }
    const Call& call = record.call;
    ++result.calls;
    const std::size_t tier = call.tier == Tier::device ? 0 : 1;
    const bool is_choice = call.verb == CallVerb::victim;
    if (is_choice) {
      ++result.victims;
      result.equal_victims += calls.answer == record.answer;
      asked.at(tier) = record.answer.node;
    } else if (call.verb == CallVerb::evict) {
      ++result.evictions;
      result.other_evictions += call.node != asked.at(tier);
    }
    const bool same = calls.wrong == nullptr && calls.answer == record.answer &&
                      (result.diverged || calls.tree()->mark() == record.after);
    if (same || result.diverged) continue;
    result.diverged = true;
    result.place = calls.place();
    result.sentence = "record " + std::to_string(result.place.number) + " (" + std::string(name_of(call.verb)) +
                      (is_choice ? std::string(" of the ") + tier_name(call.tier) : std::string()) + "): recorded " +
                      answer_text(call.verb, record.answer) + ", now " +
                      (calls.wrong != nullptr ? std::string(calls.wrong) : answer_text(call.verb, calls.answer));
  }
  if (!result.diverged) result.place = calls.place();
  if (calls.tree() != nullptr) result.mark = calls.tree()->mark();
  return result;
}

// ---- explain -------------------------------------------------------------------------------------------

namespace {

struct Eviction {
  Tier tier = Tier::device;
  NodeId node = NodeId::none;
  Pages pages = 0, depth = 0;
  bool demoted = false, chosen = false;  // chosen: it is the policy's victim
  std::uint32_t hits = 0;
  std::uint64_t accesses_ago = 0;
  std::int32_t priority = 0;
};

struct CallStory {
  bool known = false;
  std::optional<std::uint64_t> queued_at;  // record numbers
  std::uint64_t first_visit = 0, visits = 0;
  TimeNs first_time = 0, last_time = 0;
  std::uint64_t session = 0;
  Tokens prompt_tokens = 0, output_tokens = 0;
  Pages asked = 0, device_pages = 0, host_pages = 0;
  Pages inserted = 0, placed = 0;
  std::vector<Eviction> evictions;
  std::vector<std::string> hints;
};

std::string text_of(const CallStory& story, std::int64_t request, const std::string& eviction, std::string_view host) {
  const auto number = [](auto value) { return std::to_string(value); };
  std::string text = "request     " + number(request) + ", by the calls of " +
                     (host.empty() ? std::string("a host") : std::string(host)) + "\n";
  text += "prompt      " + number(story.prompt_tokens) + " tokens; output " + number(story.output_tokens) + " tokens\n";
  if (story.session != 0) text += "session     " + number(story.session) + "\n";
  if (story.queued_at) text += "waited      from record " + number(*story.queued_at) + " on\n";
  text += "admitted    record " + number(story.first_visit) + ", and at work for " +
          number((story.last_time - story.first_time) / 1000) + " us, in " + number(story.visits) + " visits\n";
  text += "matched     " + number(story.device_pages) + " pages on the device and " + number(story.host_pages) +
          " on the host, of " + number(story.asked) + "\n";
  text +=
      "inserted    " + number(story.inserted) + " pages; " + number(story.placed) + " pages copied between the tiers\n";
  for (const std::string& hint : story.hints) text += "hint        " + hint + "\n";
  for (const Eviction& gone : story.evictions) {
    text += "evicted     " + number(gone.pages) + " pages from the " + tier_name(gone.tier) + " (node " +
            number(static_cast<std::uint32_t>(gone.node)) + ", " + number(gone.depth) + " pages deep), " +
            (gone.demoted ? "a copy stays on the host" : "no copy stays") + ": " +
            (gone.chosen ? "the victim of " + eviction : std::string("the host's own choice")) + "; used " +
            number(gone.hits) + " times, last " + number(gone.accesses_ago) + " accesses ago, priority " +
            number(gone.priority) + "\n";
  }
  return text;
}

Json json_of(const CallStory& story, std::int64_t request, const std::string& eviction) {
  Json json{{"request", request},
            {"from", "calls"},
            {"eviction", eviction},
            {"prompt_tokens", story.prompt_tokens},
            {"output_tokens", story.output_tokens},
            {"session", story.session},
            {"visits", story.visits},
            {"pages", story.asked},
            {"hit_device_pages", story.device_pages},
            {"hit_host_pages", story.host_pages},
            {"inserted_pages", story.inserted},
            {"copied_pages", story.placed}};
  json["evictions"] = Json::array();
  for (const Eviction& gone : story.evictions) {
    json["evictions"].push_back({{"tier", tier_name(gone.tier)},
                                 {"pages", gone.pages},
                                 {"copy_stays", gone.demoted},
                                 {"by", gone.chosen ? "policy" : "host"},
                                 {"hits", gone.hits},
                                 {"accesses_ago", gone.accesses_ago},
                                 {"priority", gone.priority}});
  }
  return json;
}

}  // namespace

Explanation explain_calls(const fs::path& path, std::int64_t request, bool as_json) {
  Calls calls(path, "");
  CallStory story;
  const auto wanted = static_cast<RequestId>(request);
  std::optional<Call> match;
  Answer matched;
  RequestId visitor = kNoRequest, last = 0;
  bool any = false;
  std::array<NodeId, 2> asked{NodeId::none, NodeId::none};
  std::uint64_t accesses = 0;
  JournalStatus status = JournalStatus::record;
  std::string wrong;
  while ((status = calls.next()) == JournalStatus::record) {
    if (calls.record.tree || calls.record.storage) continue;
    const Call& call = calls.record.call;
    if (calls.wrong != nullptr && wrong.empty()) {
      wrong = "record " + std::to_string(calls.place().number) + " cannot be made again: " + calls.wrong;
    }
    const std::size_t tier = call.tier == Tier::device ? 0 : 1;
    switch (call.verb) {
      case CallVerb::match: match = call, matched = calls.answer; break;
      case CallVerb::touch:
        accesses =
            calls.tree()->tree().has(call.node) ? calls.tree()->tree().node(call.node).facts.last_access : accesses;
        break;
      case CallVerb::victim: asked.at(tier) = calls.answer.node; break;
      case CallVerb::queue:
        if (call.request == wanted && !story.queued_at) story.queued_at = calls.place().number;
        break;
      case CallVerb::visit:
        visitor = call.request;
        last = any ? std::max(last, visitor) : visitor;
        any = true;
        if (visitor != wanted) break;
        if (!story.known) {
          story.known = true;
          story.first_visit = calls.place().number;
          story.first_time = call.time;
          if (match) {
            story.asked = match->keys.size();
            story.device_pages = matched.device_pages;
            story.host_pages = matched.host_pages;
          }
        }
        ++story.visits;
        story.last_time = call.time;
        story.session = call.session;
        story.prompt_tokens = call.prompt_tokens;
        story.output_tokens = call.output_tokens;
        break;
      case CallVerb::insert:
        if (visitor == wanted) story.inserted += call.keys.size();
        break;
      case CallVerb::place:
        if (visitor == wanted && calls.tree()->tree().has(call.node)) {
          story.placed += calls.tree()->tree().node(call.node).facts.pages;
        }
        break;
      case CallVerb::hint:
        if (visitor == wanted) story.hints.emplace_back("for session " + std::to_string(call.session));
        break;
      case CallVerb::evict: {
        if (visitor != wanted) break;
        const NodeFacts& facts = calls.evicted;
        story.evictions.push_back({call.tier, call.node, call.pages, facts.depth_pages, calls.demoted,
                                   call.node == asked.at(tier), facts.hits,
                                   accesses > facts.last_access ? accesses - facts.last_access : 0, facts.priority});
        break;
      }
      default: break;
    }
  }
  if (!story.known) {
    std::string sentence = path.string() + ": has no visit of request " + std::to_string(request);
    sentence += any ? "; the largest number is " + std::to_string(last) : "; it has no visits at all";
    throw InputError(sentence);
  }
  const std::string eviction = calls.tree()->setup().eviction;
  Explanation explanation;
  explanation.text =
      as_json ? json_of(story, request, eviction).dump(2) + "\n" : text_of(story, request, eviction, calls.host());
  if (!wrong.empty()) {
    explanation.exit_code = 3;
    if (!as_json) explanation.text += "note        " + wrong + "\n";
  }
  return explanation;
}

// ---- measurements --------------------------------------------------------------------------------------

Measurements measurements_of_calls(const fs::path& path) {
  Calls calls(path, "");
  Measurements found;
  while (calls.next() == JournalStatus::record) {
    const std::optional<HostStorageCall>& call = calls.record.storage;
    // A call that lacked pages did less work than it names.
    if (!call || call->pages == 0 || call->done != call->pages || call->duration <= 0) continue;
    Measurement one;
    one.what = Measured::storage;
    one.seconds = static_cast<double>(call->duration) * 1e-9;
    one.work.verb = call->verb;
    one.work.tier = Tier::disk;
    one.work.pages = call->pages;
    one.work.page_bytes = call->bytes / call->pages;
    found.list.push_back(one);
  }
  if (found.list.empty()) {
    throw InputError(path.string() +
                     ": has no storage call that moved all its pages; record one of a host with a storage back end");
  }
  return found;
}

}  // namespace kvtwin
