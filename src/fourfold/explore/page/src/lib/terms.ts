/** The glossary's entry that explains a key of a setup. */

const TERMS: Readonly<Record<string, string>> = {
  "layout.tp": "tensor-parallelism-tp",
  "layout.pp": "pipeline-parallelism-pp",
  "layout.cp": "context-parallelism-cp",
  "layout.cp_method": "context-parallelism-cp",
  "layout.ep": "expert-parallelism-ep",
  "layout.zero": "zero",
  "layout.dp_replicate": "hsdp",
  "layout.dp_shard": "data-parallelism-dp",
  "layout.microbatch_sequences": "microbatch",
  "layout.recompute": "activation-recomputation",
  "layout.schedule": "pipeline-schedule",
  "layout.virtual_stages": "virtual-pipeline-size-vpp",
  "layout.segments_per_stage": "segment",
  "layout.sequence_parallel": "sequence-parallelism-sp",
  "layout.prefetch": "prefetch",
  "batch.global_sequences": "global-batch",
  "precision.master": "master-weights",
  "precision.gradients": "accumulation-dtype",
  "optimizer.name": "optimizer-states",
  "model.top_k": "expert",
  "model.num_kv_heads": "grouped-query-attention-gqa",
  software: "software-profile",
  gemm_dtype: "low-precision-gemm",
  fragmentation: "allocator-fragmentation",
  checkpoint_seconds: "checkpoint",
  failure_hours: "goodput",
};

export const termOf = (key: string): string | undefined => TERMS[key];
