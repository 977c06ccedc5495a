#include "impl/remote/staged_backend.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <new>
#include <optional>
#include <unordered_map>

#include "impl/remote/batched_look_ups.hpp"
#include "impl/remote/call_thread.hpp"
#include "impl/remote/remote_name.hpp"
#include "policy/base/check.hpp"

namespace kvtwin {
namespace {

constexpr std::size_t kMaxStagedPages = 256;
constexpr Bytes kValueAlignment = 4096;

// Memory that no other object shares a page of memory with.
class Mapping {
 public:
  explicit Mapping(Bytes bytes) : bytes_(bytes) {
    memory_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory_ == MAP_FAILED) throw std::bad_alloc();
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { ::munmap(memory_, bytes_); }
  std::span<std::byte> bytes() const { return {static_cast<std::byte*>(memory_), bytes_}; }

 private:
  Bytes bytes_;
  void* memory_;
};

// An open store with its staging memory. Ends in the thread that uses it last.
struct Session {
  std::shared_ptr<const Mapping> staging;
  std::unique_ptr<ValueStore> store;  // ends before the staging memory
};

// The names and values of one call. A late call shares it with nobody else.
struct StagedBatch {
  std::shared_ptr<Session> session;
  std::vector<std::string> names;
  std::vector<std::span<std::byte>> values;
  std::vector<ValueAnswer> answers;
};
using StagedCall = void (*)(StagedBatch&);

void call_find(StagedBatch& batch) { batch.session->store->find(batch.names, batch.answers); }
void call_get(StagedBatch& batch) { batch.session->store->get(batch.names, batch.values, batch.answers); }
void call_put(StagedBatch& batch) { batch.session->store->put(batch.names, batch.values, batch.answers); }
void call_remove(StagedBatch& batch) { batch.session->store->remove(batch.names, batch.answers); }

struct StagedPage {
  PageTask task;
  std::string name = {};
  std::span<std::byte> value = {};
  Cause cause = Cause::unreachable;
};
using StagedPageList = std::vector<StagedPage*>;

StagedPageList list_of(std::vector<StagedPage>& pages) {
  StagedPageList list;
  for (StagedPage& page : pages) list.push_back(&page);
  return list;
}

Cause cause_of(ValueAnswer answer) {
  switch (answer) {
    case ValueAnswer::done: return Cause::none;
    case ValueAnswer::missing:
    case ValueAnswer::leased: return Cause::missing;
    case ValueAnswer::strange: return Cause::corrupt;
    case ValueAnswer::full: return Cause::full;
    case ValueAnswer::failed: break;
  }
  return Cause::unreachable;
}

}  // namespace

struct StagedBackend::State {
  using Count = std::atomic<std::uint64_t>;

  State(StagedConfig given, const PageForm& page)
      : config(std::move(given)),
        form(page),
        slot_bytes((value_bytes() + kValueSlackBytes + kValueAlignment - 1) / kValueAlignment * kValueAlignment),
        slots(std::clamp<std::size_t>(config.bytes_in_flight / (kPageHeaderBytes + form.bytes()), 1, kMaxStagedPages)),
        staging(std::make_shared<const Mapping>(2 * slots * slot_bytes)),
        back_off(config.back_off) {}

  Bytes value_bytes() const { return kPageHeaderBytes + form.bytes(); }
  TimeNs now() const { return config.now ? config.now() : steady_now(); }
  std::string name_of(const PageTask& task) const {
    return remote_name_of(stored_page_key(form, task.space, task.key), id_of(config.seal));
  }

  std::shared_ptr<Session> open();
  void close();
  std::vector<ValueAnswer> run(CallThread& thread, const StagedPageList& pages, StagedCall call);
  std::vector<StagedPage> begin_pages(PageWork& work, std::size_t first_slot) const;
  void find(CallThread& thread, const StagedPageList& pages);
  std::vector<StagedPage> find_first(const PageKey& space, std::span<const PageKey> keys);
  void get(PageWork& work, const StagedPageList& pages);
  void set(PageWork& work, const StagedPageList& pages);
  void remove(const StagedPageList& pages);
  void count_leased(const std::vector<ValueAnswer>& answers) {
    leased += static_cast<std::uint64_t>(std::ranges::count(answers, ValueAnswer::leased));
  }

  const StagedConfig config;
  const PageForm form;
  const Bytes slot_bytes;
  const std::size_t slots;  // of the reading thread, and as many behind them of the writing thread
  const std::shared_ptr<const Mapping> staging;
  BackOff back_off;

  std::mutex mutex;                  // guards the members up to `opener`
  std::shared_ptr<Session> session;  // null = not open
  std::shared_ptr<Session> opening;  // of a late opener
  std::shared_ptr<std::string> opening_error;
  std::string error = "The store has not been opened.";  // why the last attempt failed
  CallThread opener;

