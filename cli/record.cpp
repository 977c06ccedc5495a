// kvtwin record: the KV events of a running engine, to a file.
#include "lab/capture/record.hpp"

#include <atomic>
#include <csignal>
#include <string>

#include "cli/commands.hpp"
#include "cli/say.hpp"
#include "cli/terminal.hpp"

namespace kvtwin {
namespace {

std::atomic<bool> stop_recording = false;
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler sets it

void request_stop(int /*signal*/) { stop_recording = true; }

// No SA_RESTART: a wait for a message ends at once.
void stop_at_signals() {
  struct sigaction action = {};
  action.sa_handler = request_stop;
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

void record(const RecordArguments& arguments) {
  stop_at_signals();
  Terminal terminal;
  const RecordedEvents recording = record_kv_events(arguments, stop_recording, terminal.listener());
  terminal.erase();
  print(recording.text);
  if (!recording.faults.empty()) say(recording.faults);
}

}  // namespace

void add_record(CLI::App& program) {
  static RecordArguments arguments;
  CLI::App* command = program.add_subcommand("record", "Record the KV events of a running SGLang or vLLM server");
  command->footer(
      "Example: kvtwin record --kv-events tcp://127.0.0.1:5557 --replay tcp://127.0.0.1:5558 --out out/events\n"
      "Writes:  OUT/kv_events.jsonl, one event a line, with the token ids of the prompts: keep it as you keep "
      "prompts.\n"
      "         It is a trace too: kvtwin trace info OUT/kv_events.jsonl\n"
      "Exit:    0 done, also after Ctrl-C; 1 the file can't be written; 2 bad input");
  command->add_option("--kv-events", arguments.kv_events, "Endpoint of the server's publisher, tcp://HOST:PORT")
      ->required();
  command->add_option("--replay", arguments.replay,
                      "Endpoint of the server's replay socket. kvtwin requests lost messages, and messages before the "
                      "first one, there");
  command->add_option("--topic", arguments.topic, "Only messages whose topic begins with this");
  command->add_option("--seconds", arguments.seconds, "Time to record; 0 = until Ctrl-C")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  command
      ->add_option("--max-message-mib", arguments.max_message_mib,
                   "Largest message to read, MiB; larger ones are counted and named")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command->add_option("--out", arguments.out, "Folder to write")->required();
  command->add_flag("--without-token-ids", arguments.without_token_ids,
                    "Leave out the token ids and extra keys of blocks, which tell what the prompts are. The recording "
                    "is a workload then, and validate --events refuses it");
  command->add_flag("--force", arguments.force, "Replace the folder's recording");
  command->callback([] { record(arguments); });
}

}  // namespace kvtwin
