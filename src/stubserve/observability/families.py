"""The server's own families of metrics: their kinds and help texts.

A family is a line and the indented lines after it. Those named `nv_` are upstream's, with its texts. Those named
`vllm:` have the names and meanings of vLLM's, because gateways and dashboards for language models look for these.
"""

from __future__ import annotations

import re

_TABLE = """
counter nv_inference_request_success: Number of successful inference requests, all batch sizes
counter nv_inference_request_failure: Number of failed inference requests, all batch sizes
counter stubserve_response_errors_total: Answers that are errors, by code, whatever the protocol: errors with which the
    model answers, which are successes for the counters above, and those with which the server answers for it
counter nv_inference_count: Number of inferences performed (does not include cached requests)
counter nv_inference_exec_count: Number of model executions performed (does not include cached requests)
counter nv_inference_request_duration_us: Cumulative inference request duration in microseconds (includes cached
    requests)
counter nv_inference_queue_duration_us: Cumulative inference queuing duration in microseconds (includes cached requests)
counter nv_inference_compute_input_duration_us: Cumulative compute input duration in microseconds (does not include
    cached requests)
counter nv_inference_compute_infer_duration_us: Cumulative compute inference duration in microseconds (does not include
    cached requests)
counter nv_inference_compute_output_duration_us: Cumulative inference compute output duration in microseconds (does not
    include cached requests)
counter nv_cache_num_hits_per_model: Number of cache hits per model
counter nv_cache_num_misses_per_model: Number of cache misses per model
counter nv_cache_hit_duration_per_model: Total cache hit duration per model, in microseconds
counter nv_cache_miss_duration_per_model: Total cache miss (insert+lookup) duration per model, in microseconds
gauge nv_inference_pending_request_count: Instantaneous number of pending requests awaiting execution per-model.
gauge nv_model_load_duration_secs: Model load time in seconds
histogram nv_inference_first_response_histogram_ms: Duration from request to first response in milliseconds
summary nv_inference_request_summary_us: Summary of inference request duration in microseconds (includes cached
    requests)
summary nv_inference_queue_summary_us: Summary of inference queuing duration in microseconds (includes cached requests)
summary nv_inference_compute_input_summary_us: Cumulative compute input duration in microseconds (does not include
    cached requests)
summary nv_inference_compute_infer_summary_us: Cumulative compute inference duration in microseconds (does not include
    cached requests)
summary nv_inference_compute_output_summary_us: Cumulative inference compute output duration in microseconds (does not
    include cached requests)
summary nv_cache_hit_summary_per_model: Summary of cache hit counts/durations per model, in microseconds.
summary nv_cache_miss_summary_per_model: Summary of cache miss counts/durations per model, in microseconds.
gauge nv_cache_util: Cache utilization [0.0 - 1.0]
gauge nv_cache_num_entries: Number of responses stored in response cache
gauge nv_cache_num_hits: Number of cache hits in response cache
gauge nv_cache_num_misses: Number of cache misses in response cache
gauge nv_cache_num_lookups: Number of cache lookups in response cache
gauge nv_cache_num_evictions: Number of cache evictions in response cache
gauge nv_pinned_memory_pool_total_bytes: Pinned memory pool total memory size, in bytes
gauge nv_pinned_memory_pool_used_bytes: Pinned memory pool used memory size, in bytes
gauge nv_gpu_utilization: GPU utilization rate [0.0 - 1.0)
gauge nv_gpu_memory_total_bytes: GPU total memory, in bytes
gauge nv_gpu_memory_used_bytes: GPU used memory, in bytes
gauge nv_gpu_power_usage: GPU power usage in watts
gauge nv_gpu_power_limit: GPU power management limit in watts
counter nv_energy_consumption: GPU energy consumption in joules since the server started
gauge nv_cpu_utilization: CPU utilization rate [0.0 - 1.0]
gauge nv_cpu_memory_total_bytes: CPU total memory (RAM), in bytes
gauge nv_cpu_memory_used_bytes: CPU used memory (RAM), in bytes
histogram stubserve_batch_size: Sizes of the batches that were executed
gauge stubserve_instance_ready: Whether an instance takes requests (1) or not (0); one that sleeps does
gauge stubserve_instance_failed: Whether an instance has died too often and is not restarted (1) or not (0)
gauge stubserve_instance_batch_limit: Rows that a batch of an instance may have; 1 where requests are executed alone
gauge stubserve_instance_memory_bytes: Memory of an instance's stub that is its own, without libraries that are shared
    and without tensors
gauge stubserve_instance_arena_bytes: Shared memory that is committed for an instance's outputs
gauge stubserve_instance_batches: Batches that an instance's stub has, executing or next in line
gauge stubserve_instance_requests: Requests that an instance's stub has, those included that it answers later
gauge stubserve_instance_executing_seconds: How long an instance has been executing the batch that it executes now
counter stubserve_instance_restarts_total: How often an instance's stub was started again after it had died
counter vllm:prompt_tokens_total: Tokens of prompts, as the model tells them to OpenAI's routes (--openai)
counter vllm:generation_tokens_total: Tokens of answers, as the model tells them to OpenAI's routes
counter vllm:prefix_cache_queries_total: Tokens of prompts whose model tells how many of them it had computed before
counter vllm:prefix_cache_hits_total: Tokens of prompts that the model had computed before
gauge vllm:num_requests_running: Requests that a model's instances have, of a model that OpenAI's routes can serve
gauge vllm:num_requests_waiting: Requests that wait for an instance
histogram vllm:time_to_first_token_seconds: Time from a request to OpenAI's routes to the first text of its answer
histogram vllm:inter_token_latency_seconds: Time from one piece of an answer to the next
histogram vllm:e2e_request_latency_seconds: Time from a request to the end of its answer
gauge stubserve_arena_limit_bytes: Shared memory that may be committed (--shm-limit)
gauge stubserve_arena_committed_bytes: Shared memory that is committed, by who holds it: requests (tensors of clients),
    heap (texts and bodies, which are counted with it), stubs (outputs of models)
gauge stubserve_memory_pressure: Whether the kernel has told in the last 5 seconds that memory is short (1) or not (0)
counter stubserve_requests_shed_total: Requests to models that were refused because memory was short
    (--shed-on-memory-pressure)
counter stubserve_traces_lost_total: Traces that could not be written, or not fast enough: to their file, or to the
    collector
counter stubserve_log_lines_lost_total: Lines of the log that could not be written, or not fast enough
counter stubserve_token_file_reads_total: How often the file of tokens has changed and was read again
    (--auth-token-file)
counter stubserve_token_file_failures_total: How often it has changed and could not be used, so that the tokens stayed
    as they were
"""

# Name -> (kind, text)
FAMILIES = {
    name: (kind, re.sub(r"\n +", " ", text))
    for kind, name, text in re.findall(r"^(\w+) ([\w:]+): (.*(?:\n +.*)*)$", _TABLE, re.MULTILINE)
}
# Names that models can use only for metrics of the same kind, with these kinds
RESERVED = {name: kind for name, (kind, _) in FAMILIES.items()}
