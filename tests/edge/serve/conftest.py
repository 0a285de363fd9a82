"""The rig of this room: a listener on a free port."""

from collections.abc import AsyncIterator

import pytest

from tests.edge.serve.rig import Rig


@pytest.fixture
async def rig() -> AsyncIterator[Rig]:
    rig = Rig()
    yield rig
    await rig.close()
