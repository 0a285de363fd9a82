"""Hypothesis profiles of this folder: `long` is run by hand, `quick` with everything else."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "long",
    max_examples=2500,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
