"""Pool and dispatcher together, over many seeds. `IOP_SIMULATION_SEEDS` sets how many."""

import os

import pytest

from tests.simulation.dispatch import simulate

SEEDS = int(os.environ.get("IOP_SIMULATION_SEEDS", "200"))


@pytest.mark.req("POOL-1", "POOL-2", "POOL-5", "POOL-6", "POOL-7", "POOL-13")
def test_every_slot_comes_back_and_every_decision_is_the_references():
    for seed in range(SEEDS):
        simulate(seed)


@pytest.mark.req("POOL-5")
@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_makes_the_same_decisions_at_the_same_times(seed: int):
    first = simulate(seed)
    assert len(first) > 20
    assert simulate(seed) == first


def test_over_the_seeds_everything_that_can_happen_does():
    seen = {
        " ".join(line.split()[2:]).split(" p")[0] for seed in range(40) for line in simulate(seed)
    }
    assert seen >= {
        "on",
        "ended",
        "hung up in the queue",
        "hung up while running",
        "queue_full",
        "queue_timeout",
        "no_provider",
        "model_not_found",
        "unsupported_by_model",
        "context_length_exceeded",
    }