  CallThread look_ups, reads, writes;
  Count got = 0, stored = 0, there = 0, corrupt = 0, full = 0, leased = 0, lost = 0, backed_off = 0;
  Count not_opened = 0, slow = 0, failed = 0;
};

// Returns the open session; opens it if necessary. Null: the store cannot be opened now.
std::shared_ptr<Session> StagedBackend::State::open() {
  const std::lock_guard lock(mutex);
  if (session) return session;
  if (opener.busy()) {
    ++slow;
    return nullptr;
  }
  bool in_time = true;
  if (!opening) {  // otherwise the opener was late, and has ended since
    opening = std::make_shared<Session>();
    opening->staging = staging;
    opening_error = std::make_shared<std::string>("The store does not answer in time.");
    in_time = opener.run(
        [open = config.open, to = opening, sentence = opening_error] {
          OpenedStore opened = open(to->staging->bytes());
          to->store = std::move(opened.store);
          *sentence = std::move(opened.error);
        },
        config.timeout);
  }
  if (!in_time) {
    error = "The store does not answer in time.";
    ++slow;
    return nullptr;
  }
  error = *opening_error;
  if (opening->store) {
    session = opening;
  } else {
    ++not_opened;
  }
  opening = nullptr;
  return session;
}

void StagedBackend::State::close() {
  const std::lock_guard lock(mutex);
  opening = nullptr;
  if (!session || opener.busy()) return;
  // A capture that is moved into the call ends with the call, on its thread.
  opener.run([last = std::move(session)]() mutable { last = nullptr; }, config.close_timeout);
  session = nullptr;
}

// Runs a call for the names of the pages. Returns the answers, which are `failed` if the call was late, or not made.
std::vector<ValueAnswer> StagedBackend::State::run(CallThread& thread, const StagedPageList& pages, StagedCall call) {
  const std::vector<ValueAnswer> none(pages.size(), ValueAnswer::failed);
  if (pages.empty()) return none;
  const std::optional<std::uint64_t> attempt = thread.busy() ? std::nullopt : back_off.begin(now());
  if (!attempt) {
    backed_off += pages.size();
    return none;
  }
  auto batch = std::make_shared<StagedBatch>();
  batch->session = open();
  if (!batch->session) {
    back_off.fail(*attempt, now());
    return none;
  }
  // Each name once: pages of the same name share the value of the first one.
  std::unordered_map<std::string_view, std::size_t> place_of;
  std::vector<std::size_t> places;
  for (StagedPage* page : pages) {
    const auto [found, is_new] = place_of.try_emplace(page->name, batch->names.size());
    places.push_back(found->second);
    if (is_new) {
      batch->names.push_back(page->name);
      batch->values.push_back(page->value);
    } else {
      page->value = batch->values[found->second];
    }
  }
  batch->answers.assign(batch->names.size(), ValueAnswer::failed);
  if (!thread.run([batch, call] { call(*batch); }, config.timeout)) {
    ++slow;
    back_off.fail(*attempt, now());
    return none;
  }
  const auto unanswered = static_cast<std::size_t>(std::ranges::count(batch->answers, ValueAnswer::failed));
  if (unanswered == batch->answers.size()) {
    ++failed;
    back_off.fail(*attempt, now());
  } else {
    lost += unanswered;
    back_off.succeed(*attempt);
  }
  std::vector<ValueAnswer> answers;
  for (const std::size_t place : places) answers.push_back(batch->answers[place]);
  return answers;
}

// Returns pages of one verb, as many as may be in flight. Empty: no page to begin.
std::vector<StagedPage> StagedBackend::State::begin_pages(PageWork& work, std::size_t first_slot) const {
  std::vector<StagedPage> pages;
  PageTask task;
  while (pages.size() < slots && work.next(task)) {
    const std::size_t slot = first_slot + pages.size();
    pages.push_back({task, name_of(task), staging->bytes().subspan(slot * slot_bytes, value_bytes())});
  }
  return pages;
}

// Sets the cause of each page: `none` if present.
void StagedBackend::State::find(CallThread& thread, const StagedPageList& pages) {
  const std::vector<ValueAnswer> answers = run(thread, pages, call_find);
  for (std::size_t i = 0; i < pages.size(); ++i) pages[i]->cause = cause_of(answers[i]);
}

void StagedBackend::State::get(PageWork& work, const StagedPageList& pages) {
  const std::vector<ValueAnswer> answers = run(reads, pages, call_get);
  StagedPageList wrong;
  for (std::size_t i = 0; i < pages.size(); ++i) {
    StagedPage& page = *pages[i];
    page.cause = answers[i] == ValueAnswer::leased ? Cause::lease : cause_of(answers[i]);
    if (answers[i] == ValueAnswer::leased) ++leased;
    if (page.cause == Cause::none) {
      const std::span<const std::byte> value = page.value;
      page.cause = work.give(page.task, value.first<kPageHeaderBytes>(), value.subspan(kPageHeaderBytes));
    }
    if (page.cause == Cause::none) ++got;
    if (page.cause == Cause::corrupt) wrong.push_back(&page);
  }
  // Otherwise the page could never be stored again. If the writer has just stored a right page there, the next get is a
  // miss.
  corrupt += wrong.size();
  count_leased(run(reads, wrong, call_remove));
}

void StagedBackend::State::set(PageWork& work, const StagedPageList& pages) {
  find(writes, pages);
  StagedPageList fresh, wrong;
  for (StagedPage* page : pages) {
    if (page->cause == Cause::none) ++there;
    if (page->cause == Cause::missing || page->cause == Cause::corrupt) fresh.push_back(page);
    if (page->cause == Cause::corrupt) wrong.push_back(page);
  }
  corrupt += wrong.size();
  count_leased(run(writes, wrong, call_remove));  // else they would stay, as a get asks for what a look-up has found
  for (StagedPage* page : fresh) {
    PageHeader header;
    work.take(page->task, header, page->value.subspan(kPageHeaderBytes));
    std::ranges::copy(header, page->value.begin());
  }
  const std::vector<ValueAnswer> answers = run(writes, fresh, call_put);
  for (std::size_t i = 0; i < fresh.size(); ++i) {
    fresh[i]->cause = cause_of(answers[i]);
    if (answers[i] == ValueAnswer::done) ++stored;
    if (answers[i] == ValueAnswer::full) ++full;
  }
}

// A page that is not there is removed.
void StagedBackend::State::remove(const StagedPageList& pages) {
  const std::vector<ValueAnswer> answers = run(writes, pages, call_remove);
  count_leased(answers);
  for (std::size_t i = 0; i < pages.size(); ++i) {
    const Cause cause = answers[i] == ValueAnswer::leased ? Cause::io_error : cause_of(answers[i]);
    pages[i]->cause = cause == Cause::missing ? Cause::none : cause;
  }
}

StagedBackend::StagedBackend(StagedConfig config, const PageForm& form)
    : state_(std::make_unique<State>(std::move(config), form)) {}

StagedBackend::~StagedBackend() { state_->close(); }

std::string StagedBackend::check() {
  if (state_->open()) return "";
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

// Looks the first of the keys up, as many as one call may have. A value of another length is no page.
std::vector<StagedPage> StagedBackend::State::find_first(const PageKey& space, std::span<const PageKey> keys) {
  std::vector<StagedPage> pages;
  for (const PageKey& key : keys.first(std::min(keys.size(), config.keys_per_look_up))) {
    const PageTask task{StorageVerb::look_up, space, key};
    pages.push_back({task, name_of(task)});
  }
  find(look_ups, list_of(pages));
  for (StagedPage& page : pages) {
    if (page.cause == Cause::corrupt) page.cause = Cause::missing;
  }
  return pages;
}

LookedUp StagedBackend::look_up(const PageKey& space, std::span<const PageKey> keys) {
  return look_up_in_batches(keys, [&](std::span<const PageKey> rest) { return state_->find_first(space, rest); });
}

Cause StagedBackend::find(const PageKey& space, std::span<const PageKey> keys, std::vector<bool>& there) {
  return find_in_batches(keys, there, [&](std::span<const PageKey> rest) { return state_->find_first(space, rest); });
}

void StagedBackend::read(PageWork& work) {
  for (;;) {
    std::vector<StagedPage> pages = state_->begin_pages(work, 0);
    if (pages.empty()) return;
    state_->get(work, list_of(pages));
    for (const StagedPage& page : pages) work.end(page.task, page.cause);
  }
}

void StagedBackend::write(PageWork& work) {
  for (;;) {
    std::vector<StagedPage> pages = state_->begin_pages(work, state_->slots);
    if (pages.empty()) return;
    if (pages.front().task.verb == StorageVerb::set) {
      state_->set(work, list_of(pages));
    } else {
      state_->remove(list_of(pages));
    }
    for (const StagedPage& page : pages) work.end(page.task, page.cause);
  }
}

void StagedBackend::finish() { state_->close(); }

std::vector<std::pair<std::string, std::uint64_t>> StagedBackend::counters() const {
  const State& s = *state_;
  return {{"got_pages", s.got},
          {"set_pages", s.stored},
          {"set_pages_there_already", s.there},
          {"corrupt_pages", s.corrupt},
          {"full_pages", s.full},
          {"leased_pages", s.leased},
          {"lost_pages", s.lost},
          {"pages_not_asked_for_in_back_off", s.backed_off},
          {"unreachable_not_opened", s.not_opened},
          {"unreachable_slow", s.slow},
          {"unreachable_failed", s.failed}};
}

const PageSeal* StagedBackend::seal() const { return state_->config.seal; }

}  // namespace kvtwin
