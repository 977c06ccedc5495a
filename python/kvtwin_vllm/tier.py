"""A secondary tier of vLLM's KV offloading on kvtwin's stores: local disk, a shared file system, Redis, or Mooncake.

    --kv-transfer-config '{"kv_connector": "OffloadingConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
      "spec_name": "TieringOffloadingSpec", "cpu_bytes_to_use": 10737418240, "secondary_tiers": [
        {"type": "KvtwinTier", "module_path": "kvtwin_vllm.tier", "path": "/nvme/kvtwin", "capacity_gib": 500}]}}'

Keys of the tier:
    path              folder of the store; its parent must exist. For kinds disk and shared_fs
    kind              "disk" (default), "shared_fs" or "remote"
    url               of kind remote: redis://HOST:PORT or mooncake://HOST:PORT
    capacity_gib      GiB that the store may hold. Required for disk and shared_fs
    namespace         a name that separates this deployment's blocks from those of others in the same store
    revision          of the model's weights. Required if the model is no local folder or cached model of Hugging Face;
                      "fixed" if the weights of this model name never change
    timeout_ms        of kind remote: of one batch of commands (default 1000)
    eviction          of kind disk: the policy by which a full store evicts blocks (default "lru")
    enable_kv_events  report stored blocks as KV events, where vLLM's events are on
    locality          "LOCAL" or "REMOTE", for these events
The environment variable KVTWIN_PAGE_KEY (at least 16 bytes) gives stored blocks a keyed check; KVTWIN_REDIS_PASSWORD is the
password of the Redis server.

A block of vLLM's primary tier (all ranks' KV of one chunk) is one page of the store. It carries a check of its bytes and
of vLLM's run configuration: model, fingerprint of its weights, dtype, tokens a block, parallelism, KV groups. A damaged block, or a block of another
configuration, is a miss. vLLM loads the blocks before it and computes the rest.

Threads: vLLM calls under its lock. Reads and writes run in one thread each of the store, which never waits for Python: vLLM's
scheduler keeps Python busy, and a thread of Python would wait for it several times in each transfer. Look-ups of kind disk are
answered from memory; those of other kinds run in vLLM's own look-up thread.
"""

import ctypes
import hashlib
import json
import logging

import numpy as np
from kvtwin import engine_store
from kvtwin.errors import InputError
from kvtwin.store import Identity, LookUpError, PageForm, PageStatus, Store
from vllm.v1.kv_offload.base import Locality, LookupResult, Medium, OffloadingEvent
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.async_lookup import AsyncLookupManager
from vllm.v1.kv_offload.tiering.base import JobResult, RequestOffloadingContext, SecondaryTierManager

logger = logging.getLogger(__name__)


def store_keys(keys):
    """vLLM's keys (block hash and KV group) as an array of uint8, [keys, 32]."""
    digests = b"".join(hashlib.sha256(bytes(key)).digest() for key in keys)
    return np.frombuffer(digests, np.uint8).reshape(-1, 32)


def present(store, names):
    """The number of leading blocks that are certainly there."""
    try:
        return store.look_up(names)
    except LookUpError as error:
        return error.pages


def open_store(block_bytes, fields, options):
    """`fields`: vLLM's run configuration, which decides what the bytes of a block mean."""
    identity = Identity(model=fields["model_name"] or "unnamed", kv_dtype=fields["dtype"],
                        revision=engine_store.revision(options, (fields["model_name"],)),
                        name_space=json.dumps(fields | {"namespace": engine_store.text(options, "namespace")}, sort_keys=True))
    form = PageForm(layers=1, planes=1, heads=1, head_bytes=block_bytes, page_tokens=1, layout="page_first")
    return Store(form=form, identity=identity, **engine_store.place(options, block_bytes))


class LookUps(AsyncLookupManager):
    """Look-ups that wait for a file system or a server."""

    def __init__(self, store, tier_type):
        self.store = store
        super().__init__(tier_type=tier_type)

    def batch_lookup(self, keys, req_context):
        names, found, at = store_keys(keys), [], 0
        while at < len(keys):
            run = present(self.store, names[at:])
            found += [True] * run
            at += run
            if at < len(keys):
                found.append(False)
                at += 1
        return found


