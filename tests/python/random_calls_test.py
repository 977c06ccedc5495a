"""Random calls of Store, Policy and CallJournal of the installed package, against models made of a dict. Run by
tools/python-package. The seeds are fixed.

    random_calls_test.py [unittest arguments]
"""

import json
import random
import subprocess
import tempfile
import unittest
from array import array
from pathlib import Path

import kvtwin
from kvtwin import policy, program
from kvtwin.policy import DEVICE, KEY_BYTES, ROOT

SEEDS = range(1, 6)
FORM = kvtwin.PageForm(layers=1, planes=2, heads=1, head_bytes=64, page_tokens=4)
IDENTITY = kvtwin.Identity(model="m", kv_dtype="bfloat16", revision="1")
OK = int(kvtwin.PageStatus.OK)
PAGE_TOKENS = 4


class RandomStores(unittest.TestCase):
    """Model: the bytes of each stored page, by key. A key that is stored again keeps its first bytes."""

    def calls(self, kind, seed, steps, **options):
        """Yields (store, stored) after each call, and opens the store anew now and then."""
        draw = random.Random(seed)
        keys = [draw.randbytes(KEY_BYTES) for _ in range(40)]
        stored = {}
        with tempfile.TemporaryDirectory() as folder:
            left = steps
            while left > 0:
                with kvtwin.Store(kind, folder, FORM, IDENTITY, **options) as store:
                    for _ in range(draw.randint(1, 60)):
                        left -= 1
                        some = draw.sample(keys, draw.randint(1, 8))
                        call = draw.choice(("put", "put", "get", "get", "look_up", "remove"))
                        if call == "put":
                            pages = [draw.randbytes(store.page_bytes) for _ in some]
                            self.assertEqual(store.put_pages(some, pages).tolist(), [OK] * len(some))
                            for key, page in zip(some, pages):
                                stored.setdefault(key, []).append(page)
                        elif call == "remove":
                            self.assertEqual(store.remove(some).tolist(), [OK] * len(some))
                            for key in some:
                                stored.pop(key, None)
                        yield store, stored, call, some

    def test_every_page_comes_back(self):
        for kind in ("disk", "shared_fs"):
            for seed in SEEDS:
                with self.subTest(kind=kind, seed=seed):
                    for store, stored, call, some in self.calls(kind, seed, 250, capacity_pages=1000):
                        if call == "get":
                            for key, page in zip(some, store.get_pages(some)):
                                self.assertEqual(page is not None, key in stored)
                                self.assertTrue(page is None or page.tobytes() == stored[key][0])
                        elif call == "look_up":
                            leading = next((i for i, key in enumerate(some) if key not in stored), len(some))
                            self.assertEqual(store.look_up(some), leading)

    def test_a_full_store_gives_right_bytes_or_none(self):
        for kind in ("disk", "shared_fs"):
            for seed in SEEDS:
                with self.subTest(kind=kind, seed=seed):
                    found = 0
                    for store, stored, call, some in self.calls(kind, seed, 250, capacity_pages=12):
                        if call == "get":
                            for key, page in zip(some, store.get_pages(some)):
                                found += page is not None
                                self.assertTrue(page is None or page.tobytes() in stored.get(key, []))
                    self.assertGreater(found, 0)


class Tree:
    """Model of a Policy with whole paths: the pages of each node by its number, its parent and its leases."""

    def __init__(self):
        self.pages, self.parent, self.leases = {ROOT: []}, {}, {ROOT: 0}

    def path(self, node):
        """The nodes from `node` up to the root, without the root."""
        while node != ROOT:
            yield node
            node = self.parent[node]

    def children(self, node):
        return [child for child, parent in self.parent.items() if parent == node]

    def find(self, keys):
        """Returns the last node of the longest prefix, the pages of it that match, and the pages of the prefix."""
        node, at, inside = ROOT, 0, 0
        while True:
            following = [child for child in self.children(node) if self.pages[child][:1] == keys[at : at + 1]]
            if not following:
                return node, inside, at
            node, inside = following[0], 0
            for page in self.pages[node]:
                if keys[at : at + 1] != [page]:
                    return node, inside, at
                inside, at = inside + 1, at + 1

    def split(self, node, pages, upper):
        self.pages[upper], self.pages[node] = self.pages[node][:pages], self.pages[node][pages:]
        self.parent[upper], self.parent[node] = self.parent[node], upper
        self.leases[upper] = self.leases[node]

    def evict(self, node, pages):
        del self.pages[node][len(self.pages[node]) - pages :]
        if not self.pages[node]:
            del self.pages[node], self.parent[node], self.leases[node]

    def is_on_offer(self, node):
        return node != ROOT and not self.children(node) and self.leases[node] == 0

    def total(self):
        return sum(map(len, self.pages.values()))


