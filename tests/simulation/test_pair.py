"""The whole pair over many seeds. `IOP_PAIR_SEEDS` sets how many, `IOP_PAIR_FROM` the first."""

import os

import pytest

from tests.simulation.pair import simulate

FIRST = int(os.environ.get("IOP_PAIR_FROM", "0"))
SEEDS = int(os.environ.get("IOP_PAIR_SEEDS", "100"))


@pytest.mark.req("POOL-6", "POOL-13", "NODE-6", "NODE-7", "NODE-9", "OAI-7", "REF-9")
def test_whatever_links_nodes_and_callers_do_each_caller_has_one_outcome_and_nothing_is_left():
    seen = set()
    for seed in range(FIRST, FIRST + SEEDS):
        seen |= {line.split()[2] for line in simulate(seed) if line.split()[1].startswith("r")}
    assert seen >= {"whole", "node_lost", "hung", "upstream_closed", "no_provider", "queue_timeout"}


@pytest.mark.parametrize("seed", range(3))
def test_the_same_seed_makes_the_same_day(seed: int):
    first = simulate(seed)
    assert len(first) > 50
    assert simulate(seed) == first
