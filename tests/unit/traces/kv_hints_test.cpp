// kv_hints of a request, as JSON and as SGLang's request log has them.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "traces/trace.hpp"

namespace kvtwin {
namespace {

struct Read {
  std::vector<Hint> hints;
  std::string notes, error;
};

// Reads a line with this value of kv_hints. `more`: further keys.
Read read(const std::string& value, const std::string& more = R"("session": 7, )") {
  Read result;
  const std::string text = R"({"timestamp": 1, "input_length": 6, "output_length": 5, "hash_ids": [0], )" + more +
                           R"("kv_hints": )" + value + "}\n";
  try {
    TraceReader reader("t.jsonl", text, {});
    for (TraceRequest request; reader.next(request);) {
      EXPECT_EQ(request.arrival, 0);
      if (request.is_hint) result.hints.push_back(request.hint);
    }
    for (const std::string& note : reader.notes()) result.notes += note + "\n";
  } catch (const TraceError& error) {
    result.error = error.what();
  }
  return result;
}

std::string action(const std::string& type, const std::string& payload) {
  return R"({"action_id":"a","action_type":")" + type + R"(","action_version":"1.0","payload":)" + payload + "}";
}

std::string envelope(const std::string& actions) {
  return R"({"protocol_version":"0.1","message_id":"m","actions":[)" + actions + "]}";
}

TEST(KvHints, OfAnEnvelopeAreAboutTheSessionOfTheRequest) {
  const Read of = read(envelope(action("pin", R"({"value":500})") + "," + action("kv.retain", R"({"ttl_s":2.5})") +
                                "," + action("kv.demote", "{}") + "," + action("session_end", "{}")));
  ASSERT_EQ(of.hints.size(), 4U) << of.error;
  EXPECT_EQ(of.hints[0].kind, HintKind::pin);
  EXPECT_EQ(of.hints[0].value, 500);
  EXPECT_EQ(of.hints[1].kind, HintKind::pin);
  EXPECT_EQ(of.hints[1].value, 2500);
  EXPECT_EQ(of.hints[2].kind, HintKind::demote);
  EXPECT_EQ(of.hints[3].kind, HintKind::session_end);
  for (const Hint& hint : of.hints) EXPECT_EQ(hint.subject, 7U);
}

TEST(KvHints, OfALogAreTheTextOfAPythonObject) {
  const Read of = read(
      "\"KvHintsEnvelope(protocol_version='0.1', message_id='m', actions=[KvHintAction(action_id='a', "
      "action_type='prefetch', action_version='1', payload={}), KvHintAction(action_id='b', action_type='pin', "
      "action_version='1', payload={'scope': 'x', 'ttl_ms': 90})])\"");
  ASSERT_EQ(of.hints.size(), 2U) << of.error;
  EXPECT_EQ(of.hints[0].kind, HintKind::prefetch);
  EXPECT_EQ(of.hints[0].value, 0);
  EXPECT_EQ(of.hints[1].kind, HintKind::pin);
  EXPECT_EQ(of.hints[1].value, 90);
}

TEST(KvHints, OfUnknownTypesAndWithoutASessionAreCounted) {
  const std::string fetch = action("kv.fetch", "{}");
  const Read unknown = read(envelope(fetch + "," + fetch + "," + action("abort", "{}")));
  EXPECT_TRUE(unknown.hints.empty());
  EXPECT_NE(unknown.notes.find("abort (1), kv.fetch (2)"), std::string::npos) << unknown.notes;
  const Read lost = read(envelope(action("pin", "{}")), "");
  EXPECT_TRUE(lost.hints.empty());
  EXPECT_NE(lost.notes.find("no session"), std::string::npos) << lost.notes << lost.error;
}

TEST(KvHints, ATimeIsRoundedUpAndNotBelowZero) {
  const Read of = read(envelope(action("pin", R"({"ttl_ms":0.2})") + "," + action("pin", R"({"ttl_s":-3})")));
  ASSERT_EQ(of.hints.size(), 1U) << of.error;
  EXPECT_EQ(of.hints[0].value, 1) << "0 says: until unpin";
  EXPECT_NE(of.notes.find("pin of a time that is no number from 0 on (1)"), std::string::npos) << of.notes;
  EXPECT_TRUE(read(envelope(action("pin", "{}") + ",{}")).hints.empty()) << "nothing of a broken envelope";
}

TEST(KvHints, ATimeThatIsTextOrABooleanIsNotATimeWithoutALimit) {
  for (const char* payload : {R"({"ttl_ms":"5s"})", R"({"value":true})", R"({"ttl_s":"3"})", R"({"ttl_ms":[1]})"}) {
    const Read of = read(envelope(action("pin", payload)));
    EXPECT_TRUE(of.hints.empty()) << payload;
    EXPECT_NE(of.notes.find("pin of a time that is no number from 0 on (1)"), std::string::npos) << of.notes;
  }
  for (const char* payload : {"{'ttl_ms': '5s'}", "{'value': True}", "{'ttl_s': -3}"}) {
    const Read of = read("\"KvHints(actions=[KvAction(action_type='pin', payload=" + std::string(payload) + ")])\"");
    EXPECT_TRUE(of.hints.empty()) << payload;
    EXPECT_NE(of.notes.find("no number from 0 on (1)"), std::string::npos) << of.notes;
  }
  EXPECT_EQ(read(envelope(action("pin", R"({"ttl_ms":null})"))).hints.size(), 1U) << "no time is given";
}

TEST(KvHints, WithoutTheFormOfAnEnvelopeAreRefused) {
  for (const char* text : {"5", "\"pin\"", "{}", R"({"actions":5})", R"({"actions":[{}]})", "[]"}) {
    EXPECT_NE(read(text).error.find("\"kv_hints\""), std::string::npos) << text;
  }
  EXPECT_EQ(read("null").error, "");
}

}  // namespace
}  // namespace kvtwin
