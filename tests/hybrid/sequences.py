"""Sequences of requests for hybrid caches: the same seed makes the same sequence on every machine.

A sequence is a list of operations, as hybrid_server.hpp reads them: `start` of a request with a prompt, and `finish` with an
answer. A prompt is a list of segments [number, tokens]. Token j of segment s is s * 65,536 + j, so two prompts share the
tokens of their first segments as far as numbers and lengths are equal.
"""

import itertools
import random
from array import array

ANSWERS = (1, 2, 17, 60, 130, 300)  # tokens


def tokens_of(segments):
    tokens = array("q")
    for segment, count in segments:
        tokens.extend(range(segment * 65536, segment * 65536 + count))
    return tokens


def length(prompt):
    return sum(count for _, count in prompt)


def with_answer(prompt, answer):
    """The prompt and the tokens of the answer that a next turn repeats: all but the last one."""
    return [*prompt, [answer[0], answer[1] - 1]] if answer[1] > 1 else list(prompt)


def cut(prompt, tokens):
    """The first `tokens` tokens of the prompt."""
    kept = []
    for segment, count in prompt:
        if tokens <= 0:
            break
        kept.append([segment, min(count, tokens)])
        tokens -= count
    return kept


class Chats:
    """Conversations that share four system prompts, or a part of one: turns, branches from an earlier turn, repeated prompts,
    and single requests."""

    def __init__(self, rnd, fresh, page, longest):
        self.rnd, self.fresh = rnd, fresh
        self.longest_text = min(900, longest // 2)
        longest_system = max(2 * page + 1, min(600, longest // 3))
        self.systems = [[next(fresh), rnd.randrange(2 * page, longest_system)] for _ in range(4)]
        self.turns, self.asked = [], []  # a conversation: its prompts with answers

    def prompt(self):
        """Returns the conversation, a list that answered() extends, and the next prompt."""
        rnd, kind = self.rnd, self.rnd.random()
        if self.turns and kind < 0.55:
            turns = rnd.choice(self.turns)
            prompt, answer = turns[-1] if rnd.random() < 0.8 else rnd.choice(turns)
            return turns, [*with_answer(prompt, answer), [next(self.fresh), rnd.randrange(5, 250)]]
        if self.asked and kind < 0.65:
            return [], list(rnd.choice(self.asked[-4:]))
        if kind < 0.68:
            return [], [[next(self.fresh), rnd.randrange(1, 8)]]
        system, tokens = rnd.choice(self.systems)
        shared = tokens if rnd.random() < 0.8 else rnd.randrange(1, tokens)
        return [], [[system, shared], [next(self.fresh), rnd.randrange(5, self.longest_text)]]

    def started(self, prompt):
        self.asked.append(prompt)

    def answered(self, turns, prompt, answer):
        if not turns:
            self.turns.append(turns)
        turns.append((prompt, answer))


class Agents:
    """Tasks of agents that share two descriptions of tools. A task is a long context that grows with each call of a tool. It
    forks into workers that start together, goes back to an earlier step, repeats a step, and is compacted: the
    description of the tools and a summary replace a context that is too long."""

    def __init__(self, rnd, fresh, page, longest):
        self.rnd, self.fresh, self.longest = rnd, fresh, longest
        self.tools = [[next(fresh), rnd.randrange(longest // 10, longest // 4)] for _ in range(2)]
        self.tasks, self.forks = [], []

    def prompt(self):
        """Returns the task, and the prompt of its next step."""
        rnd = self.rnd
        if self.forks:
            return self.forks.pop()
        open_tasks = [task for task in self.tasks if task["steps"]]
        if not open_tasks or rnd.random() < 0.15:
            task = {"tools": rnd.choice(self.tools), "steps": []}
            self.tasks.append(task)
            return task, [task["tools"], self._text(20, 300)]
        task, kind = rnd.choice(open_tasks[-4:]), rnd.random()
        context = task["steps"][-1]
        if kind < 0.1:
            context = rnd.choice(task["steps"])
        elif kind < 0.2:
            return task, list(task["last_prompt"])
        elif kind < 0.3:
            context = cut(context, rnd.randrange(task["tools"][1], length(context) + 1))
        if length(context) > self.longest * 3 // 4:
            return task, [task["tools"], self._text(50, 300)]
        if kind > 0.8:
            self.forks = [(task, [*context, self._text(10, 120)]) for _ in range(rnd.randrange(1, 3))]
        return task, [*context, self._text(20, 400)]

    def _text(self, least, most):
        return [next(self.fresh), self.rnd.randrange(least, max(least + 1, min(most, self.longest // 4)))]

    def started(self, prompt):
        pass

    def answered(self, task, prompt, answer):
        task["last_prompt"] = prompt
        task["steps"].append(with_answer(prompt, answer))


TRAFFIC = {"chats": Chats, "agents": Agents}


def rounded(segments, unit):
    return [[number, -(-count // unit) * unit] for number, count in segments]


def with_whole_units(operation, unit):
    """The operation with segments, and tokens that an answer leaves, of whole units: so prompts are equal up to a multiple
    of `unit` tokens."""
    if operation["op"] == "start":
        return {**operation, "prompt": rounded(operation["prompt"], unit)}
    number, count = operation["answer"]
    return {**operation, "answer": [number, rounded([[number, count - 1]], unit)[0][1] + 1]}


def with_sessions(lines, subjects, seed):
    """Gives most requests the session of their conversation or task, a few that of another one or none, and closes sessions, at
    times while their requests run or before further ones."""
    rnd, numbers, made = random.Random(f"sessions {seed}"), {}, []
    for line in lines:
        if line["op"] == "start":
            own = numbers.setdefault(id(subjects[line["id"]]), len(numbers) + 1)
            kind = rnd.random()
            if kind < 0.9:
                line["session"] = own if kind < 0.8 else rnd.randrange(1, len(numbers) + 1)
        made.append(line)
        if numbers and rnd.random() < 0.1:
            made.append({"op": "close", "session": rnd.randrange(max(1, len(numbers) - 5), len(numbers) + 1)})
    return made


def sequence(traffic, seed, operations, page, running=3, longest=3000, unit=1, sessions=False):
    """The operations, an even number of them, and closes of sessions. At most `running` requests run at a time; no prompt is
    longer than `longest` tokens, at least 200, before it has whole units."""
    rnd, fresh = random.Random(seed), itertools.count(1)
    source = TRAFFIC[traffic](rnd, fresh, page, longest)
    active, lines, ids, subjects = [], [], itertools.count(), []
    while len(lines) + len(active) < operations:
        if active and (len(active) >= running or rnd.random() < 0.35):
            lines.append(finish(active, source, rnd, fresh))
            continue
        about, prompt = source.prompt()
        if length(prompt) > longest:
            continue
        lines.append({"op": "start", "id": next(ids), "prompt": prompt})
        source.started(prompt)
        subjects.append(about)
        active.append((lines[-1]["id"], about, prompt))
    while active:
        lines.append(finish(active, source, rnd, fresh))
    lines = [with_whole_units(line, unit) for line in lines]
    return with_sessions(lines, subjects, seed) if sessions else lines


def finish(active, source, rnd, fresh):
    """Ends the request that runs longest, or another one."""
    rid, about, prompt = active.pop(0 if rnd.random() < 0.7 else rnd.randrange(len(active)))
    answer = [next(fresh), rnd.choice(ANSWERS)]
    source.answered(about, prompt, answer)
    return {"op": "finish", "id": rid, "answer": answer}
