"""Rounds are interleaved, and one who answers wrongly is left out or ends the bench."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import cast

import pytest

from bench.speed import __main__ as command
from bench.speed import processes, site
from bench.speed.limits import LIMITS
from bench.speed.load import Figures, Order
from bench.speed.measure import Failed, Load, rounds
from bench.speed.peers import STARTS
from bench.speed.running import Running
from bench.speed.shapes import SHAPES, Sample
from demo.processes import Group
from demo.site import Site
from iop_edge.config.load import SecretFile, SourceFile, Sources, load


class Driver:
    """Answers every order, but for contenders (by port) that go wrong from some order on."""

    def __init__(self, wrong: dict[int, int] | None = None) -> None:
        self.asked: list[int] = []
        self._wrong = wrong or {}

    def run(self, order: Order) -> Figures:
        self.asked.append(order.port)
        if self.asked.count(order.port) >= self._wrong.get(order.port, 10**9):
            raise Failed("status 500")
        return Figures(requests=4, cpu_s={"edge": 0.001, "node": 0.003}, p50_ms=1, p99_ms=2)


PORTS = {"direct": 1, "iop": 2, "nginx": 3}


def run(driver: Driver, absent: dict[str, str], repeats: int = 3) -> list[Sample]:
    return rounds(
        {name: Running(port) for name, port in PORTS.items()},
        absent,
        cast("Load", driver),
        shapes=["plain1", "paced64"],
        repeats=repeats,
        seconds=0.0,
        say=lambda _: None,
    )


def test_every_round_puts_every_shape_to_everybody_and_begins_with_another_one() -> None:
    driver = Driver()
    samples = run(driver, {})
    assert driver.asked == [1, 2, 3, 1, 2, 3, 2, 3, 1, 2, 3, 1, 3, 1, 2, 3, 1, 2]
    assert {(one.contender, one.shape, one.round) for one in samples} == {
        (name, shape, number)
        for name in PORTS
        for shape in ("plain1", "paced64")
        for number in range(3)
    }


def test_the_cost_of_a_request_is_that_of_all_processes_and_of_each() -> None:
    sample = run(Driver(), {}, repeats=1)[0]
    assert sample.cpu_us == pytest.approx(1000)
    assert sample.parts_us == pytest.approx({"edge": 250, "node": 750})


def test_a_peer_that_answers_wrongly_is_left_out_with_all_it_had() -> None:
    absent: dict[str, str] = {}
    samples = run(Driver(wrong={PORTS["nginx"]: 3}), absent)
    assert {one.contender for one in samples} == {"direct", "iop"}
    assert len(samples) == 2 * 2 * 3
    assert absent == {"nginx": "nginx, plain at 1: status 500"}


def test_a_wrong_answer_of_ours_ends_the_bench() -> None:
    with pytest.raises(Failed, match="iop, paced at 64: status 500"):
        run(Driver(wrong={PORTS["iop"]: 2}), {})


def test_the_config_is_one_that_an_edge_takes_and_says_no_more_than_it_must(tmp_path: Path) -> None:
    document = site.config(Site(Group(tmp_path)), 8000, providers=3, pending=5)
    file = SourceFile("edge.yaml", json.dumps(document).encode())

    def read_secret(path: str) -> SecretFile:
        raise AssertionError(path)

    loaded = load(
        Sources(files=(file,), environment={}, read_secret=read_secret, fingerprint_key=b"bench")
    )
    assert loaded.warnings == ()
    assert {"logging", "metrics", "usage"} & document.keys() == {"metrics", "usage"}
    assert document["metrics"].keys() == {"listen"}


def test_a_family_is_a_process_with_its_own_and_has_used_cpu_and_memory() -> None:
    family = processes.family(os.getpid())
    assert family[0] == os.getpid()
    assert processes.cpu_s(family[:1]) > 0
    resident, peak = processes.resident_mib(family[:1]), processes.peak_mib(family[:1])
    assert processes.pss_mib(family[:1]) > 0
    assert 0 < resident <= peak


def test_cpu_is_counted_in_steps_finer_than_a_tick() -> None:
    before = processes.cpu_s([os.getpid()])
    sum(range(10_000))
    assert processes.cpu_s([os.getpid()]) - before > 0


@pytest.mark.parametrize(
    ("arguments", "only", "shapes", "limits"),
    [
        ([], STARTS, SHAPES, LIMITS),
        (["--quick"], STARTS, SHAPES, LIMITS),
        (["--only", "iop,floor"], ["iop", "floor"], SHAPES, []),
        (["--shapes", "plain16"], STARTS, ["plain16"], []),
        (["--limits", "slow-reader"], [], [], ["slow-reader"]),
        (["--only", "iop", "--limits", "slow-reader"], ["iop"], [], ["slow-reader"]),
    ],
)
def test_what_is_asked_for_is_measured_and_nothing_else(
    arguments: list[str], only: list[str], shapes: list[str], limits: list[str]
) -> None:
    options = command.options_of(arguments)
    assert options.only == list(only)
    assert options.shapes == list(shapes)
    assert options.limits == list(limits)


def test_a_name_that_nobody_has_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        command.options_of(["--only", "ngnix"])
    told = capsys.readouterr().err
    assert "'ngnix' is none of iop, floor, floor-own, nginx" in told
