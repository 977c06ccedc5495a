#include "lab/capture/record.hpp"

#include "lab/error.hpp"

#if KVTWIN_HAVE_ZMQ
#include <chrono>
#include <cstdint>
#include <span>

#include "lab/capture/kv_events.hpp"
#include "lab/capture/kv_subscription.hpp"
#include "lab/decision_text.hpp"
#endif

namespace kvtwin {

#if !KVTWIN_HAVE_ZMQ

RecordedEvents record_kv_events(const RecordArguments& /*arguments*/, const std::atomic<bool>& /*stop*/,
                                const Listener& /*listener*/) {
  throw InputError(
      "record: this program has no libzmq, as that of the wheel; take the Debian package, or install libzmq3-dev and "
      "build from source");
}

#else

namespace {

constexpr std::chrono::milliseconds kPoll{100};
constexpr std::chrono::seconds kLongestEnd{1};

class Recorder final : public KvMessageSink {
 public:
  Recorder(const RecordArguments& arguments, const std::atomic<bool>& stop)
      : arguments_(arguments),
        stop_(stop),
        subscription_(settings_of(arguments), connections_, *this, [this] { return is_over(); }),
        writer_(arguments.out, arguments.kv_events, arguments.topic, arguments.force, !arguments.without_token_ids) {
    if (!arguments.replay.empty()) writer_.expect_from_zero();
  }

  void run() {
    while (!is_over()) subscription_.receive(kPoll);
    // Messages that were sent before the end may still be on their way.
    const auto last = std::chrono::steady_clock::now() + kLongestEnd;
    while (std::chrono::steady_clock::now() < last && subscription_.receive(kPoll)) continue;
    writer_.finish();
  }

  std::optional<std::array<std::uint64_t, 2> > missing_before(std::uint64_t seq) const override {
    return writer_.missing_before(seq);
  }
  void write(std::uint64_t seq, std::span<const std::uint8_t> payload) override { writer_.write(seq, payload); }
  void write_unread(std::uint64_t seq, const std::string& why) override { writer_.write_unread(seq, why); }

  const KvEventWriter& writer() const { return writer_; }
  const KvSubscription& subscription() const { return subscription_; }

 private:
  static KvSubscriptionSettings settings_of(const RecordArguments& arguments) {
    KvSubscriptionSettings settings;
    settings.endpoint = arguments.kv_events;
    settings.replay = arguments.replay;
    settings.topic = arguments.topic;
    settings.max_message_mib = arguments.max_message_mib;
    settings.max_queue_mib = arguments.max_queue_mib;
    settings.replay_after_end = arguments.replay_after_end;
    settings.longest_replay = arguments.longest_replay;
    return settings;
  }
  bool is_over() const {
    const std::chrono::duration<double> limit(arguments_.seconds);
    return stop_ || (arguments_.seconds != 0 && std::chrono::steady_clock::now() - begin_ >= limit);
  }

  const RecordArguments& arguments_;
  const std::atomic<bool>& stop_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  KvConnections connections_;
  KvSubscription subscription_;
  KvEventWriter writer_;
};

std::string text_of(const Recorder& recorder) {
  const KvEventCounts& counts = recorder.writer().counts();
  return "messages     " + grouped(counts.messages) + ", " + grouped(recorder.subscription().replayed()) +
         " of them replayed\n" + "stored       " + grouped(counts.stored_blocks) + " blocks in " +
         grouped(counts.stored_events) + " events\n" + "removed      " + grouped(counts.removed_blocks) +
         " blocks in " + grouped(counts.removed_events) + " events\n" + "cleared      " + grouped(counts.cleared) +
         " times\n" + "missing      " + grouped(counts.missing) + " messages\n" + "written to   " +
         recorder.writer().path().string() + "\n";
}

std::string faults_of(const Recorder& recorder) {
  const KvEventCounts& counts = recorder.writer().counts();
  std::string sentence;
  const auto add = [&sentence](const std::string& words) { sentence += (sentence.empty() ? "" : "; ") + words; };
  if (counts.missing > 0) add(grouped(counts.missing) + " messages were lost");
  if (counts.restarts > 0) add("the sequence numbers began again " + grouped(counts.restarts) + " times");
  if (counts.bad > 0) add(grouped(counts.bad) + " messages could not be read, the first: " + counts.first_problem);
  for (const std::string& part : recorder.subscription().faults()) add(part);
  if (!counts.passed_over.empty()) add("keys that are not recorded were passed over: " + counts.passed_over.text());
  return sentence.empty() ? "" : "record: " + sentence;
}

}  // namespace

RecordedEvents record_kv_events(const RecordArguments& arguments, const std::atomic<bool>& stop,
                                const Listener& listener) {
  Recorder recorder(arguments, stop);
  listener.begin("recording " + arguments.kv_events + (arguments.seconds == 0 ? "; stop with Ctrl-C" : ""));
  recorder.run();
  return {text_of(recorder), faults_of(recorder)};
}

#endif

}  // namespace kvtwin
