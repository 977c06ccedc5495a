// The messages between the engines of a real run, and who receives what. Threads take the place of processes, and
// engines that answer at once take the place of engines.
#include "lab/run/real_engines.hpp"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "impl/runtime/process_watch.hpp"
#include "lab/error.hpp"
#include "lab/run/engine_messages.hpp"
#include "policy/seam/live_source.hpp"
#include "tests/listed_inputs.hpp"
#include "tests/thread_mail.hpp"

namespace kvtwin::test {
namespace {

Input arrival(TimeNs time, RequestId request, std::uint64_t session = 0) {
  Arrival made;
  made.request = request;
  made.prompt_tokens = 10 + request;
  made.output_tokens = 1;
  made.session = session;
  return {time, made};
}

struct Seen {
  std::vector<Input> inputs;  // the keys are not kept
};

// Runs all processes. Each engine ends a request as soon as it arrives.
class Stage {
 public:
  Stage(std::size_t engines, std::size_t ranks, const std::string& route) : mail_(engines * ranks) {
    setup_.engine.ranks = static_cast<std::uint32_t>(ranks);
    setup_.world.engines = static_cast<std::uint32_t>(engines);
    setup_.route = route;
    setup_.router.engines = engines;
    seen.resize(engines * ranks);
  }

  void play(InputSource& source, Observer* observer) {
    std::vector<std::thread> threads;
    for (std::size_t process = 0; process < seen.size(); ++process) {
      threads.emplace_back([&, process] {
        RunClock clock;  // outlives the run, like a world
        RealEngines engines(mail_.of(process), setup_, process);
        engines.run({&source, observer, {}, {}}, [&](InputSource& inbox) {
          serve(dynamic_cast<Inbox&>(inbox), clock, engines.reporter(), seen[process]);
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<Seen> seen;  // by process

 private:
  static void serve(Inbox& inbox, RunClock& clock, Observer* reporter, Seen& seen) {
    clock.start();
    inbox.begin(clock, [] {});
    while (inbox.open()) {
      Input input;
      if (!inbox.next(input)) {
        std::this_thread::yield();
        continue;
      }
      seen.inputs.push_back(input);
      const auto* arrived = std::get_if<Arrival>(&input.what);
      if (arrived == nullptr || reporter == nullptr) continue;
      RequestRecord record;
      record.request = arrived->request;
      record.prompt_tokens = arrived->prompt_tokens;
      Event event;
      event.record = &record;
      for (const EventKind kind : {EventKind::arrived, EventKind::admitted, EventKind::finished}) {
        event.kind = kind;
        event.time = clock.now();
        reporter->on_event(event);
      }
    }
  }

  Setup setup_;
  ThreadMail mail_;
};

class Ends final : public Observer {
 public:
  void on_event(const Event& event) override {
    if (event.kind == EventKind::finished) engine_of[event.record->request] = event.engine;
  }
  std::map<RequestId, std::size_t> engine_of;
};

TEST(RealEngines, SendEachRequestToAllRanksOfOneEngine) {
  constexpr std::size_t kEngines = 3, kRanks = 2, kRequests = 300;
  std::vector<Input> inputs;
  for (RequestId request = 0; request < kRequests; ++request) inputs.push_back(arrival(0, request));
  inputs.push_back({0, Hint{HintKind::session_end, 7, 0}});
  ListedInputs source(std::move(inputs));
  Ends ends;
  Stage stage(kEngines, kRanks, "round_robin");
  stage.play(source, &ends);
  EXPECT_EQ(ends.engine_of.size(), kRequests);
  for (const auto& [request, engine] : ends.engine_of) EXPECT_EQ(engine, request % kEngines);
  for (std::size_t process = 0; process < kEngines * kRanks; ++process) {
    const std::vector<Input>& got = stage.seen[process].inputs;
    ASSERT_EQ(got.size(), kRequests / kEngines + 1) << "and the hint, which every engine gets";
    for (std::size_t i = 0; i + 1 < got.size(); ++i) {
      const auto& arrived = std::get<Arrival>(got[i].what);
      EXPECT_EQ(arrived.request, i * kEngines + process / kRanks);
      EXPECT_EQ(arrived.prompt_tokens, 10 + arrived.request);
    }
    EXPECT_EQ(std::get<Hint>(got.back().what).subject, 7U);
  }
}

// The next request follows the answer to the last one.
class OneByOne final : public LiveSource, public Observer {
 public:
  explicit OneByOne(std::size_t requests) : left_(requests) {}
  bool next(Input& input) override {
    if (waits_ || left_ == 0) return false;
    input = arrival(0, --left_);
    waits_ = true;
    return true;
  }
  bool overtake(Input& held, bool has) override { return !has && next(held); }
  void on_event(const Event& event) override {
    if (event.kind != EventKind::finished) return;
    waits_ = false;
    ++answered;
  }
  std::size_t answered = 0;

 private:
  std::size_t left_;
  bool waits_ = false;
};

TEST(RealEngines, ServeASourceThatWaitsForAnswers) {
  OneByOne source(100);
  Stage stage(2, 1, "least_loaded");
  stage.play(source, &source);
  EXPECT_EQ(source.answered, 100U);
  EXPECT_EQ(stage.seen[0].inputs.size() + stage.seen[1].inputs.size(), 100U);
}

TEST(RealEngines, ServeAnEmptyStream) {
  ListedInputs source({});
  Stage stage(2, 2, "score");
  stage.play(source, nullptr);
  for (const Seen& seen : stage.seen) EXPECT_TRUE(seen.inputs.empty());
}

kvtwin::Setup setup_of_roles(std::uint32_t prefill, std::uint32_t decode, std::uint32_t ranks) {
  kvtwin::Setup setup;
  setup.engine.ranks = ranks;
  setup.world.engines = prefill + decode;
  setup.route = "round_robin";
  setup.router.engines = prefill;
  setup.roles.prefill = prefill;
  setup.roles.decode.engines = decode;
  setup.decode = std::make_unique<kvtwin::Setup>();
  return setup;
}

// A prefill and a decode engine with several ranks. All ranks of the decode engine give room at once. All ranks of the
// prefill engine write the pages when they learn of that; the first write fails on rank 1.
class RoleStage {
 public:
  static constexpr std::size_t kRanks = 3;
  RoleStage() : mail_(2 * kRanks), setup_(setup_of_roles(1, 1, kRanks)), seen(2 * kRanks) {}

  void play(InputSource& source) {
    std::vector<std::thread> threads;
    for (std::size_t process = 0; process < seen.size(); ++process) {
      threads.emplace_back([&, process] {
        RunClock clock;
        RealEngines engines(mail_.of(process), setup_, process);
        engines.run({&source, nullptr, {}, {}},
                    [&](InputSource& inbox) { serve(dynamic_cast<Inbox&>(inbox), clock, engines, process); });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  ThreadMail mail_;
  kvtwin::Setup setup_;

  void serve(Inbox& inbox, RunClock& clock, RealEngines& engines, std::size_t process) {
    const bool prefills = process < kRanks;
    std::size_t leases = 0;
    const auto report = [&](RequestId request, EventKind kind) {
      if (engines.reporter() == nullptr) return;
      RequestRecord record;
      record.request = request;
      record.part = prefills ? RequestPart::prefill : RequestPart::decode;
      Event event;
      event.kind = kind;
      event.time = clock.now();
      event.record = &record;
      engines.reporter()->on_event(event);
    };
    clock.start();
    inbox.begin(clock, [] {});
    while (inbox.open() || leases > 0) {
      Input input;
      if (!inbox.next(input)) {
        std::this_thread::yield();
        continue;
      }
      seen[process].inputs.push_back(input);
      if (const auto* arrived = std::get_if<Arrival>(&input.what)) {
        report(arrived->request, EventKind::arrived);
        if (prefills) continue;
        ++leases;
        Notice room;
        room.request = arrived->request;
        engines.notify(arrived->peer, room);
        continue;
      }
      const auto& notice = std::get<Notice>(input.what);
      if (prefills) {
        if (process != 1) engines.landed(notice.peer, {notice.request, 0, 2 * notice.request + 1});
        engines.landed(notice.peer, {notice.request, 0, 2 * notice.request + 2});
        report(notice.request, EventKind::prefilled);
        report(notice.request, EventKind::handed_over);
      } else {
        --leases;
        report(notice.request, EventKind::first_token);
        report(notice.request, EventKind::finished);
      }
    }
  }

 public:
  std::vector<Seen> seen;  // by process
};

TEST(RealEngines, AllRanksGetTheSameNoticesInTheSameOrder) {
  constexpr std::size_t kRequests = 200;
  std::vector<Input> inputs;
  for (RequestId request = 0; request < kRequests; ++request) inputs.push_back(arrival(0, request));
  ListedInputs source(std::move(inputs));
  RoleStage stage;
  stage.play(source);
  std::vector<std::vector<RequestId>> notices(stage.seen.size());
  for (std::size_t process = 0; process < stage.seen.size(); ++process) {
    const bool prefills = process < RoleStage::kRanks;
    std::vector<bool> arrived(kRequests);
    for (const Input& input : stage.seen[process].inputs) {
      if (const auto* part = std::get_if<Arrival>(&input.what)) {
        EXPECT_EQ(part->part, prefills ? RequestPart::prefill : RequestPart::decode);
        arrived[part->request] = true;
        continue;
      }
      const auto& notice = std::get<Notice>(input.what);
      EXPECT_EQ(notice.kind, prefills ? NoticeKind::room : NoticeKind::handed);
      EXPECT_EQ(notice.peer, prefills ? 1U : 0U);
      EXPECT_TRUE(arrived[notice.request]) << "a notice comes after its request";
      notices[process].push_back(notice.request);
    }
    EXPECT_EQ(notices[process].size(), kRequests) << "each once";
    EXPECT_EQ(notices[process], notices[process - process % RoleStage::kRanks]) << "process " << process;
  }
}

// Returns what rank 1 of a prefill engine gets if process 0, which is also the first rank of this engine, sends it the
// messages. The test plays the other processes. Engine 1 decodes; those after it do too, and have died.
std::vector<Input> inputs_of_rank_1(std::uint32_t dead, const std::vector<std::string>& messages) {
  const kvtwin::Setup setup = setup_of_roles(1, 1 + dead, 2);
  const std::size_t processes = 2 * setup.world.engines;
  ThreadMail mail(processes);
  Seen seen;
  std::thread rank([&] {
    RunClock clock;
    RealEngines engines(mail.of(1), setup, 1);
    engines.run({}, [&](InputSource& source) {
      auto& inbox = dynamic_cast<Inbox&>(source);
      clock.start();
      inbox.begin(clock, [] {});
      while (inbox.open()) {
        Input input;
        if (inbox.next(input)) {
          seen.inputs.push_back(input);
        } else {
          std::this_thread::yield();
        }
      }
    });
  });
  for (const std::string& message : messages) mail.of(0).send(1, message);
  for (const std::size_t process : {0U, 2U, 3U}) mail.of(process).send(1, message_of(EngineMessage::last));
  rank.join();
  for (std::size_t process = 0; process < processes; ++process) {
    if (process != 1) mail.of(process).stop();
  }
  return seen.inputs;
}

std::string passed_loss(std::uint32_t engine) {
  Notice lost;
  lost.kind = NoticeKind::peer_lost;
  lost.peer = engine;
  return message_of(lost, EngineMessage::passed);
}

std::string sent_again(RequestId request, std::uint32_t attempt) {
  Input again = arrival(0, request);
  std::get<Arrival>(again.what).attempt = attempt;
  return message_of(again);
}

std::string text_of(const Input& input) {
  if (const auto* notice = std::get_if<Notice>(&input.what)) {
    return notice->kind == NoticeKind::peer_lost ? "lost " + std::to_string(notice->peer)
                                                 : "room " + std::to_string(notice->request);
  }
  const auto& arrived = std::get<Arrival>(input.what);
  return "request " + std::to_string(arrived.request) + "." + std::to_string(arrived.attempt);
}

std::vector<std::string> texts_of(const std::vector<Input>& inputs) {
  std::vector<std::string> texts;
  for (const Input& input : inputs) texts.push_back(text_of(input));
  return texts;
}

TEST(RealEngines, RequestsSentAgainComeAfterTheLossOfTheirEngine) {
  const std::string closed = message_of(EngineMessage::closed), sealed = message_of(EngineMessage::sealed);
  const std::vector<std::string> in_order{"request 0.0", "lost 2", "request 0.1", "request 1.0"};
  EXPECT_EQ(texts_of(inputs_of_rank_1(1, {message_of(arrival(0, 0)), message_of_loss(2), sent_again(0, 1),
                                          message_of(arrival(0, 1)), passed_loss(2), closed, sealed})),
            in_order);
  EXPECT_EQ(texts_of(inputs_of_rank_1(1, {message_of(arrival(0, 0)), passed_loss(2), message_of_loss(2),
                                          sent_again(0, 1), message_of(arrival(0, 1)), closed, sealed})),
            in_order);
}

// The first rank has taken the notice about the request before the second loss.
TEST(RealEngines, ARequestBetweenTwoLossesWaitsForTheFirstOnly) {
  Notice room;
  room.request = 0;
  room.attempt = 1;
  room.peer = 1;
  EXPECT_EQ(texts_of(inputs_of_rank_1(
                2, {message_of(arrival(0, 0)), message_of_loss(2), sent_again(0, 1), message_of_loss(3),
                    sent_again(0, 2), passed_loss(2), message_of(room, EngineMessage::passed), passed_loss(3),
                    message_of(EngineMessage::closed), message_of(EngineMessage::sealed)})),
            (std::vector<std::string>{"request 0.0", "lost 2", "request 0.1", "room 0", "lost 3", "request 0.2"}));
}

// The first rank of the decode engine 2 has given the prefill engine 1 room, or not, when process 0 says that no
// request follows. After that, engine 1 dies. Returns what this rank and, by its word, the other rank get.
std::vector<std::string> inputs_after_the_end(bool gives_room) {
  constexpr std::size_t kFirst = 4;
  const kvtwin::Setup setup = setup_of_roles(2, 1, 2);
  ThreadMail mail(6);
  std::vector<std::string> got;
  std::atomic<bool> ready = false, lost = false;
  std::thread rank([&] {
    RunClock clock;
    RealEngines engines(mail.of(kFirst), setup, kFirst);
    engines.run({}, [&](InputSource& source) {
      auto& inbox = dynamic_cast<Inbox&>(source);
      clock.start();
      inbox.begin(clock, [] {});
      bool leases = false;
      while (inbox.open() || leases || !lost) {
        Input input;
        if (!inbox.next(input)) {
          std::this_thread::yield();
          continue;
        }
        got.push_back(text_of(input));
        if (std::holds_alternative<Arrival>(input.what)) {
          leases = gives_room;
          Notice room;
          room.request = 0;
          if (gives_room) engines.notify(1, room);
          ready = true;
        } else {
          leases = false;
        }
      }
    });
  });
  std::vector<std::string> passed;
  mail.of(5).start([&](std::size_t, std::string_view message) {
    if (kind_of(message) == EngineMessage::passed) passed.push_back(text_of({0, ReceivedNotice(message).notice}));
  });
  mail.of(0).send(kFirst, message_of(arrival(0, 0)));
  while (!ready) std::this_thread::yield();
  mail.of(0).send(kFirst, message_of(EngineMessage::closed));
  mail.of(0).send(kFirst, message_of_loss(1));
  for (const std::size_t process : {0U, 1U, 5U}) mail.of(process).send(kFirst, message_of(EngineMessage::last));
  lost = true;
  rank.join();
  for (const std::size_t process : {0U, 1U, 2U, 3U, 5U}) mail.of(process).stop();
  std::ranges::move(passed, std::back_inserter(got));
  return got;
}

TEST(RealEngines, ALossAfterTheEndMattersToALeaseOnly) {
  EXPECT_EQ(inputs_after_the_end(true), (std::vector<std::string>{"request 0.0", "lost 1", "lost 1"}));
  EXPECT_EQ(inputs_after_the_end(false), (std::vector<std::string>{"request 0.0"}));
}

// A process that does nothing.
class Child {
 public:
  Child() : id_(::fork()) {
    if (id_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { kill(); }
  pid_t id() const { return id_; }
  void kill() {
    if (id_ <= 0) return;
    ::kill(id_, SIGKILL);
    ::waitpid(std::exchange(id_, 0), nullptr, 0);
  }

 private:
  pid_t id_;
};

// Engine 1 has answered everything. It dies when process 0 waits for its last message.
TEST(RealEngines, ADeathAfterTheLastAnswerFailsTheRun) {
  Child engine_1;
  kvtwin::Setup setup;
  setup.engine.ranks = 1;
  setup.world.engines = 2;
  setup.route = "round_robin";
  setup.router.engines = 2;
  ThreadMail mail(2);
  mail.of(1).start([&](std::size_t, std::string_view message) {
    if (kind_of(message) == EngineMessage::last) engine_1.kill();
  });
  mail.of(1).send(0, message_of(EngineMessage::over));
  ListedInputs source({});
  RealEngines engines(mail.of(0), setup, 0);
  std::optional<ProcessWatch> watch;
  RunClock clock;
  clock.start();
  std::string failure;
  try {
    engines.run({&source, nullptr, {}, {}}, [&](InputSource& inbox) {
      dynamic_cast<Inbox&>(inbox).begin(clock, [] {});
      watch.emplace(std::vector<pid_t>{engine_1.id()}, [&](std::size_t) { engines.lose(1); });
      while (dynamic_cast<Inbox&>(inbox).open()) std::this_thread::yield();
    });
  } catch (const WorkError& error) {
    failure = error.what();
  }
  EXPECT_EQ(failure, "engine 1 has died after its last request, before its part of the report");
  for (const std::size_t process : {0U, 1U}) mail.of(process).stop();
}

TEST(RealEngines, AnEngineThatStaysSilentFailsTheRun) {
  kvtwin::Setup setup;
  setup.engine.ranks = 1;
  setup.world.engines = 1;
  ThreadMail mail(1);
  ListedInputs source({arrival(0, 0)});
  RealEngines engines(mail.of(0), setup, 0);
  EngineStream stream{&source, nullptr, {}, {}};
  stream.most_silence = 1'000'000;
  RunClock clock;
  clock.start();
  const auto never_answer = [&](InputSource& source_of_engine) {
    dynamic_cast<Inbox&>(source_of_engine).begin(clock, [] {});
    for (Input input;;) {
      if (!source_of_engine.next(input)) std::this_thread::yield();
    }
  };
  try {
    engines.run(stream, never_answer);
    FAIL() << "the run goes on";
  } catch (const WorkError& error) {
    EXPECT_NE(std::string(error.what()).find("engine 0 has work"), std::string::npos) << error.what();
  }
  mail.of(0).stop();
}

TEST(EngineMessages, KeepWhatTheyCarry) {
  const std::vector<PageKey> keys{{{1, 2, 3, 4}}, {{5, 6, 7, 8}}};
  Input input = arrival(123, 45, 6);
  auto& arrived = std::get<Arrival>(input.what);
  arrived.priority = -3;
  arrived.output_tokens = 99;
  arrived.keys = keys;
  const ReceivedInput got(message_of(input));
  EXPECT_EQ(got.input.now, 123);
  const auto& same = std::get<Arrival>(got.input.what);
  EXPECT_EQ(same.request, 45U);
  EXPECT_EQ(same.prompt_tokens, arrived.prompt_tokens);
  EXPECT_EQ(same.output_tokens, 99U);
  EXPECT_EQ(same.priority, -3);
  EXPECT_EQ(same.session, 6U);
  EXPECT_EQ(std::vector(same.keys.begin(), same.keys.end()), keys);

  const ReceivedInput hint(message_of(Input{9, Hint{HintKind::pin, 4, -5}}));
  EXPECT_EQ(std::get<Hint>(hint.input.what).kind, HintKind::pin);
  EXPECT_EQ(std::get<Hint>(hint.input.what).value, -5);

  RequestRecord record;
  record.request = 7;
  record.hit[Tier::host] = 64;
  Event event;
  event.kind = EventKind::pages_stored;
  event.time = 55;
  event.tier = Tier::host;
  event.reason = Reason::capacity;
  event.pages = 2;
  event.tokens = 3;
  event.duration_ns = 4;
  event.cause = Cause::full;
  event.request = 8;
  event.record = &record;
  event.keys = keys;
  const ReceivedEvent back(message_of(event));
  EXPECT_EQ(back.event.kind, EventKind::pages_stored);
  EXPECT_EQ(back.event.time, 55);
  EXPECT_EQ(back.event.tier, Tier::host);
  EXPECT_EQ(back.event.reason, Reason::capacity);
  EXPECT_EQ(back.event.pages, 2U);
  EXPECT_EQ(back.event.tokens, 3U);
  EXPECT_EQ(back.event.duration_ns, 4);
  EXPECT_EQ(back.event.cause, Cause::full);
  EXPECT_EQ(back.event.request, 8U);
  ASSERT_EQ(back.event.record, &back.record);
  EXPECT_EQ(back.record.request, 7U);
  EXPECT_EQ(back.record.hit[Tier::host], 64U);
  EXPECT_EQ(std::vector(back.event.keys.begin(), back.event.keys.end()), keys);
  event.record = nullptr;
  EXPECT_EQ(ReceivedEvent(message_of(event)).event.record, nullptr);

  const std::vector<SlotId> slots{4, 9, 2};
  Notice notice;
  notice.kind = NoticeKind::room;
  notice.request = 31;
  notice.attempt = 2;
  notice.peer = 3;
  notice.first = 17;
  notice.slots = slots;
  const ReceivedNotice told(message_of(notice));
  EXPECT_EQ(told.notice.kind, NoticeKind::room);
  EXPECT_EQ(told.notice.request, 31U);
  EXPECT_EQ(told.notice.attempt, 2U);
  EXPECT_EQ(told.notice.peer, 3U);
  EXPECT_EQ(told.notice.first, 17U);
  EXPECT_EQ(std::vector(told.notice.slots.begin(), told.notice.slots.end()), slots);
  EXPECT_EQ(kind_of(message_of(notice, EngineMessage::passed)), EngineMessage::passed);
  EXPECT_EQ(ReceivedNotice(message_of(notice, EngineMessage::passed)).slots, slots);
  const LandedPages landed = landed_pages(message_of(LandedPages{6, 1, 99}));
  EXPECT_EQ(landed.request, 6U);
  EXPECT_EQ(landed.attempt, 1U);
  EXPECT_EQ(landed.write, 99U);
  EXPECT_EQ(lost_engine(message_of_loss(5)), 5U);
}

}  // namespace
}  // namespace kvtwin::test
