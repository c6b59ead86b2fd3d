"""The machine surface: /api/v1, /healthz, /readyz, /metrics."""