class KvtwinTier(SecondaryTierManager):
    medium = Medium.STORAGE

    def __init__(self, offloading_spec, primary_kv_view, tier_type, enable_kv_events=False, locality=None,
                 backpressure_detector=None, **options):
        super().__init__(offloading_spec, primary_kv_view, tier_type, backpressure_detector)
        unknown = sorted(set(options) - set(engine_store.OPTIONS))
        if unknown:
            raise InputError(f"kvtwin: unknown key {', '.join(unknown)}; the keys are {', '.join(engine_store.OPTIONS)}, "
                             "enable_kv_events and locality")
        self.locality = Locality(locality) if locality is not None else None
        fields = FileMapper.from_offloading_spec(
            root_dir="", offloading_spec=offloading_spec, blocks_per_file=offloading_spec.blocks_per_chunk,
            parallel_agnostic=True).get_run_config()
        # The order of the bytes in a block, which vLLM's own files leave out. The backend of the attention decides it.
        if offloading_spec.config.kv_cache_layout is not None:
            fields["kv_cache_layout"] = offloading_spec.config.kv_cache_layout
        self.store = open_store(self.block_size_bytes, fields, options)
        self._full_log = engine_store.FullStoreLog(tier_type, logger)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(primary_kv_view.cast("B")))
        self._look_ups = None if options.get("kind", "disk") == "disk" else LookUps(self.store, tier_type)
        self._jobs = {}  # by number, of those whose results vLLM does not have: verb and keys
        self._events = [] if enable_kv_events and offloading_spec.kv_events_config.enable_kv_cache_events else None

    # ---- look-ups

    def on_new_request(self, req_context):
        return RequestOffloadingContext()

    def lookup(self, key, req_context):
        if self._look_ups is None:
            found = present(self.store, store_keys([key])) == 1
        else:
            found = self._look_ups.lookup(key, req_context)
        return LookupResult.RETRY if found is None else LookupResult.HIT if found else LookupResult.MISS

    def on_schedule_end(self, context):
        if self._look_ups is not None:
            self._look_ups.flush()

    def on_request_finished(self, req_context):
        if self._look_ups is not None:
            self._look_ups.cleanup(req_context.req_id)

    # ---- transfers

    def submit_store(self, job_metadata):
        self._submit("put", job_metadata)

    def submit_load(self, job_metadata):
        self._submit("get", job_metadata)

    def _submit(self, verb, job):
        keys = list(job.keys)
        addresses = np.asarray(job.chunk_ids, np.uint64) * np.uint64(self.block_size_bytes) + np.uint64(self._address)
        start = self.store.start_put if verb == "put" else self.store.start_get
        start(job.job_id, store_keys(keys), addresses, self.block_size_bytes)
        self._jobs[job.job_id] = verb, keys

    def get_finished_jobs(self):
        results = []
        for job_id, statuses, seconds in self.store.ended():
            verb, keys = self._jobs.pop(job_id)
            if statuses is None:  # no memory, say: the job fails, and vLLM computes its blocks
                statuses = np.full(len(keys), PageStatus.NO_MEMORY, np.uint8)
            elif verb == "put":
                self._full_log.after_put(self.store, statuses, may_wait=not self._jobs)
            done = [key for key, status in zip(keys, statuses) if status == PageStatus.OK]
            if verb == "put" and done and self._events is not None:
                self._events.append(OffloadingEvent(keys=done, medium=self.medium, removed=False, locality=self.locality))
            if verb == "get" and self._look_ups is not None and len(done) < len(keys):
                self._look_ups.mark_miss([key for key, status in zip(keys, statuses) if status != PageStatus.OK])
            partial = tuple(done) if verb == "get" and 0 < len(done) < len(keys) else None
            results.append(JobResult(job_id=job_id, success=len(done) == len(keys), successful_keys=partial,
                                     transfer_time=seconds, transfer_bytes=len(done) * self.block_size_bytes))
        return results

    def has_pending_work(self):
        return bool(self._jobs)

    def drain_jobs(self):
        """Blocks until all submitted jobs have ended. Their results stay for get_finished_jobs."""
        self.store.wait()

    # ---- events, end

    def take_events(self):
        if self._events:
            yield from self._events
            self._events.clear()

    def counters(self):
        """The counters of the store (kvtwin.Store.stats): why blocks were not stored or not read."""
        return self.store.stats()

    def shutdown(self):
        if self._look_ups is not None:
            self._look_ups.shutdown()
        self.store.wait()
        self.store.close()
