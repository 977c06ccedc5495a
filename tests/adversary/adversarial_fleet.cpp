#include "tests/adversary/adversarial_fleet.hpp"

#include <algorithm>

#include "policy/base/check.hpp"

namespace kvtwin {

AdversarialFleet::AdversarialFleet(const FleetConfig& config)
    : config_(config), chance_(Chance::mix(config.seed + 3)), dead_(config.engines.size()) {
  for (const AdversarialConfig& engine : config.engines) worlds_.push_back(make_adversarial_world(engine));
  for (const WorldConfig::Death& death : config.deaths) {
    posts_[{death.at, ++last_post_}] = {Post::Kind::death, death.engine, {}, {}};
  }
}

void AdversarialFleet::post(std::uint32_t from, std::uint32_t to, const Notice& notice) {
  KV_CHECK(to < worlds_.size() && to != from, "a notice goes to another engine");
  TimeNs& last = last_notice_[{from, to}];
  last = std::max(last, now_ + static_cast<TimeNs>(chance_.below(config_.max_notice_ns + 1)));
  Post& added = posts_[{last, ++last_post_}];
  added.to = to;
  added.notice = notice;
  added.notice.peer = from;
  added.slots.assign(notice.slots.begin(), notice.slots.end());
}

void AdversarialFleet::give(std::size_t seat, const Input& input) {
  if (!dead_[seat]) worlds_[seat]->give(input, now_);
}

void AdversarialFleet::deliver(Input& input, InputRoute& route) {
  deliver_by(route.way_of(input), worlds_.size(), 1, input,
             [this](std::size_t seat, const Input& part) { give(seat, part); });
}

void AdversarialFleet::deliver_post(InputRoute& route) {
  const auto first = posts_.begin();
  now_ = std::max(now_, first->first.first);
  Post next = std::move(first->second);
  posts_.erase(first);
  switch (next.kind) {
    case Post::Kind::notice:
      next.notice.slots = next.slots;
      give(next.to, Input{now_, next.notice});
      return;
    case Post::Kind::death:
      dead_[next.to] = true;
      posts_[{now_ + config_.detect_ns, ++last_post_}] = {Post::Kind::detection, next.to, {}, {}};
      return;
    case Post::Kind::detection: break;
  }
  route.engine_lost(next.to);
  Notice lost;
  lost.kind = NoticeKind::peer_lost;
  lost.peer = next.to;
  for (std::size_t seat = 0; seat < worlds_.size(); ++seat) give(seat, Input{now_, lost});
  for (Input again; route.sent_again(again);) deliver(again, route);
}

// Of equal times, worlds come first, then notices, then arrivals.
void AdversarialFleet::run(InputSource& source, std::span<InputHandler* const> handlers, InputRoute& route) {
  for (std::size_t seat = 0; seat < worlds_.size(); ++seat) {
    worlds_[seat]->join(*this, static_cast<std::uint32_t>(seat), *handlers[seat]);
  }
  Input arrival;
  bool more = source.next(arrival);
  for (;;) {
    TimeNs due = -1;
    std::size_t seat = 0;
    for (std::size_t i = 0; i < worlds_.size(); ++i) {
      const TimeNs next = dead_[i] ? -1 : worlds_[i]->next_time();
      if (next < 0 || (due >= 0 && next >= due)) continue;
      due = next;
      seat = i;
    }
    const TimeNs arrives = more ? std::max(now_, arrival.now) : -1;
    const TimeNs posted = posts_.empty() ? -1 : std::max(now_, posts_.begin()->first.first);
    if (due >= 0 && (posted < 0 || due <= posted) && (arrives < 0 || due <= arrives)) {
      now_ = due;
      worlds_[seat]->step();
    } else if (posted >= 0 && (arrives < 0 || posted <= arrives)) {
      deliver_post(route);
    } else if (more) {
      now_ = arrival.now = arrives;
      deliver(arrival, route);
      more = source.next(arrival);
    } else {
      return;
    }
  }
}

}  // namespace kvtwin
