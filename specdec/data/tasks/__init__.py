"""Tasks of seqio: texts with references and metrics. Needs the extra `seqio`, but for `local`."""