def split_keys(keys):
    return [keys[at : at + KEY_BYTES] for at in range(0, len(keys), KEY_BYTES)]


class RandomPolicies(unittest.TestCase):
    def play(self, name, seed, journal, steps=300):
        """Makes random calls like an engine with a device tier of 30 pages, and compares every answer with the model."""
        draw = random.Random(f"{name} {seed}")
        whole = draw.random() < 0.5
        tree, leased = Tree(), []
        of = policy.Policy(name, 30, page_tokens=PAGE_TOKENS, whole_nodes=whole, journal=journal)
        victims = calls = 0
        for step in range(steps):
            tokens = [draw.randrange(2) for _ in range(draw.randint(1, 7)) for _ in range(PAGE_TOKENS)]
            # All tokens of a page are equal, so many prompts share pages.
            tokens = [tokens[at - at % PAGE_TOKENS] for at in range(len(tokens))]
            keys = policy.page_keys(array("q", tokens), PAGE_TOKENS)
            pages = split_keys(keys)
            node, inside, matched = tree.find(pages)
            end, device, host = of.match(keys)
            self.assertEqual((device, host), (matched, 0))
            if inside not in (0, len(tree.pages[node])):
                self.assertNotIn(end, tree.pages)
                tree.split(node, inside, end)
            else:
                self.assertEqual(end, node if inside else tree.parent.get(node, ROOT) if node != ROOT else ROOT)
            of.visit(step, step * 1000, len(tokens), keys)
            of.touch(end, draw.choice((policy.RECENCY, policy.ACCESS)))
            of.lease(end, DEVICE)
            for part in tree.path(end):
                tree.leases[part] += 1
            leased.append(end)
            calls += 4
            new = pages[matched:]
            while tree.total() + len(new) > 30:
                victim = of.victim(DEVICE)
                calls += 1
                on_offer = [one for one in tree.pages if tree.is_on_offer(one)]
                self.assertEqual(victim is None, not on_offer)
                if victim is None:
                    break
                victims += 1
                self.assertIn(victim, on_offer)
                size = len(tree.pages[victim])
                pages_out = size if whole else draw.randint(1, size)
                of.evict(victim, DEVICE, pages_out)
                calls += 1
                tree.evict(victim, pages_out)
            if new and tree.total() + len(new) <= 30:
                below = of.insert(end, b"".join(new))
                calls += 1
                self.assertNotIn(below, tree.pages)
                tree.pages[below], tree.parent[below], tree.leases[below] = list(new), end, 0
            while leased and draw.random() < 0.55:
                self.release(of, tree, leased.pop(draw.randrange(len(leased))))
                calls += 1
            stats = of.stats()
            self.assertEqual((stats["device_pages"], stats["nodes"]), (tree.total(), len(tree.pages) - 1))
            self.assertEqual((stats["victims"], stats["failed_calls"]), (victims, 0))
            of.check()
        for end in leased:
            self.release(of, tree, end)
        self.assertEqual(of.stats()["evictable_device_pages"], tree.total())
        self.assertGreater(victims, 20)
        return victims

    def release(self, of, tree, end):
        of.release(end, DEVICE)
        for part in tree.path(end):
            tree.leases[part] -= 1

    def test_every_policy_keeps_the_tree_of_the_model(self):
        for name in policy.names():
            for seed in SEEDS:
                with self.subTest(policy=name, seed=seed):
                    self.play(name, seed, None)

    def test_a_journal_of_the_calls_replays_equal(self):
        for name in policy.names():
            with self.subTest(policy=name), tempfile.TemporaryDirectory() as folder:
                draw = random.Random(name)
                file = Path(folder) / "calls.kvj"
                journal = policy.CallJournal(str(file), "random calls")
                storage = draw.randint(1, 50)
                for _ in range(storage):
                    verb = draw.choice((policy.GET, policy.PUT, policy.LOOK_UP))
                    pages = draw.randint(1, 100)
                    journal.storage_call(verb, pages, draw.randint(0, pages), pages * 512, draw.randint(0, 10**9))
                victims = self.play(name, 9, journal)
                journal.flush()
                journal.close()
                done = subprocess.run([program.path(), "replay", file, "--json"], capture_output=True, text=True, check=True)
                replay = json.loads(done.stdout)
                self.assertEqual((replay["verdict"], replay["host"], replay["eviction"]), ("equal", "random calls", name))
                counts = replay["storage_calls"], replay["victims"], replay["equal_victims"]
                self.assertEqual(counts, (storage, victims, victims))


if __name__ == "__main__":
    unittest.main()
