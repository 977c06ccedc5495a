#include "lab/run/front_end.hpp"

namespace kvtwin {

RequestRecord with_front_end(const ServingTimes& times, RequestRecord record) {
  const TimeNs before = front_end_ns(times, record.prompt_tokens);
  record.arrival -= before;
  if (record.first_token >= 0) record.queue_ns += before;
  return record;
}

void FrontEnd::on_event(const Event& event) {
  if (event.record == nullptr || times_ == ServingTimes{}) return next_.on_event(event);
  const RequestRecord record = with_front_end(times_, *event.record);
  Event with = event;
  with.record = &record;
  next_.on_event(with);
}

}  // namespace kvtwin
